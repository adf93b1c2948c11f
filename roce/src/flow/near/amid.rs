//! Requester side: a message that the target may have the beginning of, where the flow that carried
//! it begins earlier, or another one takes its place.
//!
//! A requester that goes back sends it again, and its end. One that falls silent instead leaves the
//! target's program waiting for the rest. The ring, which would tell, has been forgotten.

use super::{Near, later};
use crate::flow::horizon::NEARBY;
use crate::wire::Psn;

impl Near {
    /// Returns the PSN up to which messages were carried that the target may be amid when the
    /// requests begin again at `psn`.
    pub(super) fn amid_for(&self, psn: Psn) -> Option<Psn> {
        let own = self.ring.amid_to().filter(|_| !self.is_known_over());
        let amid = match (own, self.incarnation.amid()) {
            (Some(own), Some(earlier)) => Some(later(own, earlier)),
            (own, earlier) => own.or(earlier),
        };
        amid.filter(|amid| (1..=NEARBY).contains(&amid.distance(psn)))
    }

    /// Keeps in mind what the target may be amid, before the ring is forgotten.
    pub(super) fn keep_amid(&mut self, psn: Psn) {
        let amid = self.amid_for(psn);
        self.incarnation.set_amid(amid);
    }

    /// Requests have come up to the PSN expected: from there on the ring tells.
    pub(super) fn note_amid_reached(&mut self) {
        let floor = self.seen.floor();
        if self.incarnation.amid().is_some_and(|amid| !floor.is_before(amid)) {
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
