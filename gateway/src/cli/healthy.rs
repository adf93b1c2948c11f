//! `longhaul healthy`

use clap::Args;

use super::args::PeerArgs;
use super::failure::{BLOCKED, Failure, NO_LAN, NO_SESSION, Outcome, STOPPING, failed};
use super::{output, runtime};
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
        output::show(self.json, &health, |health| printable_block(&line(health)))?;
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
