//! Responder side: the target's word.

use crate::wire::{Aeth, Psn, Syndrome};

/// The target's state as its responses tell it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Said {
    /// Its count of messages.
    msn: u32,
    /// The last credits for receives it told of, [`Syndrome::ACK`] if it never did.
    credits: Syndrome,
    /// Messages that it has counted beyond the requester's: further pieces of READs.
    surplus: u32,
    /// It has everything before, which is more than was sent.
    beyond: Option<Psn>,
    /// It has answered something at or beyond the first PSN.
    is_confirmed: bool,
    /// Asked after a rest, it has not spoken.
    is_rested: bool,
}

impl Said {
    pub(super) fn new() -> Said {
        let credits = Syndrome::ACK;
        Said { msn: 0, credits, surplus: 0, beyond: None, is_confirmed: false, is_rested: false }
    }

    pub(super) fn hear(&mut self, aeth: Aeth) {
        self.msn = aeth.msn;
        if aeth.syndrome.has_credits() {
            self.credits = aeth.syndrome;
        }
    }

    /// Returns its last count of messages.
    pub(super) fn msn(&self) -> u32 {
        self.msn
    }

    pub(super) fn set_msn(&mut self, msn: u32) {
        self.msn = msn;
    }

    /// Returns how many more messages a count of messages, which wraps, has than the last one.
    pub(super) fn counted_since(&self, msn: u32) -> i64 {
        Psn::new(msn).distance(Psn::new(self.msn)).into()
    }

    pub(super) fn credits(&self) -> Syndrome {
        self.credits
    }

    pub(super) fn aeth(&self) -> Aeth {
        Aeth { syndrome: self.credits, msn: self.msn }
    }

    /// With the count of messages as the requester has it.
    pub(super) fn corrected(&self, aeth: Aeth) -> Aeth {
        Aeth { msn: aeth.msn.wrapping_sub(self.surplus) & 0x00ff_ffff, ..aeth }
    }

    /// It counts so many messages more than the requester.
    pub(super) fn note_surplus(&mut self, messages: u32) {
        self.surplus = self.surplus.wrapping_add(messages);
    }

    /// It says that it has everything before this PSN, which is more than was sent. Returns whether
    /// it has said the same before.
    pub(super) fn note_beyond(&mut self, to: Psn) -> bool {
        self.beyond.replace(to) == Some(to)
    }

    pub(super) fn beyond(&self) -> Option<Psn> {
        self.beyond
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    pub(super) fn is_rested(&self) -> bool {
        self.is_rested
    }

    /// It has spoken of this flow's requests.
    pub(super) fn confirm(&mut self) {
        (self.is_confirmed, self.is_rested) = (true, false);
    }

    /// It is about to be asked after a rest.
    pub(super) fn note_rest(&mut self) {
        self.is_rested = true;
    }
}
