//! Leases at the peers, as the member that has them sees them.

use std::time::{Duration, Instant};

use super::{LeaseId, MemberId, Times};

/// A peer, and the lease that it gave.
#[derive(Debug)]
pub(super) struct PeerLease {
    peer: MemberId,
    /// When the last beat was sent that the peer answered.
    answered: Option<Instant>,
    /// The lease and its end, which the peer sees later.
    lease: Option<(LeaseId, Instant)>,
    /// Since when there has been a lease without a break.
    held_since: Option<Instant>,
    /// The end of the last lease.
    held_until: Option<Instant>,
}

impl PeerLease {
    pub(super) fn new(peer: MemberId) -> Self {
        Self { peer, answered: None, lease: None, held_since: None, held_until: None }
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
        if self.valid(now).is_none() {
            self.held_since = None;
        }
        self.answered = Some(sent);
        self.lease = lease.map(|lease| (lease, sent + times.lease));
        if let Some((_, end)) = self.lease {
            self.held_since.get_or_insert(now);
            self.held_until = Some(end);
        }
    }

    /// Returns true if there is a lease, and has been for so long.
    pub(super) fn is_held_for(&self, time: Duration, now: Instant) -> bool {
        let held = self.held_since.filter(|_| self.valid(now).is_some());
        held.is_some_and(|since| now.saturating_duration_since(since) >= time)
    }

    /// Returns true if there is a lease, or was one so shortly ago.
    pub(super) fn was_held_within(&self, time: Duration, now: Instant) -> bool {
        self.held_until.is_some_and(|end| now.saturating_duration_since(end) < time)
    }

    /// Returns the lease if it lasts.
    pub(super) fn valid(&self, now: Instant) -> Option<LeaseId> {
        self.lease.filter(|(_, end)| now < *end).map(|(lease, _)| lease)
    }
}
