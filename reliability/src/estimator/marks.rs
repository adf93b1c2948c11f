//! When gaps were noticed.

/// Marks kept. They stand at least a 256th of the patience apart, so they reach back over it twice
/// and more.
const MARKS: usize = 1024;
const PER_PATIENCE: u64 = 256;

/// For each missing packet number, when a later one arrived: a ring of times at which the numbers
/// had come so far. A gap that is noticed shortly after another one shares its mark. At the bound
/// the oldest mark makes room: judged long ago.
#[derive(Debug)]
pub(super) struct Marks {
    ring: Box<[Mark; MARKS]>,
    /// Marks ever made.
    made: usize,
    /// Marks whose gaps are judged, among those ever made.
    judged: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// When it was made, in microseconds.
    at: u64,
    /// When its last gap was noticed.
    last: u64,
    /// The numbers missing below were noticed by then.
    number: u64,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { ring: Box::new([Mark::default(); MARKS]), made: 0, judged: 0 }
    }

    pub(super) fn clear(&mut self) {
        (self.made, self.judged) = (0, 0);
    }

    /// Numbers below `number` that are missing, and were not noticed before, were noticed `now`.
    pub(super) fn gap(&mut self, number: u64, now: u64, patience: u64) {
        if self.made > self.judged
            && let Some(last) = self.get_mut(self.made - 1)
            && now < last.at + patience / PER_PATIENCE
        {
            (last.last, last.number) = (now, number);
            return;
        }
        let place = self.made;
        self.made += 1;
        if let Some(mark) = self.get_mut(place) {
            *mark = Mark { at: now, last: now, number };
        }
        self.judged = self.judged.max(self.made.saturating_sub(MARKS));
    }

    /// Returns the number below which everything missing was noticed `patience` ago; `None` if that
    /// tells nothing new.
    pub(super) fn pass(&mut self, now: u64, patience: u64) -> Option<u64> {
        let mut passed = None;
        while self.judged < self.made
            && let Some(mark) = self.get_mut(self.judged).copied()
            && mark.last + patience <= now
        {
            passed = Some(mark.number);
            self.judged += 1;
        }
        passed
    }

    /// When the last gap not passed yet was noticed.
    pub(super) fn last(&self) -> Option<u64> {
        (self.judged < self.made).then(|| self.get(self.made - 1).map(|mark| mark.last)).flatten()
    }

    /// When a number that is or was missing was noticed; the oldest time known if that is longer
    /// ago.
    pub(super) fn noticed(&self, number: u64) -> Option<u64> {
        let mut low = self.made.saturating_sub(MARKS);
        let mut high = self.made;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle)?.number > number {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < self.made).then(|| self.get(low).map(|mark| mark.at)).flatten()
    }

    fn get(&self, place: usize) -> Option<&Mark> {
        self.ring.get(place % MARKS)
    }

    fn get_mut(&mut self, place: usize) -> Option<&mut Mark> {
        self.ring.get_mut(place % MARKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 25_600;

    #[test]
    fn a_gap_passes_when_it_was_noticed_long_enough_ago() {
        let mut marks = Marks::new();
        marks.gap(10, 1000, PATIENCE);
        marks.gap(20, 1099, PATIENCE); // shares the mark
        marks.gap(30, 1100, PATIENCE);
        assert_eq!(marks.pass(1098 + PATIENCE, PATIENCE), None);
        assert_eq!(marks.pass(1099 + PATIENCE, PATIENCE), Some(20));
        assert_eq!(marks.pass(1099 + PATIENCE, PATIENCE), None);
        assert_eq!(marks.last(), Some(1100));
        assert_eq!(marks.pass(9_000_000, PATIENCE), Some(30));
        assert_eq!(marks.last(), None);
    }

    #[test]
    fn a_judged_mark_takes_no_more_gaps() {
        let mut marks = Marks::new();
        marks.gap(10, 1000, 0);
        assert_eq!(marks.pass(1000, 0), Some(10));
        marks.gap(20, 1000, PATIENCE);
        assert_eq!(marks.pass(1000 + PATIENCE, PATIENCE), Some(20));
    }

    #[test]
    fn the_time_of_notice_is_remembered_beyond_judgement_and_up_to_the_bound() {
        let mut marks = Marks::new();
        for gap in 0..2000 {
            marks.gap(10 * gap + 10, 100 * gap, PATIENCE);
        }
        assert_eq!(marks.noticed(19_989), Some(199_800));
        assert_eq!(marks.noticed(15_000), Some(150_000));
        assert_eq!(marks.noticed(0), Some(97_600), "the oldest known");
        assert_eq!(marks.noticed(20_000), None, "nothing later has come");
        marks.pass(u64::MAX / 2, PATIENCE);
        assert_eq!(marks.noticed(15_000), Some(150_000));
    }
}
