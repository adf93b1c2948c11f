//! Counts over time, the coarser the older.

use super::interval::Chain;

/// Buckets of each power of two of slices.
const PER_POWER: usize = 6;
/// Buckets in all. More than enough for slices of 10 ms over any memory; at the bound the two
/// oldest become one.
const BUCKETS: usize = 128;
/// Slices or buckets that it takes to tell how much their counts scatter.
const FEW: f64 = 10.0;

/// Counts of some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) chain: Chain,
    /// Losses that came together with signs of congestion.
    pub(super) congestive: f64,
    pub(super) reordered: f64,
    pub(super) duplicates: f64,
    pub(super) ect: f64,
    pub(super) ce: f64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.chain.add(&other.chain);
        self.congestive += other.congestive;
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
        self.ect += other.ect;
        self.ce += other.ce;
    }

    pub(super) fn packets(&self) -> f64 {
        self.chain.arrived + self.chain.lost
    }
}

/// Counts of one or more slices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub(super) counts: Counts,
    /// Slices that had arrivals.
    slices: f64,
    /// Sum over the slices of runs^2 / arrived.
    squares: f64,
    /// Sums over pairs of neighbouring slices: of the squared difference of their rates of runs, in
    /// units of what it is for independent runs at a rate of 1, and of their common rate.
    steps: f64,
    rates: f64,
    /// The end of its time, in microseconds.
    end: u64,
}

impl Bucket {
    /// One slice, and the one before it.
    pub(super) fn of(counts: &Counts, end: u64, before: &Counts) -> Self {
        let (a, b) = (&before.chain, &counts.chain);
        let slices = if b.arrived > 0.0 { 1.0 } else { 0.0 };
        let (mut steps, mut rates) = (0.0, 0.0);
        if a.arrived > 0.0 && b.arrived > 0.0 {
            let both = a.arrived + b.arrived;
            steps = (a.runs / a.arrived - b.runs / b.arrived).powi(2) * a.arrived * b.arrived / both;
            rates = (a.runs + b.runs).max(0.0) / both;
        }
        Self { counts: *counts, slices, squares: square(&counts.chain), steps, rates, end }
    }

    pub(super) fn add(&mut self, other: &Bucket) {
        self.counts.add(&other.counts);
        self.slices += other.slices;
        self.squares += other.squares;
        self.steps += other.steps;
        self.rates += other.rates;
        self.end = self.end.max(other.end);
    }

    /// Takes off a part of it, as far as chains and their scatter are concerned.
    pub(super) fn take_off(&mut self, part: &Bucket) {
        let (chain, other) = (&mut self.counts.chain, &part.counts.chain);
        chain.arrived -= other.arrived;
        chain.lost -= other.lost;
        chain.runs -= other.runs;
        self.slices -= part.slices;
        self.squares -= part.squares;
        self.steps -= part.steps;
        self.rates -= part.rates;
    }

    /// How many times more the runs of the slices vary than independent ones, at least 1, within
    /// this and within another bucket.
    pub(super) fn scatter(&self, other: &Bucket) -> f64 {
        let (mut sum, mut freedom) = (0.0, 0.0);
        for bucket in [self, other] {
            if let Some(squares) = pearson(&bucket.counts.chain, bucket.squares) {
                sum += squares;
                freedom += bucket.slices - 1.0;
            }
        }
        if freedom < FEW { 1.0 } else { (sum / freedom).max(1.0) }
    }

    /// The same from each slice to the next (von Neumann): a lasting change of the rate does not
    /// show, clusters that come and go do.
    pub(super) fn unrest(&self) -> f64 {
        if self.slices < FEW || self.rates <= 0.0 { 1.0 } else { (self.steps / self.rates).max(1.0) }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }
}

/// Its part in the sum of squares of [`pearson`].
fn square(chain: &Chain) -> f64 {
    if chain.arrived > 0.0 { chain.runs * chain.runs / chain.arrived } else { 0.0 }
}

/// Pearson's sum of squared deviations in units of the variance expected, for parts of `total`
/// whose squares sum up to `squares`. `None` if there is nothing to deviate.
fn pearson(total: &Chain, squares: f64) -> Option<f64> {
    if total.runs <= 0.0 || total.arrived <= total.runs {
        return None;
    }
    let enter = total.runs / total.arrived;
    Some(((squares - total.runs * enter) / (enter * (1.0 - enter))).max(0.0))
}

/// An exponential histogram of slices: buckets of a slice, of two, of four and so on, six to seven
/// of each, as far back as the memory.
#[derive(Debug)]
pub(super) struct Buckets {
    memory: u64,
    /// Oldest first.
    list: Vec<Bucket>,
}

impl Buckets {
    pub(super) fn new(memory: u64) -> Self {
        Self { memory, list: Vec::with_capacity(BUCKETS + 1) }
    }

    pub(super) fn list(&self) -> &[Bucket] {
        &self.list
    }

    pub(super) fn push(&mut self, slice: &Bucket) {
        self.list.push(*slice);
        self.compress();
        let old = self.list.iter().take_while(|bucket| bucket.end + self.memory < slice.end).count();
        self.forget(old);
    }

    /// Forgets the oldest.
    pub(super) fn forget(&mut self, buckets: usize) {
        self.list.drain(..buckets.min(self.list.len()));
    }

