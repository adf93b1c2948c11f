//! Entries of a table by how long they have been of no use.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Finds the entry of a full table that has not been used for longest, or nearly so.
///
/// Nothing is done when an entry is used. One that has been since it was looked at gets a second
/// chance when it comes to the front (Corbató, "A Paging Experiment with the Multics System",
/// 1968).
///
/// Bound: an entry for each of the table's, and as many and [`SPARE`] for some that are gone.
#[derive(Debug)]
pub(crate) struct Stalest<K> {
    /// Entries, with when each had last been used when it was put here.
    order: VecDeque<(K, Instant)>,
}

/// Entries that are gone and not worth a sweep.
const SPARE: usize = 64;
/// Entries in use that are looked at for one that is not.
const LOOKS: usize = 64;

impl<K> Default for Stalest<K> {
    fn default() -> Self {
        Self { order: VecDeque::new() }
    }
}

impl<K: Copy> Stalest<K> {
    /// Takes in all entries of a table, each with when it was used last.
    pub(crate) fn of(entries: impl Iterator<Item = (K, Instant)>) -> Self {
        let mut order: Vec<_> = entries.collect();
        order.sort_by_key(|(_, last_use)| *last_use);
        Self { order: order.into() }
    }

    /// Takes in a new entry, beside which there are so many.
    pub(crate) fn enter(&mut self, key: K, now: Instant, others: usize, is_there: impl Fn(K) -> bool) {
        if self.order.len() > 2 * others + SPARE {
            self.order.retain(|(key, _)| is_there(*key));
        }
        self.order.push_back((key, now));
    }

    /// Takes out the one that is to give way. `last_use`: of one that is gone there is none. One
    /// that was used within the `grace` is not stale: what was sent by it is there by then, and
    /// whatever takes its place overtakes nothing.
    pub(crate) fn take(
        &mut self,
        last_use: impl Fn(K) -> Option<Instant>,
        grace: Duration,
        now: Instant,
    ) -> Option<K> {
        let mut looks = 0;
        while let Some((key, known)) = self.order.front().copied().filter(|_| looks < LOOKS) {
            let Some(last) = last_use(key) else {
                self.order.pop_front();
                continue;
            };
            if last > known {
                self.order.pop_front();
                self.order.push_back((key, last));
                looks += 1;
                continue;
            }
            // The others are younger, or nearly so.
            if now.saturating_duration_since(last) < grace {
                return None;
            }
            self.order.pop_front();
            return Some(key);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const GRACE: Duration = Duration::from_millis(70);

    #[test]
    fn the_one_that_was_not_used_for_longest_gives_way() {
        let start = crate::test_clock();
        let at = |ms| start + Duration::from_millis(ms);
        let mut used: BTreeMap<u32, Instant> = (0..5).map(|key| (key, at(u64::from(key)))).collect();
        let mut stalest = Stalest::default();
        for (key, at) in &used {
            stalest.enter(*key, *at, *key as usize, |_| true);
        }
        let mut take =
            |used: &BTreeMap<u32, Instant>, now| stalest.take(|key| used.get(&key).copied(), GRACE, now);
        assert_eq!(take(&used, at(69)), None, "it may still have something on its way");
        used.insert(0, at(60));
        used.remove(&1);
        assert_eq!(take(&used, at(100)), Some(2));
        assert_eq!(take(&used, at(100)), Some(3));
        assert_eq!(take(&used, at(100)), Some(4));
        assert_eq!(take(&used, at(100)), None, "it was used since");
        assert_eq!(take(&used, at(130)), Some(0));
        assert_eq!(take(&used, at(500)), None);
    }

    #[test]
    fn entries_that_are_gone_are_swept_out() {
        let now = crate::test_clock();
        let mut stalest = Stalest::default();
        for key in 0..10_000 {
            stalest.enter(key, now, 10, |there| there > key - 10);
        }
        assert!(stalest.order.len() <= 2 * 10 + SPARE + 1, "{}", stalest.order.len());
    }
}
