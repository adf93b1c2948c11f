//! Ring Allreduce over several sites.

use std::cmp::Ordering;
use std::time::Duration;

use rand::Rng;

use reliability::model::seconds;

/// Points in time that the distribution tells apart.
const POINTS: usize = 256;
/// How far the points reach: this percentile of every round, and the other of one of them.
const EACH_PERCENT: f64 = 99.8;
const ONE_PERCENT: f64 = 99.999_9;

/// `T(i, r) = max(T(i-1, r-1), T(i, r-1)) + C + X(i, r-1)` over 2N - 2 rounds; the operation is
/// complete when the last site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// N, at least 2.
    pub sites: usize,
    /// C: what each round takes beyond the transfer.
    pub compute: Duration,
}

/// When the operation is complete, on a grid.
#[derive(Clone, Debug)]
pub struct RingTime {
    floor: f64,
    spacing: f64,
    /// Probability of being complete at `floor + index * spacing`, by index.
    complete: Vec<f64>,
}

impl Ring {
    fn sites(&self) -> usize {
        self.sites.max(2)
    }

    /// 2N - 2.
    #[must_use]
    pub fn rounds(&self) -> usize {
        2 * self.sites() - 2
    }

    /// The published lower bound, `(2N - 2)(C + mu_X)`.
    #[must_use]
    pub fn bound(&self, step_mean: Duration) -> Duration {
        (self.compute + step_mean).mul_f64(self.rounds() as f64)
    }

    /// One operation; `step` draws one transfer between neighbours.
    pub fn sample<R: Rng>(&self, rng: &mut R, mut step: impl FnMut(&mut R) -> Duration) -> Duration {
        let mut done = vec![Duration::ZERO; self.sites()];
        for _ in 0..self.rounds() {
            let mut before = done.last().copied().unwrap_or_default();
            for site in &mut done {
                let ready = before.max(*site);
                before = *site;
                *site = ready + self.compute + step(rng);
            }
        }
        done.into_iter().max().unwrap_or_default()
    }

    /// The distribution of the whole, from one transfer's percentiles and its probability of being
    /// complete within a time.
    ///
    /// Follows the joint distribution of two neighbours from round to round. A round compares three
    /// sites in a row; given the time of the one in the middle, the other two are taken to be
    /// independent, and so are sites further apart. The mean is within a few per cent of samples.
    #[must_use]
    pub fn time(
        &self,
        percentile: impl Fn(f64) -> Duration,
        probability: impl Fn(Duration) -> f64,
    ) -> RingTime {
        let floor = percentile(0.0).as_secs_f64();
        let delay = |percent| percentile(percent).as_secs_f64() - floor;
        let reach = (self.rounds() - 1) as f64 * delay(EACH_PERCENT) + delay(ONE_PERCENT);
        let spacing = (reach / (POINTS - 1) as f64).max(1e-12);
        let until: Vec<f64> =
            (0..POINTS).map(|index| probability(seconds(floor + (index as f64 + 0.5) * spacing))).collect();
        let step = differences(&until);
        let mut pair = Pair::together();
        for round in 0..self.rounds() {
            if round > 0 {
                pair = if self.sites() == 2 { pair.later_of_two() } else { pair.later() };
            }
            pair = pair.delayed(&step);
        }
        let rounds = self.rounds() as f64;
        RingTime {
            floor: rounds * (floor + self.compute.as_secs_f64()),
            spacing,
            complete: pair.all(self.sites()),
        }
    }
}

/// Joint distribution of the times of a site and of the next one: probabilities by point, a row per
/// time of the first.
struct Pair(Vec<Vec<f64>>);

impl Pair {
    /// Both at the first point.
    fn together() -> Self {
        let mut rows = vec![vec![0.0; POINTS]; POINTS];
        if let Some(first) = rows.first_mut().and_then(|row| row.first_mut()) {
            *first = 1.0;
        }
        Self(rows)
    }

