//! The report on a run's raw results: who is best in each cell, as a page and as drawings.

mod drawing;
mod page;

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::grid::Extent;
use crate::measure::{Figures, Outcome};
use crate::peer::Peer;

/// Under which circumstances a run was; its raw results' first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    seed: u64,
    extent: Extent,
    kernel: String,
    processor: String,
    processors: usize,
    /// Load average over a minute when it began: what other programs wanted.
    load: f64,
}

impl Setup {
    /// The facts of a run that begins now.
    pub(crate) fn here(seed: u64, extent: Extent) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = model.map_or("", |line| line.trim_start_matches([' ', '\t', ':'])).to_owned();
        let kernel = read("/proc/sys/kernel/osrelease");
        // What follows the version proper says where the kernel was built.
        let kernel = kernel.split('-').next().unwrap_or_default().trim().to_owned();
        let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { seed, extent, kernel, processor, processors, load: load.unwrap_or(0.0) }
    }
}

/// The peers that Longhaul is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    Everyone,
    /// Those whose packets are encrypted, as Longhaul's are.
    Encrypted,
}

/// A cell with everyone in it.
struct Row {
    cell: Cell,
    outcomes: Vec<Outcome>,
}

/// One who was measured.
type Measured<'a> = (Peer, &'a Figures);

impl Row {
    fn measured(&self) -> impl Iterator<Item = Measured<'_>> {
        self.outcomes.iter().filter_map(|outcome| Some((outcome.peer, outcome.figures.as_ref().ok()?)))
    }

    fn peers(&self, against: Against) -> impl Iterator<Item = Measured<'_>> {
        let counts = move |peer: Peer| against == Against::Everyone || peer.encrypts();
        self.measured().filter(move |(peer, _)| !peer.is_longhaul() && counts(*peer))
    }

    /// The peer with the highest goodput.
    fn fastest(&self, against: Against) -> Option<Measured<'_>> {
        self.peers(against).max_by(|(_, a), (_, b)| a.goodput.total_cmp(&b.goodput))
    }

    /// The peer with the lowest 99th percentile.
    fn promptest(&self, against: Against) -> Option<Measured<'_>> {
        self.peers(against).min_by(|(_, a), (_, b)| a.p99.total_cmp(&b.p99))
    }

    /// Longhaul's scheme with the lowest 99th percentile.
    fn promptest_scheme(&self) -> Option<Measured<'_>> {
        let schemes = self.measured().filter(|(peer, _)| peer.is_longhaul());
        schemes.min_by(|(_, a), (_, b)| a.p99.total_cmp(&b.p99))
    }

    fn verdict(&self) -> Option<Verdict<'_>> {
        self.verdict_of(Peer::is_longhaul, Against::Everyone)
    }

    /// The figure of the best of some of Longhaul's schemes.
    fn verdict_of(&self, among: fn(Peer) -> bool, against: Against) -> Option<Verdict<'_>> {
        let (fastest, promptest) = (self.fastest(against)?, self.promptest(against)?);
        let verdict = |longhaul: Measured<'_>| {
            (longhaul.1.goodput / fastest.1.goodput, longhaul.1.p99 / promptest.1.p99)
        };
        let best = self.measured().filter(|(peer, _)| among(*peer)).max_by(|a, b| {
            let least = |of: &Measured<'_>| {
                let (goodput, p99) = verdict(*of);
                goodput.min(1.0 / p99)
            };
            least(a).total_cmp(&least(b))
        })?;
        let (goodput, p99) = verdict(best);
        Some(Verdict { longhaul: best, fastest, promptest, goodput, p99 })
    }
}

/// Longhaul's scheme that compares best in a cell (by the worse of its two ratios), with whom it is
/// compared.
struct Verdict<'a> {
    longhaul: Measured<'a>,
    fastest: Measured<'a>,
    promptest: Measured<'a>,
    /// Its goodput by the fastest peer's.
    goodput: f64,
    /// Its 99th percentile by the promptest peer's.
    p99: f64,
}

impl Verdict<'_> {
    /// The worse of both ratios, the smaller the worse.
    fn least(&self) -> f64 {
        self.goodput.min(1.0 / self.p99)
    }
}

/// Everyone's, of a run.
pub(crate) fn outcomes(raw: &str) -> io::Result<Vec<Outcome>> {
    raw.lines().skip(1).map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
}

/// Writes comparison.md, comparison-p99.svg and comparison-goodput.svg.
pub(crate) fn write(raw: &str, docs: &Path) -> io::Result<()> {
    let setup: Setup = serde_json::from_str(raw.lines().next().unwrap_or_default())?;
    let mut rows: Vec<Row> = Vec::new();
    for outcome in outcomes(raw)? {
        match rows.last_mut() {
            Some(row) if row.cell == outcome.cell => row.outcomes.push(outcome),
            _ => rows.push(Row { cell: outcome.cell, outcomes: vec![outcome] }),
        }
    }
    fs::create_dir_all(docs)?;
    fs::write(docs.join("comparison.md"), page::page(&setup, &rows))?;
    fs::write(docs.join("comparison-p99.svg"), drawing::p99(&rows).map_err(io::Error::other)?)?;
    fs::write(docs.join("comparison-goodput.svg"), drawing::goodput(&rows).map_err(io::Error::other)?)
}
