//! How long a target has been silent.

use std::time::{Duration, Instant};

/// The target's silence, as far as it counts.
#[derive(Debug)]
pub(super) struct Silence {
    /// From when the retransmission timeout counts.
    from: Instant,
    /// When the target last said anything.
    heard: Instant,
    /// How long it has been waited for without progress, up to the last timeout.
    total: Duration,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Silence {
        Silence { from: now, heard: now, total: Duration::ZERO }
    }

    pub(super) fn from(&self) -> Instant {
        self.from
    }

    /// The retransmission timeout counts from now on.
    pub(super) fn restart_timer(&mut self, now: Instant) {
        self.from = now;
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn total(&self) -> Duration {
        self.total
    }

    /// The target is not silent.
    pub(super) fn end(&mut self) {
        self.total = Duration::ZERO;
    }

    /// Counts the time since the timeout began to count as silence.
    pub(super) fn count(&mut self, now: Instant) {
        self.count_since(self.from, now);
    }

    pub(super) fn count_since(&mut self, since: Instant, now: Instant) {
        self.add(now.saturating_duration_since(since));
    }

    pub(super) fn add(&mut self, silence: Duration) {
        self.total += silence;
    }
}
