//! Each classic mistake, and a machine without any.

use std::net::{SocketAddrV6, UdpSocket};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::*;
use crate::lan::netns::Site;
use crate::lan::rdma::Device;
use crate::lan::usable::{Family, look};
use crate::retention::NoRetention;

fn gateway(change: impl Fn(String) -> String) -> Gateway {
    let text = include_str!("../../../../docs/examples/gateway-a.toml");
    Gateway::parse(Path::new("a.toml"), &change(text.to_owned())).unwrap()
}

fn machine() -> Machine {
    let interface = |name: &str, mtu, address: &str| Interface {
        name: name.to_owned(),
        index: if name == "g0" { 2 } else { 3 },
        mtu,
        addresses: vec![address.parse().unwrap()],
        speed: Some(10_000),
        part_of: None,
        follows_routers: false,
    };
    Machine {
        kernel: (5, 17),
        interfaces: vec![interface("g0", 4200, "10.0.0.254/24"), interface("w0", 9000, "10.9.0.1/24")],
        lan: None,
        rdma: Vec::new(),
        forwarding: (true, false),
        strict: Vec::new(),
        guarded: vec!["10.0.1.0/24".parse().unwrap()],
        unreachable: Vec::new(),
        cut_off: Vec::new(),
        held: Vec::new(),
        at_risk: Vec::new(),
        memory: Some(64 << 30),
        socket_buffers: [212_992; 2],
        capabilities: CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW,
        retention: None,
        time: 1_800_000_000,
        running: vec![Running { answers: true, rtt: Some(Duration::from_millis(20)), ..Running::default() }],
    }
}

#[test]
fn a_good_machine_is_good() {
    assert_eq!(judge(&gateway(|text| text), 2 << 30, &machine()), []);
}

/// An interface that was made again has another number than the file says.
#[test]
fn the_scope_of_a_link_local_address_is_looked_at() {
    let with = |scope: &str| {
        gateway(|text| {
            text.replace("10.9.0.1:14791", &format!("[fe80::1%{scope}]:14791"))
                .replace("10.9.0.2", &format!("[fe80::2%{scope}]"))
        })
    };
    let mut machine = machine();
    machine.interfaces[1].addresses.push("fe80::1/64".parse().unwrap());
    for scope in ["3", "w0"] {
        assert_eq!(judge(&with(scope), 2 << 30, &machine), []);
    }
    let found = judge(&with("g0"), 2 << 30, &machine);
    assert_eq!(found[0].message, "this machine does not have the address fe80::1");
    assert_eq!(found[0].help, "w0 has it: write that name behind the %");
    let found = judge(&with("7"), 2 << 30, &machine);
    assert_eq!(found[0].message, "this machine does not have the address fe80::1");
    assert_eq!(found[0].help, "w0, which has it, has the number 3, not 7: write its name, which stays");
}

/// A gateway of the file that runs has its own ports. Without one, another program has.
#[test]
fn ports_that_another_program_has_are_told() {
    let address: std::net::SocketAddr = "10.9.0.1:14792".parse().unwrap();
    let held = Machine { held: vec![("wan.listen", address)], ..machine() };
    assert_eq!(judge(&gateway(|text| text), 2 << 30, &held), []);
    let unguarded = Machine { guarded: Vec::new(), ..held.clone() };
    assert!(!judge(&gateway(|text| text), 2 << 30, &unguarded).iter().any(|found| found.is_error));
    let alone = Machine { running: Vec::new(), ..unguarded };
    let found = judge(&gateway(|text| text), 2 << 30, &alone);
    let told = |found: &&Finding| found.is_error && found.message == "another program has the port 14792";
    assert_eq!(found.iter().filter(told).count(), 1, "{found:?}");
}

