//! `longhaul top`

use std::io::{self, IsTerminal};

use clap::Args;
use tokio::signal::unix::SignalKind;

use super::args::PeerArgs;
use super::failure::{Outcome, failed, unusable};
use super::runtime;
use crate::{interrupt, top};

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    admin: PeerArgs,
}

impl TopArgs {
    pub(super) fn run(&self) -> Outcome {
        if !io::stdout().is_terminal() {
            return Err(unusable("longhaul: top needs a terminal; `longhaul status` shows the same once"));
        }
        let runtime = runtime()?;
        // Whichever ends it, the terminal is given back as it was.
        let further = [SignalKind::hangup(), SignalKind::quit()];
        let interrupted = interrupt::watch_before(&runtime, &further, top::give_back).map_err(failed)?;
        top::run(&runtime, self.admin.endpoint()?, &interrupted).map_err(failed)
    }
}
