//! Lists of flows from a running gateway, printed.

use std::fmt::Display;
use std::net::IpAddr;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::{OneOrEach, PeerArgs, check_class};
use super::failure::{Outcome, failed};
use super::{output, runtime};
use crate::admin::{self, Endpoint, FlowFilter};
use crate::logs::printable_block;

#[derive(Debug, Args)]
pub(super) struct ByHostArgs {
    #[command(flatten)]
    admin: PeerArgs,
    /// Show the flows of this host only
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,
    /// Show them as JSON
    #[arg(long)]
    json: bool,
}

impl ByHostArgs {
    /// Fetches from the admin listener's `path` what is asked for, and prints it for each peer of
    /// several.
    pub(super) fn show<T>(&self, path: &str, filter: FlowFilter) -> Outcome
    where
        T: DeserializeOwned + Serialize + Display,
    {
        let runtime = runtime()?;
        let endpoints = self.admin.endpoints(&runtime)?;
        if let Some(class) = &filter.class {
            check_class(&runtime, &endpoints, class)?;
        }
        let path = FlowFilter { host: self.host, ..filter }.target(path);
        let mut lists = Vec::<T>::new();
        for admin in &endpoints {
            lists.push(runtime.block_on(admin::ask(admin, &path)).map_err(failed)?);
        }
        match self.json {
            true => output::print_json(&OneOrEach::of(lists)),
            false => output::print(&tables(&endpoints, &lists)),
        }
    }
}

/// A table for each peer, under the peer's name where there are several.
fn tables(endpoints: &[Endpoint], lists: &[impl Display]) -> String {
    let table = |(admin, list): (&Endpoint, &_)| match admin.peer() {
        Some(peer) if lists.len() > 1 => printable_block(&format!("towards {peer}:\n{list}")),
        _ => printable_block(&format!("{list}")),
    };
    endpoints.iter().zip(lists).map(table).collect::<Vec<_>>().join("\n")
}
