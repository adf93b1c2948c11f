//! Round-trip times, and whether they are inflated.

use std::time::Duration;

use crate::rtt::Estimator;

/// The smallest of the last one to two of these is the path's own.
const GENERATION: u64 = 300_000_000;
/// Longer than the path's own by this share, and by this much, a round trip is inflated: somewhere
/// a queue stands.
const INFLATED: u32 = 8;
const INFLATED_LEAST: Duration = Duration::from_millis(1);
/// Periods between reports that are looked back upon: a loss is reported about two round trips
/// after it happened, and samples may be few.
const PERIODS: usize = 8;
/// A queue that stands delays every packet, jitter only some: of so many samples one at least shows
/// the path without its jitter.
const FEW: u32 = 8;

/// RFC 6298 estimator with a minimum that ages. The hint stands until the first sample.
#[derive(Clone, Debug)]
pub(super) struct PathRtt {
    estimator: Estimator,
    /// This generation's and the last one's.
    minima: [Option<Duration>; 2],
    began: u64,
    /// Smallest and number of the samples of this period and of those before.
    periods: [(Duration, u32); PERIODS],
}

impl PathRtt {
    pub(super) fn new(hint: Duration) -> Self {
        Self {
            estimator: Estimator::new(hint),
            minima: [None; 2],
            began: 0,
            periods: [(Duration::MAX, 0); PERIODS],
        }
    }

    pub(super) fn sample(&mut self, rtt: Duration, now: u64) {
        self.estimator.sample(rtt);
        if now >= self.began + GENERATION {
            self.began = now;
            self.minima = [None, self.minima[0]];
        }
        let [young, _] = &mut self.minima;
        *young = Some(young.map_or(rtt, |least| least.min(rtt)));
        let [(least, count), ..] = &mut self.periods;
        *least = rtt.min(*least);
        *count = count.saturating_add(1);
    }

    pub(super) fn smoothed(&self) -> Duration {
        self.estimator.smoothed()
    }

    pub(super) fn variation(&self) -> Duration {
        self.estimator.variation()
    }

    pub(super) fn minimum(&self) -> Duration {
        self.minima.into_iter().flatten().min().unwrap_or(self.estimator.minimum())
    }

    pub(super) fn samples(&self) -> u64 {
        self.estimator.samples()
    }

    /// A period ends: whether all round trips of this one or of one of the last were inflated; of
    /// all these together where they were few.
    pub(super) fn end_period(&mut self) -> bool {
        let own = self.minimum();
        let bound = own + (own / INFLATED).max(INFLATED_LEAST);
        let inflated = |least: Duration, count: u32| count >= FEW && least > bound;
        let together = self.periods.iter().fold((Duration::MAX, 0_u32), |(least, count), (other, more)| {
            (least.min(*other), count.saturating_add(*more))
        });
        let found = self.periods.iter().chain([&together]).any(|(least, count)| inflated(*least, *count));
        self.periods.rotate_right(1);
        self.periods[0] = (Duration::MAX, 0);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_minimum_is_of_late() {
        let mut rtt = PathRtt::new(50 * MS);
        assert_eq!((rtt.minimum(), rtt.smoothed()), (50 * MS, 50 * MS));
        rtt.sample(20 * MS, 0);
        rtt.sample(30 * MS, GENERATION);
        assert_eq!(rtt.minimum(), 20 * MS);
        rtt.sample(31 * MS, 2 * GENERATION);
        assert_eq!(rtt.minimum(), 30 * MS, "the route has become longer");
    }

    #[test]
    fn inflation_is_seen_for_some_periods() {
        let mut rtt = PathRtt::new(50 * MS);
        rtt.sample(20 * MS, 0);
        rtt.sample(22 * MS, 0);
        assert!(!rtt.end_period());
        (0..8).for_each(|_| rtt.sample(23 * MS, 0));
        let seen = (0..20).take_while(|_| rtt.end_period()).count();
        assert_eq!(seen, PERIODS);
    }

    #[test]
    fn jitter_is_no_inflation() {
        let mut rtt = PathRtt::new(50 * MS);
        let mut period = |samples: &[u32]| {
            samples.iter().for_each(|sample| rtt.sample(*sample * MS, 0));
            rtt.end_period()
        };
        assert!(!(0..20).any(|_| period(&[40, 20, 35, 30])), "a mean of 31 ms");
        let until = (0..20).take_while(|_| !period(&[26])).count();
        assert_eq!(until, 7, "eight in a row");
    }
}
