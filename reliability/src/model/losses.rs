//! How many packets of a sequence are lost, independently or in bursts.

use crate::link::Link;

/// Blocks are no longer than this, data and parity together.
const MAX_BLOCK: usize = fec::MAX_BLOCK;

/// A Gilbert channel: two states, a packet is lost in the bad one. With independent losses the
/// states have no memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Losses {
    drop: f64,
    /// From good to bad.
    enter: f64,
    /// From bad to good.
    leave: f64,
}

/// More losses than parity can make up for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shortfall {
    /// Its probability.
    pub(crate) probability: f64,
    /// Expected number of losses beyond, zero where there are none beyond.
    pub(crate) excess: f64,
}

impl Losses {
    pub(crate) fn new(link: &Link) -> Self {
        let drop = link.drop();
        let leave = 1.0 / link.burst();
        Self { drop, enter: drop * leave / (1.0 - drop), leave }
    }

    /// Probability that any one packet is lost.
    pub(crate) fn drop(&self) -> f64 {
        self.drop
    }

    /// Probability that a packet is lost after one that arrived.
    pub(crate) fn enter(&self) -> f64 {
        self.enter
    }

    /// Probability that a packet arrives after one that was lost.
    pub(crate) fn leave(&self) -> f64 {
        self.leave
    }

    /// Correlation of neighbouring packets, 0 if losses are independent.
    fn memory(&self) -> f64 {
        (1.0 - self.enter - self.leave).max(0.0)
    }

    /// Losses come in clusters of this many on average; 1 if they are independent.
    pub(crate) fn cluster(&self) -> f64 {
        ((1.0 - self.drop) / self.leave).max(1.0)
    }

    /// The channel as every `stride`-th packet sees it.
    pub(crate) fn every(&self, stride: f64) -> Self {
        let memory = self.memory().powf(stride);
        Self { drop: self.drop, enter: self.drop * (1.0 - memory), leave: (1.0 - self.drop) * (1.0 - memory) }
    }

    /// Probability that at least one of `count` packets in a row is lost.
    pub(crate) fn any_of(&self, count: f64) -> f64 {
        self.any_of_share(1.0, count)
    }

    /// Probability that a loss hits any of a share of `count` packets in a row, evenly spread among
    /// the others.
    pub(crate) fn any_of_share(&self, share: f64, count: f64) -> f64 {
        if count <= 0.0 {
            return 0.0;
        }
        let enter = self.enter * self.cluster_hits(share);
        -((-self.drop * share).ln_1p() + (count - 1.0).max(0.0) * (-enter).ln_1p()).exp_m1()
    }

    /// Probability that a cluster of losses, whose length is geometrically distributed, hits a
    /// share of the packets.
    pub(crate) fn cluster_hits(&self, share: f64) -> f64 {
        let end = 1.0 / self.cluster();
        1.0 - (1.0 - share) * end / (1.0 - (1.0 - end) * (1.0 - share))
    }

    /// Probability that all of `count` packets in a row are lost.
    pub(crate) fn all_of(&self, count: f64) -> f64 {
        self.drop * (1.0 - self.leave).powf((count - 1.0).max(0.0))
    }

    /// Probability that a packet and all of `count` more that follow it after a pause of so many
    /// packets are lost.
    pub(crate) fn all_of_apart(&self, pause: f64, count: f64) -> f64 {
        if count < 1.0 { self.drop } else { self.all_of(count) * (1.0 - self.every(pause + 1.0).leave) }
    }

    /// Probability that `lost` packets, sent again together as often as necessary, are not all
    /// there after 0, 1, 2, ... times. Each time separates clusters further: of a cluster of which
    /// something was lost again, on average that part remains. With `protected`, that is each
    /// time's probability of failing, whatever was lost.
    pub(crate) fn repeats(&self, lost: f64, protected: Option<f64>) -> impl Iterator<Item = f64> {
        let losses = *self;
        let mut cluster = losses.cluster().min(lost).max(1.0);
        let clusters = if protected.is_some() { 1.0 } else { (lost / cluster).max(1.0) };
        let mut open = 1.0_f64;
        std::iter::from_fn(move || {
            let all = -(clusters * (-open).ln_1p()).exp_m1();
            let again = losses.any_of(cluster);
            cluster = (cluster * losses.drop / again.max(f64::MIN_POSITIVE)).max(1.0);
            open *= protected.unwrap_or(again);
            Some(all)
        })
    }

