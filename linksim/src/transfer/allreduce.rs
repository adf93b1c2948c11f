//! Ring Allreduce over sites, put together from single transfers.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{Failure, Times};

/// A ring of sites. In each of `2 N - 2` rounds every site sends one segment (an `N`th of the
/// buffer) to the next one, and `T(i, r) = max(T(i - 1, r - 1), T(i, r - 1)) + X(i, r)`: it begins
/// when it has what the one before it sent in the round before, and has sent its own. `X` is drawn
/// from the completion times of single transfers of a segment, hence between hops nothing is shared
/// but the waiting.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// At least 2 is assumed.
    pub sites: u64,
}

impl Ring {
    /// Rounds until every site has the whole result.
    #[must_use]
    pub fn rounds(self) -> u64 {
        2 * self.sites.max(2) - 2
    }

    /// Times of `count` Allreduces, the slowest site's each, over hops that take such times.
    ///
    /// # Errors
    /// There is no hop to draw from.
    pub fn run(self, hops: &Times, count: u64, seed: u64) -> Result<Times, Failure> {
        let draw = Draw::new(hops).ok_or(Failure::Impossible("no hop has completed"))?;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut times = Times::new()?;
        let mut at = vec![0_u64; self.sites.clamp(2, 1 << 20) as usize];
        for _ in 0..count {
            at.fill(0);
            for _ in 0..self.rounds() {
                // Site 0's predecessor is the last one; what each had before this round is what
                // counts.
                let mut before = at.last().copied().unwrap_or(0);
                for site in &mut at {
                    let own = *site;
                    *site = own.max(before) + draw.one(&mut rng);
                    before = own;
                }
            }
            times.record(at.iter().copied().max().unwrap_or(0));
        }
        Ok(times)
    }
}

/// Draws from a histogram.
struct Draw {
    /// Values, each with the number of those up to it.
    upto: Vec<(u64, u64)>,
    count: u64,
}

impl Draw {
    fn new(times: &Times) -> Option<Self> {
        let mut count = 0;
        let values = times.histogram().iter_recorded();
        let upto = values.map(|value| {
            count += value.count_since_last_iteration();
            (count, value.value_iterated_to())
        });
        let upto = upto.collect();
        (count > 0).then_some(Self { upto, count })
    }

    fn one(&self, rng: &mut Pcg64Mcg) -> u64 {
        let rank = rng.random_range(0..self.count);
        let place = self.upto.partition_point(|&(upto, _)| upto <= rank);
        self.upto.get(place).map_or(0, |&(_, value)| value)
    }
}
