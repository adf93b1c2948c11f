//! `longhaul-lab simulate --paper`: the published evaluation's cells with the production machines.
//!
//! "SDR-RDMA: Software-Defined Reliability Architecture for Planetary Scale RDMA Communication",
//! Khalilov et al., arXiv 2505.05366.

mod figures;

use std::io::{self, Write};
use std::time::Duration;

use config::ByteSize;
use gateway::simulate::cells::{self, Cell};
use gateway::simulate::{Row, SimulateError};
use linksim::impair::Loss;
use linksim::transfer::{Repair, Transfer};
use reliability::human;

/// Data packets per cell at most, unless told otherwise.
pub const BUDGET: u64 = 5_000_000;
/// More messages tell no more.
const MOST: u64 = 10_000;
/// Fewer say nothing.
const LEAST: u64 = 2;

const RATE: u64 = 400_000_000_000;
const RTT: Duration = Duration::from_millis(25);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The published grid reaches from the first to the last size, and drop rate.
const SIZES: [u64; 5] = [128 * KIB, MIB, 8 * MIB, 128 * MIB, GIB];
const DROPS: [f64; 5] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2];

/// The schemes compared, as published: selective repeat by timeouts of three round trips, by
/// requests, and both codes.
const RTO: &str = "sr-rto";
const NACK: &str = "sr";
const MDS: &str = "mds:32:8";
const XOR: &str = "xor:32:8";

/// Sites of the Allreduce, and its buffer. The publication's are not known.
const SITES: u64 = 4;
const BUFFER: u64 = 128 * MIB;

/// A cell of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    scheme: &'static str,
    size: u64,
    drop: f64,
}

/// The cells that have run.
struct Grid {
    cells: Vec<(Key, Cell)>,
    left_out: Vec<Key>,
    seed: u64,
}

/// Runs the cells, writes the comparison, and returns a row per cell.
///
/// # Errors
/// See [`SimulateError`].
pub fn run(budget: u64, seed: u64, threads: usize, out: &mut dyn Write) -> Result<Vec<Row>, SimulateError> {
    let (keys, left_out): (Vec<Key>, Vec<Key>) =
        keys().into_iter().partition(|key| messages(key.size, budget) >= LEAST);
    let mut transfers = Vec::new();
    for (index, key) in (0..).zip(&keys) {
        transfers.push(transfer(*key, budget, seed.wrapping_add(index))?);
    }
    let cells = keys.into_iter().zip(cells::run(transfers, threads)?).collect();
    let grid = Grid { cells, left_out, seed };
    grid.write(budget, out)?;
    grid.cells.iter().map(|(_, cell)| Row::of(cell, None, seed)).collect()
}

