//! Responder side: flows that end: given up, aborted, ended with their session, replaced or
//! forgotten.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::flow::far::Failure;
use roce::pairing::{FlowKey, Span};
use roce::unheard::Room;
use transport::Urgency;

use super::{FarFlow, FarKey, FarSide};
use crate::context::Context;
use crate::failures::Cause;
use crate::record::{FlowId, Head, Reason};
use crate::stale_flows::StaleFlow;

impl FarSide {
    pub(super) fn give_up(&mut self, slot: FarKey, reason: Reason, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        ctx.fail(flow.failure(reason, ctx.classes));
        let head = Head::Fail { flow: flow.id, reason };
        let class = flow.class_of(0, ctx.classes);
        // By the number of an earlier session's flow the peer may know another one.
        if self.by_id.get(&flow.id) == Some(slot) {
            // Without room the near half gives up waiting, in its time.
            let _ = ctx.push(class, Urgency::Prompt, &head, [&[], &[]]);
        }
        self.abort(slot, ctx);
    }

    /// Ends a flow because others need what it holds.
    pub(crate) fn evict(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        if self.flows.get(slot).is_some_and(|flow| flow.asking.unheard.is_some()) {
            return self.forget(slot, ctx);
        }
        self.give_up(slot, Reason::NoRoom, ctx);
    }

    /// The requester's gateway gave the flow up: let the target's program see it, unless it waits
    /// for nothing that a requester which is gone would have sent.
    pub(crate) fn handle_abort(&mut self, id: FlowId, reason: Reason, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_id.get(&id) else { return };
        let Some(flow) = self.flows.get(slot) else { return };
        if reason == Reason::RequesterGone && flow.is_idle() {
            if !flow.far.is_inside() {
                return;
            }
            // The requester's gateway could not know.
            ctx.fail(flow.failure(reason, ctx.classes));
        }
        self.abort(slot, ctx);
    }

