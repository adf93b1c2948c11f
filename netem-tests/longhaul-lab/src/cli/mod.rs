//! The command line of `longhaul-lab`.
//!
//! Exit status as `longhaul`'s: 0 done; 1 something failed while running; 2 wrong usage. Benchmarks
//! start this very program as their gateways, so `gateway` and `keys` are handed on to the
//! product's command line.

mod bench;
mod plan;
mod simulate;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use gateway::causes::chain;
use gateway::logs::{self, Form, Logs, printable_block};

const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;

/// Commands of `longhaul` that this program has as well, for the gateways that it starts.
const OF_LONGHAUL: [&str; 2] = ["gateway", "keys"];

/// How long a program that is done waits for its log to be written.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Debug, Parser)]
#[command(name = "longhaul-lab", version, about = "Measures Longhaul: benchmarks, sweeps, the published evaluation", long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what sealed UDP can do on this machine, by datagram length
    Bench(bench::BenchArgs),
    /// Show the published evaluation beside what its formulas and our schemes give
    Plan(plan::PlanArgs),
    /// Simulate a grid of links, or the published evaluation's cells
    Simulate(simulate::SimulateArgs),
}

/// Why a command did not do what it was asked.
struct Failure {
    code: u8,
    text: String,
}

type Outcome = Result<(), Failure>;

/// Runs the whole program.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let first = arguments.get(1).and_then(|argument| argument.to_str());
    if first.is_some_and(|first| OF_LONGHAUL.contains(&first)) {
        return gateway::cli::main(arguments);
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are such "errors" too. If they cannot be printed there is nowhere left
        // to say so.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(UNUSABLE));
        }
    };
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{}", printable_block(failure.text.trim_end()));
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: &Command) -> Outcome {
    let logs = start_logs()?;
    let outcome = match command {
        Command::Bench(args) => args.run(),
        Command::Plan(args) => args.run(),
        Command::Simulate(args) => args.run(),
    };
    logs.finish(LAST_WORDS);
    outcome
}

/// As `longhaul` does; what is measured shows its progress itself, so only warnings unless told
/// otherwise.
fn start_logs() -> Result<Logs, Failure> {
    let filter = logs::filter("warn").map_err(|text| Failure { code: UNUSABLE, text })?;
    let form = Form::of_standard_error().map_err(|text| Failure { code: UNUSABLE, text })?;
    Logs::start(filter, form).map_err(failed)
}

fn unusable(error: impl Display) -> Failure {
    Failure { code: UNUSABLE, text: format!("longhaul-lab: {error}") }
}

fn failed(error: impl Display) -> Failure {
    Failure { code: FAILED, text: format!("longhaul-lab: {error}") }
}
