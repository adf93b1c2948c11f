//! Deadlines of many flows, with one heap entry for most of their changes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, SerializeAs};

/// A heap of deadlines that is lazy about moving them later.
///
/// They are worked off in rounds: [`Timers::begin_round`], then [`Timers::next_due`] until `None`.
/// What is armed during a round waits for the next one, even if it is due at once: a flow whose
/// deadline does not move can hold up neither the others nor the caller.
///
/// A flow keeps its earliest entry's time in its own `armed` field. A deadline that moves later
/// leaves the entry where it is: it fires early, finds nothing due and is armed anew. So a busy
/// flow, whose deadline moves with every packet, costs one entry per expiry rather than one per
/// packet. An entry that was overtaken by an earlier deadline stays as well, until its time comes
/// or [`Timers::sweep`] finds the useless ones in the majority: that bounds the heap at twice the
/// flows, and a few.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
    /// The entries that are due, the next one last.
    due: Vec<(Instant, K)>,
    /// How many of them are left of the round.
    left: usize,
}

/// In a snapshot: a sorted list.
type Entries = Vec<(snapshot::At, serde_with::Same)>;

impl<K: Ord + Copy + Serialize> Serialize for Timers<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waiting = self.heap.iter().map(|Reverse(entry)| *entry);
        let mut entries: Vec<_> = waiting.chain(self.due.iter().copied()).collect();
        entries.sort_unstable();
        Entries::serialize_as(&entries, serializer)
    }
}

impl<'de, K: Ord + Copy + DeserializeOwned> Deserialize<'de> for Timers<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries: Vec<(Instant, K)> = Entries::deserialize_as(deserializer)?;
        Ok(Timers { heap: entries.into_iter().map(Reverse).collect(), ..Timers::new() })
    }
}

/// Entries of a round: what some milliseconds are enough for, since packets wait meanwhile.
const ROUND: usize = 1024;

/// Useless entries that are not worth a sweep.
const SPARE: usize = 64;

