//! Requester side: RNR: a target that is not ready to receive, and a gateway without room.

use std::time::Instant;

use super::due::Say;
use super::{Near, later};
use crate::flow::horizon::Order;
use crate::wire::{Packet, Psn, RnrTimer};

/// The target was not ready, and the far side has tried often enough: it is for the requester to
/// try on, and to give up.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Rnr {
    /// The PSN that the target expects.
    at: Psn,
    timer: RnrTimer,
    state: State,
}

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum State {
    /// The requester is to be told.
    Due,
    /// It has since sent again what is outstanding, so it is told, whatever came after that.
    Called,
    /// It was told, then.
    Told(#[serde_as(as = "snapshot::At")] Instant),
    /// It has tried again, or could not be told: so is the far side to.
    Retry,
    /// That has heard.
    Relayed,
}

/// How long a requester is to wait that finds no room here: 10.24 ms.
const PAUSE: RnrTimer = RnrTimer::new(20);

/// How long a requester is to wait at a time whose answer cannot come for now: 163.84 ms.
const HOLD: RnrTimer = RnrTimer::new(28);

impl Rnr {
    pub(super) fn new(at: Psn, timer: RnrTimer) -> Rnr {
        Rnr { at, timer, state: State::Due }
    }

    fn is_due(&self) -> bool {
        matches!(self.state, State::Due | State::Called)
    }
}

impl Near {
    /// The requester tries again what its target was not ready for, or could not be told of that:
    /// the far side is to try again as well. To be asked for once
    /// [`poll_transmit`](Near::poll_transmit) has nothing more; true until
    /// [`note_retried`](Near::note_retried).
    pub fn wants_retry(&self) -> bool {
        self.target.rnr.as_ref().is_some_and(|rnr| rnr.state == State::Retry)
    }

    /// The far side is about to hear of it.
    pub fn note_retried(&mut self) {
        if let Some(rnr) = self.target.rnr.as_mut().filter(|rnr| rnr.state == State::Retry) {
            rnr.state = State::Relayed;
            self.stats.rnr_retries.one();
        }
    }

    /// The requester was told that its target is not ready, and has not tried again since: its own
    /// `rnr_retry` decides whether it will.
    pub fn is_to_try_again(&self) -> bool {
        self.target.rnr.as_ref().is_some_and(|rnr| matches!(rnr.state, State::Told(_)))
    }

    /// The target has a part of a message, and not the rest: should the requester not go on,
    /// somebody has to tell its program.
    pub fn is_half_done(&self) -> bool {
        self.ring.is_half_done()
    }

    /// Returns whether the packet asks for no room: it repeats what is outstanding, and is answered
    /// from here, or dropped. READs, atomics and payloads that changed may have to be carried once
    /// more, and so may all that lies before.
    #[must_use]
    pub fn asks_no_room(&self, packet: &Packet<'_>, now: Instant) -> bool {
        let is_plain = !packet.bth.opcode.needs_response();
        let is_behind = || self.seen.order(packet) == Order::Behind && self.ring.holds(packet.bth.psn);
        self.is_started() && is_plain && is_behind() && !self.would_renew(packet, now)
    }

    /// There is no room for this packet, and it is dropped. If its requester takes RNR without end,
    /// and has been told of all before it, it is told RNR: of what is not answered at all its
    /// retries are few. `true` if so. Others are told where to go on once there is room again
    /// ([`set_writable`](Near::set_writable)), if the target has spoken of the incarnation that
    /// they are in. From a rest nobody knows, and a requester's own timer has to bring its request
    /// back.
    pub fn pause(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let psn = packet.bth.psn;
        if self.is_failed() {
            return false;
        }
        let is_known = !self.is_at_rest() || self.vouches(now);
        let is_next = self.is_started() && is_known && self.expects(psn);
        self.gap.refuse_if(is_next);
        if !self.requester.is_patient() || psn != self.told.to() {
            return false;
        }
        if self.is_announced() {
            self.start(packet);
        }
        let pauses = self.is_started() && self.vouches(now) && self.expects(psn);
        self.due.add_if(Say::Pause, pauses);
        pauses
    }

    /// A request that is outstanding came again, and nothing can come from the target for now: the
    /// link is cut. If its requester takes RNR without end, and has been told of all before it, it
    /// is told RNR. That confirms nothing new, and its few retries are for what is not answered at
    /// all. The answer itself comes as ever, whether or not the requester waits. `true` if so.
    pub fn hold(&mut self, packet: &Packet<'_>) -> bool {
        let holds = packet.bth.psn == self.told.to() && self.may_hold();
        self.due.add_if(Say::Hold, holds);
        holds
    }

    fn may_hold(&self) -> bool {
        let is_free = self.target.rnr.is_none() && self.replays.is_empty() && !self.is_failed();
        let is_known = self.is_proven() && !self.is_doubted();
        self.requester.is_patient() && is_free && is_known && self.ring.holds(self.told.to())
    }

    /// The target has spoken of the incarnation that the requester is in, as far as can be told
    /// without asking.
    fn vouches(&self, now: Instant) -> bool {
        let is_fresh = self.seen.is_none() || self.is_within_turn(now);
        self.is_proven() && (is_fresh || !self.is_at_rest())
    }

    /// The oldest PSN outstanding is one that the target was not ready for.
    pub(super) fn is_at_rnr(&self) -> bool {
        self.target.rnr.as_ref().is_some_and(|rnr| rnr.at == self.ring.done())
    }

    pub(super) fn has_rnr_to_say(&self) -> bool {
        self.target.rnr.as_ref().is_some_and(|rnr| rnr.is_due())
    }

    /// Notes that what is outstanding came again: its requester is there to be told.
    pub(super) fn note_call(&mut self) {
        if let Some(rnr) = self.target.rnr.as_mut().filter(|rnr| rnr.state == State::Due) {
            rnr.state = State::Called;
        }
    }

    /// Notes a repetition. One at or beyond what the requester was told counts. When its wait can
    /// be over, it has tried again; before, it may not have heard.
    pub(super) fn note_retry(&mut self, psn: Psn, now: Instant) {
        let told = self.told.to();
        let Some(rnr) = self.target.rnr.as_mut() else { return };
        let State::Told(at) = rnr.state else { return };
        if psn.is_before(told) {
            return;
        }
        // Half: of two clocks, one may be fast.
        if now.saturating_duration_since(at) >= rnr.timer.duration() / 2 {
            rnr.state = State::Retry;
        } else if psn == told {
            rnr.state = State::Due;
        }
    }

    /// Where the requester is to wait, and how long. One that was acknowledged past what the target
    /// is not ready for, inside a message, waits at the first PSN that it was not told of, if it
    /// has sent that.
    ///
    /// While it may be in another incarnation it hears of that only if what is outstanding came
    /// again.
    pub(super) fn rnr_to_say(&mut self, now: Instant) -> Option<(Psn, RnrTimer)> {
        let is_doubted = self.is_doubted();
        if !is_doubted && self.due.take(Say::Pause) && self.expects(self.told.to()) {
            return Some((self.told.to(), PAUSE));
        }
        if self.due.take(Say::Hold) && self.may_hold() {
            return Some((self.told.to(), HOLD));
        }
        let psn = later(self.ring.done(), self.told.to());
        let has_sent = self.is_at_rnr() && !self.expects(psn);
        let may_say = |rnr: &&mut Rnr| if is_doubted { rnr.state == State::Called } else { rnr.is_due() };
        let rnr = self.target.rnr.as_deref_mut().filter(may_say)?;
        rnr.state = if has_sent { State::Told(now) } else { State::Retry };
        has_sent.then_some((psn, rnr.timer))
    }
}
