//! `longhaul status`

use clap::Args;

use super::args::{OneOrEach, PeerArgs};
use super::failure::{BLOCKED, Failure, NO_LAN, NO_SESSION, Outcome, failed, unusable};
use super::{output, runtime};
use crate::admin::{self, Status};
use crate::logs::printable_block;
use crate::plan::link::{Known, LinkArgs};

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    admin: PeerArgs,
    /// Show it as JSON
    #[arg(long)]
    json: bool,
    /// Show which schemes are in force, and why
    #[arg(long, conflicts_with = "json")]
    why: bool,
}

impl StatusArgs {
    pub(super) fn run(&self) -> Outcome {
        let runtime = runtime()?;
        let mut statuses: Vec<Status> = Vec::new();
        for admin in self.admin.endpoints(&runtime)? {
            statuses.push(runtime.block_on(admin::ask(&admin, "/status")).map_err(failed)?);
        }
        // A lower number says that less goes on.
        let worst =
            statuses.iter().filter_map(|status| judged(status).err()).min_by_key(|failure| failure.code);
        let shown = |status: &Status| match self.why {
            true => printable_block(&status.why()),
            false => printable_block(&status.to_string()),
        };
        match self.json {
            true => output::print_json(&OneOrEach::of(statuses))?,
            false => output::print(&statuses.iter().map(shown).collect::<Vec<_>>().join("\n"))?,
        }
        worst.map_or(Ok(()), Err)
    }
}

/// Gives scripts an exit status by what was shown. Without a session, the LAN is no news.
fn judged(status: &Status) -> Outcome {
    let lan = status.surroundings.lan.trouble();
    let towards = match status.peers.len() {
        0 | 1 => String::new(),
        _ => format!(" towards {}", status.peer),
    };
    match () {
        () if status.is_up() => Ok(()),
        () if status.is_blocked() => {
            let why = status.surroundings.wan.trouble().map(|why| format!("; the WAN is {why}"));
            let text =
                format!("longhaul: control{towards} is up, and no data crosses{}", why.unwrap_or_default());
            Err(Failure { code: BLOCKED, text: printable_block(&text).trim_end().to_owned() })
        }
        () if status.session.is_up() => {
            let text = format!("longhaul: hosts cannot use the LAN: {}", lan.unwrap_or_default());
            Err(Failure { code: NO_LAN, text: printable_block(&text).trim_end().to_owned() })
        }
        () => {
            let state = &status.session.state;
            Err(Failure { code: NO_SESSION, text: format!("longhaul: no session{towards}: {state}") })
        }
    }
}

/// Asks a running gateway what it knows of the link, if one is to be asked.
pub(super) fn known(link: &LinkArgs) -> Result<Known, Failure> {
    let wrong = |error| unusable(format!("longhaul: {error}"));
    let Some(admin) = link.admin().map_err(wrong)? else { return Ok(Known::default()) };
    let status: Status = runtime()?.block_on(admin::ask(&admin, "/status")).map_err(failed)?;
    if admin.peer().is_none() && status.peers.len() > 1 {
        let names = status.peers.join(", ");
        return Err(unusable(format!("longhaul: {admin} has several peers: say --peer, one of {names}")));
    }
    Ok(Known::of(&status))
}