    fn abort(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.orphaned = true;
            flow.requests.clear(&mut self.pages);
            flow.waiting = 0;
            flow.far.abort(ctx.now);
            self.touch(slot, ctx);
        }
    }

    /// The flow is over. A target that was only silent may wake up to half a message: its program
    /// is told, too.
    pub(super) fn remove_failed(&mut self, slot: FarKey, failure: Failure, ctx: &mut Context<'_>) {
        match failure {
            Failure::TargetSilent => {
                if let Some(flow) = self.flows.get(slot) {
                    ctx.fail(flow.failure(Reason::TargetDead, ctx.classes));
                }
                self.abort(slot, ctx);
            }
            Failure::Refused(_) | Failure::Aborted | Failure::AbortUnanswered => self.close(slot, ctx),
        }
    }

    /// The session is over: every target's program is to see it.
    pub(crate) fn fail_all(&mut self, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            let Some(flow) = self.flows.get(slot) else { continue };
            if let Some(remembered) = flow.remembered() {
                ctx.stale_flows.remember(remembered, ctx.now + ctx.settings.linger);
            }
            ctx.fail(flow.failure(Cause::Session, ctx.classes));
            self.by_id.remove(&flow.id);
            self.abort(slot, ctx);
        }
        self.closed.clear();
    }

    /// The peer's process is another one, which knows no flow. Targets get what has come in order.
    /// No flow takes more, or has its target's answers passed on. Its requester's next packet opens
    /// another in its place.
    ///
    /// Rule: `docs/protocol.md#rule-reborn`.
    pub(crate) fn strand_all(&mut self, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            self.by_id.remove(&flow.id);
            if flow.orphaned || flow.far.is_ending() {
                if let Some(remembered) = flow.remembered() {
                    ctx.stale_flows.remember(remembered, ctx.now + ctx.settings.linger);
                }
                flow.orphaned = true;
                continue;
            }
            flow.orphaned = true;
            flow.requests.clear(&mut self.pages);
            flow.waiting = 0;
            flow.last_activity = ctx.now;
            flow.far.set_cut_off(false, ctx.now);
            self.touch(slot, ctx);
        }
        self.closed.clear();
    }

    /// A flow that the peer has forgotten is over. A target that waits for the rest of a message,
    /// or owes an answer, is told.
    pub(super) fn end_orphan(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.last_activity = ctx.now;
        if flow.far.is_ending() || flow.is_idle() && !flow.far.is_inside() {
            return self.close(slot, ctx);
        }
        ctx.stats.unrestored += 1;
        ctx.fail(flow.failure(Cause::Process, ctx.classes));
        self.abort(slot, ctx);
    }

    /// The peer, a process that knows no flow, says of this one that it has ended.
    pub(crate) fn end_remembered(&mut self, flow: &StaleFlow, ctx: &mut Context<'_>) {
        match self.by_key.get(&flow.key()).filter(|_| self.remembers(flow)) {
            Some(slot) => self.abort(slot, ctx),
            None => self.force_error(flow, ctx),
        }
    }

    /// The session goes on: what is missing of a message has its whole time again.
    pub(crate) fn go_on(&mut self, now: Instant) {
        for flow in self.flows.values_mut() {
            flow.last_activity = now;
            flow.far.set_cut_off(false, now);
        }
    }

    /// The session is lost: nothing comes from the requesters' gateway.
    pub(crate) fn wait(&mut self, now: Instant) {
        self.flows.values_mut().for_each(|flow| flow.far.set_cut_off(true, now));
    }

    /// Leaves out a pause up to now in which nobody looked.
    pub(crate) fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        for flow in self.flows.values_mut() {
            flow.last_activity = (flow.last_activity + pause).min(now);
            flow.far.excuse_pause(pause, now);
        }
    }

    /// Returns how many flows wait for their target, or for the rest of a message.
    pub(crate) fn waiting(&self) -> usize {
        self.flows
            .values()
            .filter(|flow| !flow.orphaned && (!flow.is_idle() || flow.last.is_amid_message))
            .count()
    }

    /// The requester's gateway has forgotten the flow, which had so many requests: it was idle, or
    /// its queue pair has begun another life.
    pub(crate) fn handle_close(&mut self, id: FlowId, requests: u32, ctx: &mut Context<'_>) {
        let slot = self.by_id.get(&id);
        let flow = slot.and_then(|slot| self.flows.get(slot));
        let missing = requests.wrapping_sub(flow.map_or(0, |flow| flow.requests.next())).cast_signed() > 0;
        if missing {
            // This went ahead of them.
            note_closed(&mut self.closed, id);
        }
        let Some((slot, flow)) = slot.zip(flow) else {
            ctx.stats.late_records += 1;
            return;
        };
        if flow.orphaned && !flow.far.is_dead() {
            // Its target is still being told; it goes after that.
            return;
        }
        self.close(slot, ctx);
    }

    /// One of the flow's queue pairs now belongs to another connection.
    pub(crate) fn supersede(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_key.get(key) {
            ctx.stats.replaced += 1;
            self.close(slot, ctx);
        }
    }

    /// The flow's requester is another flow's. Whatever it waits for is for its own, whom its
    /// target names when it is asked again.
    pub(crate) fn unpair(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return ctx.pairings.forget(key, None, ctx.now) };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        (flow.requester_qpn, flow.asking.asks) = (None, true);
        self.end_turn(key, ctx);
    }

    /// Makes room for one more flow of this host, if it is to have one: one whose target has never
    /// spoken is forgotten for it. Its requester's gateway hears of that.
    pub(super) fn make_room(&mut self, host: IpAddr, ctx: &mut Context<'_>) -> bool {
        match self.unheard.room_for(host, &self.hosts, self.flows.len(), ctx.settings.flows) {
            Room::Free => true,
            Room::InPlaceOf(slot) => {
                self.forget(slot, ctx);
                true
            }
            Room::None => false,
        }
    }

    fn forget(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        self.tell_no_place(slot, ctx);
        ctx.stats.evicted += 1;
        self.close(slot, ctx);
    }

    /// Tells the peer, where it knows the flow, that there is no place for it here. Its requester
    /// may begin it again.
    ///
    /// Rule: `docs/protocol.md#rule-no-place`.
    pub(super) fn tell_no_place(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        let Some(id) = self.flows.get(slot).map(|flow| flow.id) else { return };
        if self.by_id.get(&id) != Some(slot) {
            return;
        }
        let head = Head::Fail { flow: id, reason: ctx.no_place() };
        // Without room the near half gives up waiting, in its time.
        let _ = ctx.push(0, Urgency::Prompt, &head, [&[], &[]]);
        note_closed(&mut self.closed, id);
    }

    /// The flow may be forgotten for another's sake, as long as its target has not spoken.
    pub(super) fn enter_unheard(&mut self, slot: FarKey) {
        let Some(flow) = self.flows.get_mut(slot).filter(|flow| flow.is_unheard()) else { return };
        flow.asking.unheard = Some(self.unheard.enter(flow.addressing.src, slot));
    }

    pub(super) fn close(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get(slot) else { return };
        let asked = flow.far.has_asked().zip(flow.asking.spoke);
        let Some(flow) = self.take_out(slot, asked, ctx) else { return };
        if let Some(remembered) = flow.remembered().filter(|_| flow.far.is_dead()) {
            ctx.stale_flows.remember(remembered, ctx.now + ctx.settings.linger);
        }
    }

    /// Takes the flow out of all tables. `asked`: what it has sent that its target may still
    /// answer, and when the last of it.
    pub(super) fn take_out(
        &mut self,
        slot: FarKey,
        asked: Option<(Span, Instant)>,
        ctx: &mut Context<'_>,
    ) -> Option<Box<FarFlow>> {
        let mut flow = self.flows.remove(slot)?;
        self.timers.left(self.flows.len());
        self.hosts.leave(flow.addressing.src);
        self.unheard.leave(flow.addressing.src, &mut flow.asking.unheard);
        flow.requests.clear(&mut self.pages);
        flow.waiting = 0;
        self.withheld.forget(flow.withheld, |key| self.flows.contains_key(key));
        ctx.senders.await_responses(0, &mut flow.kept, 0);
        if self.by_id.get(&flow.id) == Some(slot) {
            self.by_id.remove(&flow.id);
        }
        let key = flow.key();
        if self.by_key.get(&key) == Some(slot) {
            self.by_key.remove(&key);
            ctx.pairings.forget(&key, asked, ctx.now);
        }
        Some(flow)
    }
}

/// Flows remembered that were over before all of their requests had come: what overtakes a record
/// lies within a round trip.
const CLOSED: usize = 256;

/// Keeps in mind that what still comes of the flow is late.
pub(super) fn note_closed(closed: &mut VecDeque<FlowId>, id: FlowId) {
    if closed.len() >= CLOSED {
        closed.pop_front();
    }
    closed.push_back(id);
}
