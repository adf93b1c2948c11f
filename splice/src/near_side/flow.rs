//! Requester side: judgement of a near flow: its class, and how long it may stand still.

use std::time::{Duration, Instant};

use roce::flow::near::Why;
use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Qpn};
use transport::{Place, Urgency};

use super::{NearFlow, TTL, reason};
use crate::Settings;
use crate::classes::{Classes, traffic};
use crate::congestion::unmarked;
use crate::context::Context;
use crate::failures::{By, Cause, FlowFailure};
use crate::flow_report::{FlowReport, FlowState};
use crate::piggybacked_acks::Connection;
use crate::record::{Head, MAX_HEAD};
use crate::stale_flows::{FlowSide, StaleFlow};

/// The least time in which a flow without progress is stuck: some packets that a stream sends again
/// may be lost as well, and it does so every ten seconds only when the link was cut for long.
const STUCK: Duration = Duration::from_secs(60);

impl NearFlow {
    pub(super) fn key(&self) -> FlowKey {
        FlowKey { requester: self.addressing.src, target: self.addressing.dst, target_qpn: self.target_qpn }
    }

    /// The failure of this flow.
    pub(super) fn failure(&self, (why, by): (impl Into<Cause>, By), classes: &Classes) -> FlowFailure {
        let (key, class) = (self.key(), self.last_class(classes));
        FlowFailure::new(FlowSide::Near, &key, self.requester_qpn, (why.into(), by), class)
    }

    /// Nothing but requests is known of it: its target has not spoken, nor has connection
    /// management told of its requester. That has all of its requests still.
    pub(super) fn is_unheard(&self) -> bool {
        self.near.has_heard_nothing() && self.requester_qpn.is_none()
    }

    /// The flow's requester is known, and can be told.
    pub(super) fn pair(&mut self, requester_qpn: Qpn) {
        self.requester_qpn = Some(requester_qpn);
        self.near.pair(requester_qpn);
    }

    /// A packet is not carried. Returns true: nothing is missing by that.
    pub(super) fn leave_out(&mut self, why: Why, packet: &Packet<'_>, ctx: &mut Context<'_>) -> bool {
        ctx.stats.drop_lan(reason(why));
        if ctx.is_parked() {
            self.near.hold(packet);
        }
        true
    }

    /// The class of a message of so many bytes. What is told about the flow is a message of none.
    pub(super) fn class_of(&mut self, size: u64, classes: &Classes) -> usize {
        let (addressing, target_qpn) = (self.addressing, self.target_qpn);
        classes.choose(&mut self.choice, || traffic(&addressing, target_qpn.get()), size)
    }