/// Sockets of a file are looked for where it says.
#[test]
fn ports_are_looked_for() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = udp.local_addr().unwrap().port();
    for (port, is_held) in [(taken, true), (1, false)] {
        let listen = format!("127.0.0.1:{port}");
        let gateway =
            gateway(|text| text.replace("10.9.0.1:14791", &listen).replace("127.0.0.1:9464", "127.0.0.1:1"));
        let held = machine::held(&gateway);
        assert_eq!(held.contains(&("wan.listen", gateway.wan.listen)), is_held, "{held:?}");
    }
}

#[test]
fn each_mistake_is_told() {
    type Change = fn(&mut Machine);
    let changes: [(bool, &str, Change); 27] = [
        (true, "clock", |m| m.time = 86_400),
        (true, "more than this machine has memory", |m| m.memory = Some(256 << 20)),
        (false, "may take more memory", |m| m.memory = Some(1 << 30)),
        (true, "does not have the address 10.9.0.1", |m| m.interfaces[1].addresses.clear()),
        (true, "packet mode needs CAP_NET_RAW", |m| m.capabilities = CapabilitySet::NET_ADMIN),
        (true, "there is no interface g0", |m| m.lan = Some(Fault::Gone)),
        (false, "g0 is down", |m| m.lan = Some(Fault::Down)),
        (false, "g0 has no carrier", |m| m.lan = Some(Fault::NoCarrier)),
        (false, "too small for the usual path MTUs", |m| m.interfaces[0].mtu = 1000),
        (false, "mlx5_0 on eth1, below g0, may", |m| {
            let (name, on, below) = ("mlx5_0".into(), "eth1".into(), Some("g0".into()));
            m.rdma = vec![Device { name, on, below, remedy: String::new() }];
        }),
        (true, "g0 is a part of br0", |m| m.interfaces[0].part_of = Some(("br0".into(), "bridge".into()))),
        (false, "give this machine a default route", |m| m.interfaces[0].follows_routers = true),
        (false, "strict on g0", |m| m.strict = vec!["g0".to_owned()]),
        (false, "strict on w0", |m| m.strict = vec!["w0".to_owned()]),
        (true, "own prefix", |m| m.interfaces[0].addresses = vec!["10.0.1.254/24".parse().unwrap()]),
        (false, "lies in the prefix", |m| m.interfaces[0].addresses = vec!["10.0.0.254/16".parse().unwrap()]),
        (true, "a rule is missing", |m| m.guarded = vec!["10.0.7.0/24".parse().unwrap()]),
        (false, "no gateway keeps the kernel", |m| m.guarded.clear()),
        (false, "more than w0 carries", |m| m.interfaces[1].speed = Some(100)),
        (false, "too small for one flow", |m| m.running[0].rtt = Some(Duration::from_secs(2))),
        (false, "fewer reports", |m| m.running[0].reports = Some(16e3)),
        (false, "g0 has no IPv4 address", |m| m.lan = Some(Fault::NoAddress(Family::V4))),
        (false, "another machine has the IPv4 address", |m| m.lan = Some(Fault::Duplicate(Family::V4))),
        (false, "programs ports of this file: 14791-14792", |m| m.at_risk = vec![14_791, 14_792]),
        (false, "no way to the peer at 10.9.0.2", |m| m.cut_off = vec!["10.9.0.2:14791".parse().unwrap()]),
        (false, "is killed: there is no /x", |m| m.retention = Some(NoRetention::Missing("/x".into()))),
        (false, "has no route", |m| m.unreachable = vec!["10.0.1.0/24".parse().unwrap()]),
    ];
    for (is_error, message, change) in changes {
        let mut machine = machine();
        change(&mut machine);
        let findings = judge(&gateway(|text| text), 2 << 30, &machine);
        assert_eq!(findings.len(), 1, "{message}: {findings:?}");
        assert!(findings[0].message.contains(message), "{message}: {findings:?}");
        assert_eq!(findings[0].is_error, is_error, "{message}");
    }
}

