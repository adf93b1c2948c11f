//! Losses in a row, and what came between them.

use std::collections::VecDeque;

use crate::trace::{Entry, Run};

/// Runs kept for whoever records them.
const KEPT: usize = 16 << 10;

/// Counts runs of lost and arrived numbers, told of in the numbers' order.
///
/// Finished runs wait to be drained ([`Runs::drain`]); at the bound further ones are left out, and
/// a [`Entry::Break`] stands for them.
#[derive(Debug)]
pub(super) struct Runs {
    /// Numbers judged, lost or arrived.
    pub(super) judged: u64,
    /// Numbers judged lost.
    pub(super) lost: u64,
    /// Runs of losses.
    pub(super) count: u64,
    /// The longest.
    pub(super) longest: u64,
    /// Arrivals since the last finished run of losses, and the losses since the last of these.
    current: Run,
    finished: VecDeque<Entry>,
}

impl Runs {
    pub(super) fn new() -> Self {
        Self {
            judged: 0,
            lost: 0,
            count: 0,
            longest: 0,
            current: Run::default(),
            finished: VecDeque::with_capacity(KEPT),
        }
    }

    /// The next `count` numbers arrived.
    pub(super) fn arrived(&mut self, count: u64) {
        if self.current.lost > 0 {
            self.finish();
        }
        self.judged += count;
        self.current.arrived += count;
    }

    /// The next `count` numbers are lost.
    pub(super) fn lost(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        self.count += u64::from(self.current.lost == 0);
        self.judged += count;
        self.lost += count;
        self.current.lost += count;
        self.longest = self.longest.max(self.current.lost);
    }

    /// Up to 64 numbers, one per bit from the lowest: set, it arrived.
    pub(super) fn word(&mut self, mut arrived: u64, mut count: u32) {
        while count > 0 {
            let ones = arrived.trailing_ones().min(count);
            if ones > 0 {
                self.arrived(u64::from(ones));
                arrived = arrived.checked_shr(ones).unwrap_or(0);
                count -= ones;
            }
            let zeros = arrived.trailing_zeros().min(count);
            if zeros > 0 {
                self.lost(u64::from(zeros));
                arrived = arrived.checked_shr(zeros).unwrap_or(0);
                count -= zeros;
            }
        }
    }

    /// A number that was judged lost has arrived. `before`, `after`: whether its neighbours are
    /// lost; `last`: it is the last one judged.
    pub(super) fn found(&mut self, before: bool, after: bool, last: bool) {
        self.lost = self.lost.saturating_sub(1);
        match (before, after) {
            (true, true) => self.count += 1,
            (false, false) => self.count = self.count.saturating_sub(1),
            _ => {}
        }
        if last && self.current.lost > 0 {
            self.current.lost -= 1;
            if self.current.lost > 0 {
                self.finish();
            }
            self.current.arrived += 1;
        }
    }

    /// The numbers are no longer those of before.
    pub(super) fn interrupt(&mut self) {
        if self.current != Run::default() {
            self.finish();
        }
        self.keep(Entry::Break);
    }

    /// Hands out the finished runs, and the arrivals since.
    pub(super) fn drain(&mut self, take: &mut dyn FnMut(Entry)) {
        while let Some(entry) = self.finished.pop_front() {
            take(entry);
        }
        if self.current.lost == 0 && self.current.arrived > 0 {
            take(Entry::Run(std::mem::take(&mut self.current)));
        }
    }

    fn finish(&mut self) {
        let run = std::mem::take(&mut self.current);
        self.keep(Entry::Run(run));
    }

    fn keep(&mut self, entry: Entry) {
        if self.finished.len() + 1 < KEPT {
            self.finished.push_back(entry);
        } else if self.finished.back() != Some(&Entry::Break) {
            self.finished.push_back(Entry::Break);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(runs: &mut Runs) -> Vec<(u64, u64)> {
        let mut entries = Vec::new();
        runs.drain(&mut |entry| {
            entries.push(match entry {
                Entry::Run(run) => (run.arrived, run.lost),
                Entry::Break => (0, 0),
            });
        });
        entries
    }

    #[test]
    fn words_and_counts_make_the_same_runs() {
        let mut runs = Runs::new();
        runs.word(0b1110_0011, 8);
        runs.word(u64::MAX, 64);
        runs.lost(2);
        runs.word(0, 64);
        runs.arrived(1);
        assert_eq!((runs.judged, runs.lost, runs.count, runs.longest), (139, 69, 2, 66));
        assert_eq!(drained(&mut runs), [(2, 3), (67, 66), (1, 0)]);
        assert_eq!(drained(&mut runs), []);
    }

    #[test]
    fn what_is_found_splits_shortens_or_ends_a_run() {
        let mut runs = Runs::new();
        runs.arrived(1);
        runs.lost(5);
        runs.arrived(1);
        runs.found(true, true, false);
        assert_eq!((runs.lost, runs.count), (4, 2));
        runs.found(false, true, false);
        assert_eq!((runs.lost, runs.count), (3, 2));
        runs.found(false, false, false);
        assert_eq!((runs.lost, runs.count), (2, 1));
    }

    #[test]
    fn the_last_one_judged_may_be_found() {
        let mut runs = Runs::new();
        runs.arrived(3);
        runs.lost(2);
        runs.found(true, false, true);
        runs.lost(1);
        assert_eq!((runs.lost, runs.count), (2, 2));
        runs.arrived(1);
        assert_eq!(drained(&mut runs), [(3, 1), (1, 1), (1, 0)]);
        runs.lost(1);
        runs.found(false, false, true);
        runs.lost(1);
        assert_eq!((runs.lost, runs.count), (3, 3));
    }

    #[test]
    fn at_the_bound_a_break_stands_for_the_rest() {
        let mut runs = Runs::new();
        for _ in 0..2 * KEPT {
            runs.arrived(1);
            runs.lost(1);
        }
        let entries = drained(&mut runs);
        assert_eq!((entries.len(), entries.last()), (KEPT, Some(&(0, 0))));
        assert_eq!((runs.lost, runs.count), (2 * KEPT as u64, 2 * KEPT as u64), "counted all the same");
        runs.arrived(7);
        assert_eq!(drained(&mut runs), [(1, 1), (7, 0)]);
    }
}
