//! Deadlines of many flows, with one heap entry for most of their changes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// A heap of deadlines that is lazy about moving them later.
///
/// A flow keeps its earliest entry's time in its own `armed` field. A deadline that moves later leaves the entry where it is:
/// it fires early, finds nothing due and is armed anew. So a busy flow, whose deadline moves with every packet, costs
/// one entry per expiry rather than one per packet. An entry that was overtaken by an earlier deadline stays as well, until its time comes
/// or [`Timers::sweep`] finds the useless ones in the majority: that bounds the heap at twice the flows, and a few.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

/// Useless entries that are not worth a sweep.
const SPARE: usize = 64;

impl<K: Ord + Copy> Timers<K> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// Sees to it that `key` fires at `at` or before.
    pub(crate) fn arm(&mut self, armed: &mut Option<Instant>, at: Option<Instant>, key: K) {
        let Some(at) = at else { return };
        if armed.is_none_or(|earlier| at < earlier) {
            *armed = Some(at);
            self.heap.push(Reverse((at, key)));
        }
    }

    /// The next entry that is due. The owner ignores it unless the time is what the flow has in `armed`, and clears that.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        let Reverse((at, _)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Drops the entries that no flow is armed with, if they are the most. Call it once per round of timeouts.
    pub(crate) fn sweep(&mut self, flows: usize, is_armed: impl Fn(Instant, K) -> bool) {
        if self.heap.len() > 2 * flows + SPARE {
            self.heap.retain(|Reverse((at, key))| is_armed(*at, *key));
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Entries waiting, stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
        assert_eq!(timers.pop_due(ms(4)), None);
        assert_eq!(timers.pop_due(ms(5)), Some((ms(5), 1)));
        assert_eq!(timers.pop_due(ms(10)), Some((ms(10), 1)));
        assert_eq!(timers.len(), 0);
    }
    #[test]
    fn overtaken_deadlines_do_not_pile_up() {
        let start = crate::test_clock();
        let ms = |n| start + Duration::from_millis(n);
        let mut timers = Timers::new();
        let mut armed = None;
        // As a flow does that is busy for a long time: a far deadline, overtaken by a near one again and again.
        for now in 0..10_000 {
            timers.arm(&mut armed, Some(ms(now + 300_000)), 1);
            timers.arm(&mut armed, Some(ms(now + 2)), 1);
            while let Some((at, _)) = timers.pop_due(ms(now)) {
                if armed == Some(at) {
                    armed = None;
                }
            }
            timers.sweep(1, |at, _| armed == Some(at));
        }
        assert!(timers.len() <= 2 + SPARE, "{} entries for one flow", timers.len());
    }
}
