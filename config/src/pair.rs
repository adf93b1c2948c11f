//! Two gateway files of a pair beside each other.

use std::path::Path;

use crate::gateway::{Gateway, Relation};
use crate::problem::Label;
use crate::report::{Content, Report};

/// One way in which a file contradicts its peer's.
struct Contradiction {
    /// Where in the file.
    key: &'static str,
    message: String,
    label: Label,
    help: &'static str,
    is_error: bool,
}

/// Adds to the second report what in its file contradicts the first's, if the two are gateway files
/// of one pair: one names the other's site or address.
pub fn check_pair(first: &Report, second: &mut Report) {
    let (Some(Content::Gateway(first_file, _)), Some(Content::Gateway(file, _))) =
        (first.content(), second.content())
    else {
        return;
    };
    // Each as if it had no other peer than the other.
    let (there, here) = (first_file.views(), file.views());
    let mut pairs = there.iter().flat_map(|there| here.iter().map(move |here| (there, here)));
    let names_both = |(there, here): &(&Gateway, &Gateway)| leads(there, here) && leads(here, there);
    let names_one = |(there, here): &(&Gateway, &Gateway)| leads(there, here) || leads(here, there);
    let pair = pairs.clone().find(names_both).or_else(|| pairs.find(names_one));
    let Some((first_file, file)) = pair else { return };
    let place = here.iter().position(|view| view.peer.name == file.peer.name).filter(|_| here.len() > 1);
    for contradiction in contradictions(first_file, file, first.path()) {
        let Contradiction { key, message, label, help, is_error } = contradiction;
        let (key, help) = (key_at(key, place), Some(help.to_owned()));
        match is_error {
            true => second.error_at(&key, message, label, help),
            false => second.warning_at(&key, message, label, help),
        }
    }
}

/// Returns the place of a key that each of several peers has, for the one of this number.
fn key_at(key: &str, place: Option<usize>) -> String {
    let of_peer = if key == "lan.remote" { Some("remote") } else { key.strip_prefix("peer.") };
    match (of_peer, place) {
        (Some(rest), Some(place)) => format!("peer.{place}.{rest}"),
        _ => key.to_owned(),
    }
}

fn leads(from: &Gateway, to: &Gateway) -> bool {
    from.peer.name == to.site.name || from.peer.address == to.wan.listen
}

/// Returns the contradictions of `file` to `other`, which stands in the file `path`.
fn contradictions(other: &Gateway, file: &Gateway, path: &Path) -> Vec<Contradiction> {
    let mut found = Vec::new();
    let there = path.display();
    let mut add = |is_error, key, message: &str, label: Label, help| {
        let message = format!("{message} in {there}");
        found.push(Contradiction { key, message, label, help, is_error });
    };
    names(other, file, &mut add);
    addresses(other, file, &mut add);
    if file.peer.relation == Relation::Sibling || other.peer.relation == Relation::Sibling {
        siblings(other, file, &mut add);
        agreements(other, file, &mut add);
        return found;
    }
    members(other, file, &mut add);
    prefixes(other, file, &mut add);
    agreements(other, file, &mut add);
    rates(other, file, &mut add);
    found
}

/// Severity (true: error), key, message, label, help.
type Add<'a> = dyn FnMut(bool, &'static str, &str, Label, &'static str) + 'a;

fn names(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    const HELP: &str = "each file's peer.name is the other's site.name";
    if file.site.name == other.site.name {
        let label = format!("{} in both", file.site.name);
        add(
            true,
            "site.name",
            "`site.name` is the same as",
            label.into(),
            "the sites of a pair need different names",
        );
        return;
    }
    if file.peer.name != other.site.name {
        let label = format!("the other site is {}", other.site.name);
        add(true, "peer.name", "`peer.name` is not `site.name`", label.into(), HELP);
    }
    if other.peer.name != file.site.name {
        let label = format!("peer.name is {} there", other.peer.name);
        add(true, "site.name", "`site.name` is not `peer.name`", label.into(), HELP);
    }
}

/// Gateways of one site.
fn siblings(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    let list = |gateway: &Gateway| {
        let mut names: Vec<_> =
            gateway.site.gateways.iter().map(|each| (each.name.clone(), each.address)).collect();
        names.sort();
        names
    };
    if list(file) != list(other) {
        let help = "all gateways of a site have the same list";
        add(true, "site.gateways", "`site.gateways` differs from that", "".into(), help);
    }
}

/// Both sites have to know that one of them has several gateways.
fn members(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    const HELP: &str = "if a site has several gateways, its own files list them in site.gateways, \
                        and the other site's have a [[peer]] with `site` for each";
    let is_one = |gateway: &Gateway| gateway.site.gateways.is_empty();
    let takes_for_one = |peer: &Gateway| peer.peer.relation == Relation::Alone;
    if is_one(other) != takes_for_one(file) {
        let label = format!("site.gateways lists {} there", other.site.gateways.len());
        add(true, "peer.name", "`peer.site` does not fit `site.gateways`", label.into(), HELP);
    }
    if is_one(file) != takes_for_one(other) {
        let label = Label::Value(format!("{} gateways", file.site.gateways.len()));
        add(true, "site.name", "`site.gateways` does not fit `peer.site`", label, HELP);
    }
}

