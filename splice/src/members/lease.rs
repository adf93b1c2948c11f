//! Leases at the peers, as the member that has them sees them.

use std::time::Instant;

use super::{LeaseId, MemberId, Times};

/// A peer, and the lease that it gave.
#[derive(Debug)]
pub(super) struct PeerLease {
    peer: MemberId,
    /// When the last beat was sent that the peer answered.
    answered: Option<Instant>,
    /// The lease and its end, which the peer sees later.
    lease: Option<(LeaseId, Instant)>,
}

impl PeerLease {
    pub(super) fn new(peer: MemberId) -> Self {
        Self { peer, answered: None, lease: None }
    }

    pub(super) fn member(&self) -> MemberId {
        self.peer
    }

    /// Takes the answer to the beat that was sent at a time. An answer to an earlier one says
    /// nothing any more.
    pub(super) fn answered(&mut self, sent: Instant, lease: Option<LeaseId>, times: &Times, now: Instant) {
        if sent > now || self.answered.is_some_and(|last| sent < last) {
            return;
        }
        self.answered = Some(sent);
        self.lease = lease.map(|lease| (lease, sent + times.lease));
    }

    /// Returns the lease if it lasts.
    pub(super) fn valid(&self, now: Instant) -> Option<LeaseId> {
        self.lease.filter(|(_, end)| now < *end).map(|(lease, _)| lease)
    }
}
