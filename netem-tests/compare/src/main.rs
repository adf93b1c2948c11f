//! Longhaul and its peers, one after the other, over the same emulated link.
//!
//! `netem-tests/compare/run` installs the peers and builds everything; `docs/comparison.md` is what
//! came of it.
//!
//! - [`cell`]: links and messages, and what they would take at best; [`grid`]: which of them;
//! - [`peer`]: who, with which settings; [`agent`]: their senders and receivers; `messages.cc`
//!   those of SRT and UDT;
//! - [`job`]: what every sender does, and what it says about it;
//! - [`lab`]: name spaces and the link; [`measure`]: one peer in one cell; [`report`]: the page.

mod agent;
mod cell;
mod grid;
mod job;
mod lab;
mod measure;
mod peer;
mod report;
mod usage;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use reliability::human;

use agent::Agent;
use cell::Cell;
use grid::Extent;
use lab::Lab;
use measure::{Bench, Outcome};
use peer::Peer;

#[derive(Debug, Parser)]
#[command(version, about = "Longhaul and its peers over the same emulated link")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure everyone and write the page (root; name spaces)
    Run(RunArgs),
    /// Write the page from what an earlier run measured
    Report(ReportArgs),
    /// A sender or receiver; started by `run`
    #[command(hide = true)]
    Agent {
        #[command(subcommand)]
        agent: Agent,
    },
    /// A gateway; started by `run`
    #[command(hide = true)]
    Gateway { config: PathBuf },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Which cells, and how long each
    #[arg(long, value_enum, default_value = "standard")]
    extent: Extent,
    /// How long each cell, if not as the extent has it
    #[arg(long, value_enum)]
    effort: Option<Extent>,
    /// Only peers whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Only cells whose name contains all of these, such as "1 Gbit/s;drop 1e-2,"
    #[arg(long, value_delimiter = ';')]
    cells: Vec<String>,
    /// Keep what --raw has of all other cells
    #[arg(long, conflicts_with = "peers")]
    again: bool,
    /// Where `messages-srt` and `messages-udt` are
    #[arg(long)]
    harness: PathBuf,
    /// Bytes of an IP packet on every link, if not as the cells have it
    #[arg(long)]
    mtu: Option<u16>,
    /// Round-trip time of every link, milliseconds, if not as the cells have it
    #[arg(long)]
    rtt: Option<u32>,
    /// A seed for the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The measurements, a line of JSON each
    #[arg(long)]
    raw: PathBuf,
    /// A folder for the sender's gateway's last status of each measurement
    #[arg(long)]
    status: Option<PathBuf>,
    /// Where comparison.md and its drawings go; without it nothing is drawn
    #[arg(long)]
    docs: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// The folder that `run` wrote
    #[arg(long)]
    raw: PathBuf,
    /// Where comparison.md and its drawings go
    #[arg(long)]
    docs: PathBuf,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args).map_err(|error| error.to_string()),
        Command::Report(args) => write_page(&args.raw, &args.docs).map_err(|error| error.to_string()),
        Command::Agent { agent } => agent.run().map_err(|error| error.to_string()),
        Command::Gateway { config } => {
            return gateway::cli::main([
                "longhaul".into(),
                "gateway".into(),
                "--with-parent".into(),
                "--config".into(),
                config.into_os_string(),
            ]);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// One peer after the other, cell by cell, so that what changes on the machine meanwhile falls on
/// all of a cell.
fn run(args: &RunArgs) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let bench = Bench {
        program: &program,
        harness: &args.harness,
        seed: args.seed,
        effort: args.effort.unwrap_or(args.extent).effort(),
        status: args.status.as_deref(),
    };
    if let Some(folder) = &args.status {
        std::fs::create_dir_all(folder)?;
    }
    let kept = if args.again { report::outcomes(&std::fs::read_to_string(&args.raw)?)? } else { Vec::new() };
    // What is kept is in the old one until all is measured.
    let new = args.raw.with_extension("new");
    let mut raw = File::create(&new)?;
    writeln!(raw, "{}", serde_json::to_string(&report::Setup::here(args.seed, args.extent))?)?;
    let wanted = |peer: &Peer| {
        args.peers.is_empty() || args.peers.iter().any(|part| peer.name().contains(part.as_str()))
    };
    let mut failed = 0u32;
    let mut lab: Option<Lab> = None;
    for cell in cells(args) {
        let name = cell.to_string();
        if !args.cells.iter().all(|part| name.contains(part.as_str())) {
            for outcome in kept.iter().filter(|outcome| outcome.cell == cell) {
                writeln!(raw, "{}", serde_json::to_string(outcome)?)?;
            }
            continue;
        }
        println!("{name}: at best {:.1} ms", cell.ideal() * 1e3);
        let lab = match lab.take() {
            Some(same) if same.mtu() == cell.mtu => lab.insert(same),
            _ => lab.insert(Lab::new(cell.mtu)?),
        };
        for peer in Peer::ALL.into_iter().filter(|peer| wanted(peer) && peer.takes_part(&cell)) {
            let began = Instant::now();
            let outcome = bench.measure(lab, peer, &cell);
            show(&outcome, began)?;
            failed += u32::from(outcome.figures.is_err());
            writeln!(raw, "{}", serde_json::to_string(&outcome)?)?;
        }
    }
    raw.flush()?;
    std::fs::rename(&new, &args.raw)?;
    if let Some(docs) = &args.docs {
        write_page(&args.raw, docs)?;
    }
    if failed == 0 { Ok(()) } else { Err(io::Error::other(format!("{failed} measurements failed"))) }
}

/// The extent's cells, each once.
fn cells(args: &RunArgs) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for cell in args.extent.cells() {
        let (mtu, rtt) = (args.mtu.unwrap_or(cell.mtu), args.rtt.unwrap_or(cell.rtt));
        let cell = Cell { mtu, rtt, ..cell };
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
}

fn show(outcome: &Outcome, began: Instant) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (name, took) = (outcome.peer.name(), began.elapsed().as_secs_f64());
    match &outcome.figures {
        Ok(figures) => writeln!(
            out,
            "  {name:<28} {:>7.1} Mbit/s  p50 {:>8.1} p99 {:>8.1} ms  wire {:>5.2}  cpu {:>6.2} s/GiB  {:>5} messages, {} unfinished  overrun {}  stolen {}  ({took:.1} s)",
            figures.goodput / 1e6,
            figures.p50 * 1e3,
            figures.p99 * 1e3,
            figures.wire,
            figures.cpu,
            figures.messages,
            figures.unfinished,
            figures.overrun,
            human::share(outcome.stolen.unwrap_or(0.0)),
        ),
        Err(error) => writeln!(out, "  {name:<28} FAILED: {error}"),
    }
}

fn write_page(raw: &Path, docs: &Path) -> io::Result<()> {
    let text = std::fs::read_to_string(raw)?;
    report::write(&text, docs)
}
