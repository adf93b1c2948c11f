//! Checks across sections: addresses and names that clash.

use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;

use super::{DataPlane, Gateway, Lan, LanMode, Limits, Peer, Site, Wan};
use crate::problem::{Label, Sink};
use crate::units::ByteSize;

/// A value and where it stands, for the checks across sections.
pub(super) type Placed<T> = (T, Range<usize>);
pub(super) struct PlacedLan {
    pub(super) value: Lan,
    pub(super) local: Vec<Placed<IpNet>>,
    pub(super) listen: Range<usize>,
    pub(super) hosts: Range<usize>,
}

pub(super) struct PlacedWan {
    pub(super) value: Wan,
    pub(super) listen: Range<usize>,
    pub(super) lanes: Range<usize>,
}

pub(super) struct PlacedPeer {
    pub(super) value: Peer,
    /// `peer.remote`; empty in `[peer]`.
    pub(super) remote: Vec<Placed<IpNet>>,
    pub(super) name: Range<usize>,
    pub(super) address: Range<usize>,
    /// Where `peer.threads` is, or the section.
    pub(super) threads: Range<usize>,
}

/// Returns the pairs of threads with the peer that has most.
fn most_pairs(peers: &[PlacedPeer], threads: u8) -> u8 {
    peers.iter().map(|peer| peer.value.thread_pairs(threads)).max().unwrap_or(threads)
}

pub(super) fn check(
    sink: &mut Sink,
    site: Option<&Placed<Site>>,
    lan: Option<&PlacedLan>,
    wan: Option<&PlacedWan>,
    peers: &[PlacedPeer],
    plane: &Placed<DataPlane>,
) {
    let pairs = most_pairs(peers, plane.0.threads);
    for (index, peer) in peers.iter().enumerate() {
        own_name(sink, site, peer);
        let earlier = peers.get(..index).unwrap_or_default();
        earlier.iter().for_each(|earlier| same_peer(sink, earlier, peer));
        let ports = [peer.value.address.port(), peer.value.bulk_address().port()];
        roce_port(sink, "peer.address", &peer.address, &ports);
        if let Some(wan) = wan {
            peer_address(sink, &wan.value, pairs, peer);
        }
        if let Some(lan) = lan {
            inside_remote(sink, lan, peer.value.address.ip(), &peer.address, "peer.address");
        }
    }
    if let Some(wan) = wan {
        lanes(sink, wan, plane, pairs);
    }
    if let Some(wan) = wan {
        others_ports(sink, wan, pairs);
    }
    if let (Some(lan), Some(wan)) = (lan, wan) {
        inside_remote(sink, lan, wan.value.listen.ip(), &wan.listen, "wan.listen");
        lan_listen(sink, lan, &wan.value, pairs);
    }
    if let Some(lan) = lan {
        local_hosts(sink, lan);
    }
}

fn own_name(sink: &mut Sink, site: Option<&Placed<Site>>, peer: &PlacedPeer) {
    if let Some((site, _)) = site
        && site.name == peer.value.name
    {
        let help = "the two sites need different names: the one that sorts first dials".to_owned();
        sink.error(
            peer.name.clone(),
            "`peer.name` is this site's own name",
            Label::Value(format!("{:?}", site.name)),
            Some(help),
        );
    }
}

/// Peers are told apart by their names, and their datagrams by the address that they come from.
fn same_peer(sink: &mut Sink, earlier: &PlacedPeer, peer: &PlacedPeer) {
    if earlier.value.name == peer.value.name {
        let found = Label::Value(format!("{:?} again", peer.value.name));
        let help = "each [[peer]] is another site".to_owned();
        sink.error(peer.name.clone(), "two [[peer]] have the same name", found, Some(help));
    }
    let address = peer.value.address.ip();
    if earlier.value.address.ip() == address {
        let help = "datagrams are told apart by the address that they come from: write another".to_owned();
        let found = Label::Value(format!("{address} again"));
        sink.error(peer.address.clone(), "two [[peer]] have the same address", found, Some(help));
    }
}

/// Each peer's share of the buffers is for all threads.
pub(super) fn shares(sink: &mut Sink, gateway: &Gateway, span: &Range<usize>) {
    if gateway.others.is_empty() {
        return;
    }
    let least = |view: &Gateway| ByteSize::mib(u64::from(view.thread_pairs()));
    let poor = gateway.views().into_iter().find(|view| view.limits.total_buffer < least(view));
    if let Some(poor) = poor {
        let pairs = poor.thread_pairs();
        let found = format!("{} has {} for {pairs}", poor.peer.name, poor.limits.total_buffer);
        let help =
            "shares are in proportion to peer.rate; each thread needs 1 MiB of each: raise total_buffer";
        let message = "`limits.total_buffer` leaves a [[peer]] too little";
        sink.error(span.clone(), message, found, Some(help.to_owned()));
    }
}

/// RoCEv2's UDP port.
const ROCE: u16 = 4791;
/// UDP ports next to it that IANA has given to others, whose packets NICs and switches take apart.
const ASSIGNED: [(u16, &str); 2] = [(4792, "Unified Bus"), (4793, "Ultra Ethernet")];

