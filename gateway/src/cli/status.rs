//! `longhaul status`

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::Args;

use super::args::DEFAULT_ADMIN;
use super::failure::{Failure, Outcome, failed, output_failed};
use super::runtime;
use crate::admin;
use crate::logs::printable_block;
use crate::plan::link::{Known, LinkArgs};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Show it as JSON
    #[arg(long)]
    json: bool,
    /// Show which schemes are in force, and why
    #[arg(long, conflicts_with = "json")]
    why: bool,
}

impl StatusArgs {
    pub(super) fn run(&self) -> Outcome {
        let text = runtime()?.block_on(admin::fetch(self.admin, "/status")).map_err(failed)?;
        let mut out = io::stdout().lock();
        if self.json {
            return out.write_all(text.as_bytes()).map_err(output_failed);
        }
        let status = parse_status(self.admin, &text)?;
        let shown = if self.why { status.why() } else { status.to_string() };
        out.write_all(printable_block(&shown).as_bytes()).map_err(output_failed)
    }
}

fn parse_status(admin: SocketAddr, text: &str) -> Result<admin::Status, Failure> {
    serde_json::from_str(text)
        .map_err(|error| failed(format!("{admin} speaks of a status this version does not know: {error}")))
}

/// Asks a running gateway what it knows of the link, if one is to be asked.
pub(super) fn known(link: &LinkArgs) -> Result<Known, Failure> {
    let Some(admin) = link.admin() else { return Ok(Known::default()) };
    let text = runtime()?.block_on(admin::fetch(admin, "/status")).map_err(failed)?;
    Ok(Known::of(&parse_status(admin, &text)?))
}
