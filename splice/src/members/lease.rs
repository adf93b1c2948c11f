//! Leases at the peers, as the member that has them sees them.

use std::time::{Duration, Instant};

use super::{LeaseId, MemberId, Message, Process, Times};

/// A peer, and the lease that it gave.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct PeerLease {
    peer: MemberId,
    /// When the last beat was sent that the peer answered.
    #[serde_as(as = "Option<snapshot::At>")]
    answered: Option<Instant>,
    /// The lease and its end, which the peer sees later.
    #[serde_as(as = "Option<(_, snapshot::At)>")]
    lease: Option<(LeaseId, Instant)>,
    /// Since when there has been a lease without a break.
    #[serde_as(as = "Option<snapshot::At>")]
    held_since: Option<Instant>,
    /// The end of the last lease.
    #[serde_as(as = "Option<snapshot::At>")]
    held_until: Option<Instant>,
    /// The answer to the peer's last beat, which goes with the next beat to it.
    #[serde(skip)]
    owed: Option<Answer>,
    /// The process that was answered last, and when.
    #[serde(skip)]
    told: Option<(Process, Instant)>,
}

/// An answer to a beat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) to: Process,
    pub(super) beat: u64,
    pub(super) lease: Option<LeaseId>,
}

impl Answer {
    pub(super) fn message(self) -> Message {
        Message::Beaten(self.beat, self.lease)
    }
}

impl PeerLease {
    pub(super) fn new(peer: MemberId) -> Self {
        Self { peer, answered: None, lease: None, held_since: None, held_until: None, owed: None, told: None }
    }

    pub(super) fn member(&self) -> MemberId {
        self.peer
    }

    /// Has an answer go with the next beat, if the process was answered less than two beats ago.
    /// Returns it if it is to go at once.
    pub(super) fn put_off(&mut self, answer: Answer, beat: Duration, now: Instant) -> Option<Answer> {
        let is_recent = |(to, at)| to == answer.to && now.saturating_duration_since(at) < 2 * beat;
        if answer.lease.is_some() && self.told.is_some_and(is_recent) {
            self.owed = Some(answer);
            return None;
        }
        (self.owed, self.told) = (None, Some((answer.to, now)));
        Some(answer)
    }

    /// Takes the answer that goes with a beat.
    pub(super) fn take_answer(&mut self, now: Instant) -> Option<Answer> {
        let answer = self.owed.take()?;
        self.told = Some((answer.to, now));
        Some(answer)
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

    /// This process was silent by intention. If it had a lease then, it counts as one that had it
    /// until now at least.
    pub(super) fn excuse(&mut self, silent_since: Instant, until: Instant) {
        if self.valid(silent_since).is_some() {
            self.held_until = self.held_until.max(Some(until));
        }
    }

    /// Returns the lease if it lasts.
    pub(super) fn valid(&self, now: Instant) -> Option<LeaseId> {
        self.lease.filter(|(_, end)| now < *end).map(|(lease, _)| lease)
    }
}