    fn transposed(&self) -> Self {
        let column = |index: usize| self.0.iter().map(|row| row.get(index).copied().unwrap_or(0.0)).collect();
        Self((0..POINTS).map(column).collect())
    }

    /// Each takes a step more. What would pass the last point stays there.
    fn delayed(&self, step: &[f64]) -> Self {
        let rows = |pair: &Self| Self(pair.0.iter().map(|row| convolved(row, step)).collect());
        rows(&rows(self).transposed()).transposed()
    }

    /// A site and the next one, each as late as the later of itself and the one before it.
    fn later(&self) -> Self {
        let mut rows = vec![vec![0.0; POINTS]; POINTS];
        let before = self.transposed();
        for (middle, (before, after)) in before.0.iter().zip(&self.0).enumerate() {
            let probability = after.iter().sum::<f64>();
            if probability < 1e-15 {
                continue;
            }
            let (first, second) = (not_before(middle, before), not_before(middle, after));
            for (row, first) in rows.iter_mut().zip(&first).skip(middle).filter(|(_, first)| **first > 0.0) {
                for (cell, second) in row.iter_mut().zip(&second).skip(middle) {
                    *cell += first * second / probability;
                }
            }
        }
        Self(rows)
    }

    /// The same where the one before is the next one: both are as late as the later.
    fn later_of_two(&self) -> Self {
        let mut rows = vec![vec![0.0; POINTS]; POINTS];
        for (first, row) in self.0.iter().enumerate() {
            for (second, probability) in row.iter().enumerate() {
                let later = first.max(second);
                if let Some(cell) = rows.get_mut(later).and_then(|row| row.get_mut(later)) {
                    *cell += probability;
                }
            }
        }
        Self(rows)
    }

    /// Probability that all of a ring's sites are complete, by point.
    fn all(&self, sites: usize) -> Vec<f64> {
        let mut columns = vec![0.0; POINTS];
        let mut one = 0.0;
        let mut complete = Vec::with_capacity(POINTS);
        for (index, row) in self.0.iter().enumerate() {
            one += row.iter().sum::<f64>();
            columns.iter_mut().zip(row).for_each(|(column, cell)| *column += cell);
            let both = columns.iter().take(index + 1).sum::<f64>();
            let all = if sites == 2 || one <= 0.0 { both } else { (both / one).powi(sites as i32) };
            complete.push(all.clamp(0.0, 1.0));
        }
        complete
    }
}

impl RingTime {
    /// Expected time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        seconds(self.floor + self.spacing * self.complete.iter().map(|complete| 1.0 - complete).sum::<f64>())
    }

    /// The time within which `percent` per cent of operations are complete.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let index = self.complete.partition_point(|&complete| complete < percent / 100.0);
        seconds(self.floor + self.spacing * index as f64)
    }
}

fn differences(complete: &[f64]) -> Vec<f64> {
    let mut before = 0.0;
    complete.iter().map(|&now| now - std::mem::replace(&mut before, now)).collect()
}

/// Moves the mass before `point` to it.
fn not_before(point: usize, density: &[f64]) -> Vec<f64> {
    let early = density.iter().take(point).sum::<f64>();
    let moved = |(index, mass): (usize, &f64)| match index.cmp(&point) {
        Ordering::Less => 0.0,
        Ordering::Equal => mass + early,
        Ordering::Greater => *mass,
    };
    density.iter().enumerate().map(moved).collect()
}

/// The sum's density; what would pass the last point stays there.
fn convolved(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; POINTS];
    let total = a.iter().sum::<f64>();
    for (index, x) in a.iter().enumerate().filter(|(_, x)| **x > 1e-18) {
        for (sum, y) in sum.iter_mut().skip(index).zip(b) {
            *sum += x * y;
        }
    }
    let kept = sum.iter().sum::<f64>();
    if let Some(last) = sum.last_mut() {
        *last += (total - kept).max(0.0);
    }
    sum
}
