//! Arguments that several commands have in common.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::failure::{Failure, failed, unusable};
use crate::admin::{Address, Endpoint, Status, Token, ask, fetch, site_name};

/// Where a running gateway is asked.
#[derive(Clone, Debug, Args)]
pub(super) struct AdminArgs {
    /// The gateway's admin.listen, with https:// if it has a certificate, or the path of its
    /// admin.socket, with a slash in it [default: /run/longhaul/admin.sock if there is one, else
    /// 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    admin: Option<Address>,
    /// A file with the token, where admin.token asks for one
    #[arg(long, value_name = "FILE")]
    admin_token: Option<PathBuf>,
    /// The authority of the certificate at https:// [default: those that the system trusts]
    #[arg(long, value_name = "FILE")]
    admin_authority: Option<PathBuf>,
}

impl AdminArgs {
    /// Returns true if somebody has said where.
    pub(super) fn is_given(&self) -> bool {
        self.admin.is_some()
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint, Failure> {
        let token = self.admin_token.as_deref().map(Token::read).transpose();
        let wrong = |error| unusable(format!("longhaul: {error}"));
        let address = self.admin.clone().unwrap_or_else(Address::usual);
        Endpoint::new(address, token.map_err(wrong)?, self.admin_authority.as_deref()).map_err(wrong)
    }
}

/// Which peer a running gateway is asked about.
#[derive(Clone, Debug, Args)]
pub(super) struct PeerArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Ask about this peer only, of a gateway that has several
    #[arg(long, value_name = "NAME", value_parser = site_name)]
    peer: Option<String>,
}

impl PeerArgs {
    /// Asks about the peer that is named, or else the first.
    pub(super) fn endpoint(&self) -> Result<Endpoint, Failure> {
        Ok(self.admin.endpoint()?.about(self.peer.as_deref()))
    }

    /// Asks about the peer that is named, or else about each.
    pub(super) fn endpoints(&self, runtime: &Runtime) -> Result<Vec<Endpoint>, Failure> {
        let admin = self.endpoint()?;
        if self.peer.is_some() {
            return Ok(vec![admin]);
        }
        of_each_peer(runtime, admin)
    }
}

/// Asks a gateway about each of its peers.
fn of_each_peer(runtime: &Runtime, admin: Endpoint) -> Result<Vec<Endpoint>, Failure> {
    let text = runtime.block_on(fetch(&admin, "/status")).map_err(failed)?;
    // What this version does not know, it says of the answer that it asks for next.
    let peers = serde_json::from_str::<Peers>(&text).unwrap_or_default().peers;
    Ok(match peers.len() {
        0 | 1 => vec![admin],
        _ => peers.iter().map(|peer| admin.about(Some(peer))).collect(),
    })
}

/// Answers about peers, as `--json` prints them: one by itself, several as a list in the order of
/// the gateway file.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum OneOrEach<T> {
    One(T),
    Each(Vec<T>),
}

impl<T> OneOrEach<T> {
    pub(super) fn of(mut answers: Vec<T>) -> Self {
        match answers.len() {
            1 => answers.pop().map_or(Self::Each(Vec::new()), Self::One),
            _ => Self::Each(answers),
        }
    }
}

/// The part of /status that tells of the peers.
#[derive(Default, Deserialize)]
struct Peers {
    #[serde(default)]
    peers: Vec<String>,
}

/// Refuses the name of a class that the policy has not, towards none of a gateway's peers.
pub(super) fn check_class_of_any(runtime: &Runtime, admin: &Endpoint, class: &str) -> Result<(), Failure> {
    check_class(runtime, &of_each_peer(runtime, admin.clone())?, class)
}

/// Refuses the name of a class that the policy has not, towards none of these peers.
pub(super) fn check_class(runtime: &Runtime, endpoints: &[Endpoint], class: &str) -> Result<(), Failure> {
    let mut known = BTreeSet::new();
    for admin in endpoints {
        let status: Status = runtime.block_on(ask(admin, "/status")).map_err(failed)?;
        known.extend(status.classes.into_iter().map(|class| class.name));
    }
    if known.contains(class) {
        return Ok(());
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    Err(unusable(format!("longhaul: the policy has no class {class}; it has {known}")))
}

/// Parses the name of a class or of a part of one.
pub(super) fn class_name(text: &str) -> Result<String, String> {
    match config::is_class_or_part_name(text) {
        true => Ok(text.to_owned()),
        false => Err("not the name of a class, nor of a part such as default/64KiB".to_owned()),
    }
}

/// Parses a number of seconds within bounds.
pub(super) fn seconds_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_their_parts_have_names() {
        for name in ["default", "default/64KiB", "a-b_c/1MiB"] {
            assert_eq!(class_name(name), Ok(name.to_owned()));
        }
        for name in
            ["", "default/", "/64KiB", "default/64 KiB", "default/many", "default/64KiB/1MiB", "a&b=c"]
        {
            assert!(class_name(name).is_err(), "{name}");
        }
    }
}