/// The grid, and what single figures need beyond it.
fn keys() -> Vec<Key> {
    let mut keys = Vec::new();
    let mut add = |schemes: &[&'static str], size, drops: &[f64]| {
        for drop in drops {
            for scheme in schemes {
                let key = Key { scheme, size, drop: *drop };
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
    };
    for size in SIZES {
        add(&[RTO, NACK, MDS, XOR], size, &DROPS);
    }
    add(&[XOR, RTO], 128 * MIB, &[3e-4, 3e-3]);
    add(&[MDS], 128 * MIB, &[2e-2, 3e-2, 5e-2]);
    add(&[RTO, MDS], 128 * MIB, &[1e-7]);
    add(&[RTO, MDS], BUFFER / SITES, &[1e-4, 1e-3, 1e-2]);
    add(&[RTO, MDS], 8 * GIB, &[1e-5]);
    keys
}

fn messages(size: u64, budget: u64) -> u64 {
    (budget / size.div_ceil(4 * KIB)).min(MOST)
}

fn transfer(key: Key, budget: u64, seed: u64) -> Result<Transfer, SimulateError> {
    let repair: Repair = key.scheme.parse().map_err(|error| SimulateError::Usage(format!("{error}")))?;
    let mut transfer = Transfer::new(RATE, RTT, repair, key.size);
    transfer.messages = messages(key.size, budget);
    transfer.seed = seed;
    transfer.forward.loss = Loss::Random(key.drop);
    Ok(transfer)
}

impl Grid {
    fn cell(&self, scheme: &'static str, size: u64, drop: f64) -> Option<&Cell> {
        let key = Key { scheme, size, drop };
        self.cells.iter().find(|(other, _)| *other == key).map(|(_, cell)| cell)
    }

    /// Mean completion in seconds.
    fn mean(&self, scheme: &'static str, size: u64, drop: f64) -> Option<f64> {
        self.cell(scheme, size, drop).map(|cell| cell.outcome.completion.mean())
    }

    /// The 99.9th percentile, where a thousand messages or more have run.
    fn tail(&self, scheme: &'static str, size: u64, drop: f64) -> Option<f64> {
        let times = &self.cell(scheme, size, drop)?.outcome.completion;
        (times.count() >= 1000).then(|| times.quantile(0.999))
    }

    fn write(&self, budget: u64, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "SDR-RDMA (Khalilov et al., arXiv 2505.05366) at 400 Gbit/s and 25 ms: what was published for its model, and what this program's\n\
             machines take in virtual time. Packets of 4096 message bytes, lost independently; EC is {MDS}; SR RTO repairs by timeouts of\n\
             3 RTT alone; `sr` is what a gateway does. At most {budget} data packets per cell; seed {}.\n",
            self.seed
        )?;
        for finding in self.findings() {
            writeln!(
                out,
                "{}\n    published  {}\n    ours       {}",
                finding.what, finding.published, finding.ours
            )?;
            if !finding.because.is_empty() {
                writeln!(out, "    because    {}", finding.because)?;
            }
        }
        let ratio = |of: Option<f64>, by: Option<f64>| of.zip(by).map(|(of, by)| of / by);
        self.table(out, "SR RTO over EC, mean", |size, drop| {
            ratio(self.mean(RTO, size, drop), self.mean(MDS, size, drop))
        })?;
        self.table(out, "SR RTO over EC, p99.9", |size, drop| {
            ratio(self.tail(RTO, size, drop), self.tail(MDS, size, drop))
        })?;
        self.table(out, "sr over EC, mean", |size, drop| {
            ratio(self.mean(NACK, size, drop), self.mean(MDS, size, drop))
        })?;
        self.table(out, "sr over EC, p99.9", |size, drop| {
            ratio(self.tail(NACK, size, drop), self.tail(MDS, size, drop))
        })?;
        self.omissions(out)
    }

    fn table(
        &self,
        out: &mut dyn Write,
        what: &str,
        value: impl Fn(u64, f64) -> Option<f64>,
    ) -> io::Result<()> {
        write!(out, "\n{what:<24}")?;
        for drop in DROPS {
            write!(out, "{:>11}", human::share(drop))?;
        }
        writeln!(out)?;
        for size in SIZES {
            write!(out, "{:<24}", ByteSize::from_bytes(size).to_string())?;
            for drop in DROPS {
                let text = value(size, drop).map_or("-".to_owned(), |value| format!("{value:.2}"));
                write!(out, "{text:>11}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn omissions(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut without: Vec<u64> = self.left_out.iter().map(|key| key.size).collect();
        without.sort_unstable();
        without.dedup();
        let few = |size: &u64| self.tail(RTO, *size, 1e-2).is_none() && !without.contains(size);
        let few: Vec<String> = SIZES.into_iter().filter(few).map(name).collect();
        writeln!(out, "\nLeft out:")?;
        if !few.is_empty() {
            writeln!(
                out,
                "  p99.9 of {}: fewer than 1000 messages are within the bound (--budget)",
                few.join(", ")
            )?;
        }
        if !without.is_empty() {
            let without: Vec<String> = without.into_iter().map(name).collect();
            writeln!(
                out,
                "  {} altogether: not even {LEAST} messages are within the bound",
                without.join(", ")
            )?;
        }
        writeln!(
            out,
            "  sizes above {} but for {} at {}: millions of packets per message\n\n\
             Where the machines differ from the model: headers of {} count on both sides of a ratio; a repair that is lost waits\n\
             longer each time for the next timeout; of a block that does not decode only what it lacks is sent again; repairs and\n\
             parity go through the same pacer as data.",
            name(GIB),
            name(8 * GIB),
            human::share(1e-5),
            human::share(108.0 / 4096.0)
        )
    }
}

fn name(size: u64) -> String {
    ByteSize::from_bytes(size).to_string()
}