/// Ports of the link that are other protocols'.
fn others_ports(sink: &mut Sink, wan: &PlacedWan, pairs: u8) {
    let listen = wan.value.listen.port();
    let takes = |port: u16| wan.value.takes_port(port, pairs);
    if takes(ROCE) {
        let ports: Vec<u16> = (listen..=ROCE).collect();
        return roce_port(sink, "wan.listen", &wan.listen, &ports);
    }
    let taken: Vec<String> = ASSIGNED
        .iter()
        .filter(|(port, _)| takes(*port))
        .map(|(port, owner)| format!("{port} is {owner}'s"))
        .collect();
    if !taken.is_empty() {
        let help = "it works, as long as nothing on the way takes these ports for what they are at IANA; \
                    14791 and those that follow are free: change wan.listen here and peer.address there";
        let message = "`wan.listen` leads to UDP ports of other protocols";
        sink.warning(wan.listen.clone(), message, taken.join(", "), Some(help.to_owned()));
    }
}

/// Hosts' NICs, and the gateways' own filters, take everything on it for RoCE.
fn roce_port(sink: &mut Sink, key: &str, span: &Range<usize>, ports: &[u16]) {
    if ports.contains(&ROCE) {
        let found = match ports.first() {
            Some(&ROCE) => Label::Value("4791".to_owned()),
            Some(first) => Label::Value(format!("{first}, and the ports that follow are used as well")),
            None => "".into(),
        };
        let help = "choose others, such as 14791: control takes the port named, bulk data those that follow";
        sink.error(span.clone(), format!("`{key}` takes RoCE's own port"), found, Some(help.to_owned()));
    }
}

/// Each pair of data-plane threads has so many lanes, and each of these a port.
fn lanes(sink: &mut Sink, wan: &PlacedWan, (DataPlane { threads, .. }, span): &Placed<DataPlane>, pairs: u8) {
    let Wan { lanes, listen, .. } = wan.value;
    let most = Wan::MOST_LANES;
    let all = u16::from(lanes) * u16::from(pairs);
    let with_peer =
        if pairs == *threads { String::new() } else { format!(" in {pairs} pairs with the peer's") };
    if all > u16::from(most) {
        let label =
            Label::Value(format!("{threads}{with_peer}; with wan.lanes = {lanes} for each that makes {all}"));
        let help =
            format!("all threads together have at most {most} lanes; write fewer threads, or fewer lanes");
        sink.error(span.clone(), "`data_plane.threads` have too many lanes", label, Some(help));
    } else if listen.port().checked_add(all).is_none() {
        let label = match pairs {
            1 => Label::Value(format!("{lanes}, listening on {listen}")),
            _ => Label::Value(format!("{lanes} for each of {pairs} threads, listening on {listen}")),
        };
        let help = "each lane takes a port after that of wan.listen, up to 65535; write a lower port there, or fewer lanes";
        let message = "`wan.lanes` are more than there are ports";
        sink.error(wan.lanes.clone(), message, label, Some(help.to_owned()));
    }
}

/// Pairs of threads share the buffers evenly.
pub(super) fn buffers(
    sink: &mut Sink,
    limits: &Limits,
    peers: &[PlacedPeer],
    (DataPlane { threads, .. }, span): &Placed<DataPlane>,
) {
    let pairs = most_pairs(peers, *threads);
    if limits.total_buffer < ByteSize::mib(u64::from(pairs)) {
        let label = Label::Value(format!("{pairs}, of {} for all", limits.total_buffer));
        let help = "each thread needs 1 MiB at least; write fewer threads, or raise total_buffer".to_owned();
        let message = "`data_plane.threads` leave each too little of `limits.total_buffer`";
        sink.error(span.clone(), message, label, Some(help));
    }
}

fn peer_address(sink: &mut Sink, wan: &Wan, pairs: u8, peer: &PlacedPeer) {
    let (listen, address) = (wan.listen, peer.value.address);
    if let (Some(own), Some(other)) = (&wan.zone, &peer.value.zone)
        && own != other
    {
        let found = format!("{other}, and wan.listen is on {own}");
        let help = "the way to the peer begins at wan.listen: write the same interface".to_owned();
        let message = "`peer.address` is on another interface than `wan.listen`";
        sink.error(peer.address.clone(), message, found, Some(help));
    }
    let label = Label::Value(format!("{address}, listening on {listen}"));
    if listen.is_ipv4() != address.is_ipv4() {
        let help = "both ends of the link have to be IPv4, or both IPv6".to_owned();
        sink.error(
            peer.address.clone(),
            "`peer.address` and `wan.listen` are of different families",
            label,
            Some(help),
        );
    } else if listen.ip() == address.ip() && ports_overlap(wan, pairs, address.port()) {
        let help =
            "a gateway takes the port given and one more for each lane; write the other gateway's".to_owned();
        sink.error(peer.address.clone(), "`peer.address` is this gateway itself", label, Some(help));
    }
}

