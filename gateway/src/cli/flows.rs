//! `longhaul flows`

use clap::Args;

use super::args::class_name;
use super::by_host::ByHostArgs;
use super::failure::Outcome;
use crate::admin::{FlowFilter, FlowList, State};

#[derive(Debug, Args)]
pub(super) struct FlowsArgs {
    #[command(flatten)]
    by_host: ByHostArgs,
    /// Show the flows of this class, or of a part of one, only
    #[arg(long, value_name = "NAME", value_parser = class_name)]
    class: Option<String>,
    /// Show the flows that stand like this only
    #[arg(long, value_name = "STATE")]
    state: Option<State>,
}

impl FlowsArgs {
    pub(super) fn run(&self) -> Outcome {
        let filter = FlowFilter { class: self.class.clone(), state: self.state, ..FlowFilter::default() };
        self.by_host.show::<FlowList>("/flows", filter)
    }
}
