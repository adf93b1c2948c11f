//! `longhaul flows`

use clap::Args;

use super::by_host::ByHostArgs;
use super::failure::Outcome;
use crate::admin::FlowList;

#[derive(Debug, Args)]
pub(super) struct FlowsArgs {
    #[command(flatten)]
    by_host: ByHostArgs,
}

impl FlowsArgs {
    pub(super) fn run(&self) -> Outcome {
        self.by_host.show("/flows", FlowList::of_host)
    }
}
