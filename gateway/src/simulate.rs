//! `longhaul simulate`: how long messages take on a link, by size and scheme.
//!
//! The production state machines in virtual time (`linksim::transfer`), so any rate and distance
//! will do. Everything follows from the arguments and the seed; how many threads share the work
//! changes nothing.

pub mod cells;
pub mod export;
mod picture;
mod row;
mod table;
mod trace;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use config::{ByteSize, Rate};
use linksim::impair::Loss;
use linksim::transfer::{Failure, Pattern, Repair, Ring, Transfer, UnknownScheme};
use reliability::human;

pub use row::Row;

const HELP: &str = "\
A scheme is none, sr (selective repeat), sr-rto (the same by timeouts alone, for comparison), xor:K:M, mds:K:M or hybrid:K:M (blocks of K data and M \
parity packets; a third number interleaves so many blocks). mds(K,M) is the same as mds:K:M.";

/// Message sizes unless others are given.
const SIZES: [u64; 4] = [128 << 10, 1 << 20, 8 << 20, 64 << 20];

/// Stands for standard output in place of a file.
const STANDARD_OUTPUT: &str = "-";

/// Arguments of `longhaul simulate`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct SimulateArgs {
    /// Rate of the link
    #[arg(long, default_value = "400 Gbit/s")]
    rate: Rate,
    /// Round-trip time
    #[arg(long, value_name = "TIME", default_value = "25 ms")]
    rtt: config::Duration,
    /// Share of packets lost, as a number or a percentage
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = share)]
    drop: f64,
    /// Mean number of packets lost in a row; independent losses if not given
    #[arg(long, value_name = "PACKETS", value_parser = burst)]
    burst: Option<f64>,
    /// Lose packets as recorded in this trace
    #[arg(long, value_name = "FILE", conflicts_with_all = ["drop", "burst"])]
    trace: Option<PathBuf>,
    /// Message bytes in each WAN packet; what the link carries is 108 bytes longer
    #[arg(long, value_name = "SIZE", default_value = "4096 B")]
    packet: ByteSize,
    /// Message sizes [default: 128 KiB, 1 MiB, 8 MiB, 64 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    size: Option<Vec<ByteSize>>,
    /// Messages of each size with each scheme
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Messages under way at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
    /// Messages arrive at random and make up this share of the rate, however many are under way
    #[arg(long, value_name = "SHARE", conflicts_with = "depth", value_parser = share)]
    load: Option<f64>,
    /// How losses are repaired, such as mds:32:8 or mds(32,8); several with commas
    #[arg(long, value_name = "SCHEME", default_value = "sr,xor:32:8,mds:32:8")]
    scheme: Vec<Schemes>,
    /// A block that finds no more data is closed this long after its first packet, as `flush` of a
    /// policy file
    #[arg(long, value_name = "TIME", default_value = "5 ms")]
    flush: config::Duration,
    /// Ring Allreduce of buffers of these sizes over so many sites, each hop one transfer
    #[arg(long, value_name = "SITES", value_parser = clap::value_parser!(u64).range(2..=100_000))]
    allreduce: Option<u64>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads to share the work [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the results as JSON into a file, or to standard output instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STANDARD_OUTPUT)]
    json: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw completion time by size and scheme
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Schemes with commas between them.
#[derive(Clone, Debug, PartialEq)]
struct Schemes(Vec<Repair>);

impl FromStr for Schemes {
    type Err = UnknownScheme;

