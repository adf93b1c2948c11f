//! Requester side: keeping a requester waiting whose target takes its time.

use std::time::{Duration, Instant};

use super::{Near, later};
use crate::flow::horizon::NEARBY;
use crate::flow::rewritten::Reply;
use crate::wire::{Psn, Qpn};

/// The word that keeps a requester waiting comes at
/// [`NearConfig::keepalive`](super::NearConfig::keepalive) times two to this power, at the latest.
const MOST_PUT_OFF: u8 = 6;

/// Added to a PSN: 2^22 before it. No requester has so many outstanding.
const LONG_PAST: u32 = (1 << 24) - (1 << 22);

/// Words that only keep a requester waiting, and how seldom they will do.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct KeepAlive {
    /// When something was last sent to the requester.
    #[serde_as(as = "snapshot::At")]
    spoke: Instant,
    patience: Patience,
}

/// A requester's patience, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Patience {
    /// Not known: the word was put off so often since the requester was told something new.
    PutOff(u8),
    /// Left without a word, it sent again what waits for the target.
    Short,
}

impl KeepAlive {
    pub(super) fn new(now: Instant) -> KeepAlive {
        KeepAlive { spoke: now, patience: Patience::PutOff(0) }
    }

    /// Something is sent to the requester.
    pub(super) fn note_spoken(&mut self, now: Instant) {
        self.spoke = now;
    }

    /// It is told something new.
    pub(super) fn note_told(&mut self) {
        if let Patience::PutOff(times) = &mut self.patience {
            *times = 0;
        }
    }

    /// When the next word is due, where it comes every `interval` unless put off.
    fn at(&self, interval: Duration) -> Instant {
        let times = match self.patience {
            Patience::PutOff(times) => times,
            Patience::Short => 0,
        };
        self.spoke + interval * (1 << times)
    }

    fn may_put_off(&self) -> bool {
        matches!(self.patience, Patience::PutOff(times) if times < MOST_PUT_OFF)
    }

    fn put_off(&mut self) {
        if let Patience::PutOff(times) = &mut self.patience {
            *times = (*times + 1).min(MOST_PUT_OFF);
        }
    }

    /// A request that waits for the target came again. Where the requester was left without a word
    /// for longer than `interval`, its timer is a short one.
    fn note_repetition(&mut self, interval: Duration, now: Instant) {
        let was_put_off = matches!(self.patience, Patience::PutOff(1..));
        if was_put_off && self.spoke + interval <= now {
            self.patience = Patience::Short;
        }
    }
}

impl Near {
    /// The requester waits for the target. Where the target has acknowledged all that came, or was
    /// not ready, it is the requester's turn: a packet of its own may be lost, or what it was told,
    /// and its timer must find that out. Once something came that fits nothing here, it may be in
    /// another incarnation, and hears nothing from this one.
    pub(super) fn may_keep_alive(&self) -> bool {
        let is_safe = !self.requester.has_read() || self.is_proven();
        let can_speak =
            self.requester.qpn.is_some() && self.told.is_plain() && self.replays.is_empty() && is_safe;
        let done = later(self.ring.done(), self.told.to());
        let owed = done != self.seen.floor() && !self.ring.is_empty();
        let may_be_another = self.requester.is_strange() || self.is_doubted();
        can_speak && !self.is_failed() && owed && !may_be_another && !self.is_to_try_again()
    }

    pub(super) fn is_to_keep_alive(&self, now: Instant) -> bool {
        self.may_keep_alive() && self.keepalive_at() <= now
    }

    pub(super) fn keepalive_at(&self) -> Instant {
        self.keepalive.at(self.config.keepalive)
    }

    /// Returns true if [`handle_timeout`](Near::handle_timeout) is about to say a word that keeps
    /// the requester waiting, although nothing has shown that it would not wait without.
    pub fn may_put_off(&self, now: Instant) -> bool {
        self.keepalive.may_put_off() && self.is_to_keep_alive(now)
    }

    /// Says that word only when the requester has been left without one for twice as long. If it
    /// then sends again what waits for the target, its timer is a short one, and it is not left
    /// without any more.
    pub fn put_off(&mut self) {
        self.keepalive.put_off();
    }

    /// Notes that what waits for the target came again, and not because the requester was told to
    /// go back.
    pub(super) fn note_impatience(&mut self, psn: Psn, now: Instant) {
        if self.ring.holds(psn) {
            self.keepalive.note_repetition(self.config.keepalive, now);
        }
    }

    /// Returns the PSN of the ACK that [`handle_timeout`](Near::handle_timeout) is about to repeat
    /// to keep a requester waiting that READs. In another incarnation that may be one of its own.
    pub fn about_to_repeat(&self, now: Instant) -> Option<Psn> {
        (self.requester.has_read() && self.is_to_keep_alive(now)).then(|| self.told.to().prev())
    }

    /// Says no such word before the next one is due.
    pub fn skip_word(&mut self, now: Instant) {
        self.keepalive.note_spoken(now);
    }

    /// Returns whether an ACK of this PSN may be one that the requester waits for, by what it has
    /// been told.
    pub fn may_await(&self, psn: Psn) -> bool {
        self.told.to().distance(psn).abs() <= NEARBY
    }

    /// An ACK that confirms nothing, in whichever incarnation the requester is. It lies long before
    /// all that is outstanding. In the midst of a READ that would upset Soft-RoCE (`rxe_comp.c`,
    /// `check_psn`), so a requester that READs is repeated its last ACK.
    pub(super) fn keep_alive(&mut self, to: Qpn) -> Reply {
        if self.requester.has_read() {
            return self.repeat(to);
        }
        self.stats.repeated_acks.one();
        self.acknowledge(to, self.told.to().prev() + LONG_PAST, self.target.aeth().syndrome)
    }

    /// Returns whether the last ACK may be repeated. Not if a READ's or atomic's response
    /// acknowledged last: a plain ACK with that PSN would complete it without data, and one with an
    /// earlier PSN upsets Soft-RoCE in the midst of a READ (`rxe_comp.c`, `check_psn` since 5.19).
    /// Nor while a READ runs again: the requester, waiting for that, would take it for lost.
    pub(super) fn may_repeat(&self) -> bool {
        self.is_proven() && self.told.is_plain() && self.replays.is_empty()
    }
}
