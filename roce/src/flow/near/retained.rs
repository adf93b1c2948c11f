//! Requester side: requests that stand in memory which outlives the gateway's process, and those
//! that do not.
//!
//! A requester that was acknowledged a request inside a message does not send it again. If the
//! gateway's process ends, or the other gateway's, such a request is lost unless its owner retains
//! it elsewhere. So the owner says of each what it does not retain, and that is acknowledged when
//! the target has it.

use std::time::Instant;

use super::due::Say;
use super::{Near, Verdict, later};
use crate::flow::horizon::{NEARBY, Order};
use crate::wire::{Packet, Psn};

impl Near {
    /// The request at this PSN, which was accepted, is nowhere but in this process. Its requester
    /// is acknowledged no PSN from there on before the target has acknowledged this one. To be
    /// called before [`poll_transmit`](Near::poll_transmit).
    pub fn note_unretained(&mut self, psn: Psn) {
        self.ring.note_unretained(psn);
        if self.due.has(Say::Ack) && !self.bound().is_after(self.told.to()) {
            self.due.remove(Say::Ack);
        }
    }

    /// All before this PSN the target has acknowledged or answered, as it has said to this flow.
    /// `None`: it has not spoken.
    #[must_use]
    pub fn acknowledged(&self) -> Option<Psn> {
        (self.is_started() && !self.is_unproven()).then(|| self.ring.done())
    }

    /// The target has completed a message, as it has said to this flow.
    #[must_use]
    pub fn has_completed(&self) -> bool {
        self.is_proven() && self.target.aeth().msn > 0
    }

    /// The first PSN that has come, and the PSN before it that the target expects instead, while
    /// that is so.
    #[must_use]
    pub fn missing(&self) -> Option<(Psn, Psn)> {
        let hinted = self.incarnation.hinted()?;
        (self.is_unproven() && !self.is_failed()).then_some((hinted, self.told.to()))
    }

    /// Returns true if the flow begins at this PSN, and its target has not spoken. Nothing that was
    /// retained has been taken.
    #[must_use]
    pub fn begins_at(&self, psn: Psn) -> bool {
        let is_open = self.is_started() && !self.is_failed();
        is_open && self.is_unproven() && self.told.to() == psn && self.ring.done() == psn
    }

    /// Returns true if the flow begins after this PSN, if not by much, and its target has not
    /// spoken.
    #[must_use]
    pub fn begins_after(&self, psn: Psn) -> bool {
        let is_open = self.is_started() && !self.is_failed();
        is_open && self.is_rewind(psn) && self.told.to().distance(psn) <= NEARBY
    }

    /// Takes a request that its requester was acknowledged by an earlier process or flow, and that
    /// the target has not. The first one is the one that the target expects
    /// ([`missing`](Near::missing)), each other one the next. Returns whether it is to be carried.
    pub fn handle_retained(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        if self.is_failed() {
            return false;
        }
        if self.missing().is_some_and(|(expected, _)| expected == packet.bth.psn) {
            self.stats.rewinds.one();
            self.seen.place();
            self.restart_at(packet.bth.psn);
        }
        let is_taken =
            self.seen.order(packet) == Order::Exact && self.accept(packet, now) == Verdict::Forward;
        if is_taken {
            self.stats.forwarded.one();
            self.stats.forwarded_bytes.add(packet.bytes.len() as u64);
        }
        is_taken
    }

    /// Begins with a request that the target lacks, as it said to the flow before, instead of the
    /// one that comes. Those in between follow by [`handle_retained`](Near::handle_retained).
    pub fn begin_retained(&mut self, psn: Psn) {
        if self.is_started() && !self.is_failed() {
            self.restart_at(psn);
        }
    }

    /// All that was retained has been taken. Its requester goes on at this PSN, and was
    /// acknowledged what lies before. As soon as the target has spoken it is told to send the rest
    /// again.
    pub fn note_all_retained(&mut self, psn: Psn) {
        if self.seen.floor() == psn {
            self.told.go_on_at(psn);
            self.gap.leave_unsaid();
        }
    }

    /// The PSNs that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> std::ops::Range<Psn> {
        self.ring.done()..later(self.seen.floor(), self.ring.done())
    }
}
