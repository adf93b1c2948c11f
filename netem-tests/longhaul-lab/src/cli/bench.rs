//! `longhaul-lab bench`

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::{Args, Subcommand};
use gateway::interrupt;

use super::{Outcome, chain, failed};
use crate::bench;

/// Datagram lengths unless others are given.
const LENGTHS: [usize; 4] = [256, 1448, 4200, 8900];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    what: Option<BenchCommand>,
    /// Seconds per datagram length
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// The `longhaul` program that is started as gateways [default: this program, which has the
    /// same code]
    #[arg(long, value_name = "FILE", global = true)]
    longhaul: Option<PathBuf>,
    /// UDP payload in bytes; several may be given [default: 256 1448 4200 8900]
    #[arg(value_name = "BYTES")]
    lengths: Vec<usize>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure a pair of gateways on this machine as a share of that
    Pair(PairArgs),
    /// Measure what flows, and the length of the link, cost a pair of gateways in memory
    Memory(MemoryArgs),
    /// Measure what a pair of gateways does with small messages, by their size and the number of
    /// queue pairs
    Messages(MessagesArgs),
    /// Find out whether a gateway keeps anything of what has passed: changing load for as long as
    /// is wanted
    Soak(SoakArgs),
    /// Measure what a pair of gateways on this machine adds to the time of a small message
    Latency(SecondsArgs),
    /// Measure what a host that floods takes from another one of its site
    Flood(FloodArgs),
    /// Measure what messages notice of a lane that dies under load
    Lane(SecondsArgs),
    /// Measure the price of what connections outlive: `survive`, in turns
    Survive(SurviveArgs),
    /// Measure the way over the WAN by itself, records in and records out, as a share of that
    Wan(WanArgs),
    /// Measure how long a gateway's state takes from one process to the next, by flows and by what
    /// waits
    Upgrade(UpgradeArgs),
    /// Measure an older `longhaul-lab` and this one in turns, and print new over old
    Turns(TurnsArgs),
}

#[derive(Debug, Args)]
struct SecondsArgs {
    /// Seconds per transfer
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
}

#[derive(Debug, Args)]
struct FloodArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// Only the kinds of flood whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

#[derive(Debug, Args)]
struct SurviveArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// Where memory is that outlives a process, on tmpfs
    #[arg(long, default_value = "/dev/shm")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct PairArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// How goodput grows with the number of queue pairs, of which a list is given:
    /// 1,10,100,1000,10000
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16_384))]
    flows: Vec<u32>,
}

#[derive(Debug, Args)]
struct MessagesArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,512,4096,8192",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Queue pairs
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,10,100,1000,10000",
        value_parser = clap::value_parser!(u32).range(1..=16_384))]
    flows: Vec<u32>,
}

#[derive(Debug, Args)]
struct WanArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// How goodput grows with the number of data-plane threads, of which a list is given: 1,2
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=8))]
    threads: Vec<u8>,
}

#[derive(Debug, Args)]
struct TurnsArgs {
    /// The older `longhaul-lab`
    #[arg(long, value_name = "FILE")]
    old: PathBuf,
    /// Rounds, each of both programs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Arguments of `longhaul-lab bench` for both, such as `wan --seconds 2`
    #[arg(value_name = "BENCHMARK", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    benchmark: Vec<String>,
}

#[derive(Debug, Args)]
struct MemoryArgs {
    #[command(flatten)]
    length: SecondsArgs,
    /// Queue pairs, for what one costs
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=16_384))]
    flows: u32,
}

#[derive(Debug, Args)]
struct UpgradeArgs {
    /// Flows, each number with each number of bytes
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "100,10000",
        value_parser = clap::value_parser!(u32).range(1..=16_384))]
    flows: Vec<u32>,
    /// MiB that wait in all flows together
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "16,64,128",
        value_parser = clap::value_parser!(u64).range(1..=4096))]
    waiting: Vec<u64>,
    /// Data-plane threads, among which the flows are
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    threads: u8,
    /// Rounds of each, of which the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// Seconds
    #[arg(long, default_value_t = 3600.0, value_parser = soaking)]
    seconds: f64,
    /// Random seed [default: random]
    #[arg(long)]
    seed: Option<u64>,
}

