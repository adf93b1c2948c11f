//! Sites of several gateways.

use std::ops::Range;

use miette::Severity;

use super::clashes::{Placed, PlacedLan, PlacedPeer, PlacedWan};
use super::values::{reachable, site_name};
use super::{Congestion, Gateway, Peer, Relation, Site, SiteGateway};
use crate::policy::{Completion, Policy};
use crate::problem::{Invalid, Label, Problem, Sink};
use crate::read::Section;
use crate::units::{Duration, Rate};

const EXAMPLE: &str = "gateways = [{ name = \"a1\", address = \"10.9.0.1:14791\" }, { name = \"a2\", address = \"10.9.0.2:14791\" }]";

/// `site.gateways`, each with its place.
pub(super) fn gateways(sink: &mut Sink, section: &mut Section<'_, '_>) -> Vec<Placed<SiteGateway>> {
    if section.value("gateways").is_none() {
        return Vec::new();
    }
    if !section.is_list("gateways") {
        let help = Some(format!("write: {EXAMPLE}"));
        sink.error(
            section.span_of("gateways"),
            "`site.gateways` must be a list",
            Label::place("found here"),
            help,
        );
        return Vec::new();
    }
    let each = section.sections(sink, "gateways", EXAMPLE);
    let read = each.into_iter().filter_map(|mut each| {
        let name = each.required(sink, "name", "name = \"a1\"", site_name);
        let address = each.required(sink, "address", "address = \"10.9.0.1:14791\"", reachable);
        let span = each.span();
        each.finish(sink);
        let (address, zone) = address?;
        Some((SiteGateway { name: name?, address, zone }, span))
    });
    read.collect()
}

/// Returns the other gateways of the site as peers. What they exchange is as fast as all peers
/// together.
pub(super) fn siblings(site: &Site, peers: &[PlacedPeer]) -> Vec<Peer> {
    let all: u64 = peers.iter().map(|peer| peer.value.rate.bits_per_second()).sum();
    let others = site.gateways.iter().filter(|gateway| gateway.name != site.name);
    let sibling = |gateway: &SiteGateway| Peer {
        name: gateway.name.clone(),
        address: gateway.address,
        zone: gateway.zone.clone(),
        rate: Rate::from_bits_per_second(all),
        congestion: Congestion::Fixed,
        dead_after: Duration::secs(5),
        resume_for: Duration::secs(0),
        revoked: Vec::new(),
        remote: Vec::new(),
        policy: None,
        relation: Relation::Sibling,
        threads: None,
    };
    others.map(sibling).collect()
}

/// Checks what holds between sections.
pub(super) fn check(
    sink: &mut Sink,
    site: &Placed<Site>,
    lan: &PlacedLan,
    wan: &PlacedWan,
    (peers, threads): (&[PlacedPeer], u8),
) {
    let (Site { name, gateways }, span) = site;
    let is_member = !gateways.is_empty() || peers.iter().any(|peer| peer.value.relation != Relation::Alone);
    if !gateways.is_empty() {
        own_place(sink, site, wan);
    }
    let all = gateways.iter().map(|gateway| (&gateway.name, gateway.address.ip()));
    for peer in peers {
        let clash =
            all.clone().find(|(name, ip)| **name == peer.value.name || *ip == peer.value.address.ip());
        if let Some((clash, _)) = clash.filter(|(clash, _)| *clash != name) {
            let found = format!("{clash} is one of site.gateways");
            let help = "the peers are the other sites' gateways".to_owned();
            sink.error(peer.name.clone(), "a [[peer]] is a gateway of this site", found, Some(help));
        }
    }
    let count = peers.len() + gateways.len().saturating_sub(1);
    if !gateways.is_empty() && count > Gateway::MOST_PEERS {
        let help =
            format!("all [[peer]] and the other gateways of this site are {} at most", Gateway::MOST_PEERS);
        sink.error(span.clone(), "there are too many gateways", Label::Value(format!("{count}")), Some(help));
    }
    if is_member && !lan.value.multicast.is_empty() {
        let help = "each gateway of a site would carry what comes for a group: remove them".to_owned();
        let message = "`lan.multicast` does not work with several gateways at a site";
        sink.error(span.clone(), message, "groups are listed", Some(help));
    }
    let unlike = peers.iter().find(|peer| peer.value.threads(threads) != threads);
    if let Some(unlike) = unlike.filter(|_| is_member) {
        let found =
            Label::Value(format!("{}, and data_plane.threads is {threads}", unlike.value.threads(threads)));
        let help = "all gateways of both sites need as many threads: remove peer.threads".to_owned();
        let message = "`peer.threads` does not work with several gateways at a site";
        sink.error(unlike.threads.clone(), message, found, Some(help));
    }
    numbers(sink, site, peers);
}

