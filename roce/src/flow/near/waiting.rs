//! Keeping a requester waiting whose target takes its time.

use std::time::Instant;

use super::incarnation::Proof;
use super::{Near, later};
use crate::flow::passed::Reply;
use crate::wire::{Psn, Qpn};

/// The word that keeps a requester waiting comes at
/// [`NearConfig::keepalive`](super::NearConfig::keepalive) times two to this power, at the latest.
const MOST_PUT_OFF: u8 = 6;

/// Added to a PSN: 2^22 before it. No requester has so many outstanding.
const LONG_PAST: u32 = (1 << 24) - (1 << 22);

impl Near {
    /// The requester waits for the target. Where the target has acknowledged all that came, or was
    /// not ready, it is the requester's turn: a packet of its own may be lost, or what it was told,
    /// and its timer must find that out. Once something came that fits nothing here, it may be in
    /// another incarnation, and hears nothing from this one.
    pub(super) fn may_keep_alive(&self) -> bool {
        let is_safe = !self.has_read || self.proof == Proof::Proven;
        let can_speak = self.requester.is_some() && self.told_plain && self.replays.is_empty() && is_safe;
        let done = later(self.ring.done(), self.told);
        let owed = done != self.horizon.floor() && !self.ring.is_empty();
        let may_be_another = self.is_strange || self.is_doubted();
        can_speak && self.failed.is_none() && owed && !may_be_another && !self.is_to_try_again()
    }

    pub(super) fn is_to_keep_alive(&self, now: Instant) -> bool {
        self.may_keep_alive() && self.keepalive_at() <= now
    }

    pub(super) fn keepalive_at(&self) -> Instant {
        self.spoke + self.config.keepalive * (1 << self.put_off)
    }

    /// Returns true if [`handle_timeout`](Near::handle_timeout) is about to say a word that keeps
    /// the requester waiting, although nothing has shown that it would not wait without.
    pub fn may_put_off(&self, now: Instant) -> bool {
        !self.is_impatient && self.put_off < MOST_PUT_OFF && self.is_to_keep_alive(now)
    }

    /// Says that word only when the requester has been left without one for twice as long. If it
    /// then sends again what waits for the target, its timer is a short one, and it is not left
    /// without any more.
    pub fn put_off(&mut self) {
        self.put_off = (self.put_off + 1).min(MOST_PUT_OFF);
    }

    /// Notes that what waits for the target came again, and not because the requester was told to
    /// go back.
    pub(super) fn note_impatience(&mut self, psn: Psn, now: Instant) {
        if self.put_off > 0 && self.ring.holds(psn) && self.spoke + self.config.keepalive <= now {
            (self.put_off, self.is_impatient) = (0, true);
        }
    }

    /// An ACK that confirms nothing, in whichever incarnation the requester is. It lies long before
    /// all that is outstanding. In the midst of a READ that would upset Soft-RoCE (`rxe_comp.c`,
    /// `check_psn`), so a requester that READs is repeated its last ACK.
    pub(super) fn keep_alive(&mut self, to: Qpn) -> Reply {
        if self.has_read {
            return self.repeat(to);
        }
        self.stats.repeated_acks.one();
        self.acknowledge(to, self.told.prev() + LONG_PAST, self.credits)
    }

    /// Returns whether the last ACK may be repeated. Not if a READ's or atomic's response
    /// acknowledged last: a plain ACK with that PSN would complete it without data, and one with an
    /// earlier PSN upsets Soft-RoCE in the midst of a READ (`rxe_comp.c`, `check_psn` since 5.19).
    /// Nor while a READ runs again: the requester, waiting for that, would take it for lost.
    pub(super) fn may_repeat(&self) -> bool {
        self.proof == Proof::Proven && self.told_plain && self.replays.is_empty()
    }
}
