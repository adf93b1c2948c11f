//! The command line.
//!
//! Exit status: 0 done; 1 something failed while running; 2 wrong usage, or a file that cannot be
//! used; `status` and `healthy` besides: 3 no session, 4 a session whose data path is dead, 5 hosts
//! cannot use the LAN; `healthy` besides: 6 told to stop.
//! Results go to standard output, errors in one block and logs to standard error.

mod args;
mod bundle;
mod by_host;
mod check;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod events;
mod failure;
mod flows;
mod gateway;
mod generate;
mod healthy;
mod init;
mod keys;
mod output;
mod plan;
mod record;
mod reload;
mod simulate;
mod status;
mod takeover;
mod top;
mod upgrade;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use config::Style;
use tokio::runtime::{Builder, Runtime};

use crate::logs::{self, Form, Logs, printable_block};
use crate::plan::PlanArgs;
use crate::simulate::SimulateArgs;
use failure::{Failure, Outcome, UNUSABLE, failed, unusable};

#[derive(Debug, Parser)]
#[command(name = "longhaul", version, about = "A reliability gateway for RDMA (RoCEv2) between datacenters", long_about = None)]
#[command(
    after_help = "LONGHAUL_LOG sets what is logged to standard error: error, warn, info (default), debug, trace, \
                        or per module, such as info,session=debug. \
                        LONGHAUL_LOG_FORMAT sets how: text, journal (default where that is the journal), json."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See what gateways do about loss: two of them on this machine, under a minute, no privileges
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    /// Run a gateway until SIGINT or SIGTERM
    Gateway(gateway::GatewayArgs),
    /// Check gateway and policy files, with everything they name
    Check(check::CheckArgs),
    /// Make keys and both gateway files of a pair
    Init(init::InitArgs),
    /// Make an authority, and a certificate and key for each site
    Keys(keys::KeysArgs),
    /// Show a running gateway's state
    Status(status::StatusArgs),
    /// Say whether hosts' packets are to come to a running gateway, for checks of BGP and VRRP
    Healthy(healthy::HealthyArgs),
    /// Show the flows of a running gateway, by host, class or state
    Flows(flows::FlowsArgs),
    /// Judge whether the NICs of a running gateway's hosts are patient enough for the link
    Doctor(doctor::DoctorArgs),
    /// Show what has happened at a running gateway
    Events(events::EventsArgs),
    /// Show a running gateway on the terminal's screen, until q
    Top(top::TopArgs),
    /// Have a running gateway read its policy file again
    Reload(reload::ReloadArgs),
    /// Have this program take the place of a running gateway, whose flows go on
    Upgrade(upgrade::UpgradeArgs),
    /// Collect what helps others to help, without keys, in one archive
    Bundle(bundle::BundleArgs),
    /// Compare the schemes for a link by their expected completion times, by message size
    Plan(PlanArgs),
    /// Find out how long messages take on a link, by size and scheme: the gateway's own machines in
    /// virtual time
    Simulate(SimulateArgs),
    /// Record which packets from the peer are lost, as a trace, until SIGINT or SIGTERM
    Record(record::RecordArgs),
    /// Write manual pages, shell completions and schemas, for packages
    Generate(generate::GenerateArgs),
}

/// The whole program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are such "errors" too; clap knows which go where. If that fails there is
        // nowhere left to say so.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(UNUSABLE));
        }
    };
    let ready = survive_long_files().and_then(|()| check_clock(SystemTime::now()));
    let outcome = match ready.and_then(|()| start_logs(default_log(&cli.command))) {
        Ok(logs) => match cli.command {
            Command::Gateway(args) => return args.run(&logs),
            command => {
                let outcome = dispatch(command);
                logs.finish(LAST_WORDS);
                outcome
            }
        },
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.text.is_empty() {
                let _ = writeln!(io::stderr(), "{}", printable_block(failure.text.trim_end()));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// A file of the greatest length that is allowed (RLIMIT_FSIZE) would end the process by a signal.
/// Caught, it is an error of the write.
fn survive_long_files() -> Outcome {
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map(drop).map_err(failed)
}

/// Certificates know no time before 1970, nor do the libraries that judge them.
fn check_clock(now: SystemTime) -> Outcome {
    match now.duration_since(UNIX_EPOCH) {
        Ok(_) => Ok(()),
        Err(_) => Err(failed("this machine's clock stands before 1970: set it, and start again")),
    }
}

/// How long a program that is done waits for its log to be written.
const LAST_WORDS: Duration = Duration::from_millis(500);

fn dispatch(command: Command) -> Outcome {
    match command {
        #[cfg(feature = "demo")]
        Command::Demo(args) => args.run(),
        // It needs the log as well.
        Command::Gateway(_) => Ok(()),
        Command::Check(args) => args.run(),
        Command::Init(args) => args.run(),
        Command::Keys(args) => args.run(),
        Command::Status(args) => args.run(),
        Command::Healthy(args) => args.run(),
        Command::Flows(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Events(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Bundle(args) => args.run(),
        Command::Reload(args) => args.run(),
        Command::Upgrade(args) => args.run(),
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Record(args) => args.run(),
        Command::Generate(args) => args.run(),
    }
}

/// Returns the level that is logged unless LONGHAUL_LOG says otherwise. A command that shows its
/// own progress does not want a log in between.
fn default_log(command: &Command) -> &'static str {
    match command {
        #[cfg(feature = "demo")]
        Command::Demo(_) => "warn",
        _ => "info",
    }
}

fn start_logs(default: &str) -> Result<Logs, Failure> {
    let filter = logs::filter(default).map_err(unusable)?;
    let form = Form::of_standard_error().map_err(unusable)?;
    Logs::start(filter, form).map_err(failed)
}

/// Makes the runtime of a command that ends soon.
fn runtime() -> Result<Runtime, Failure> {
    one_worker(&mut Builder::new_multi_thread(), 1)
}

/// Builds a runtime of one worker, if the system grants so many threads. The runtime panics without
/// its worker's; this says why.
fn one_worker(builder: &mut Builder, threads: usize) -> Result<Runtime, Failure> {
    let spare = |_| std::thread::Builder::new().spawn(|| ());
    let spares = (0..threads).map(spare).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    spares.into_iter().for_each(|spare| drop(spare.join()));
    builder.worker_threads(1).enable_all().build().map_err(failed)
}

fn style(stream: &impl IsTerminal) -> Style {
    if logs::takes_colour(stream) { Style::Colour } else { Style::Plain }
}
