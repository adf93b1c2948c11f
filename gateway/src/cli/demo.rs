//! `longhaul demo`

use std::sync::atomic::Ordering;

use clap::Args;
use testbed::demo::Demo;

use super::failure::{Outcome, failed};
use super::{output, runtime};
use crate::causes::chain;
use crate::interrupt;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// A quarter of the time; percentiles then rest on few messages
    #[arg(long)]
    quick: bool,
    /// Show the measurements as JSON
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    pub(super) fn run(&self) -> Outcome {
        let runtime = runtime()?;
        let interrupted = interrupt::watch(&runtime, &[]).map_err(failed)?;
        let demo = Demo { program: std::env::current_exe().map_err(failed)?, quick: self.quick };
        let shown = demo.run(&|| interrupted.load(Ordering::Acquire));
        match self.json {
            true => output::print_json(&shown.report())?,
            false => output::print(&shown.table())?,
        }
        shown.outcome().map_err(|error| failed(chain(&error)))
    }
}
