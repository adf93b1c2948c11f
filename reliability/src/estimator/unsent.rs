//! Numbers that were used up here and never left.

use std::collections::VecDeque;
use std::ops::Range;

/// Runs remembered until the receiver has judged them.
const RUNS: usize = 256;

/// Runs of numbers dropped by this machine. At the bound further runs join the last one, and are
/// taken off the losses when its end is judged.
#[derive(Debug)]
pub(super) struct Unsent {
    runs: VecDeque<Run>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    numbers: u64,
    runs: u64,
}

impl Unsent {
    pub(super) fn new() -> Self {
        Self { runs: VecDeque::with_capacity(RUNS), total: 0 }
    }

    /// These numbers never left; ranges come in ascending order, others are ignored.
    pub(super) fn add(&mut self, numbers: Range<u64>) {
        let from = self.runs.back().map_or(0, |run| run.end);
        if numbers.is_empty() || numbers.start < from {
            return;
        }
        let count = numbers.end - numbers.start;
        self.total += count;
        let full = self.runs.len() >= RUNS;
        match self.runs.back_mut() {
            Some(last) if last.end == numbers.start || full => {
                last.runs += u64::from(last.end != numbers.start);
                last.end = numbers.end;
                last.numbers += count;
            }
            _ => self.runs.push_back(Run { end: numbers.end, numbers: count, runs: 1 }),
        }
    }

    /// Takes out what lies below `horizon`: numbers and runs.
    pub(super) fn judged(&mut self, horizon: u64) -> (u64, u64) {
        let (mut numbers, mut runs) = (0, 0);
        while let Some(run) = self.runs.pop_front_if(|run| run.end <= horizon) {
            numbers += run.numbers;
            runs += run.runs;
        }
        (numbers, runs)
    }

    /// Numbers that never left, since the beginning.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_judged_with_their_end() {
        let mut unsent = Unsent::new();
        for numbers in [3..5, 5..6, 10..10, 4..9, 20..21] {
            unsent.add(numbers);
        }
        assert_eq!(unsent.judged(5), (0, 0));
        assert_eq!(unsent.judged(6), (3, 1));
        assert_eq!(unsent.judged(u64::MAX), (1, 1));
        assert_eq!(unsent.total(), 4);
    }

    #[test]
    fn at_the_bound_nothing_is_forgotten() {
        let mut unsent = Unsent::new();
        (0..1000).for_each(|run| unsent.add(10 * run..10 * run + 2));
        assert_eq!(unsent.runs.len(), RUNS);
        assert_eq!(unsent.judged(9000), (510, 255));
        assert_eq!(unsent.judged(9992), (2 * 745, 745));
    }
}