fn addresses(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    const HELP: &str =
        "each file's peer.address is the other's wan.listen, unless a translator stands between";
    let differ = |address: std::net::SocketAddr, listen: std::net::SocketAddr| {
        address.port() != listen.port() || (!listen.ip().is_unspecified() && address.ip() != listen.ip())
    };
    if differ(file.peer.address, other.wan.listen) {
        let label = format!("the other gateway listens on {}", other.wan.listen);
        add(true, "peer.address", "`peer.address` is not `wan.listen`", label.into(), HELP);
    }
    if differ(other.peer.address, file.wan.listen) {
        let label = format!("peer.address is {} there", other.peer.address);
        add(true, "wan.listen", "`wan.listen` is not `peer.address`", label.into(), HELP);
    }
}

fn prefixes(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    for prefix in &file.lan.remote {
        let both = other.lan.remote.iter().find(|there| there.contains(prefix) || prefix.contains(*there));
        if let Some(both) = both {
            let label = format!("{prefix} here, {both} there");
            let help = "each site's lan.remote names the other site's hosts, and no host is at both";
            add(true, "lan.remote", "`lan.remote` overlaps `lan.remote`", label.into(), help);
        }
    }
    for (local, remote, key, message) in [
        (&file.lan.local, &other.lan.remote, "lan.local", "`lan.local` is not behind the peer"),
        (&other.lan.local, &file.lan.remote, "lan.remote", "`lan.remote` lacks a prefix of `lan.local`"),
    ] {
        let left_out = local.iter().find(|prefix| !remote.iter().any(|remote| remote.contains(*prefix)));
        if let Some(prefix) = left_out {
            let help = "what is local at one site is remote at the other";
            add(false, key, message, format!("{prefix} is in no lan.remote of the other").into(), help);
        }
    }
}

/// The share of what a way carries that reports on it may take of the way back: a fiftieth.
const REPORTS: u64 = 50;

fn rates(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    let [here, there] = [file, other].map(|file| file.peer.rate.bits_per_second());
    if here.min(there).saturating_mul(REPORTS) < here.max(there) {
        let label = format!("{} here, {} there", file.peer.rate, other.peer.rate);
        let help = "reports on the faster way take up to 2 % of its rate on the slower one; \
                    below that they are thinned, and losses are repaired later";
        add(false, "peer.rate", "`peer.rate` is far from that", label.into(), help);
    }
}

fn agreements(other: &Gateway, file: &Gateway, add: &mut Add<'_>) {
    let (here, there) = (file.data_plane.threads, other.data_plane.threads);
    let expected = file.peer.threads(here);
    if expected != there && file.peer.threads.is_some() {
        let label = format!("{expected} here, data_plane.threads = {there} there");
        let help = "with a peer of another number of threads there is no session";
        add(true, "peer.threads", "`peer.threads` is not `data_plane.threads`", label.into(), help);
    } else if expected != there || other.peer.threads(there) != here {
        let label = format!("{here} here, {there} there");
        let help = "where they differ, each file needs the other's number as peer.threads; otherwise there is no session";
        add(true, "data_plane.threads", "`data_plane.threads` differs from that", label.into(), help);
    }
    if !file.wan.ciphers.iter().any(|cipher| other.wan.ciphers.contains(cipher)) {
        let help = "one cipher at least has to be in both; otherwise there is no session";
        add(true, "wan.ciphers", "`wan.ciphers` has none of those", "".into(), help);
    }
    let unshared = file.lan.multicast.iter().find(|group| !other.lan.multicast.contains(group));
    let missing = other.lan.multicast.iter().find(|group| !file.lan.multicast.contains(group));
    if let Some(group) = unshared.or(missing) {
        let help = "what only one gateway lists, the other drops";
        add(
            false,
            "lan.multicast",
            "`lan.multicast` differs from that",
            format!("{group} is in one only").into(),
            help,
        );
    }
    if file.lan.mtu != other.lan.mtu {
        let [here, there] = [file, other]
            .map(|file| file.lan.mtu.map_or("the interface's".to_owned(), |mtu| mtu.to_string()));
        let help = "hosts of both sites agree on a path MTU that each LAN has to carry";
        let label = format!("{here} here, {there} there");
        add(false, "lan.mtu", "`lan.mtu` differs from that", label.into(), help);
    }
    if file.limits.total_buffer != other.limits.total_buffer {
        let label = format!("{} here, {} there", file.limits.total_buffer, other.limits.total_buffer);
        let help = "the smaller one bounds what is under way in both directions";
        add(false, "limits.total_buffer", "`limits.total_buffer` differs from that", label.into(), help);
    }
}
