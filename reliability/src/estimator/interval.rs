//! Counts to rates with bounds.

/// A quantity with bounds that hold it in 19 of 20 cases.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Range {
    /// Probably not less.
    pub low: f64,
    /// The best single guess.
    pub likely: f64,
    /// Probably not more.
    pub high: f64,
}

/// The normal distribution's 97.5 % point.
const Z: f64 = 1.959_964;

/// Packets that arrived and were lost, in runs: what a Gilbert chain (two states, all lost in the
/// bad one) is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Chain {
    pub(super) arrived: f64,
    pub(super) lost: f64,
    /// Runs of losses.
    pub(super) runs: f64,
}

impl Chain {
    pub(super) fn add(&mut self, other: &Chain) {
        self.arrived += other.arrived;
        self.lost += other.lost;
        self.runs += other.runs;
    }

    /// From arrived to lost: how many times of how many.
    fn enter(&self) -> (f64, f64) {
        let runs = self.runs.max(0.0);
        (runs, self.arrived.max(runs))
    }

    /// From lost to arrived: how many times of how many.
    fn leave(&self) -> (f64, f64) {
        let runs = self.runs.max(0.0);
        (runs, self.lost.max(runs))
    }

    /// How many times more the number of losses varies than if each packet were lost by itself:
    /// (1 + r) / (1 - r), r being the correlation of neighbours. As if a run of two had been seen
    /// as well: it carries some weight while nothing else is known, and soon none.
    pub(super) fn clumping(&self) -> f64 {
        let ((runs, arrived), (_, lost)) = (self.enter(), self.leave());
        let enter = if arrived > 0.0 { runs / arrived } else { 0.0 };
        let leave = (runs + 1.0) / (lost + 2.0);
        let correlation = (1.0 - enter - leave).clamp(-0.5, 0.9999);
        (1.0 + correlation) / (1.0 - correlation)
    }

    /// The share lost. `dispersion` (at least 1) says how many times more the runs vary than in a
    /// Gilbert chain.
    ///
    /// Exact Poisson (Garwood) bounds by Byar's approximation, of as many independent events as
    /// would vary as much.
    pub(super) fn drop(&self, dispersion: f64) -> Range {
        let lost = self.lost.max(0.0);
        let judged = self.arrived.max(0.0) + lost;
        if judged <= 0.0 {
            return Range { low: 0.0, likely: 0.0, high: 1.0 };
        }
        let likely = lost / judged;
        let unit = self.clumping() * dispersion * (1.0 - likely).max(0.05);
        let events = lost / unit;
        let share = |events: f64| (events * unit / judged).min(1.0);
        let (low, high) = (share(poisson_low(events)), share(poisson_high(events)));
        Range { low: low.min(likely), likely, high: high.max(likely) }
    }

    /// The mean run of losses in packets, by Wilson's score interval with continuity correction
    /// (Newcombe 1998) of the chance that a run ends; `None` if there was none.
    pub(super) fn burst(&self) -> Option<Range> {
        let (runs, lost) = self.leave();
        if runs <= 0.0 {
            return None;
        }
        let ends = runs / lost;
        let bound = |sign: f64| {
            let inner = Z * Z - 1.0 / lost + 4.0 * runs * (1.0 - ends) + sign * (2.0 - 4.0 * ends);
            let bound = 2.0 * runs + Z * Z + sign * (Z * inner.max(0.0).sqrt() + 1.0);
            (bound / (2.0 * (lost + Z * Z))).clamp(f64::MIN_POSITIVE, 1.0)
        };
        let high = if runs < lost { bound(1.0) } else { 1.0 };
        Some(Range { low: 1.0 / high.max(ends), likely: 1.0 / ends, high: 1.0 / bound(-1.0).min(ends) })
    }

    /// Mean arrivals between runs of losses; `None` if there was none.
    pub(super) fn gap(&self) -> Option<f64> {
        (self.runs > 0.0).then(|| self.arrived.max(0.0) / self.runs)
    }

    /// Logarithm of the likelihood ratio of two chains against one: how much better it explains
    /// both if they differ.
    pub(super) fn contrast(&self, other: &Chain) -> f64 {
        let both = |part: fn(&Chain) -> (f64, f64)| log_ratio(part(self), part(other));
        both(Chain::enter) + both(Chain::leave)
    }
}

/// For successes of trials in each of two samples.
fn log_ratio(a: (f64, f64), b: (f64, f64)) -> f64 {
    let (hits, trials) = (a.0 + b.0, a.1 + b.1);
    if trials <= 0.0 {
        return 0.0;
    }
    let log_likelihood = |(hits, trials): (f64, f64)| {
        let term = |count: f64| if count > 0.0 { count * (count / trials).ln() } else { 0.0 };
        term(hits) + term(trials - hits)
    };
    log_likelihood(a) + log_likelihood(b) - log_likelihood((hits, trials))
}