impl<K: Ord + Copy> Timers<K> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), due: Vec::new(), left: 0 }
    }

    /// Sees to it that `key` fires at `at` or before.
    pub(crate) fn arm(&mut self, armed: &mut Option<Instant>, at: Option<Instant>, key: K) {
        let Some(at) = at else { return };
        if armed.is_none_or(|earlier| at < earlier) {
            *armed = Some(at);
            self.heap.push(Reverse((at, key)));
        }
    }

    /// Sets aside what is due now. A round has [`ROUND`] entries at most, and what it leaves comes
    /// before all that is armed meanwhile.
    pub(crate) fn begin_round(&mut self, now: Instant) {
        if self.due.is_empty() {
            while self.heap.peek().is_some_and(|Reverse((at, _))| *at <= now) {
                self.due.extend(self.heap.pop().map(|Reverse(entry)| entry));
            }
            self.due.reverse();
        }
        self.left = ROUND;
    }

    /// The round's next entry. The owner ignores it unless the time is what the flow has in
    /// `armed`, and clears that.
    pub(crate) fn next_due(&mut self) -> Option<(Instant, K)> {
        self.left = self.left.checked_sub(1)?;
        self.due.pop()
    }

    /// A flow has gone, so many are left. Without any there is nothing to fire: what the last ones
    /// were armed with before would only wake its owner.
    pub(crate) fn left(&mut self, flows: usize) {
        if flows == 0 {
            self.heap.clear();
            self.due.clear();
        }
    }

    /// Drops the entries that no flow is armed with, and all but one of those that are the same, if
    /// they are the most. Call it once per round of timeouts.
    pub(crate) fn sweep(&mut self, flows: usize, is_armed: impl Fn(Instant, K) -> bool) {
        if self.heap.len() > 2 * flows + SPARE {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|Reverse((at, key))| is_armed(*at, *key));
            // A flow that went back to a later deadline, several times.
            entries.sort_unstable();
            entries.dedup();
            self.heap = entries.into();
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.due.last().map(|(at, _)| *at);
        due.or_else(|| self.heap.peek().map(|Reverse((at, _))| *at))
    }

    /// Entries waiting, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.heap.len() + self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn round(timers: &mut Timers<u32>, now: Instant) -> Vec<(Instant, u32)> {
        timers.begin_round(now);
        std::iter::from_fn(|| timers.next_due()).collect()
    }

    #[test]
    fn a_later_deadline_costs_no_entry_and_an_earlier_one_fires_in_time() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = None;
        timers.arm(&mut armed, Some(ms(10)), 1);
        timers.arm(&mut armed, Some(ms(20)), 1);
        assert_eq!((timers.len(), armed), (1, Some(ms(10))));
        timers.arm(&mut armed, Some(ms(5)), 1);
        assert_eq!((timers.next(), armed), (Some(ms(5)), Some(ms(5))));
        assert_eq!(round(&mut timers, ms(4)), []);
        assert_eq!(round(&mut timers, ms(5)), [(ms(5), 1)]);
        assert_eq!(round(&mut timers, ms(10)), [(ms(10), 1)]);
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn a_round_has_an_end_and_what_it_leaves_comes_first() {
        let start = crate::test_clock();
        let mut timers = Timers::new();
        let count = ROUND as u32 + 5;
        (0..count).for_each(|key| timers.arm(&mut None, Some(start), key));
        assert_eq!(round(&mut timers, start).len(), ROUND);
        assert_eq!((timers.len(), timers.next()), (5, Some(start)));
        // One that is due anew waits for those.
        timers.arm(&mut None, Some(start), 0);
        let left: Vec<u32> = round(&mut timers, start).iter().map(|(_, key)| *key).collect();
        assert_eq!(left, [ROUND as u32, ROUND as u32 + 1, ROUND as u32 + 2, ROUND as u32 + 3, count - 1]);
        assert_eq!(round(&mut timers, start), [(start, 0)]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_that_does_not_move_fires_once_a_round() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = [None; 4];
        for (key, armed) in (0u32..).zip(&mut armed) {
            // The last one is not due yet.
            timers.arm(armed, Some(ms(if key == 3 { 100 } else { u64::from(key) })), key);
        }
        for _ in 0..2 {
            let mut fired = Vec::new();
            timers.begin_round(ms(10));
            // More often than anything may fire, so that a round without end fails instead of
            // hanging.
            while let Some((at, key)) = timers.next_due().filter(|_| fired.len() < 100) {
                let armed = &mut armed[key as usize];
                assert_eq!(armed.take(), Some(at));
                fired.push(key);
                timers.arm(armed, Some(ms(10)), key);
            }
            assert_eq!(fired, [0, 1, 2]);
            assert_eq!((timers.next(), timers.len()), (Some(ms(10)), 4));
        }
    }

    #[test]
    fn deadlines_go_with_the_last_flow() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = None;
        timers.arm(&mut armed, Some(ms(40_000)), 1);
        timers.arm(&mut armed, Some(ms(10)), 1);
        timers.left(1);
        assert_eq!(timers.len(), 2);
        timers.left(0);
        assert_eq!((timers.len(), timers.next()), (0, None));
    }

    #[test]
    fn overtaken_deadlines_do_not_pile_up() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = None;
        // As a flow does that is busy for a long time: a far deadline, overtaken by a near one
        // again and again.
        for now in 0..10_000 {
            timers.arm(&mut armed, Some(ms(now + 300_000)), 1);
            timers.arm(&mut armed, Some(ms(now + 2)), 1);
            for (at, _) in round(&mut timers, ms(now)) {
                if armed == Some(at) {
                    armed = None;
                }
            }
            timers.sweep(1, |at, _| armed == Some(at));
        }
        assert!(timers.len() <= 2 + SPARE, "{} entries for one flow", timers.len());
    }

    #[test]
    fn a_deadline_gone_back_to_many_times_does_not_pile_up() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = None;
        for now in 0..1000 {
            timers.arm(&mut armed, Some(ms(300_000)), 1);
            timers.arm(&mut armed, Some(ms(now)), 1);
            assert_eq!(round(&mut timers, ms(now)), [(ms(now), 1)]);
            armed = Some(ms(300_000));
            timers.sweep(1, |at, _| armed == Some(at));
            armed = None;
        }
        assert!(timers.len() <= 2 + SPARE, "{} entries for one flow", timers.len());
    }
}
