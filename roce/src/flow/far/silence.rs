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
    /// The target has said that it expects an earlier request, which only the requester can bring.
    awaits_earlier: bool,
    /// Nothing comes from the requester's gateway for now.
    is_cut_off: bool,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Silence {
        Silence { from: now, heard: now, total: Duration::ZERO, awaits_earlier: false, is_cut_off: false }
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

    pub(super) fn set_awaits_earlier(&mut self, awaits_earlier: bool) {
        self.awaits_earlier = awaits_earlier;
    }

    pub(super) fn set_cut_off(&mut self, is_cut_off: bool) {
        self.is_cut_off = is_cut_off;
    }

    /// Returns true if the target waits for who cannot come: its silence counts for nothing.
    pub(super) fn is_excused(&self) -> bool {
        self.is_cut_off && self.awaits_earlier
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
