//! Requester side: a message that the target may have the beginning of, where the flow that carried
//! it begins earlier, or another one takes its place.
//!
//! A requester that goes back sends it again, and its end. One that falls silent instead leaves the
//! target's program waiting for the rest. The ring, which would tell, has been forgotten.

use super::Near;
use crate::flow::horizon::NEARBY;
use crate::wire::Psn;

/// The beginning of a message that was carried, and that no request has reached again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amid {
    /// The PSN that would have come next.
    psn: Psn,
    /// The target's count of messages when it last spoke to the flow that carried it. `None`: it
    /// had not.
    msn: Option<u32>,
}

impl Amid {
    /// Returns whether a target that has counted `msn` messages, as it first answers `completed` of
    /// the flow, may be in an incarnation that began with that.
    fn may_precede(self, msn: u32, completed: u32) -> bool {
        msn == completed || self.msn.is_some_and(|before| msn < before)
    }
}

impl Near {
    /// Returns what the target may be amid when the requests begin again at `psn`.
    pub(super) fn amid_for(&self, psn: Psn) -> Option<Amid> {
        let floor = self.seen.floor();
        let own = (self.ring.is_open() && !self.is_known_over())
            .then(|| Amid { psn: floor, msn: (!self.is_unproven()).then(|| self.target.aeth().msn) });
        let earlier = self.incarnation.amid().filter(|amid| own.is_none() || floor.is_before(amid.psn));
        let is_beyond = |amid: &Amid| (1..=NEARBY).contains(&amid.psn.distance(psn));
        earlier.or(own).filter(is_beyond)
    }

    /// Keeps in mind what the target may be amid, before the ring is forgotten.
    pub(super) fn keep_amid(&mut self, psn: Psn) {
        let amid = self.amid_for(psn);
        self.incarnation.set_amid(amid);
    }

    /// Requests have come up to the PSN expected: from there on the ring tells.
    pub(super) fn note_amid_reached(&mut self) {
        let floor = self.seen.floor();
        if self.incarnation.amid().is_some_and(|amid| !floor.is_before(amid.psn)) {
            self.incarnation.set_amid(None);
        }
    }

    /// The target has spoken to this flow for the first time.
    pub(super) fn note_amid_counted(&mut self, msn: u32, completed: u32) {
        if self.incarnation.amid().is_some_and(|amid| amid.may_precede(msn, completed)) {
            self.incarnation.set_amid(None);
        }
    }

    /// Returns true if the target may have the beginning of a message that an earlier flow of this
    /// queue pair carried, or this one before its requester went back. Should nothing more come,
    /// the far half is to say whether its program has to be told.
    #[must_use]
    pub fn may_be_amid(&self) -> bool {
        self.incarnation.amid().is_some()
    }
}