/// Returns true if two gateways on one address would share a port.
fn ports_overlap(wan: &Wan, threads: u8, peer: u16) -> bool {
    wan.takes_port(peer, threads) || wan.takes_port(peer.saturating_add(1), threads)
}

/// A WAN endpoint behind the peer would have its own packets carried by itself.
fn inside_remote(sink: &mut Sink, lan: &PlacedLan, address: IpAddr, span: &Range<usize>, key: &str) {
    let inside = lan.value.remote.iter().find(|prefix| prefix.contains(&address));
    if let Some(prefix) = inside {
        let help = "`lan.remote` names the prefixes of the other site's RDMA hosts; the link's own addresses must be outside".to_owned();
        sink.error(
            span.clone(),
            format!("`{key}` lies inside `lan.remote`"),
            format!("{address} is in {prefix}"),
            Some(help),
        );
    }
}

fn lan_listen(sink: &mut Sink, lan: &PlacedLan, wan: &Wan, pairs: u8) {
    let LanMode::Socket { listen, .. } = &lan.value.mode else {
        return;
    };
    let same_ip =
        listen.ip() == wan.listen.ip() || listen.ip().is_unspecified() || wan.listen.ip().is_unspecified();
    let port = listen.port();
    if same_ip && wan.takes_port(port, pairs) {
        let last = wan.lanes_of(pairs.saturating_sub(1)).last().unwrap_or_else(|| wan.bulk_listen());
        let label = match wan.lanes.saturating_mul(pairs) {
            1 => Label::Value(format!("{listen}; the link uses {} and {last}", wan.listen)),
            _ => Label::Value(format!("{listen}; the link uses {} to {last}", wan.listen)),
        };
        let help = "choose another port for one of them".to_owned();
        sink.error(lan.listen.clone(), "`lan.listen` and `wan.listen` clash", label, Some(help));
    }
}

fn local_hosts(sink: &mut Sink, lan: &PlacedLan) {
    let LanMode::Socket { listen, hosts } = &lan.value.mode else {
        return;
    };
    for (inner, outer) in hosts {
        let remote = lan.value.remote.iter().find(|prefix| prefix.contains(inner));
        if let Some(prefix) = remote {
            let help = "hosts are this site's, `lan.remote` the other's".to_owned();
            let label = format!("{inner} is in {prefix}");
            sink.error(lan.hosts.clone(), "`lan.hosts` names a host inside `lan.remote`", label, Some(help));
        }
        if outer == listen {
            let help = "a host needs a UDP address of its own".to_owned();
            let label = format!("{inner} = {outer}");
            sink.error(
                lan.hosts.clone(),
                "`lan.hosts` names the gateway's own `lan.listen`",
                label,
                Some(help),
            );
        }
    }
}

pub(super) fn overlaps(sink: &mut Sink, key: &str, prefixes: &[Placed<IpNet>]) {
    for (index, (prefix, span)) in prefixes.iter().enumerate() {
        let earlier =
            prefixes.iter().take(index).find(|(other, _)| other.contains(prefix) || prefix.contains(other));
        if let Some((other, _)) = earlier {
            let help = "remove one of the two".to_owned();
            sink.error(
                span.clone(),
                format!("`{key}` has prefixes that overlap"),
                format!("{prefix} overlaps {other}"),
                Some(help),
            );
        }
    }
}

/// Warns of more prefixes behind one peer than that is told of.
pub(super) fn untold(sink: &mut Sink, key: &str, prefixes: &[Placed<IpNet>]) {
    if let Some((first, span)) = prefixes.get(Lan::MOST_TOLD) {
        let help = format!(
            "{} wider prefixes at most: else the peer does not learn whom this site takes, and packets of \
             others cross the link before they are dropped",
            Lan::MOST_TOLD
        );
        let found = format!("{first} is one of {}", prefixes.len());
        sink.warning(
            span.clone(),
            format!("`{key}` has more prefixes than a peer is told of"),
            found,
            Some(help),
        );
    }
}

/// A prefix of this site's that is all the peer's would let nothing pass.
pub(super) fn local(sink: &mut Sink, local: &[Placed<IpNet>], remote: &[Placed<IpNet>]) {
    for (prefix, span) in local {
        if let Some((other, _)) = remote.iter().find(|(other, _)| other.contains(prefix)) {
            let help = "`lan.local` names this site's hosts, `lan.remote` the other's".to_owned();
            let message = "`lan.local` names a prefix inside `lan.remote`";
            sink.error(span.clone(), message, format!("{prefix} is in {other}"), Some(help));
        }
    }
}

pub(super) fn repeated(sink: &mut Sink, groups: &[Placed<IpAddr>]) {
    for (index, (group, span)) in groups.iter().enumerate() {
        if groups.iter().take(index).any(|(other, _)| other == group) {
            let help = "remove one of the two".to_owned();
            let message = "`lan.multicast` has the same group twice";
            sink.error(span.clone(), message, Label::Value(format!("{group}")), Some(help));
        }
    }
}
