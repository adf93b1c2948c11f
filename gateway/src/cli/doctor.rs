//! `longhaul doctor`

use std::io::{self, Write};
use std::net::IpAddr;

use clap::Args;

use super::args::AdminArgs;
use super::failure::{Outcome, failed, output_failed};
use super::runtime;
use crate::admin::{self, DoctorReport};
use crate::logs::printable_block;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Show the flows of this host only
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// Show them as JSON
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    pub(super) fn run(&self) -> Outcome {
        let text = runtime()?.block_on(admin::fetch(&self.admin.endpoint()?, "/doctor")).map_err(failed)?;
        let report: DoctorReport = serde_json::from_str(&text).map_err(failed)?;
        let report = match self.host {
            Some(host) => report.of_host(host),
            None => report,
        };
        let shown = match self.json {
            true => serde_json::to_string_pretty(&report).map_err(failed)? + "\n",
            false => printable_block(&report.to_string()),
        };
        io::stdout().lock().write_all(shown.as_bytes()).map_err(output_failed)
    }
}
