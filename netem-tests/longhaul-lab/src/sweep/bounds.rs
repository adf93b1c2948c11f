//! Percentiles of a sample, with bounds by order statistics.

use linksim::transfer::Times;
use serde::Serialize;

/// The quantile judged.
pub(super) const QUANTILE: f64 = 0.99;

/// A 99th percentile in seconds. That of the model is known exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct P99 {
    /// Surely no less ...
    pub(super) low: f64,
    pub(super) value: f64,
    /// ... and surely no more.
    pub(super) high: f64,
}

impl P99 {
    pub(super) fn exact(value: f64) -> Self {
        Self { low: value, value, high: value }
    }

    /// Returns the bounds of a sample; each fails with a probability of `risk` at most, whatever
    /// the distribution. `None` if it is too small to tell.
    pub(super) fn of(times: &Times, risk: f64) -> Option<Self> {
        let count = times.count();
        let ranks = Ranks::new(count, risk)?;
        // In the middle of the rank, so that rounding leads to no other.
        let at = |rank: u64| times.quantile((rank as f64 - 0.5) / count as f64);
        Some(Self { low: at(ranks.low), value: times.quantile(QUANTILE), high: at(ranks.high) })
    }
}

/// Places in the ascending sample, from 1, between which the quantile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ranks {
    low: u64,
    high: u64,
}

impl Ranks {
    /// How many of the sample lie beyond the quantile is binomially distributed: with a risk of at
    /// most `risk` it is more than `most`, or fewer than or as many as `fewest`.
    fn new(count: u64, risk: f64) -> Option<Self> {
        let beyond = 1.0 - QUANTILE;
        let odds = beyond / QUANTILE;
        // Of a large sample, the first terms are below what a number can hold.
        let mut log_term = count as f64 * QUANTILE.ln();
        let (mut below, mut fewest) = (0.0, None);
        for most in 0..count {
            below += log_term.exp();
            if below <= risk {
                fewest = Some(most);
            }
            if 1.0 - below <= risk {
                return Some(Self { low: count - most, high: count - fewest? });
            }
            log_term += ((count - most) as f64 / (most + 1) as f64 * odds).ln();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    #[test]
    fn a_sample_is_large_enough_when_its_largest_value_bounds_the_quantile() {
        // 0.99^n <= 1e-3 from 688 on.
        assert_eq!(Ranks::new(687, 1e-3), None);
        assert_eq!(Ranks::new(688, 1e-3).unwrap().high, 688);
        assert_eq!(Ranks::new(0, 1e-3), None);
        let ranks = Ranks::new(100_000, 0.025).unwrap();
        // 99,000 and twice a standard deviation of 31.5.
        assert!(
            (98_935..=98_942).contains(&ranks.low) && (99_058..=99_065).contains(&ranks.high),
            "{ranks:?}"
        );
    }

    #[test]
    fn bounds_fail_as_rarely_as_they_claim() {
        let (seed, count, risk) = (0xb0, 2000, 0.02);
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let ranks = Ranks::new(count, risk).unwrap();
        let (mut below, mut above) = (0, 0);
        for _ in 0..5000 {
            // Of uniform numbers: how many are above their 99th percentile.
            let beyond = (0..count).filter(|_| rng.random::<f64>() > QUANTILE).count() as u64;
            above += u32::from(count - beyond < ranks.low);
            below += u32::from(count - beyond >= ranks.high);
        }
        // 100 of each expected at most.
        for failed in [above, below] {
            assert!((20..140).contains(&failed), "seed {seed:#x}: {above} and {below}");
        }
    }
}
