//! The link emulator and the software RDMA hosts from the command line.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};
use testbed::cli::{BridgeArgs, RdmaArgs, RelayArgs, run_bridge, run_rdma, run_relay};

#[derive(Parser)]
#[command(version, about = "Longhaul's link emulator and software RDMA hosts")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Relays UDP between two sides through an impaired link
    Relay(RelayArgs),
    /// Bridges two interfaces through an impaired link
    Bridge(BridgeArgs),
    /// Runs RDMA operations between two software hosts
    Rdma(RdmaArgs),
}

fn main() -> ExitCode {
    let never = AtomicBool::new(false);
    let result = match Cli::parse().command {
        Command::Relay(args) => show(run_relay(&args, &never)),
        Command::Bridge(args) => show(run_bridge(&args, &never)),
        Command::Rdma(args) => {
            show(run_rdma(&args).map(|(client, server)| format!("client: {client}\nserver: {server}")))
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

fn show(result: Result<impl Display, impl Display>) -> Result<(), String> {
    result.map(|shown| println!("{shown}")).map_err(|error| error.to_string())
}