fn own_place(sink: &mut Sink, (Site { name, gateways }, span): &Placed<Site>, wan: &PlacedWan) {
    let help = || Some("list all gateways of the site alike in each one's file, this one too".to_owned());
    match gateways.iter().find(|gateway| gateway.name == *name) {
        None => {
            let message = "`site.gateways` lacks this gateway";
            sink.error(span.clone(), message, format!("no entry has the name {name}"), help());
        }
        Some(own)
            if own.address.port() != wan.value.listen.port()
                || !wan.value.listen.ip().is_unspecified() && own.address.ip() != wan.value.listen.ip() =>
        {
            let found = Label::Value(format!("{}, listening on {}", own.address, wan.value.listen));
            let message = "`site.gateways` has another address of this gateway than `wan.listen`";
            sink.error(span.clone(), message, found, help());
        }
        Some(_) => {}
    }
    if gateways.len() < 2 {
        let help = Some("name two at least, or remove gateways".to_owned());
        sink.error(span.clone(), "`site.gateways` has one gateway", Label::Value("1".to_owned()), help);
    }
    for (index, gateway) in gateways.iter().enumerate() {
        let mut before = gateways.iter().take(index);
        if before.any(|other| other.name == gateway.name || other.address.ip() == gateway.address.ip()) {
            let found = Label::Value(format!("{} at {}", gateway.name, gateway.address));
            let help = Some("each has a name and an IP address of its own".to_owned());
            sink.error(span.clone(), "`site.gateways` has a name or an address twice", found, help);
        }
    }
}

/// Members know each other by numbers that follow from their names.
fn numbers(sink: &mut Sink, (site, _): &Placed<Site>, peers: &[PlacedPeer]) {
    let own = site.gateways.iter().map(|gateway| gateway.name.as_str());
    let mut known: Vec<&str> = own.collect();
    for PlacedPeer { value, name, .. } in peers {
        let clash = known.iter().find(|known| **known != value.name && number(known) == number(&value.name));
        if let Some(clash) = clash {
            let found = format!("{} and {clash}", value.name);
            let help = Some("rename one of the two gateways".to_owned());
            sink.error(name.clone(), "two gateways' names have the same hash", found, help);
        }
        known.push(&value.name);
    }
}

/// Returns the number by which members of two sites know a gateway: FNV-1a of its name.
pub fn number(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Peers of one site have the same prefixes. Returns those of all sites, each once.
pub(super) fn prefixes(sink: &mut Sink, peers: &[PlacedPeer]) -> Vec<Placed<ipnet::IpNet>> {
    let mut all = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        let is_same = |other: &&PlacedPeer| {
            peer.value.relation != Relation::Alone && other.value.relation == peer.value.relation
        };
        match peers.get(..index).unwrap_or_default().iter().find(is_same) {
            None => all.extend(peer.remote.iter().cloned()),
            Some(first) if sorted(first) == sorted(peer) => {}
            Some(first) => {
                let found = format!("{} has others", first.value.name);
                let help = Some("gateways of one site have the same prefixes behind them".to_owned());
                let span: Range<usize> = peer.name.clone();
                sink.error(span, "two [[peer]] of one site have different prefixes", found, help);
            }
        }
    }
    all
}

fn sorted(peer: &PlacedPeer) -> Vec<ipnet::IpNet> {
    let mut prefixes = peer.value.remote.clone();
    prefixes.sort();
    prefixes
}

/// A message that a requester was told early would be lost with a gateway, and nobody could tell.
pub(crate) fn check_policy(policy: &Policy) -> Result<(), Invalid> {
    let local = policy.written().find(|class| class.completion == Completion::Local);
    match local {
        None => Ok(()),
        Some(class) => {
            let message = format!(
                "class {}: completion = \"local\" does not work with several gateways at a site",
                class.name
            );
            let help = Some(
                "what is told early is lost with a gateway, and nobody could tell: remove it".to_owned(),
            );
            Err(Problem::new(Severity::Error, message).help(help).into())
        }
    }
}
