//! `longhaul-lab simulate --plane`: is what `auto` chooses nearly as good as the best scheme that
//! could have been named, on any link?
//!
//! In each cell of a grid of links and sizes the production selector chooses for the size's bucket,
//! knowing the link as the production estimator tells it. The choice and fixed schemes then carry
//! the same messages in the simulator; messages too long for enough of them are judged by the
//! model.

mod bounds;
mod cell;
mod grid;
mod known;
mod report;

use std::io::Write;

use config::ByteSize;
use gateway::simulate::{SimulateError, cells, export};
use linksim::transfer::Transfer;

pub use known::Known;

use bounds::P99;
use cell::{Cell, Row};

/// Data packets for each scheme in a cell at most, unless told otherwise.
pub const BUDGET: u64 = 4_200_000;
/// Packets seen before the choice, unless told otherwise: half a minute of a full 10 Gbit/s.
pub const OBSERVED: &str = "10000000";

/// `auto` may take so much longer than the best fixed scheme ...
const OF_BEST: f64 = 1.10;
/// ... and than selective repeat.
const OF_SR: f64 = 1.25;
/// Parity per data packet at most, as in a policy file that says nothing.
const MAX_OVERHEAD: f64 = 0.5;

/// With fewer messages, no bound of the percentile is as sure as it should be.
const LEAST: u64 = 1000;
/// More are run only as far as this share of the budget ...
const SHARE: u64 = 4;
/// ... and no more than these.
const MOST: u64 = 4000;
/// A cell that looks bad without being surely so is looked at again, with other losses and so many
/// times as many messages.
const AGAIN: u64 = 4;

/// The cells to run.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// Message sizes; the grid's if empty.
    pub sizes: &'a [ByteSize],
    /// How well `auto` knows the link.
    pub known: Known,
    /// Data packets for each scheme in a cell at most.
    pub budget: u64,
    /// Everything random follows from it.
    pub seed: u64,
    /// Threads that share the work.
    pub threads: usize,
}

/// The outcome.
pub struct Judged {
    rows: Vec<Row>,
    /// Cells in which `auto` is surely too slow.
    pub violations: usize,
}

impl Sweep<'_> {
    /// Runs the cells and writes what they say.
    ///
    /// # Errors
    /// See [`SimulateError`].
    pub fn run(&self, out: &mut dyn Write) -> Result<Judged, SimulateError> {
        let sizes: Vec<u64> = self.sizes.iter().map(|size| size.bytes()).collect();
        let sizes = if sizes.is_empty() { grid::SIZES.to_vec() } else { sizes };
        let mut knowledge = known::Knowledge::new(self.known);
        let mut cells = Vec::new();
        for key in grid::keys(&sizes) {
            cells.push(Cell::plan(
                key,
                &knowledge.estimate(&key.link())?,
                messages(key.packets(), self.budget),
            ));
        }
        let all: Vec<usize> = (0..cells.len()).collect();
        self.simulate(&mut cells, &all, 0)?;
        let open: Vec<usize> =
            all.into_iter().filter(|index| cells.get(*index).is_some_and(Cell::is_open)).collect();
        let cells_open = open.len();
        for index in &open {
            if let Some(cell) = cells.get_mut(*index) {
                cell.messages *= AGAIN;
            }
        }
        let fresh = cells.len() as u64;
        self.simulate(&mut cells, &open, fresh)?;
        report::write(out, self, &sizes, &cells, cells_open)?;
        Ok(Judged {
            rows: cells.iter().flat_map(Cell::rows).collect(),
            violations: cells.iter().filter(|cell| cell.is_violated()).count(),
        })
    }

    /// Runs these cells' schemes, all of a cell with the same seed.
    fn simulate(&self, cells: &mut [Cell], which: &[usize], seeds: u64) -> Result<(), SimulateError> {
        let (mut places, mut transfers) = (Vec::new(), Vec::new());
        for index in which {
            let Some(cell) = cells.get(*index) else { continue };
            for (scheme, transfer) in cell.transfers()? {
                let seed = self.seed.wrapping_add(seeds).wrapping_add(*index as u64);
                places.push((*index, scheme));
                transfers.push(Transfer { seed, ..transfer });
            }
        }
        // Shared by all schemes that there are, so that none of a cell's bounds is likely to fail.
        let risk = cell::RISK / grid::FIXED.len() as f64;
        let found = cells::map(&transfers, self.threads, |_, outcome| P99::of(&outcome.completion, risk))?;
        for ((index, scheme), p99) in places.into_iter().zip(found) {
            if let Some(cell) = cells.get_mut(index) {
                cell.take(scheme, p99);
            }
        }
        Ok(())
    }
}

impl Judged {
    /// Each scheme of each cell as a JSON object, for other programs.
    ///
    /// # Errors
    /// A row that cannot be written as JSON.
    pub fn json(&self) -> Result<String, SimulateError> {
        export::json(&self.rows)
    }

    /// The same as CSV, a line per scheme in a cell.
    #[must_use]
    pub fn csv(&self) -> String {
        cell::csv(&self.rows)
    }
}

/// How many messages are run of so many packets each; none if they are too long.
fn messages(packets: u64, budget: u64) -> u64 {
    if packets * LEAST > budget { 0 } else { (budget / SHARE / packets).clamp(LEAST, MOST) }
}

#[cfg(test)]
mod tests;
