//! How long ago PSNs were acknowledged to the requester.

use std::time::{Duration, Instant};

/// Counts the PSNs acknowledged, and remembers how many it were one and two periods ago. Counted in 64 bits: at 400 Gbit/s PSNs wrap in
/// less than two seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    told: u64,
    young: u64,
    old: u64,
    since: Instant,
}

impl Age {
    pub(super) fn new(now: Instant) -> Age {
        Age { told: 0, young: 0, old: 0, since: now }
    }

    /// So many more PSNs were acknowledged.
    pub(super) fn tell(&mut self, psns: u32) {
        self.told += u64::from(psns);
    }

    /// Whether the PSN that lies `back` before the first unacknowledged one was acknowledged more than a period ago; between one period and two it
    /// may be either.
    pub(super) fn is_old(&self, back: u32) -> bool {
        self.told.saturating_sub(u64::from(back)) < self.old
    }

    pub(super) fn pass(&mut self, now: Instant, period: Duration) {
        let passed = now.saturating_duration_since(self.since);
        if passed < period {
            return;
        }
        self.old = if passed < 2 * period { self.young } else { self.told };
        self.young = self.told;
        self.since = now;
    }

    /// When [`pass`](Age::pass) will change something.
    pub(super) fn timeout(&self, period: Duration) -> Option<Instant> {
        (self.old != self.told).then(|| self.since + period)
    }
}
