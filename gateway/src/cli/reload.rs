//! `longhaul reload`

use std::io::{self, Write};

use clap::Args;

use super::args::AdminArgs;
use super::failure::{Outcome, failed, unusable};
use super::{output, runtime};
use crate::admin;
use crate::logs::printable_block;

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Show the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl ReloadArgs {
    pub(super) fn run(&self) -> Outcome {
        let answer = runtime()?.block_on(admin::reload(&self.admin.endpoint()?)).map_err(failed)?;
        if self.json {
            output::print_json(&answer)?;
            return if answer.adopted { Ok(()) } else { Err(unusable(answer.to_string())) };
        }
        if !answer.adopted {
            return Err(unusable(format!("{}{answer}", answer.problems)));
        }
        let _ = write!(io::stderr(), "{}", printable_block(&answer.problems));
        output::print(&printable_block(&answer.to_string()))
    }
}
