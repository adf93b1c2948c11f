//! A histogram of times, in buckets that never change.

use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. One more bucket has what is longer.
pub const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];
/// How many buckets there are.
pub const BUCKETS: usize = BOUNDS.len() + 1;

/// Times that were counted. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Times {
    /// How many fell into each bucket: above the bound before, and up to its own.
    pub counts: [u64; BUCKETS],
    /// Their sum in microseconds. It stops at the most that it holds.
    pub sum: u64,
}

impl Times {
    /// Counts a time of so many microseconds.
    #[inline]
    pub fn note(&mut self, micros: u64) {
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(micros);
    }

    /// Counts another histogram's times as well.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns how many there are.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the time that this share of them (0 to 1) does not exceed, or the last bound if it
    /// is longer. Within a bucket, times are taken as spread evenly. `None` without any.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * total as f64;
        let (mut below, mut from) = (0.0, 0);
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            let within = *count as f64;
            if within > 0.0 && below + within >= rank {
                let part = (rank - below).max(0.0) / within;
                let micros = from as f64 + part * (bound - from) as f64;
                return Some(Duration::from_micros(micros as u64));
            }
            (below, from) = (below + within, bound);
        }
        Some(Duration::from_micros(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_their_buckets() {
        let mut times = Times::default();
        for micros in [0, 100, 101, 10_000_000, 10_000_001] {
            times.note(micros);
        }
        assert_eq!((times.counts[0], times.counts[1]), (2, 1));
        assert_eq!((times.counts[BUCKETS - 2], times.counts[BUCKETS - 1]), (1, 1));
        assert_eq!((times.total(), times.sum), (5, 20_000_202));
        let mut twice = times;
        twice.add(&times);
        assert_eq!((twice.total(), twice.sum), (10, 2 * times.sum));
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        (0..90).for_each(|_| times.note(200));
        (0..10).for_each(|_| times.note(40_000));
        let micros = |share| times.quantile(share).unwrap().as_micros();
        assert_eq!((micros(0.0), micros(0.9), micros(1.0)), (100, 250, 50_000));
        assert!((100..250).contains(&micros(0.5)) && (25_000..50_000).contains(&micros(0.99)));
        times.note(u64::MAX);
        assert_eq!(times.quantile(1.0), Some(Duration::from_secs(10)), "the last bound");
    }
}
