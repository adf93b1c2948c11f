//! Whose packets are carried: those of this site's hosts.

use std::net::IpAddr;

use crate::sites::{Sites, write_request};
use ipnet::IpNet;
use roce::ip::{Addressing, Datagram};
use roce::wire::Qpn;
use splice::{LanDrop, Settings};

const TARGET: Qpn = Qpn::new(0x22);

/// How many requests of this source the link carries, and what is counted at this and at the peer's
/// gateway.
fn carried(local: &[&str], source: &str) -> (bool, u64, u64) {
    carried_to_one_who_takes(&[], local, source)
}

/// The same to a peer that has said what it takes.
fn carried_to_one_who_takes(takes: &[&str], local: &[&str], source: &str) -> (bool, u64, u64) {
    let local: Vec<_> = local.iter().map(|prefix| prefix.parse().unwrap()).collect();
    // Of the sender's site. The other one has hosts anywhere.
    let mut sites = Sites::new(0xc123, |settings| {
        let is_own = |prefix: &&IpNet| !settings.remote.contains(prefix);
        Settings { local: local.iter().filter(is_own).copied().collect(), ..settings }
    });
    sites.gateways[0].peer_takes(takes.iter().map(|prefix| prefix.parse().unwrap()).collect());
    let source: IpAddr = source.parse().unwrap();
    let request = write_request(TARGET, 256);
    let addressing = Addressing { src: source, ..sites.addressing[0] };
    sites.gateways[0].handle_lan(&Datagram { addressing, transport: &request }, sites.now);
    sites.cross();
    let delivered = sites.deliver(1).is_some();
    let [here, there] = [0, 1].map(|site| sites.gateways[site].stats().clone());
    (delivered, here.lan_drops[LanDrop::SourceNotLocal as usize], there.bad_records)
}

#[test]
fn sources_that_are_no_hosts_of_this_site_are_counted_here_and_not_at_the_peer() {
    for local in [&[][..], &["10.0.0.0/24"]] {
        assert_eq!(carried(local, "10.0.0.9"), (true, 0, 0));
        for source in ["239.1.1.1", "0.0.0.0", "127.0.0.1"] {
            assert_eq!(carried(local, source), (false, 1, 0), "{source}");
        }
    }
    assert_eq!(carried(&["10.0.2.0/24", "10.0.0.0/24"], "192.0.2.1"), (false, 1, 0));
}

#[test]
fn what_the_peer_would_drop_is_not_sent_to_it() {
    // Nobody has said anything: the peer judges, and has it as a fault of this gateway's.
    assert_eq!(carried(&[], "192.0.2.1"), (false, 0, 1));
    let peers = ["10.0.0.0/24", "2001:db8::/32"];
    assert_eq!(carried_to_one_who_takes(&peers, &[], "192.0.2.1"), (false, 1, 0));
    assert_eq!(carried_to_one_who_takes(&peers, &[], "10.0.0.9"), (true, 0, 0));
    // Both have to agree.
    assert_eq!(carried_to_one_who_takes(&peers, &["10.0.0.0/29"], "10.0.0.9"), (false, 1, 0));
}

#[test]
fn a_packet_is_judged_by_what_holds_when_it_comes() {
    let mut sites = Sites::new(0xc123, |settings| settings);
    let request = write_request(TARGET, 256);
    let refused_after = |sites: &mut Sites, source: &str| {
        let addressing = Addressing { src: source.parse().unwrap(), ..sites.addressing[0] };
        sites.gateways[0].handle_lan(&Datagram { addressing, transport: &request }, sites.now);
        sites.gateways[0].stats().lan_drops[LanDrop::SourceNotLocal as usize]
    };
    let refused = ["10.0.0.9", "127.0.0.1", "10.0.0.9"].map(|source| refused_after(&mut sites, source));
    assert_eq!(refused, [0, 1, 1]);
    // A new session, to a peer that takes others.
    sites.gateways[0].peer_takes(["10.0.7.0/24".parse().unwrap()].into());
    assert_eq!(refused_after(&mut sites, "10.0.0.9"), 2);
}