    /// A comma in brackets belongs to a scheme.
    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        let mut depth = 0_usize;
        let pieces = text.split(|letter| {
            match letter {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            letter == ',' && depth == 0
        });
        pieces.map(|piece| piece.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// A file that was named.
    #[error("{path}: {reason}")]
    File {
        /// As it was given.
        path: String,
        /// The error in it.
        reason: String,
    },
    /// The simulation.
    #[error(transparent)]
    Transfer(#[from] Failure),
    /// The output.
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl SimulateArgs {
    /// Runs it all; a progress bar goes to standard error if that is a terminal, the table to
    /// `out`.
    ///
    /// # Errors
    /// See [`SimulateError`].
    pub fn run(&self, out: &mut dyn Write) -> Result<(), SimulateError> {
        self.check_folders()?;
        let threads = self.threads.unwrap_or_else(cells::processors).max(1);
        let transfers = self.transfers()?;
        let cells = cells::run(transfers, threads)?;
        let ring = self.allreduce.map(|sites| Ring { sites });
        let rows = cells.iter().map(|cell| Row::of(cell, ring, self.seed));
        let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
        if self.json.as_deref() == Some(Path::new(STANDARD_OUTPUT)) {
            write!(out, "{}", export::json(&rows)?)?;
        } else {
            writeln!(out, "{}\n", self.headline(cells.first()))?;
            table::write(out, &rows)?;
        }
        self.export(&rows)?;
        match &self.svg {
            Some(path) => save(path, &picture::draw(&rows, &self.headline(cells.first()))?),
            None => Ok(()),
        }
    }

    /// Sizes first, schemes within each.
    fn transfers(&self) -> Result<Vec<Transfer>, SimulateError> {
        let trace = self.trace.as_deref().map(trace::read).transpose()?.unwrap_or_default();
        let base = Transfer {
            packet: self.packet.as_usize(),
            flush: self.flush.get(),
            messages: self.messages,
            pattern: match self.load {
                Some(load) => Pattern::Open { load },
                None => Pattern::Closed { depth: usize::try_from(self.depth).unwrap_or(usize::MAX) },
            },
            seed: self.seed,
            ..Transfer::new(self.rate.bits_per_second(), self.rtt.get(), Repair::default(), 0)
        };
        let loss = loss(self.drop, self.burst)?;
        let mut transfers = Vec::new();
        let sizes = self.size.clone().unwrap_or_else(|| SIZES.map(ByteSize::from_bytes).to_vec());
        for size in sizes {
            for repair in self.scheme.iter().flat_map(|Schemes(list)| list) {
                let mut transfer = Transfer { repair: *repair, trace: trace.clone(), ..base.clone() };
                transfer.size = size.bytes().div_ceil(self.allreduce.unwrap_or(1));
                transfer.forward.loss = loss;
                transfer.check().map_err(|error| SimulateError::Usage(error.to_string()))?;
                transfers.push(transfer);
            }
        }
        Ok(transfers)
    }

    fn headline(&self, cell: Option<&cells::Cell>) -> String {
        let losses = match (&self.trace, self.burst) {
            (Some(path), _) => format!("losses of {}", path.display()),
            (None, Some(burst)) => format!("{} lost in runs of {burst}", human::share(self.drop)),
            (None, None) => format!("{} lost", human::share(self.drop)),
        };
        let traffic = match (self.load, self.depth) {
            (Some(load), _) => format!("arriving at random, {} of the rate", human::share(load)),
            (None, 1) => "one at a time".to_owned(),
            (None, depth) => format!("{depth} at a time"),
        };
        let what = match self.allreduce {
            Some(sites) => format!(
                "{} ring Allreduces over {sites} sites, {} rounds, of hops",
                self.messages,
                Ring { sites }.rounds()
            ),
            None => format!("{} messages of each size", self.messages),
        };
        let ideal = cell.map_or(Duration::ZERO, |cell| cell.transfer.rtt());
        format!(
            "{}, {} round trip, {losses}, {} in a packet; {what}, {traffic}; seed {}",
            self.rate,
            config::Duration::new(ideal),
            self.packet,
            self.seed
        )
    }

    /// Results of an hour are not to be lost for a folder that is not there.
    fn check_folders(&self) -> Result<(), SimulateError> {
        let json = self.json.as_ref().filter(|path| *path != Path::new(STANDARD_OUTPUT));
        for path in [json, self.csv.as_ref(), self.svg.as_ref()].into_iter().flatten() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                return Err(file(path, format!("there is no folder {}", folder.display())));
            }
        }
        Ok(())
    }

    fn export(&self, rows: &[Row]) -> Result<(), SimulateError> {
        if let Some(path) = self.json.as_ref().filter(|path| *path != Path::new(STANDARD_OUTPUT)) {
            save(path, &export::json(rows)?)?;
        }
        if let Some(path) = &self.csv {
            save(path, &export::csv(rows))?;
        }
        Ok(())
    }
}

/// Writes a file that was named for the results.
///
/// # Errors
/// [`SimulateError::File`].
pub fn save(path: &Path, text: &str) -> Result<(), SimulateError> {
    std::fs::write(path, text).map_err(|error| file(path, format!("cannot be written: {error}")))
}

fn file(path: &Path, reason: String) -> SimulateError {
    SimulateError::File { path: path.display().to_string(), reason }
}

/// Independent losses, or a simple Gilbert model: in its bad state everything is lost, and it lasts
/// `burst` packets on average.
///
/// # Errors
/// So many packets cannot be lost in runs so short.
pub fn loss(drop: f64, burst: Option<f64>) -> Result<Loss, SimulateError> {
    let Some(burst) = burst else { return Ok(Loss::Random(drop)) };
    // Independent losses come in runs of 1 / (1 - p); shorter ones would have to shun one another.
    let to_good = 1.0 / burst;
    let to_bad = drop * to_good / (1.0 - drop);
    if to_bad > 1.0 {
        let least = drop / (1.0 - drop);
        return Err(SimulateError::Usage(format!(
            "--burst: {} cannot be lost in runs of {burst}, only of {least:.2} and more",
            human::share(drop)
        )));
    }
    Ok(Loss::GilbertElliott { to_bad, to_good, loss_bad: 1.0, loss_good: 0.0 })
}

/// `0.01` or `1%`; below 1.
fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(number) if (0.0..1.0).contains(&(number / scale)) => Ok(number / scale),
        _ => Err("a share from 0 to less than 1, such as 0.001 or 0.1%".to_owned()),
    }
}

fn burst(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(packets) if (1.0..=1e6).contains(&packets) => Ok(packets),
        _ => Err("a mean number of packets from 1 to 1,000,000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_in_a_list_may_have_brackets() {
        let read = |text: &str| text.parse::<Schemes>().map_err(|error| error.to_string());
        assert_eq!(read("sr,mds(32,8), xor:32:8"), read("sr,mds:32:8,xor:32:8"));
        assert_eq!(read("sr,mds(32,8)").unwrap().0.len(), 2);
        assert!(read("mds(32,8").unwrap_err().contains("`mds(32,8` is no scheme: "));
        assert!(read("sr,").is_err());
    }
}