/// A bridge has hosts' packets. What stands above the ports of other kinds has none.
#[test]
fn the_whole_is_named_only_where_it_can_be_the_lan_interface() {
    for (whole, kind, help, found) in [
        ("br0", "bridge", "name br0: ", "the kind of br0 is bridge"),
        ("bond0", "bond", "name bond0: ", "the kind of bond0 is bond"),
        ("team0", "team", "name team0: ", "the kind of team0 is team"),
        ("vrf0", "vrf", "take g0 out of the VRF, or take Linux 5.18 ", "the kind of vrf0 is vrf"),
        ("ovs-system", "openvswitch", "take g0 out of ovs-system, ", "the kind of ovs-system is openvswitch"),
        ("x0", "", "take g0 out of x0, ", "x0 tells no kind"),
    ] {
        let mut machine = machine();
        machine.interfaces[0].part_of = Some((whole.to_owned(), kind.to_owned()));
        let findings = judge(&gateway(|text| text), 2 << 30, &machine);
        assert_eq!(findings.len(), 1, "{kind}: {findings:?}");
        assert!(findings[0].help.starts_with(help), "{kind}: {findings:?}");
        assert!(format!("{:?}", findings[0].label).contains(found), "{kind}: {findings:?}");
    }
}

/// From then on, the kernel's rules take its packets for the interface's.
#[test]
fn an_interface_in_a_vrf_will_do_from_linux_5_18_on() {
    for (kernel, findings) in [((5, 17), 1), ((5, 18), 0), ((6, 1), 0)] {
        let mut machine = Machine { kernel, ..machine() };
        machine.interfaces[0].part_of = Some(("blue".to_owned(), "vrf".to_owned()));
        assert_eq!(judge(&gateway(|text| text), 2 << 30, &machine).len(), findings, "{kernel:?}");
        // No kernel does that for a bridge.
        machine.interfaces[0].part_of = Some(("br0".to_owned(), "bridge".to_owned()));
        assert_eq!(judge(&gateway(|text| text), 2 << 30, &machine).len(), 1, "{kernel:?}");
    }
    // This machine has one that says its version.
    assert!(Machine::look(&gateway(|text| text)).unwrap().kernel >= (4, 0));
}

#[test]
fn programs_tcp_has_no_way_without_forwarding() {
    let machine = Machine { forwarding: (false, true), ..machine() };
    let findings = judge(&gateway(|text| text), 2 << 30, &machine);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].help.contains("net.ipv4.ip_forward=1"), "{findings:?}");
    assert!(findings[0].help.contains("ip route add 10.0.1.0/24 via 10.9.0.2"), "{findings:?}");
}

