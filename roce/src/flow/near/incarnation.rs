//! Which incarnation of its queue pair a request belongs to, and when only the target can tell.

use std::sync::Arc;
use std::time::Instant;

use super::answers::Asked;
use super::{Near, NearConfig, Standing};
use crate::flow::horizon::{NEARBY, Order};
use crate::wire::{Packet, Psn};

/// On whose word the requester may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nobody's: the target has not spoken, and the first PSN may be too high.
    Unproven,
    /// Nobody's any more: all was answered, and what came since may be of another incarnation,
    /// whose first packets were lost.
    Rested,
    /// The target's: it has answered requests of this incarnation, or connection management told
    /// its first PSN.
    Proven,
}

/// A request that does not fit what is outstanding.
#[derive(Debug)]
pub(super) struct Strange {
    psn: Psn,
    /// When it came first.
    at: Instant,
    /// The next request has come since, in whichever incarnation.
    passed: bool,
}

/// What only the target can answer. Most flows have none.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) strange: Option<Strange>,
    pub(super) asked: Option<Asked>,
}

impl Near {
    /// Returns the flow that asks the target about a request that this one
    /// [`doubts`](Near::doubts). That request is its first, wherever in its message it stands; it
    /// is still to be handed in. It knows the path MTU, as a hint, and the LAN, and nothing else.
    pub fn anew(&self, config: impl Into<Arc<NearConfig>>, packet: &Packet<'_>, now: Instant) -> Near {
        let mut near = Near::new(config, Arc::clone(&self.stats), now);
        (near.mtu, near.turn, near.lost) = (self.mtu, self.turn, self.lost);
        near.begin(packet);
        near
    }

    /// Returns true while the target has answered nothing since a rest: its requester may be
    /// another by now.
    pub fn is_rested(&self) -> bool {
        self.proof == Proof::Rested
    }

    /// Says nothing more until the next response names the requester's queue pair.
    pub fn unpair(&mut self) {
        self.requester = None;
    }

    /// Uses these bounds and this measure of the round trip from now on.
    pub fn adopt(&mut self, config: &Arc<NearConfig>) {
        if !Arc::ptr_eq(&self.config, config) {
            self.config = Arc::clone(config);
        }
    }

    /// Returns whether only the target can tell if this request belongs to the incarnation of the
    /// queue pair that this flow knows. Then have a new flow ask it ([`anew`](Near::anew)) instead
    /// of handing it in. Where that is not possible at the moment, hand it in: it is not answered,
    /// or refused.
    pub fn doubts(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let (psn, starts) = (packet.bth.psn, packet.bth.opcode.starts_message());
        if let Some(failed) = &self.failed {
            let past =
                failed.is_past(psn) || failed.is_strange(packet, now) || failed.leaves_to_target(psn, now);
            return starts && past && self.has_crossed(now);
        }
        if self.told.is_after(self.ring.done()) {
            // The requester was acknowledged what the target has yet to get from here, and will not
            // send it again.
            return false;
        }
        let rests = self.is_at_rest();
        match self.order(packet) {
            // What comes next on a flow at rest starts a message.
            Order::Exact => rests && !starts,
            // It was told where to go on. If it may not have heard, its own timer brings it back.
            Order::Ahead if rests && self.placed => self.comes_in_place_of_all(psn, now),
            Order::Ahead if rests => self.has_crossed(now) || self.cannot_cross(packet),
            Order::Ahead => starts && self.comes_in_place_of_all(psn, now),
            // So far back goes no requester that has begun here.
            Order::Behind if self.is_rewind(psn) => {
                psn.distance(self.told) < -NEARBY && starts && self.comes_in_place_of_all(psn, now)
            }
            // It has gone back before all that it asked for again, which came beside what had
            // crossed an answer and was dropped.
            Order::Behind if self.has_nothing_open() && self.replays.lie_behind(psn) => self.has_crossed(now),
            // All that came is answered, in the midst of a message: an ACK was lost, and the target
            // is asked to repeat it.
            Order::Behind if !rests && self.ring.done() == self.horizon.floor() => false,
            Order::Behind => match self.ring.repeats(packet) {
                Some(same) => !same && self.comes_in_place_of_all(psn, now),
                None if rests => self.has_crossed(now) || self.cannot_cross(packet),
                None if packet.bth.opcode.needs_response() => false,
                // What was being sent goes on without a pause.
                None if self.proof == Proof::Rested && self.has_paused(now) => true,
                None => self.comes_in_place_of_all(psn, now),
            },
        }
    }

    /// The target has answered all there was, and the requester was told.
    pub(super) fn is_at_rest(&self) -> bool {
        self.started && self.proof != Proof::Unproven && self.has_nothing_open() && self.replays.is_empty()
    }