fn poisson_low(events: f64) -> f64 {
    if events <= 0.0 {
        return 0.0;
    }
    let root = 1.0 - 1.0 / (9.0 * events) - Z / (3.0 * events.sqrt());
    events * root.max(0.0).powi(3)
}

fn poisson_high(events: f64) -> f64 {
    let more = events.max(0.0) + 1.0;
    more * (1.0 - 1.0 / (9.0 * more) + Z / (3.0 * more.sqrt())).powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{found} instead of {expected}");
    }

    #[test]
    fn bounds_are_those_of_garwood_tables() {
        // Exact 95 % limits of a Poisson mean.
        for (events, low, high) in
            [(0.0, 0.0, 3.689), (5.0, 1.623, 11.668), (10.0, 4.795, 18.390), (100.0, 81.36, 121.63)]
        {
            near(poisson_low(events), low, 0.01);
            near(poisson_high(events), high, 0.01);
        }
        assert!((0.0..0.0253).contains(&poisson_low(1.0)), "on the safe side where it is rough");
    }

    #[test]
    fn independent_losses_have_binomial_width() {
        // 10 % of a million, alone: 100000 losses in 90000 runs.
        let chain = Chain { arrived: 900_000.0, lost: 100_000.0, runs: 90_000.0 };
        near(chain.clumping(), 1.0, 1e-4);
        let drop = chain.drop(1.0);
        near(drop.high - drop.low, 2.0 * Z * (0.09_f64 / 1e6).sqrt(), 0.01);
        near(chain.burst().unwrap().likely, 1.0 / 0.9, 1e-9);
        near(chain.gap().unwrap(), 10.0, 1e-9);
    }

    #[test]
    fn bursts_widen_by_their_length() {
        // Mean 10, geometric: the count of losses varies 2 * 10 - 1 times as much.
        let chain = Chain { arrived: 1e6, lost: 1000.0, runs: 100.0 };
        near(chain.clumping(), 19.0, 0.02);
        let drop = chain.drop(1.0);
        near(drop.high / drop.likely, 1.0 + Z * (19.0_f64 / 1000.0).sqrt(), 0.05);
        let burst = chain.burst().unwrap();
        assert!(burst.low > 8.0 && burst.high < 12.3, "{burst:?}");
    }

    #[test]
    fn nothing_lost_says_how_little_is_lost_at_most() {
        let clean = Chain { arrived: 1e6, ..Chain::default() };
        let drop = clean.drop(1.0);
        assert_eq!((drop.low, drop.likely), (0.0, 0.0));
        // Losses may come in twos.
        near(drop.high, 3.0 * 3.689e-6, 0.01);
        near(clean.drop(8.0).high, 8.0 * drop.high, 0.01);
        assert_eq!(clean.burst(), None);
        assert_eq!(Chain::default().drop(1.0), Range { low: 0.0, likely: 0.0, high: 1.0 });
    }

    #[test]
    fn odd_counts_give_odd_but_ordered_bounds() {
        for arrived in [-3.0, 0.0, 1.0, 1e3, 1e12] {
            for lost in [-3.0, 0.0, 1.0, 1e3, 1e12] {
                for runs in [-1.0, 0.0, 1.0, 1e3, 1e12] {
                    let chain = Chain { arrived, lost, runs };
                    let drop = chain.drop(1.0);
                    assert!(0.0 <= drop.low && drop.low <= drop.likely, "{chain:?}: {drop:?}");
                    assert!(drop.likely <= drop.high && drop.high <= 1.0, "{chain:?}: {drop:?}");
                    let burst = chain.burst().unwrap_or(Range { low: 1.0, likely: 1.0, high: 1.0 });
                    assert!(1.0 <= burst.low && burst.low <= burst.likely + 1e-9, "{chain:?}: {burst:?}");
                    assert!(burst.likely <= burst.high && burst.high.is_finite(), "{chain:?}: {burst:?}");
                    assert!(chain.contrast(&Chain { arrived: 1e4, lost: 5.0, runs: 2.0 }) >= -1e-3);
                }
            }
        }
    }

    #[test]
    fn contrast_grows_with_evidence() {
        let before = Chain { arrived: 1e6, lost: 100.0, runs: 100.0 };
        let same = Chain { arrived: 1e4, lost: 1.0, runs: 1.0 };
        assert!(before.contrast(&same) < 1.0);
        // 2 % after 0.01 %: three losses in 150 packets are enough.
        assert!(before.contrast(&Chain { arrived: 147.0, lost: 3.0, runs: 3.0 }) > 8.0);
        // As many losses, in bursts.
        assert!(before.contrast(&Chain { arrived: 1e5, lost: 10.0, runs: 2.0 }) > 15.0);
    }
}
