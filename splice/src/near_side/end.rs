//! Requester side: flows that end: given up, ended with their session, replaced or forgotten.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::pairing::FlowKey;
use roce::unheard::Room;

use super::debts::Account;
use super::targets::Waiting;
use super::{NearKey, NearSide};
use crate::context::Context;
use crate::failures::{By, Cause};
use crate::record::{FlowId, Head, Reason};
use crate::retention::Revival;
use crate::session_end::SessionEnd;
use crate::stale_flows::StaleFlow;

/// Flows looked at that failed and may not go yet, for one that a new flow may replace. Where none
/// of them may go the request is dropped, and the next one looks further. No more than these give
/// way at a time, either.
const LOOKS: usize = 16;

impl NearSide {
    /// The peer gave the flow up.
    pub(crate) fn handle_fail(&mut self, id: FlowId, reason: Reason, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_id.get(&id) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if reason == Reason::NoPlace && !flow.near.is_ahead() {
            return self.begin_again(slot, ctx);
        }
        flow.end_in_error(reason.into(), By::Peer, ctx);
        let target = flow.places.target;
        self.touch(slot);
        self.release_target(target, ctx);
    }

    /// There was no place for the far half, and nothing of the flow is known there. Its requester's
    /// next packet begins it again.
    ///
    /// Rule: `docs/protocol.md#rule-no-place`.
    fn begin_again(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get(slot).filter(|flow| !flow.near.is_failed()) else { return };
        if flow.places.unheard.is_some() {
            self.by_id.remove(&flow.id);
            return self.close(slot, ctx);
        }
        let target = flow.places.target;
        self.strand(slot, ctx);
        if let Some(flow) = self.flows.get_mut(slot).filter(|_| ctx.settings.is_member) {
            // Another member may have had the far half, and what the requester was acknowledged.
            flow.revive(Revival::default(), ctx);
        }
        self.release_target(target, ctx);
    }

    pub(super) fn give_up(&mut self, slot: NearKey, reason: Reason, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.end_in_error(reason.into(), By::Us, ctx);
        // Should there be no room even for this, it comes before CLOSE again.
        flow.tell(&Head::Abort { flow: flow.id, reason }, ctx);
        let target = flow.places.target;
        self.touch(slot);
        self.release_target(target, ctx);
    }

