//! `longhaul simulate`

use std::io;

use super::failure::{Outcome, failed, output_failed, unusable};
use crate::simulate::{SimulateArgs, SimulateError};

pub(super) fn run(args: &SimulateArgs) -> Outcome {
    args.run(&mut io::stdout().lock()).map_err(|error| match error {
        SimulateError::Usage(_) | SimulateError::File { .. } => unusable(format!("longhaul: {error}")),
        SimulateError::Output(error) => output_failed(error),
        SimulateError::Transfer(_) => failed(error),
    })
}
