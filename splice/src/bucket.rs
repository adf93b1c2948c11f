//! Paces, kept as the time at which all that passed is paid for (GCRA, ITU-T I.371).

use std::time::{Duration, Instant};

/// Lets something pass at a pace, and more after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When all that passed is paid for.
    paid_at: Option<Instant>,
}

impl Bucket {
    /// When it would be paid for if what costs so much passed now, where no more than `most` may be
    /// owed; `None`: too late.
    pub(crate) fn after(self, cost: Duration, most: Duration, now: Instant) -> Option<Instant> {
        let paid_at = self.paid_at.map_or(now, |paid_at| paid_at.max(now));
        let after = paid_at.checked_add(cost)?;
        (after.saturating_duration_since(now) <= most).then_some(after)
    }

    /// It has passed, and is paid for then.
    pub(crate) fn pay(&mut self, after: Instant) {
        self.paid_at = Some(after);
    }

    /// Takes back what something that passed has cost.
    pub(crate) fn give_back(&mut self, cost: Duration) {
        self.paid_at = self.paid_at.and_then(|paid_at| paid_at.checked_sub(cost));
    }
}