impl BenchArgs {
    pub(super) fn run(&self) -> Outcome {
        let mut out = io::stdout().lock();
        let Some(what) = &self.what else {
            let lengths: &[usize] = if self.lengths.is_empty() { &LENGTHS } else { &self.lengths };
            return bench::ceiling(&mut out, self.seconds, lengths).map_err(|error| failed(chain(&error)));
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let interrupted = interrupt::watch(&runtime, &[]).map_err(failed)?;
        let interrupted = || interrupted.load(Ordering::Acquire);
        let program = match &self.longhaul {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(failed)?,
        };
        measure(what, program, &mut out, &interrupted).map_err(|error| failed(chain(&error)))
    }
}

fn measure(
    what: &BenchCommand,
    program: PathBuf,
    out: &mut dyn Write,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), bench::BenchError> {
    match what {
        BenchCommand::Pair(PairArgs { length: SecondsArgs { seconds }, flows }) if flows.is_empty() => {
            bench::Pair { program, seconds: *seconds }.run(out, interrupted)
        }
        BenchCommand::Pair(PairArgs { length: SecondsArgs { seconds }, flows }) => {
            bench::Flows { program, seconds: *seconds, counts: flows.clone() }.run(out, interrupted)
        }
        BenchCommand::Memory(MemoryArgs { length: SecondsArgs { seconds }, flows }) => {
            bench::Memory { program, seconds: *seconds, flows: *flows }.run(out, interrupted)
        }
        BenchCommand::Messages(MessagesArgs { length: SecondsArgs { seconds }, sizes, flows }) => {
            let (sizes, counts) = (sizes.clone(), flows.clone());
            bench::Messages { program, seconds: *seconds, sizes, counts }.run(out, interrupted)
        }
        BenchCommand::Soak(SoakArgs { seconds, seed }) => {
            let seed = seed.unwrap_or_else(rand::random);
            bench::Soak { program, seconds: *seconds, seed }.run(out, interrupted)
        }
        BenchCommand::Wan(WanArgs { length: SecondsArgs { seconds }, threads }) if !threads.is_empty() => {
            bench::Threads { seconds: *seconds, counts: threads.clone() }.run(out, interrupted)
        }
        BenchCommand::Wan(WanArgs { length: SecondsArgs { seconds }, .. }) => {
            bench::Wan { seconds: *seconds }.run(out, interrupted)
        }
        BenchCommand::Upgrade(UpgradeArgs { flows, waiting, threads, rounds }) => {
            let of_each = |flows| waiting.iter().map(move |waiting| (flows, waiting << 20));
            let cases = flows.iter().copied().flat_map(of_each).collect();
            bench::Upgrade { cases, rounds: *rounds, threads: *threads }.run(out, interrupted)
        }
        BenchCommand::Turns(TurnsArgs { old, rounds, benchmark }) => {
            let new = std::env::current_exe()?;
            bench::Turns { old: old.clone(), new, rounds: *rounds, arguments: benchmark.clone() }
                .run(out, interrupted)
        }
        BenchCommand::Flood(FloodArgs { length: SecondsArgs { seconds }, only }) => {
            bench::Flood { program, seconds: *seconds, only: only.clone() }.run(out, interrupted)
        }
        BenchCommand::Survive(SurviveArgs { length, directory }) => {
            let (seconds, directory) = (length.seconds, directory.clone());
            bench::Survival { program, seconds, directory }.run(out, interrupted)
        }
        BenchCommand::Lane(SecondsArgs { seconds }) => {
            bench::Lane { program, seconds: *seconds }.run(out, interrupted)
        }
        BenchCommand::Latency(SecondsArgs { seconds }) => {
            bench::Latency { program, seconds: *seconds }.run(out, interrupted)
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.01, 3600.0)
}

fn soaking(text: &str) -> Result<f64, String> {
    seconds_within(text, 1.0, 1e7)
}

fn seconds_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most}")),
    }
}
