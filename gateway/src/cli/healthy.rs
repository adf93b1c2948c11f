//! `longhaul healthy`

use std::io::{self, Write};

use clap::Args;

use super::args::PeerArgs;
use super::failure::{BLOCKED, Failure, NO_LAN, NO_SESSION, Outcome, STOPPING, failed, output_failed};
use super::runtime;
use crate::admin::{self, Health, Unhealthy};
use crate::logs::printable_block;

#[derive(Debug, Args)]
pub(super) struct HealthyArgs {
    #[command(flatten)]
    admin: PeerArgs,
    /// Show it as JSON
    #[arg(long)]
    json: bool,
}

impl HealthyArgs {
    pub(super) fn run(&self) -> Outcome {
        let health = runtime()?.block_on(admin::health(&self.admin.endpoint()?)).map_err(failed)?;
        let text = match self.json {
            true => serde_json::to_string_pretty(&health).map_err(failed)? + "\n",
            false => printable_block(&line(&health)),
        };
        io::stdout().lock().write_all(text.as_bytes()).map_err(output_failed)?;
        judged(health.cause)
    }
}

fn line(health: &Health) -> String {
    let word = if health.is_healthy { "healthy" } else { "not healthy" };
    format!("{word}: {}\n", health.why)
}

/// The line has said why, so nothing follows it.
fn judged(cause: Option<Unhealthy>) -> Outcome {
    let code = match cause {
        None => return Ok(()),
        Some(Unhealthy::NoSession) => NO_SESSION,
        Some(Unhealthy::Blocked) => BLOCKED,
        Some(Unhealthy::Lan) => NO_LAN,
        Some(Unhealthy::Stopping) => STOPPING,
    };
    Err(Failure { code, text: String::new() })
}