/// Findings about one of several peers point at its own keys.
#[test]
fn each_of_several_peers_is_told_of_at_its_place() {
    let text = include_str!("../../../../docs/examples/gateway-several.toml");
    let gateway = Gateway::parse(Path::new("several.toml"), text).unwrap();
    let [first, second] = [0, 1].map(|nth| gateway.peers().nth(nth).unwrap().clone());
    let machine = Machine {
        forwarding: (false, false),
        guarded: first.remote.clone(),
        cut_off: vec![second.address],
        running: vec![Running::default(), Running { reports: Some(16e3), ..Running::default() }],
        ..machine()
    };
    let findings = judge(&gateway, 2 << 30, &machine);
    let places = |message: &str| {
        let found = findings.iter().filter(|found| found.message.contains(message));
        found.map(|found| found.place().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places("has no way through"), ["peer.0.remote", "peer.1.remote"], "{findings:?}");
    assert_eq!(places("a rule is missing"), ["peer.1.remote"], "{findings:?}");
    assert_eq!(places("no way to the peer"), ["peer.1.address"], "{findings:?}");
    assert_eq!(places("fewer reports"), ["peer.1.rate"], "{findings:?}");
}

#[test]
fn mtus_and_buffers_are_compared_with_the_file() {
    let told = |text: &str, change: fn(&mut Machine)| {
        let mut machine = machine();
        change(&mut machine);
        let findings = judge(&gateway(|file| file.replace("mtu = 9000", text)), 2 << 30, &machine);
        findings.into_iter().map(|finding| finding.key).collect::<Vec<_>>()
    };
    assert_eq!(told("mtu = 9000\nprobe_mtu = false", |m| m.interfaces[1].mtu = 1500), ["wan.mtu"]);
    assert_eq!(
        told("mtu = 9000", |m| m.interfaces[1].mtu = 1500),
        [""; 0],
        "what is probed finds its length"
    );
    // Without CAP_NET_ADMIN the system's bounds hold.
    let keys = told("mtu = 9000", |m| m.capabilities = CapabilitySet::NET_RAW);
    assert_eq!(keys, ["lan.interface", "wan.listen"]);
}

/// Needs root: the machine is a name space.
#[test]
fn a_name_space_is_seen_as_it_is() {
    let site = Site::new(1500);
    site.gateway.ip("addr add 10.9.0.1/24 dev lo");
    site.gateway.sysctl("net/ipv4/ip_forward", "1");
    site.gateway.sysctl("net/ipv4/conf/g0/rp_filter", "1");
    site.gateway.sysctl("net/ipv4/conf/all/rp_filter", "0");
    site.gateway.sysctl("net/ipv6/conf/g0/accept_ra", "0");
    site.gateway.sysctl("net/ipv4/ip_local_port_range", "1024 65535");
    site.gateway.sysctl("net/ipv4/ip_local_reserved_ports", "14791");
    site.gateway.ip("rule add to 10.0.1.0/24 iif g0 ipproto udp dport 4791 pref 1 blackhole proto 76");
    let file = gateway(|text| text);
    let seen = site.gateway.run(|| Machine::look(&file)).unwrap();
    let lan = seen.interfaces.iter().find(|interface| interface.name == "g0").unwrap();
    assert!(seen.lan.is_none() && lan.mtu == 1500, "{seen:?}");
    assert!(lan.addresses.contains(&"10.0.0.254/24".parse().unwrap()), "{lan:?}");
    assert_eq!(seen.forwarding, (true, false));
    assert_eq!(seen.strict, ["g0"]);
    assert_eq!(seen.guarded, file.lan.remote);
    assert_eq!(seen.unreachable, file.lan.remote);
    assert!(seen.capabilities.contains(CapabilitySet::NET_ADMIN) && seen.memory > Some(1 << 20));
    assert_eq!(seen.at_risk, [9464, 14_792]);
    // What outlives the process is the machine's, and no name space's.
    let seen = Machine { retention: None, at_risk: Vec::new(), ..seen };
    let keys: Vec<_> = judge(&file, 0, &seen).into_iter().map(|finding| finding.message).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
}

/// Needs root. The kernel takes packets that come by a port of a bridge for the bridge's, and
/// forwards what rules about the port would keep it from.
#[test]
fn a_part_of_a_bridge_is_no_lan_interface() {
    let site = Site::new(1500);
    site.gateway.ip("link add br0 type bridge");
    site.gateway.ip("link set br0 up");
    site.gateway.ip("link set g0 master br0");
    let file = gateway(|text| text);
    let seen = site.gateway.run(|| Machine::look(&file)).unwrap();
    let findings = judge(&file, 0, &seen);
    let found = findings.iter().find(|found| found.message.starts_with("g0 is a part of br0")).unwrap();
    assert!(found.is_error && found.help.starts_with("name br0: "), "{found:?}");
    site.gateway.ip("link set g0 nomaster");
    let seen = site.gateway.run(|| Machine::look(&file)).unwrap();
    assert!(judge(&file, 0, &seen).iter().all(|found| !found.message.contains("is a part of")));
}

/// Needs root. A gateway and `check --live` say the same of an interface: without an address it
/// serves hosts that a route leads to, and with one of the other family it serves none.
#[test]
fn the_lan_is_judged_as_a_gateway_judges_it() {
    let site = Site::new(1500);
    let file = gateway(|text| text);
    let told = |step: &str| {
        let (fault, seen) =
            site.gateway.run(|| (look(&file.lan, "g0").unwrap(), Machine::look(&file).unwrap()));
        let findings = judge(&file, 0, &seen);
        let messages: Vec<_> = findings.into_iter().map(|finding| finding.message).collect();
        for other in [Fault::Gone, Fault::Down, Fault::NoCarrier, Fault::NoAddress(Family::V4)] {
            let is_told = messages.contains(&other.text("g0"));
            assert_eq!(is_told, fault == Some(other), "{step}: {fault:?}, {messages:?}");
        }
        fault
    };
    assert_eq!(told("as made"), None);
    site.gateway.ip("addr del 10.0.0.254/24 dev g0");
    assert_eq!(told("an IPv6 address"), Some(Fault::NoAddress(Family::V4)));
    site.gateway.ip("route add 10.0.0.0/24 dev g0");
    assert_eq!(told("unnumbered"), None);
    site.gateway.ip("link set g0 down");
    assert_eq!(told("down"), Some(Fault::Down));
    site.gateway.ip("link del g0");
    assert_eq!(told("gone"), Some(Fault::Gone));
}

/// A router advertisement (RFC 4861, 4.2) from the host's link-local address, for half an hour.
fn advertise(site: &Site) {
    const ADVERTISEMENT: [u8; 16] = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    site.host.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
        // Hosts believe what cannot have crossed a router.
        socket.set_multicast_hops_v6(255).unwrap();
        let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let line = addresses.lines().find(|line| line.starts_with("fe80") && line.ends_with("v0"));
        let index = line.and_then(|line| line.split_whitespace().nth(1)).unwrap();
        let index = u32::from_str_radix(index, 16).unwrap();
        let all = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
        socket.send_to(&ADVERTISEMENT, &all.into()).unwrap();
    });
}

