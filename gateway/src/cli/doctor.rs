//! `longhaul doctor`

use clap::Args;

use super::by_host::ByHostArgs;
use super::failure::Outcome;
use crate::admin::{DoctorReport, FlowFilter};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    by_host: ByHostArgs,
}

impl DoctorArgs {
    pub(super) fn run(&self) -> Outcome {
        self.by_host.show::<DoctorReport>("/doctor", FlowFilter::default())
    }
}
