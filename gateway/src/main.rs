//! The `longhaul` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    gateway::cli::main(std::env::args_os())
}