    pub(super) fn has_nothing_open(&self) -> bool {
        self.ring.is_empty() && self.told == self.ring.done()
    }

    /// What the requester was told last is no news any more: what it sent before it heard that has
    /// come.
    pub(super) fn has_crossed(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.told_at) >= self.crossing()
    }

    /// On a flow at rest: returns whether a request cannot have been sent before the requester heard
    /// what it was told last. It is another one than that which was answered at its PSN, or no
    /// requester has so much under way.
    fn cannot_cross(&self, packet: &Packet<'_>) -> bool {
        let ahead = packet.bth.psn.distance(self.horizon.floor());
        let is_far = ahead.abs() > NEARBY;
        is_far || packet.bth.opcode.starts_message() && self.ring.differs(packet)
    }

    /// The requester has sent nothing for as long as what crosses takes.
    fn has_paused(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= self.crossing()
    }

    /// The target has named the PSN expected, and what comes was sent before the requester can have
    /// heard of that. What comes later may be of another incarnation.
    pub(super) fn is_placed(&self, now: Instant) -> bool {
        self.placed && self.is_within_turn(now)
    }

    /// The next request is about to be accepted.
    pub(super) fn note_rest(&mut self, now: Instant) {
        if !self.ring.is_empty() {
            return;
        }
        self.answered = now;
        self.note_window();
        if self.proof == Proof::Unproven || self.seen == 0 || !self.has_nothing_open() {
            return;
        }
        self.measure_turn(now);
        // What is done locally is told before the target spoke, and gives this up as well.
        if !self.is_within_turn(now) && !self.local {
            self.proof = Proof::Rested;
        }
    }

    /// A request at this PSN does not fit what is outstanding. Returns whether the incarnation that
    /// is outstanding must have stopped: this comes for the second time, nothing that is
    /// outstanding or lies before came in between, and the target has answered nothing. A
    /// requester's retry begins with its oldest request.
    fn comes_in_place_of_all(&mut self, psn: Psn, now: Instant) -> bool {
        let known = self
            .open
            .as_ref()
            .and_then(|open| open.strange.as_ref())
            .filter(|known| known.at >= self.answered);
        match known {
            // Copies of one packet come together.
            Some(known) if known.psn == psn && !known.passed => {
                now.saturating_duration_since(known.at) >= self.crossing()
            }
            Some(known) if known.psn.is_before(psn) => false,
            _ => {
                let strange = Strange { psn, at: now, passed: false };
                self.open.get_or_insert_default().strange = Some(strange);
                false
            }
        }
    }

    /// Keeps in mind whether what came belongs to the incarnation that is outstanding. A request
    /// before all of that, or another one than the outstanding one with its PSN, may be of the next
    /// one.
    pub(super) fn note_incarnation(&mut self, packet: &Packet<'_>, now: Instant) {
        if self.ring.is_empty() || self.order(packet) != Order::Behind {
            return;
        }
        let psn = packet.bth.psn;
        match self.ring.repeats(packet) {
            // Of what the target has acknowledged in the midst of a message too little is known.
            Some(_) if psn.is_before(self.ring.done()) => {}
            Some(true) => {
                self.forget_strange();
                self.note_call();
            }
            _ if self.is_rewind(psn) => {}
            _ => {
                self.comes_in_place_of_all(psn, now);
            }
        }
    }

    /// Returns true while the requester may be in another incarnation than what is outstanding.
    /// Since it sent what does not fit, the target has answered nothing that is outstanding, and
    /// nothing of that has come again. It hears nothing meanwhile.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted_since().is_some()
    }

    /// Returns since when that is so.
    pub(super) fn doubted_since(&self) -> Option<Instant> {
        let strange = self.open.as_ref()?.strange.as_ref()?;
        // Where the target has answered all that came, nothing else could come again.
        let is_unanswered = || self.ring.done() != self.horizon.floor();
        (strange.at >= self.answered && is_unanswered()).then_some(strange.at)
    }

    /// The next request was accepted. Either incarnation may have sent it.
    pub(super) fn pass_strange(&mut self) {
        if let Some(strange) = self.open.as_mut().and_then(|open| open.strange.as_mut()) {
            strange.passed = true;
        }
    }

    /// Returns whether a PSN that has come is outstanding, or is the one expected.
    pub(super) fn fits(&self, psn: Psn) -> bool {
        match self.classify(psn) {
            Standing::InOrder => true,
            Standing::Duplicate { .. } => self.ring.holds(psn),
            Standing::Ahead => false,
        }
    }

    /// The requester is in the incarnation that is outstanding.
    pub(super) fn forget_strange(&mut self) {
        if let Some(open) = &mut self.open {
            open.strange = None;
        }
    }
}
