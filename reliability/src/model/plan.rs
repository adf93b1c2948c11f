//! Which scheme is best for which message size on a link.

use std::time::Duration;

use super::candidate::Candidate;
use super::completion::Completion;
use super::production::{Message, Timers, completion};
use crate::link::Link;

/// Candidates within this share of the fastest one count as equally fast; the one that sends least
/// is the best of them.
const EQUAL: f64 = 0.005;
/// Crossover points are found to this factor.
const PRECISION: f64 = 1.02;

/// Completion times by size and candidate, and where the best candidate changes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The schemes compared, in the order of [`Row::cells`].
    pub candidates: Vec<Candidate>,
    /// The percentile that was minimised, in percent.
    pub percentile: f64,
    /// One per size, ascending.
    pub rows: Vec<Row>,
    /// Ascending by size.
    pub crossovers: Vec<Crossover>,
}

/// One message size.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// One per candidate.
    pub cells: Vec<Cell>,
    /// Index of the best one.
    pub best: usize,
}

/// One size under one candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Expected completion time.
    pub mean: Duration,
    /// The plan's percentile of it.
    pub percentile: Duration,
    /// Expected packets beyond one per data packet, per data packet.
    pub overhead: f64,
}

/// From this size on another candidate is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossover {
    /// Bytes, to 2 %.
    pub size: u64,
    /// Best below.
    pub from: Candidate,
    /// Best from here on.
    pub to: Candidate,
}

/// Evaluates every candidate at every size, and looks for the crossover points between neighbouring
/// sizes. Without candidates there is nothing.
#[must_use]
pub fn plan(link: &Link, timers: &Timers, candidates: &[Candidate], sizes: &[u64], percentile: f64) -> Plan {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let search = Search { link, timers, candidates, percentile };
    let rows: Vec<Row> = sizes.into_iter().filter_map(|size| search.row(size)).collect();
    let mut crossovers = Vec::new();
    for (low, high) in rows.iter().zip(rows.iter().skip(1)) {
        search.crossovers((low.size, low.best), (high.size, high.best), &mut crossovers);
    }
    Plan { candidates: candidates.to_vec(), percentile, rows, crossovers }
}

struct Search<'a> {
    link: &'a Link,
    timers: &'a Timers,
    candidates: &'a [Candidate],
    percentile: f64,
}

impl Search<'_> {
    fn row(&self, size: u64) -> Option<Row> {
        let cell = |candidate: &Candidate| {
            let time: Completion = completion(self.link, self.timers, *candidate, Message::new(size));
            Cell {
                mean: time.mean(),
                percentile: time.percentile(self.percentile),
                overhead: time.overhead(),
            }
        };
        let cells: Vec<Cell> = self.candidates.iter().map(cell).collect();
        let fastest = cells.iter().map(|cell| cell.percentile).min()?;
        let limit = fastest.mul_f64(1.0 + EQUAL);
        let fast = cells.iter().enumerate().filter(|(_, cell)| cell.percentile <= limit);
        let (best, _) = fast.min_by(|(_, a), (_, b)| a.overhead.total_cmp(&b.overhead))?;
        Some(Row { size, cells, best })
    }

    /// The changes of the best candidate between two sizes, by halving.
    fn crossovers(&self, low: (u64, usize), high: (u64, usize), found: &mut Vec<Crossover>) {
        if low.1 == high.1 {
            return;
        }
        let middle = ((low.0 as f64).max(1.0) * high.0 as f64).sqrt() as u64;
        let narrow = high.0 as f64 <= low.0 as f64 * PRECISION || middle <= low.0 || middle >= high.0;
        let row = if narrow { None } else { self.row(middle) };
        match row {
            Some(row) => {
                self.crossovers(low, (middle, row.best), found);
                self.crossovers((middle, row.best), high, found);
            }
            None => {
                let named = self.candidates.get(low.1).zip(self.candidates.get(high.1));
                found.extend(named.map(|(from, to)| Crossover { size: high.0, from: *from, to: *to }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u64; 7] = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30, 1 << 34];

    fn table(drop: f64, candidates: &[Candidate]) -> Plan {
        let link = Link::new(100_000_000_000, Duration::from_millis(25), drop, 4096);
        plan(&link, &Timers::default(), candidates, &SIZES, 99.9)
    }

    #[test]
    fn parity_gives_way_to_repeat_at_a_crossover() {
        let plan = table(1e-4, &[Candidate::Sr, Candidate::mds(32, 8)]);
        let best: Vec<usize> = plan.rows.iter().map(|row| row.best).collect();
        assert_eq!(best.first(), Some(&0), "a packet is lost less often than the percentile minds");
        assert_eq!(best.last(), Some(&0));
        assert_eq!(plan.crossovers.len(), 2, "{:?}", plan.crossovers);
        let [small, large] = [plan.crossovers[0], plan.crossovers[1]];
        assert_eq!((small.from, small.to), (Candidate::Sr, Candidate::mds(32, 8)));
        assert_eq!((large.from, large.to), (Candidate::mds(32, 8), Candidate::Sr));
        // Ten packets of 4096 bytes lose one with probability 0.001.
        assert!((8 * 4096..=12 * 4096).contains(&small.size), "{small:?}");
        for crossover in [small, large] {
            let link = Link::new(100_000_000_000, Duration::from_millis(25), 1e-4, 4096);
            let around = [crossover.size * 95 / 100, crossover.size * 105 / 100];
            let both = plan_of(&link, &around);
            assert_ne!(both.rows[0].best, both.rows[1].best, "{crossover:?}");
        }
    }

    fn plan_of(link: &Link, sizes: &[u64]) -> Plan {
        plan(link, &Timers::default(), &[Candidate::Sr, Candidate::mds(32, 8)], sizes, 99.9)
    }

    #[test]
    fn without_loss_the_best_sends_least() {
        let plan = table(0.0, &[Candidate::mds(32, 8), Candidate::xor(32, 4), Candidate::Sr]);
        assert!(plan.rows.iter().all(|row| row.best == 2), "{:?}", plan.rows);
        assert!(plan.crossovers.is_empty());
    }

    #[test]
    fn nothing_to_compare_is_no_error() {
        assert!(table(0.1, &[]).rows.is_empty());
        let link = Link::new(1, Duration::ZERO, 0.5, 1);
        assert!(plan_of(&link, &[]).rows.is_empty());
        assert_eq!(plan_of(&link, &[7, 7, 0]).rows.len(), 2);
    }
}