    /// Ends a flow because there is no room for what it waits for, or because others need what it
    /// holds.
    pub(crate) fn evict(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.early.clear(&mut self.pages);
            flow.early.deaf = true;
        }
        self.give_up(slot, Reason::NoRoom, ctx);
    }

    /// The session is over: every flow ends in an error, or as it would with a silent target. Its
    /// class and the session's end say which.
    pub(crate) fn fail_all(&mut self, end: SessionEnd, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            self.fail_with_session(slot, end, ctx);
        }
    }

    fn fail_with_session(&mut self, slot: NearKey, end: SessionEnd, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            let class = flow.class_of(flow.demand.judged.into(), ctx.classes);
            if ctx.classes.refuses_by_silence(class, end) {
                ctx.stats.silenced += u64::from(!flow.near.is_failed());
                flow.near.fall_silent(ctx.now);
            } else {
                flow.near.fail(ctx.now);
            }
            if let Some(remembered) = flow.remembered() {
                ctx.stale_flows.remember(remembered, ctx.now + ctx.settings.linger);
            }
            flow.expect(ctx);
            ctx.stats.unrestored += u64::from(flow.take_revival(ctx).is_some());
            ctx.fail(flow.failure((Cause::Session, By::Us), ctx.classes));
            flow.early.clear(&mut self.pages);
            self.by_id.remove(&flow.id);
        }
        self.touch(slot);
    }

    /// The peer's process is another one, which knows no flow. What is on its way is gone, and the
    /// requester has it but for what it was acknowledged in the midst of a message. Its next packet
    /// has a new flow ask the target, which knows where it stands.
    ///
    /// Rule: `docs/protocol.md#rule-reborn`.
    pub(crate) fn strand_all(&mut self, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            self.strand(slot, ctx);
            if let Some(flow) = self.flows.get_mut(slot).filter(|flow| !flow.near.is_failed()) {
                // If an earlier one has not gone on yet, its requester has its whole time again.
                flow.revive(Revival::default(), ctx);
            }
        }
    }

    pub(super) fn strand(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let was_stranded = self.is_stranded(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        self.by_id.remove(&flow.id);
        flow.early.clear(&mut self.pages);
        ctx.senders.expect(0, &mut flow.demand.expected, 0);
        if flow.near.is_failed() {
            if let Some(remembered) = flow.remembered() {
                ctx.stale_flows.remember(remembered, ctx.now + ctx.settings.linger);
            }
            return;
        }
        if !was_stranded {
            // A flow whose target has not spoken knows what the one before had heard.
            let lacking = || flow.near.missing().filter(|_| flow.run.msn > 0).map(|(expected, _)| expected);
            flow.run.acknowledged = flow.near.acknowledged().or_else(lacking).or(flow.run.acknowledged);
        }
        flow.near.strand();
        flow.excuse_wait(ctx.now);
        self.touch(slot);
    }

    /// Returns true if the far half is gone with its process, so that only a new flow gets on.
    pub(super) fn is_stranded(&self, slot: NearKey) -> bool {
        // Each number is a flow's, so as many of both leave none without.
        if self.by_id.len() >= self.flows.len() {
            return false;
        }
        let flow = self.flows.get(slot);
        flow.is_some_and(|flow| !flow.near.is_failed() && self.by_id.get(&flow.id) != Some(slot))
    }

    /// The peer, a process that knows no flow, says of this one that it has ended. Returns false if
    /// there is none.
    pub(crate) fn end_remembered(
        &mut self,
        flow: &StaleFlow,
        end: SessionEnd,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(slot) = self.by_key.get(&flow.key()) else { return false };
        if self.remembers(flow) {
            self.fail_with_session(slot, end, ctx);
        }
        true
    }

    /// The session goes on: flows that wait for an answer have their whole patience again.
    pub(crate) fn go_on(&mut self, ctx: &Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            if !flow.near.is_idle() && !flow.near.is_to_try_again() {
                flow.excuse_wait(ctx.now);
            }
            self.touch(slot);
        }
    }

    /// Leaves out a pause up to now in which nobody looked.
    pub(crate) fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.flows.values_mut().for_each(|flow| flow.excuse_pause(pause, now));
    }

    /// Returns how many flows have something on its way to their target.
    pub(crate) fn waiting(&self) -> usize {
        self.flows.values().filter(|flow| !flow.near.is_idle() && !flow.near.is_failed()).count()
    }

    /// For [`NearSide::evict_failed`].
    pub(super) fn list_failed(&mut self, slot: NearKey) {
        if self.failed.len() > 2 * self.flows.len() {
            let flows = &self.flows;
            self.failed.retain(|failed| flows.contains_key(*failed));
        }
        self.failed.push_back(slot);
    }

    /// Forgets the flow that failed first, for another to have its place. Should its requester
    /// still try, that opens a flow to a target which is in error, or gone, and answers nothing. So
    /// one whose requester is yet to be refused stays, for as long as it would without others.
    pub(super) fn evict_failed(&mut self, ctx: &mut Context<'_>) -> bool {
        let mut looks = 0;
        while looks < LOOKS {
            let Some(slot) = self.failed.pop_front() else { return false };
            let Some(flow) = self.flows.get(slot) else { continue };
            if flow.near.is_untold(ctx.now) {
                self.failed.push_back(slot);
                looks += 1;
                continue;
            }
            ctx.stats.evicted += 1;
            self.close(slot, ctx);
            return true;
        }
        false
    }

    /// Makes room for one more flow of this host, if it is to have one: flows that have failed are
    /// forgotten for it, or else one whose target has never spoken. Should the requester of that
    /// still try, that opens another.
    pub(super) fn make_room(&mut self, host: IpAddr, ctx: &mut Context<'_>) -> bool {
        for _ in 0..LOOKS {
            if self.has_room(host, ctx.settings.flows) || !self.evict_failed(ctx) {
                break;
            }
        }
        match self.unheard.room_for(host, &self.hosts, self.flows.len(), ctx.settings.flows) {
            Room::Free => true,
            Room::InPlaceOf(slot) => {
                ctx.stats.evicted += 1;
                self.close(slot, ctx);
                true
            }
            Room::None => false,
        }
    }

    /// Returns true if one more flow of this host finds a place that is free.
    pub(super) fn has_room(&self, host: IpAddr, most: usize) -> bool {
        self.flows.len() < most && self.hosts.may_join(host, self.flows.len(), most)
    }

    /// The flow may be forgotten for another's sake, as long as its target has not spoken, and if
    /// it has nothing of an earlier process, which its requester may need.
    pub(super) fn enter_unheard(&mut self, slot: NearKey) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if !flow.is_unheard() || !flow.run.is_empty() {
            return;
        }
        flow.places.unheard = Some(self.unheard.enter(flow.addressing.src, slot));
        self.targets.enter_unheard(&flow.places, Waiting { flow: slot, since: flow.last_progress });
    }

    /// One of the flow's queue pairs now belongs to another connection.
    pub(crate) fn supersede(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_key.get(key) {
            ctx.stats.replaced += 1;
            self.close(slot, ctx);
        }
        if let Some(retention) = ctx.retention {
            retention.forget(key);
        }
    }

    /// The flow's connection is being taken down. What is outstanding is still seen to its end.
    pub(crate) fn end(&mut self, key: &FlowKey) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.marks.ending = true;
        }
        self.touch(slot);
    }

    /// Forgets the flow, which has been idle for long or refused its requester for long. Its target
    /// may be amid a message that the requester went back before: the far half knows, and says so.
    pub(super) fn close_idle(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot).filter(|flow| !flow.near.is_dead()) {
            ctx.stats.idle_closed += 1;
            if flow.near.may_be_amid() && !flow.marks.ending {
                flow.tell(&Head::Abort { flow: flow.id, reason: Reason::RequesterGone }, ctx);
            }
        }
        self.close(slot, ctx);
    }

    /// Forgets the flow here and at the peer.
    pub(super) fn close(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let Some(mut flow) = self.flows.remove(slot) else { return };
        flow.take_revival(ctx);
        self.timers.left(self.flows.len());
        self.hosts.leave(flow.addressing.src);
        let waiting = Waiting { flow: slot, since: ctx.now };
        self.targets.count(&mut flow.places, 0, waiting);
        self.unheard.leave(flow.addressing.src, &mut flow.places.unheard);
        if flow.marks.account == Account::Answered {
            self.heard.leave(&flow.key());
        }
        if let Some(retention) = ctx.retention {
            retention.clear(&mut flow.run);
        }
        flow.early.clear(&mut self.pages);
        self.budget.forget(&mut flow, ctx.settings.grouping);
        self.withheld.forget(flow.places.withheld, |key| self.flows.contains_key(key));
        ctx.senders.expect(0, &mut flow.demand.expected, 0);
        self.release_target(flow.places.target, ctx);
        self.targets.leave(&flow.places, slot);
        let key = flow.key();
        if self.by_key.get(&key) == Some(slot) {
            self.by_key.remove(&key);
            ctx.pairings.release(&key, ctx.now);
        }
        if self.by_id.remove(&flow.id).is_some() && flow.requests > 0 {
            if flow.near.is_failed() {
                // The one sent when it failed may not have found room, or its flow.
                flow.tell(&Head::Abort { flow: flow.id, reason: Reason::NoRoom }, ctx);
            }
            flow.tell_closed(ctx);
        }
    }

    /// The peer has heard nothing of the flow for long.
    pub(crate) fn handle_idle(&mut self, id: FlowId, ctx: &mut Context<'_>) {
        if self.by_id.get(&id).is_none() {
            ctx.reply(&Head::Close { flow: id, requests: 0 });
        }
    }
}
