//! Requester side: the target's word.

use std::time::Instant;

use super::rnr::Rnr;
use crate::wire::{Aeth, Syndrome};

/// The target's state as its responses tell it.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Target {
    msn: u32,
    credits: Syndrome,
    /// It is not ready to receive.
    pub(super) rnr: Option<Box<Rnr>>,
    /// When it last answered anything, or the first request after that came.
    #[serde_as(as = "snapshot::At")]
    answered: Instant,
}

impl Target {
    pub(super) fn new(now: Instant) -> Target {
        Target { msn: 0, credits: Syndrome::ACK, rnr: None, answered: now }
    }

    /// Takes over its count of messages, and its credits. What says nothing of credits (most
    /// targets never do, and nothing that a gateway made up does) takes none back.
    pub(super) fn hear(&mut self, aeth: Aeth) {
        self.msn = aeth.msn;
        if aeth.syndrome.has_credits() {
            self.credits = aeth.syndrome;
        }
    }

    pub(super) fn set_msn(&mut self, msn: u32) {
        self.msn = msn;
    }

    /// Its count of messages, and its credits as an ACK tells them.
    pub(super) fn aeth(&self) -> Aeth {
        Aeth { syndrome: self.credits, msn: self.msn }
    }

    pub(super) fn answered(&self) -> Instant {
        self.answered
    }

    pub(super) fn note_answered(&mut self, now: Instant) {
        self.answered = now;
    }
}
