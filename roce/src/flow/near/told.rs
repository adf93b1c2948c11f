//! Requester side: the requester's knowledge: the last word it was told, and when.

use std::time::{Duration, Instant};

use crate::wire::Psn;

/// The requester's knowledge of its requests, as far as it came from here.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Told {
    to: Psn,
    /// The PSN before `to` is a SEND's or WRITE's.
    is_plain: bool,
    /// It asked for an ACK that could not be given yet.
    is_awaited: bool,
    /// When it was last told something new, or refused.
    #[serde_as(as = "snapshot::At")]
    at: Instant,
    /// When it was first told something since it last sent anything.
    #[serde_as(as = "Option<snapshot::At>")]
    first: Option<Instant>,
}

impl Told {
    pub(super) fn new(now: Instant) -> Told {
        Told { to: Psn::default(), is_plain: false, is_awaited: false, at: now, first: None }
    }

    /// Begins at `psn`.
    pub(super) fn restart_at(&mut self, psn: Psn) {
        (self.to, self.is_plain) = (psn, false);
    }

    /// Its requester was acknowledged all before `psn`, the last of it a part of a SEND or WRITE.
    pub(super) fn go_on_at(&mut self, psn: Psn) {
        (self.to, self.is_plain) = (psn, true);
    }

    /// Everything before this PSN is acknowledged to the requester.
    pub(super) fn to(&self) -> Psn {
        self.to
    }

    /// Returns true if a plain ACK may name the last PSN acknowledged.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Returns true while the requester waits for an ACK that it asked for.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// The requester asks for an ACK that cannot be given yet, if `asks`.
    pub(super) fn await_ack(&mut self, asks: bool) {
        self.is_awaited |= asks;
    }

    /// Everything before `psn` is acknowledged by an ACK or NAK. Returns whether that is news.
    pub(super) fn acknowledge(&mut self, psn: Psn, now: Instant) -> bool {
        let is_news = psn.is_after(self.to);
        if is_news {
            self.note(now);
            (self.to, self.is_plain, self.is_awaited) = (psn, true, false);
        }
        is_news
    }

    /// A READ's or atomic's response acknowledged last.
    pub(super) fn note_data(&mut self) {
        self.is_plain = false;
    }

    /// The requester is told something now.
    pub(super) fn note(&mut self, now: Instant) {
        self.at = now;
        self.first.get_or_insert(now);
    }

    /// It is refused, or told where to go on. Its next packet measures no turn from here.
    pub(super) fn note_refusal(&mut self, now: Instant) {
        self.at = now;
    }

    /// It has sent something.
    pub(super) fn note_heard(&mut self) {
        self.first = None;
    }

    /// When it was first told something since it last sent anything.
    pub(super) fn first(&self) -> Option<Instant> {
        self.first
    }

    /// How long ago it was told something last.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }
}
