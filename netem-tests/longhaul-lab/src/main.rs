//! The `longhaul-lab` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    longhaul_lab::cli::main(std::env::args_os().collect())
}
