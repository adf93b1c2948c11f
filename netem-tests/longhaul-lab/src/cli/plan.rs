//! `longhaul-lab plan`

use std::io;

use clap::Args;

use super::{Outcome, failed};
use crate::paper::planned;

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Show the published evaluation beside what its formulas and our schemes give
    #[arg(long, required = true)]
    paper: bool,
}

impl PlanArgs {
    pub(super) fn run(&self) -> Outcome {
        planned::write(&mut io::stdout().lock()).map_err(failed)
    }
}