    pub(super) fn sum(&self) -> Bucket {
        let mut sum = Bucket::default();
        for bucket in &self.list {
            sum.add(bucket);
        }
        sum
    }

    /// How many times more runs vary than independent ones, from slice to slice or from bucket to
    /// bucket: the former shows short clusters of them, the latter long ones. At least 1, and 1 as
    /// long as chance explains it.
    pub(super) fn dispersion(&self) -> f64 {
        let sum = self.sum();
        let chain = &sum.counts.chain;
        let within = |squares: f64, parts: f64| {
            let freedom = parts - 1.0;
            let Some(scatter) = pearson(chain, squares).filter(|_| freedom >= FEW).map(|sum| sum / freedom)
            else {
                return 1.0;
            };
            // The variance of Pearson's sum over independent parts of a mean of `runs / parts`
            // each.
            let chance = ((2.0 + parts / chain.runs) / freedom).sqrt();
            if scatter > 1.0 + 2.0 * chance { scatter } else { 1.0 }
        };
        let squares = self.list.iter().map(|bucket| square(&bucket.counts.chain)).sum();
        within(sum.squares, sum.slices).max(within(squares, self.list.len() as f64))
    }

    /// Where there are too many buckets of a power of two slices, the two oldest of these become
    /// one.
    fn compress(&mut self) {
        let mut end = self.list.len();
        let mut power = 1.0;
        loop {
            let alike = |bucket: &&Bucket| bucket.slices < 2.0 * power;
            let newer = self.list.get(..end).unwrap_or_default().iter().rev();
            let count = newer.take_while(alike).count();
            if count <= PER_POWER {
                break;
            }
            self.join(end - count);
            end = end + 1 - count;
            power *= 2.0;
        }
        if self.list.len() > BUCKETS {
            self.join(0);
        }
    }

    /// Joins a bucket and the one after it.
    fn join(&mut self, place: usize) {
        if let Some(later) = self.list.get(place + 1).copied()
            && let Some(bucket) = self.list.get_mut(place)
        {
            bucket.add(&later);
            self.list.remove(place + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(arrived: f64, runs: f64) -> Counts {
        Counts { chain: Chain { arrived, lost: runs, runs }, ..Counts::default() }
    }

    fn slice(arrived: f64, runs: f64, end: u64) -> Bucket {
        Bucket::of(&counts(arrived, runs), end, &Counts::default())
    }

    #[test]
    fn older_buckets_are_wider_and_nothing_is_lost() {
        let mut buckets = Buckets::new(u64::MAX / 2);
        for end in 0..100_000 {
            buckets.push(&slice(100.0, (end % 3) as f64, end));
            assert!(buckets.list.len() <= BUCKETS);
        }
        let sum = buckets.sum();
        assert_eq!((sum.counts.chain.arrived, sum.counts.chain.runs), (1e7, 99_999.0));
        assert_eq!(sum.slices, 100_000.0);
        let widths: Vec<f64> = buckets.list.iter().map(|bucket| bucket.slices).collect();
        assert!(widths.is_sorted_by(|a, b| a >= b), "{widths:?}");
        assert!(widths.len() > 70 && widths[0] >= 8192.0, "{widths:?}");
        assert!(buckets.list.is_sorted_by_key(|bucket| bucket.end));
    }

    #[test]
    fn what_is_older_than_the_memory_is_forgotten() {
        let mut buckets = Buckets::new(1000);
        (0..5000).for_each(|end| buckets.push(&slice(1.0, 0.0, end)));
        let arrived = buckets.sum().counts.chain.arrived;
        assert!((1000.0..1300.0).contains(&arrived), "{arrived}");
        buckets.push(&slice(1.0, 0.0, 100_000));
        assert_eq!(buckets.list.len(), 1);
    }

    #[test]
    fn clusters_disperse_at_their_scale() {
        let dispersion = |runs: fn(u64) -> f64| {
            let mut buckets = Buckets::new(u64::MAX / 2);
            (0..20_000).for_each(|end| buckets.push(&slice(1000.0, runs(end), end)));
            buckets.dispersion()
        };
        // A low-discrepancy sequence has no clusters; Pearson's sum is far below its expectation.
        assert_eq!(dispersion(|end| (end % 2) as f64), 1.0);
        let short = dispersion(|end| if end.is_multiple_of(100) { 50.0 } else { 0.0 });
        assert!((45.0..55.0).contains(&short), "{short}");
        // A run in each of a hundred slices, and none in the next nine hundred.
        let long = dispersion(|end| if end / 100 % 10 == 0 { 1.0 } else { 0.0 });
        assert!(long > 10.0, "{long}");
    }

    #[test]
    fn unrest_is_of_clusters_and_not_of_lasting_changes() {
        let unrest = |runs: fn(u64) -> f64| {
            let mut sum = Bucket::default();
            for end in 1..1000 {
                sum.add(&Bucket::of(&counts(1000.0, runs(end)), end, &counts(500.0, runs(end - 1) / 2.0)));
            }
            sum.unrest()
        };
        let clusters = unrest(|end| if end.is_multiple_of(100) { 50.0 } else { 0.0 });
        assert!((25.0..60.0).contains(&clusters), "{clusters}");
        assert_eq!(unrest(|end| if end < 500 { 0.0 } else { 50.0 }), 1.0);
        assert_eq!(unrest(|_| 0.0), 1.0);
    }
}