    /// More than `most` of `count` packets in a row are lost. `count` is at most [`MAX_BLOCK`].
    pub(crate) fn more_than(&self, most: usize, count: usize) -> Shortfall {
        self.more_than_apart(most, count, (count, 0.0))
    }

    /// The same with a pause after so many of the packets, as long as so many more would have
    /// taken.
    pub(crate) fn more_than_apart(&self, most: usize, count: usize, pause: (usize, f64)) -> Shortfall {
        let count = count.min(MAX_BLOCK);
        if most >= count || self.drop <= 0.0 {
            Shortfall::default()
        } else if self.memory() < 1e-9 {
            binomial(self.drop, most, count)
        } else {
            self.clustered(most, count, pause)
        }
    }

    /// Follows the distribution of the number of losses packet by packet, up to the first one too
    /// many. Sums of positive terms, so the relative precision holds for the smallest
    /// probabilities.
    fn clustered(&self, most: usize, count: usize, (before, pause): (usize, f64)) -> Shortfall {
        let (mut good, mut bad) = ([0.0; MAX_BLOCK + 1], [0.0; MAX_BLOCK + 1]);
        let (after, memory) = (self.every(pause + 1.0), self.memory());
        let mut shortfall = Shortfall::default();
        let mut absorb = |mass: f64, remaining: usize| {
            let left = remaining as f64;
            let persisting = memory * (1.0 - memory.powf(left)) / (1.0 - memory);
            shortfall.probability += mass;
            shortfall.excess += mass * (1.0 + self.drop * left + (1.0 - self.drop) * persisting);
        };
        // Before the first packet the chain is in its stationary state. By number of losses: all
        // but the first element are zero.
        if let Some(first) = good.first_mut() {
            *first = 1.0 - self.drop;
        }
        match bad.get_mut(1) {
            Some(second) if most > 0 => *second = self.drop,
            _ => absorb(self.drop, count - 1),
        }
        let (mut next_good, mut next_bad) = (good, bad);
        for sent in 1..count {
            let reached = (sent + 1).min(most + 1);
            let Self { enter, leave, .. } = if sent == before { after } else { *self };
            let states = || good.iter().zip(&bad).take(reached);
            for (next, (good, bad)) in next_good.iter_mut().zip(states()) {
                *next = good * (1.0 - enter) + bad * leave;
            }
            for (next, (good, bad)) in next_bad.iter_mut().skip(1).zip(states()) {
                *next = good * enter + bad * (1.0 - leave);
            }
            if sent + 1 > most {
                absorb(next_bad.get(most + 1).copied().unwrap_or(0.0), count - sent - 1);
            }
            if let Some(none) = next_bad.first_mut() {
                *none = 0.0;
            }
            std::mem::swap(&mut good, &mut next_good);
            std::mem::swap(&mut bad, &mut next_bad);
        }
        shortfall
    }
}

