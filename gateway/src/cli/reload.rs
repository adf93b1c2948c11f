//! `longhaul reload`

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::Args;

use super::args::{DEFAULT_ADMIN, admin_address};
use super::failure::{Outcome, failed, output_failed, unusable};
use super::runtime;
use crate::admin;
use crate::logs::printable_block;

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN, value_parser = admin_address)]
    admin: SocketAddr,
    /// Show the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl ReloadArgs {
    pub(super) fn run(&self) -> Outcome {
        let answer = runtime()?.block_on(admin::reload(self.admin)).map_err(failed)?;
        if self.json {
            let text = serde_json::to_string_pretty(&answer).map_err(failed)?;
            writeln!(io::stdout().lock(), "{text}").map_err(output_failed)?;
            return if answer.adopted { Ok(()) } else { Err(unusable(answer.to_string())) };
        }
        if !answer.adopted {
            return Err(unusable(format!("{}{answer}", answer.problems)));
        }
        let _ = write!(io::stderr(), "{}", printable_block(&answer.problems));
        write!(io::stdout().lock(), "{}", printable_block(&answer.to_string())).map_err(output_failed)
    }
}