/// Needs root. Where `check --live` warns, the kernel does as it says; and not where it does not.
#[test]
fn hosts_give_a_default_route_exactly_where_that_is_warned_of() {
    let file = gateway(|text| text);
    for (forwarding, accepts, default) in
        [("0", "0", "1"), ("0", "1", "1"), ("0", "1", "0"), ("0", "2", "1"), ("1", "1", "1"), ("1", "2", "1")]
    {
        let site = Site::new(1500);
        let case = format!("forwarding {forwarding}, accept_ra {accepts}, accept_ra_defrtr {default}");
        let set = |key: &str, value: &str| site.gateway.sysctl(&format!("net/ipv6/conf/g0/{key}"), value);
        set("forwarding", forwarding);
        set("accept_ra", accepts);
        set("accept_ra_defrtr", default);
        let seen = site.gateway.run(|| Machine::look(&file)).unwrap();
        let findings = judge(&file, 0, &seen);
        let warned = findings.iter().find(|finding| finding.message.contains("by a router advertisement"));
        assert_eq!(warned.is_some(), seen.interfaces.iter().any(|it| it.name == "g0" && it.follows_routers));
        let probe = site.gateway.run(|| UdpSocket::bind("[fd00::fe]:7000")).unwrap();
        probe.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let advertised = || {
            advertise(&site);
            site.gateway.ip("-6 route show default")
        };
        let mut routes = advertised();
        // What comes later over the same wire has come: so has what was advertised.
        for round in 0..3 {
            let send =
                || site.host.run(|| UdpSocket::bind("[::]:0").unwrap().send_to(&[round], "[fd00::fe]:7000"));
            // Some are lost while the hosts look for each other.
            let mut seen = [u8::MAX];
            let mut comes = |_| {
                send().unwrap();
                probe.recv(&mut seen).is_ok_and(|_| seen == [round])
            };
            assert!((0..50).any(&mut comes), "{case}: no probe arrives");
            if routes.is_empty() {
                routes = advertised();
            }
        }
        assert_eq!(routes.contains("proto ra"), warned.is_some(), "{case}: {routes:?}, {findings:?}");
        if let Some(warned) = warned {
            assert!(warned.help.contains("sysctl net.ipv6.conf.g0.accept_ra=0") && !warned.is_error);
        }
    }
}
