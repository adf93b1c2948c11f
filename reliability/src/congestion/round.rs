//! Measurements of one round trip, from reports.

/// The measurements between two ends of rounds. Times in seconds, rates in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Its length.
    pub(super) time: f64,
    /// The least queueing delay.
    pub(super) queue: f64,
    /// The most.
    pub(super) highest: f64,
    /// The rate of arrivals, by the receiver's clock.
    pub(super) delivered: f64,
    /// Numbers that were passed, and those of them that had not arrived.
    pub(super) numbers: f64,
    pub(super) lost: f64,
    /// Share of the ECN-capable arrivals that were marked.
    pub(super) marked: f64,
    /// The sender had as much to send as it was allowed.
    pub(super) limited: bool,
}

/// The smallest of the last one to two generations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    values: [f64; 2],
    began: u64,
    generation: u64,
}

impl Least {
    pub(super) fn new(generation: u64) -> Self {
        Self { values: [f64::INFINITY; 2], began: 0, generation }
    }

    pub(super) fn add(&mut self, value: f64, now: u64) {
        if now >= self.began + self.generation {
            self.began = now;
            self.values = [f64::INFINITY, self.values[0]];
        }
        self.values[0] = self.values[0].min(value);
    }

    pub(super) fn get(&self) -> Option<f64> {
        let [young, old] = self.values;
        Some(young.min(old)).filter(|least| least.is_finite())
    }
}