    /// The class of a request. Where much waits for that the requester is told to slow down.
    pub(super) fn judge(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> usize {
        let size = self.demand.coming.size_with(packet);
        self.demand.judged = u32::try_from(size).unwrap_or(u32::MAX);
        let class = self.class_of(size, ctx.classes);
        let may_tell = ctx.settings.notify_backlog && !self.near.is_failed() && !packet.payload.is_empty();
        if may_tell && ctx.senders.marks(class) {
            ctx.stats.backlog_marked += 1;
            self.notified.tell(addressing, &packet.bth, self.requester_qpn, ctx);
        }
        class
    }

    pub(super) fn remembered(&self) -> Option<StaleFlow> {
        Some(StaleFlow {
            requester: self.addressing.src,
            target: self.addressing.dst,
            target_qpn: self.target_qpn,
            requester_qpn: self.requester_qpn?,
            psn: self.last_psn,
            src_port: self.addressing.src_port,
            side: FlowSide::Near,
            lives: !self.near.is_failed(),
        })
    }

    /// The class of its last message.
    fn last_class(&self, classes: &Classes) -> usize {
        let mut choice = self.choice;
        let traffic = || traffic(&self.addressing, self.target_qpn.get());
        classes.choose(&mut choice, traffic, self.demand.judged.into())
    }

    /// The flow as it stands, with a session or while it waits for the next one.
    pub(super) fn report(&self, classes: &Classes, is_parked: bool) -> FlowReport {
        let FlowKey { requester, target, target_qpn } = self.key();
        let near = &self.near;
        let state = match () {
            () if near.is_failed() => FlowState::Failed,
            () if is_parked => FlowState::Waiting,
            () if near.waits_for_room() => FlowState::HeldBack,
            () if near.is_idle() => FlowState::Idle,
            () => FlowState::Active,
        };
        FlowReport {
            side: FlowSide::Near,
            requester,
            requester_qpn: self.requester_qpn,
            target,
            target_qpn,
            class: self.last_class(classes),
            state,
        }
    }

    /// Before a message of the class, which begins with this packet: what this end of the
    /// connection has answered the other last goes along.
    pub(super) fn answer_along(&self, class: usize, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        // A copy of what is sent anyway: the flow the other way knows, mostly before this one has
        // an answer.
        let partner = self.requester_qpn.or_else(|| ctx.pairings.partner(&self.key()));
        let Some(requester_qpn) = partner else { return };
        let Addressing { src, dst, .. } = self.addressing;
        let connection = Connection { here: (src, requester_qpn), there: (dst, self.target_qpn) };
        let Some(answer) = ctx.answers.take(&connection, ctx.now) else { return };
        let head = Head::Response { flow: answer.flow, seq: answer.seq, is_short: answer.is_short };
        if ctx.senders.has_room(class, packet.bytes.len() + MAX_HEAD + answer.packet().len()) {
            // In front of the message, and in its turn. The answer itself has been sent.
            let place = Place {
                source: Head::source_of_requests(self.id),
                group: ctx.senders.group(),
                goes_first: packet.bth.opcode.ends_message(),
            };
            let _ = ctx.senders.push(
                class,
                Urgency::Bulk,
                place,
                &[head.emit().as_ref(), answer.packet()],
                ctx.now,
            );
        }
    }

    /// The requester tries again what its target was not ready for. Without room for the word the
    /// requester's next try brings the next.
    pub(super) fn relay_retry(&mut self, ctx: &mut Context<'_>) {
        if self.tell(&Head::Retry { flow: self.id }, ctx) {
            self.near.note_retried();
        }
    }

    /// Tells the far half whether what is outstanding may be nobody's any more, if that is news.
    /// Without room the next packet of the flow brings the next try.
    pub(super) fn relay_contradiction(&mut self, ctx: &mut Context<'_>) {
        let told = self.suspended;
        if self.near.is_contradicted() != (told % 2 == 1) {
            let count = told.wrapping_add(1);
            if self.tell(&Head::Suspend { flow: self.id, count }, ctx) {
                self.suspended = count;
            }
        }
    }

    /// A word to the far half; `false` if there was no room for it.
    pub(super) fn tell(&mut self, head: &Head, ctx: &mut Context<'_>) -> bool {
        let class = self.class_of(0, ctx.classes);
        ctx.push(class, Urgency::Prompt, head, [&[], &[]]).is_ok()
    }

    /// Nothing is left of it here. Without room the far half asks when it has been idle for long.
    pub(super) fn tell_closed(&mut self, ctx: &mut Context<'_>) {
        self.tell(&Head::Close { flow: self.id, requests: self.requests }, ctx);
    }

    /// Where packets to the requester go: the same port both ways, as Soft-RoCE and mlx5 have it.
    pub(super) fn reply_addressing(&self) -> Addressing {
        let Addressing { src, dst, tclass, .. } = self.addressing;
        Addressing { src: dst, dst: src, tclass: unmarked(tclass), ttl: TTL, ..self.addressing }
    }

    /// The next request came from this port. After a rest another port may be another requester's,
    /// so that nobody is refused in its place.
    pub(super) fn note_port(&mut self, src_port: u16) {
        if std::mem::replace(&mut self.addressing.src_port, src_port) != src_port && self.near.is_rested() {
            self.near.unpair();
            self.requester_qpn = None;
        }
    }

    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        let kept = self.kept.as_ref().and_then(|kept| kept.expiry());
        let timeouts = [self.near.next_timeout(), kept, self.waits_in_vain_until()].into_iter().flatten();
        Some(timeouts.fold(self.deadline(settings), Instant::min))
    }

    /// Tells the class's stream what is still to come of the message under way: what its requester
    /// may send without waiting for its target, or nothing if the flow has failed.
    pub(super) fn expect(&mut self, ctx: &mut Context<'_>) {
        let room = ctx.settings.flow_buffer().saturating_sub(self.near.outstanding_bytes());
        let coming = usize::try_from(self.demand.coming.bytes()).unwrap_or(usize::MAX);
        let bytes = if self.near.is_failed() { 0 } else { coming.min(room) };
        let class = self.class_of(self.demand.judged.into(), ctx.classes);
        ctx.senders.expect(class, &mut self.demand.expected, bytes);
    }

    /// The flow made no progress since its session was lost, and is not to blame for that.
    pub(super) fn excuse_wait(&mut self, now: Instant) {
        (self.last_activity, self.last_progress) = (now, now);
    }

    /// Nobody looked for this much time up to now, so nothing that is missing counts.
    pub(super) fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.last_activity = (self.last_activity + pause).min(now);
        self.last_progress = (self.last_progress + pause).min(now);
    }

    /// Until when the flow may go without progress: what comes and changes nothing keeps none
    /// alive. One with something on its way waits for longer than its target is given, the far half
    /// being the first to judge; while its requester tries, for as long as the link may be cut,
    /// too. One that failed must not be forgotten before its requester was told: a retry would open
    /// it anew. One that was told of an RNR NAK has to try again, or has given up.
    pub(super) fn deadline(&self, settings: &Settings) -> Instant {
        let given = settings.target_dead + settings.rnr;
        if self.near.is_to_try_again() {
            return self.last_activity + settings.rnr;
        }
        match (self.near.is_idle(), self.marks.ending) {
            (true, true) => self.last_progress,
            (true, false) => self.near.refuses_until().unwrap_or(self.last_progress + settings.idle_flow),
            (false, _) => {
                let stuck = settings.idle_flow.max(given).max(STUCK);
                let patient = self.last_progress + stuck;
                // Who was told that all is done has no reason to try.
                if self.near.is_ahead() { patient } else { patient.min(self.last_activity + given) }
            }
        }
    }
}