/// The binomial distribution's tail, from the logarithm of its first term on.
fn binomial(drop: f64, most: usize, count: usize) -> Shortfall {
    let odds = drop / (1.0 - drop);
    let choose = (0..=most).map(|i| ((count - i) as f64 / (i + 1) as f64).ln()).sum::<f64>();
    let first = most + 1;
    let mut term = (choose + first as f64 * drop.ln() + (count - first) as f64 * (-drop).ln_1p()).exp();
    let mut shortfall = Shortfall::default();
    for lost in first..=count {
        shortfall.probability += term;
        shortfall.excess += term * (lost - most) as f64;
        term *= (count - lost) as f64 / (lost + 1) as f64 * odds;
    }
    shortfall.probability = shortfall.probability.min(1.0);
    shortfall
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn losses(drop: f64, burst: f64) -> Losses {
        Losses::new(&Link { burst, ..Link::new(1, Duration::ZERO, drop, 1) })
    }

    fn close(a: f64, b: f64, tolerance: f64) -> bool {
        (a - b).abs() <= tolerance * a.abs().max(b.abs())
    }

    #[test]
    fn binomial_tails_known_to_be_right() {
        // 1 - 0.99^40 - 40 * 0.01 * 0.99^39, and its expectation 0.4 - (1 - 0.99^40), in extended
        // precision.
        let tail = losses(0.01, 1.0).more_than(1, 40);
        assert!(close(tail.probability, 0.060_736_621_806_2, 1e-9), "{tail:?}");
        assert!(close(tail.excess, 0.068_971_758_569_0, 1e-9), "{tail:?}");
        // Ten of ten.
        assert!(close(losses(1e-9, 1.0).more_than(9, 10).probability, 1e-90, 1e-9));
        // C(254, 100) 1e-900 is below the smallest number, and must not be anything else.
        assert_eq!(losses(1e-9, 1.0).more_than(99, 254).probability, 0.0);
        assert_eq!(losses(0.0, 1.0).more_than(0, 254), Shortfall::default());
        assert!(close(losses(0.3, 1.0).more_than(0, 255).probability, 1.0, 1e-12));
    }

    #[test]
    fn independent_losses_are_a_gilbert_channel_without_memory() {
        for (drop, most, count) in [(1e-9, 3, 40), (1e-3, 8, 40), (0.05, 1, 5), (0.3, 64, 254), (0.2, 0, 1)] {
            let (a, b) =
                (binomial(drop, most, count), losses(drop, 1.0).clustered(most, count, (count, 0.0)));
            assert!(close(a.probability, b.probability, 1e-6), "{a:?} {b:?}");
            assert!(close(a.excess, b.excess, 1e-6), "{a:?} {b:?}");
        }
    }

    /// Losses among every `stride`-th of a run of packets.
    fn count_losses(losses: Losses, count: usize, stride: usize, rng: &mut Pcg64Mcg) -> usize {
        let mut bad = rng.random_bool(losses.drop);
        let mut lost = 0;
        for packet in 0..(count - 1) * stride + 1 {
            lost += usize::from(bad && packet % stride == 0);
            bad = if bad { !rng.random_bool(losses.leave) } else { rng.random_bool(losses.enter) };
        }
        lost
    }

    #[test]
    fn clustered_losses_are_counted_as_a_simulation_counts_them() {
        let seed = 0x10a5;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        for (drop, burst, most, count, stride) in
            [(0.02, 5.0, 4, 40, 1), (0.02, 5.0, 4, 40, 4), (0.1, 20.0, 8, 64, 3), (0.05, 2.0, 1, 5, 8)]
        {
            let losses = losses(drop, burst);
            let rounds = 100_000;
            let (mut above, mut excess) = (0, 0);
            for _ in 0..rounds {
                let lost = count_losses(losses, count, stride, &mut rng);
                above += usize::from(lost > most);
                excess += lost.saturating_sub(most);
            }
            let model = losses.every(stride as f64).more_than(most, count);
            let measured = [above, excess].map(|sum| sum as f64 / f64::from(rounds));
            let near = close(model.probability, measured[0], 0.05) && close(model.excess, measured[1], 0.06);
            assert!(near, "seed {seed:#x}, drop {drop}, burst {burst}: {model:?}, measured {measured:?}");
        }
    }

    proptest! {
        #[test]
        fn probabilities_are_probabilities(
            exponent in -9.0..-0.52_f64, burst in 1.0..500.0_f64, count in 1_usize..=255, share in 0.0..1.0_f64, stride in 1.0..64.0_f64,
        ) {
            let losses = losses(10.0_f64.powf(exponent), burst).every(stride);
            let most = (share * count as f64) as usize;
            let tail = losses.more_than(most, count);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&tail.probability), "{tail:?}");
            prop_assert!(tail.excess >= tail.probability * (1.0 - 1e-9), "{tail:?}");
            prop_assert!(tail.excess <= losses.drop() * count as f64 * (1.0 + 1e-9), "{tail:?}");
            prop_assert!((0.0..=1.0).contains(&losses.any_of(count as f64)));
            // Any loss at all is more than none.
            let any = losses.more_than(0, count).probability;
            prop_assert!(close(any, losses.any_of(count as f64), 1e-6), "{any}");
        }
    }
}
