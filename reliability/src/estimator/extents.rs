//! How far out of order packets arrive, of late.

/// Two buckets for each power of two: an extent is known to within a half.
const BUCKETS: usize = 64;

/// Quantiles of recent values. Keeps two generations of counts, so what is older than two
/// [`Recent::age`]s is forgotten.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    generations: [Generation; 2],
}

#[derive(Clone, Copy, Debug)]
struct Generation {
    counts: [u64; BUCKETS],
    total: u64,
    largest: u64,
}

const EMPTY: Generation = Generation { counts: [0; BUCKETS], total: 0, largest: 0 };

impl Recent {
    pub(super) fn new() -> Self {
        Self { generations: [EMPTY; 2] }
    }

    pub(super) fn add(&mut self, value: u64) {
        let [young, _] = &mut self.generations;
        if let Some(count) = young.counts.get_mut(bucket(value)) {
            *count += 1;
        }
        young.total += 1;
        young.largest = young.largest.max(value);
    }

    /// Begins a generation; the one before the last is forgotten.
    pub(super) fn age(&mut self) {
        let [young, old] = &mut self.generations;
        *old = std::mem::replace(young, EMPTY);
    }

    /// Values counted.
    pub(super) fn total(&self) -> u64 {
        self.generations.iter().map(|generation| generation.total).sum()
    }

    pub(super) fn largest(&self) -> u64 {
        let [young, old] = &self.generations;
        young.largest.max(old.largest)
    }

    /// The value that this share of all does not exceed, rounded up to its bucket's end; 0 if there
    /// is none.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        let [young, old] = &self.generations;
        let rank = (self.total() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, (a, b)) in young.counts.iter().zip(&old.counts).enumerate() {
            seen += a + b;
            if seen >= rank.max(1) {
                return end(index).min(self.largest());
            }
        }
        0
    }
}

/// 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, ...
fn bucket(value: u64) -> usize {
    if value < 2 {
        return value as usize;
    }
    let power = value.ilog2();
    let half = (value >> (power - 1)) & 1;
    (2 * power as usize + half as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn end(bucket: usize) -> u64 {
    if bucket < 2 {
        return bucket as u64;
    }
    let (power, half) = (bucket / 2, bucket % 2);
    ((3 + half as u64) << (power - 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for value in 0..100_000 {
            assert!(value <= end(bucket(value)), "{value}");
            assert_eq!(bucket(end(bucket(value)) + 1), bucket(value) + 1, "{value}");
            assert!(end(bucket(value)) <= value + value / 2, "{value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_and_what_is_forgotten() {
        let mut recent = Recent::new();
        assert_eq!((recent.quantile(0.99), recent.largest()), (0, 0));
        (0..99).for_each(|_| recent.add(2));
        recent.add(1000);
        assert_eq!((recent.quantile(0.99), recent.quantile(1.0), recent.largest()), (2, 1000, 1000));
        recent.age();
        recent.add(5);
        assert_eq!((recent.quantile(0.5), recent.largest()), (2, 1000));
        recent.age();
        assert_eq!((recent.quantile(0.5), recent.largest()), (5, 5));
    }
}
