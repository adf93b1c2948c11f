//! In network name spaces: a host, the gateway, and a network behind it that the kernel could
//! forward to.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, Type};

use super::*;
use crate::lan::netns::{HOST_MAC, Ns, Site};
use crate::lan::packet::tests::Injector;
use crate::lan::packet::{Packet, PacketConfig};
use crate::lan::wake::{PollFd, PollFlags, poll};
use crate::uninterrupted::uninterrupted;

const PATIENCE: Duration = Duration::from_secs(5);
const REMOTE: [&str; 2] = ["10.0.1.0/24", "fd01::/64"];

fn prefixes(text: &[&str]) -> Vec<IpNet> {
    text.iter().map(|prefix| prefix.parse().unwrap()).collect()
}

fn rules(ns: &Ns) -> Vec<String> {
    let list = ns.ip("rule list") + &ns.ip("-6 rule list");
    // A rule for an interface that is not there (yet) is said to be detached.
    list.lines().filter(|line| line.contains("4791")).map(|line| line.replace(" [detached]", "")).collect()
}

fn nothing_there(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    let result = socket.recv(&mut [0; 100]);
    socket.set_nonblocking(false).unwrap();
    result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The site, and beyond its gateway a host with 10.0.1.1 and fd01::1.
struct Way {
    site: Site,
    far: Ns,
    /// The far host's sockets for RoCE, and for another port.
    roce: UdpSocket,
    other: UdpSocket,
    near: UdpSocket,
    /// ICMP as it arrives at the near host.
    icmp: UdpSocket,
    ring: Packet,
    remote: IpAddr,
}

impl Way {
    fn new(v6: bool, forwarding: bool) -> Self {
        let site = Site::new(1500);
        let far = Ns::new();
        let value = if forwarding { "1" } else { "0" };
        site.gateway.sysctl("net/ipv4/ip_forward", value);
        site.gateway.sysctl("net/ipv6/conf/all/forwarding", value);
        site.gateway.ip(&format!("link add w0 type veth peer name w1 netns {}", far.path()));
        for (ns, interface, v4, v6) in
            [(&site.gateway, "w0", "10.0.1.254", "fd01::fe"), (&far, "w1", "10.0.1.1", "fd01::1")]
        {
            ns.ip(&format!("addr add {v4}/24 dev {interface}"));
            ns.ip(&format!("addr add {v6}/64 dev {interface} nodad"));
            ns.ip(&format!("link set {interface} up"));
        }
        site.gateway.settle("w0");
        far.settle("w1");
        let any: IpAddr = if v6 { "::".parse().unwrap() } else { "0.0.0.0".parse().unwrap() };
        let bind = |ns: &Ns, port: u16| {
            let socket = ns.run(|| UdpSocket::bind((any, port))).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (domain, protocol) =
            if v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        Self {
            roce: bind(&far, ROCE_PORT),
            other: bind(&far, ROCE_PORT + 1),
            near: bind(&site.host, 0),
            icmp: site.host.run(|| socket2::Socket::new(domain, Type::RAW, Some(protocol))).unwrap().into(),
            ring: site.gateway.run(|| Packet::open(&PacketConfig::new("g0"))).unwrap(),
            remote: if v6 { "fd01::1" } else { "10.0.1.1" }.parse().unwrap(),
            far,
            site,
        }
    }

    fn send(&self, payload: &[u8], port: u16) {
        self.near.send_to(payload, (self.remote, port)).unwrap();
    }

    /// Lets the far host answer: it stands for anybody on the WAN who uses a remote host's address.
    fn far_routes_back(&self, v6: bool) {
        let (prefix, via) = if v6 { ("fd00::/64", "fd01::fe") } else { ("10.0.0.0/24", "10.0.1.254") };
        self.far.ip(&format!("route add {prefix} via {via}"));
    }

    /// Receives one packet from the gateway's ring.
    fn ring_sees(&mut self, payload: &[u8]) -> bool {
        let mut seen = false;
        let mut fds = [PollFd::from_borrowed_fd(self.ring.fd(), PollFlags::IN)];
        assert!(poll(&mut fds, Some(PATIENCE)).unwrap() > 0, "AF_PACKET sees nothing");
        assert_eq!(self.ring.receive(10, &mut |packet| seen = packet.ends_with(payload)).unwrap(), 1);
        seen
    }

    /// Returns true if ICMP errors came. Neighbour discovery does not count.
    fn icmp_error(&self) -> bool {
        self.icmp.set_nonblocking(true).unwrap();
        let mut bytes = [0; 2000];
        while let Ok((len, _)) = self.icmp.recv_from(&mut bytes) {
            // A raw IPv4 socket shows the IP header, an IPv6 one does not.
            let kind = if self.remote.is_ipv6() { bytes[0] } else { bytes[20] };
            let error = if self.remote.is_ipv6() { kind < 128 } else { matches!(kind, 3 | 4 | 5 | 11 | 12) };
            if len > 0 && error {
                return true;
            }
        }
        false
    }

    fn forwarded(&self, socket: &UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 100];
        let len = uninterrupted(|| socket.recv(&mut bytes)).expect("the kernel forwards it");
        bytes[..len].to_vec()
    }
}

#[test]
fn with_forwarding_only_unguarded_packets_cross() {
    for v6 in [false, true] {
        let mut way = Way::new(v6, true);
        way.send(b"before", ROCE_PORT);
        assert_eq!(way.forwarded(&way.roce), b"before", "without a guard it crosses");
        assert!(way.ring_sees(b"before"));

        let guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        way.send(b"guarded", ROCE_PORT);
        assert!(way.ring_sees(b"guarded"));
        // Sent by the same thread over the same wire: when it has arrived, the guarded one would
        // have too.
        way.send(b"other", ROCE_PORT + 1);
        assert_eq!(way.forwarded(&way.other), b"other", "other ports are left alone");
        assert!(nothing_there(&way.roce), "forwarded in spite of the guard");
        assert!(!way.icmp_error());

        guard.remove().unwrap();
        way.send(b"after", ROCE_PORT);
        assert_eq!(way.forwarded(&way.roce), b"after");
    }
}

#[test]
fn without_a_route_the_host_gets_no_icmp_error() {
    for v6 in [false, true] {
        let mut way = Way::new(v6, true);
        way.site.gateway.ip("link set w0 down");
        way.site.gateway.sysctl("net/ipv4/icmp_ratelimit", "0");
        way.site.gateway.sysctl("net/ipv6/icmp/ratelimit", "0");
        way.send(b"before", ROCE_PORT);
        assert!(way.ring_sees(b"before"));
        let came = PollFd::new(&way.icmp, PollFlags::IN);
        assert!(
            poll(&mut [came], Some(PATIENCE)).unwrap() > 0 && way.icmp_error(),
            "without a guard there is one"
        );

        let _guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        way.send(b"guarded", ROCE_PORT);
        assert!(way.ring_sees(b"guarded"));
        // An error would have come before this answer.
        let gateway = if v6 { "fd00::fe" } else { "10.0.0.254" };
        let probe = way.site.gateway.run(|| UdpSocket::bind((gateway, 7000))).unwrap();
        probe.set_read_timeout(Some(PATIENCE)).unwrap();
        way.near.send_to(b"probe", (gateway, 7000)).unwrap();
        let (_, from) = uninterrupted(|| probe.recv_from(&mut [0; 10])).unwrap();
        probe.send_to(b"answer", from).unwrap();
        uninterrupted(|| way.near.recv(&mut [0; 10])).unwrap();
        assert!(!way.icmp_error());
    }
}

#[test]
fn without_forwarding_it_is_seen_and_goes_nowhere() {
    for v6 in [false, true] {
        let mut way = Way::new(v6, false);
        for guarded in [false, true] {
            let _guard =
                guarded.then(|| way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap());
            way.send(b"packet", ROCE_PORT);
            assert!(way.ring_sees(b"packet"));
            assert!(nothing_there(&way.roce));
            assert!(!way.icmp_error());
        }
    }
}

#[test]
fn the_rules_are_those_documented_and_go_with_the_guard() {
    let ns = Ns::new();
    let expected = [
        "1:\tfrom all to 10.0.1.0/24 iif g0 ipproto udp dport 4791 blackhole proto 76",
        "1:\tfrom all to fd01::/64 iif g0 ipproto udp dport 4791 blackhole proto 76",
    ];
    let install = |prefixes: &[IpNet]| ns.run(|| Guard::install("g0", prefixes));
    let guard = install(&prefixes(&REMOTE)).unwrap();
    assert_eq!(rules(&ns), expected);
    drop(guard);
    assert!(rules(&ns).is_empty());
    let guard = install(&prefixes(&["10.0.1.5/24", "10.0.1.0/24", "0.0.0.0/0"])).unwrap();
    let list = rules(&ns);
    assert_eq!(list.len(), 3, "host bits are ignored, and a prefix twice is one: {list:#?}");
    assert!(list[1].contains("to 0.0.0.0/1 ") && list[2].contains("to 128.0.0.0/1 "));
    ns.ip("rule del pref 1");
    guard.remove().expect("that somebody else removed one is no error");
    assert!(rules(&ns).is_empty());
}

#[test]
fn stale_rules_are_replaced_and_those_of_others_stay() {
    let ns = Ns::new();
    let install =
        |interface: &str, text: &[&str]| ns.run(|| Guard::install(interface, &prefixes(text))).unwrap();
    // As a killed process leaves them.
    std::mem::forget(install("g0", &["10.0.1.0/24", "10.0.2.0/24", "fd02::/64"]));
    let other = install("g1", &["10.0.1.0/24"]);
    ns.ip("rule add pref 1 to 10.0.9.0/24 iif g0 ipproto udp dport 4791 blackhole protocol static");
    assert_eq!(rules(&ns).len(), 5);

    let guard = install("g0", &["10.0.2.0/24", "10.0.3.0/24"]);
    let left = rules(&ns);
    assert_eq!(left.len(), 4, "{left:#?}");
    for expected in ["10.0.2.0/24 iif g0", "10.0.3.0/24 iif g0", "10.0.1.0/24 iif g1", "10.0.9.0/24 iif g0"] {
        assert!(left.iter().any(|rule| rule.contains(expected)), "{expected} is not in {left:#?}");
    }
    guard.remove().unwrap();
    other.remove().unwrap();
    let left = rules(&ns);
    assert!(left.len() == 1 && left[0].contains("10.0.9.0/24"), "{left:#?}");
}

/// As in an upgrade to a file with other prefixes.
#[test]
fn rules_that_the_process_before_puts_back_do_not_stay() {
    let ns = Ns::new();
    let install = |text: &[&str]| Guard::install("g0", &prefixes(text)).unwrap();
    ns.run(|| {
        let mut before = install(&["10.0.1.0/24", "10.0.2.0/24"]);
        let mut after = install(&["10.0.2.0/24", "10.0.3.0/24"]);
        assert_eq!(before.restore().unwrap(), 1, "it works until another has taken over");
        before.share(true);
        drop(before);
        assert_eq!(rules(&ns).len(), 3);
        after.remove_stale().unwrap();
        assert_eq!(guarded("g0").unwrap(), prefixes(&["10.0.2.0/24", "10.0.3.0/24"]));
        assert_eq!(after.restore().unwrap(), 0);
        after.remove().unwrap();
    });
    assert_eq!(rules(&ns), [""; 0]);
}

/// As a second program on the interface, or systemd-networkd, would remove them.
#[test]
fn rules_that_somebody_removes_are_put_back() {
    let site = Site::new(1500);
    let ns = &site.gateway;
    ns.run(|| {
        let mut guard = Guard::install("g0", &prefixes(&REMOTE)).unwrap();
        let before = rules(ns);
        assert_eq!((before.len(), guard.restore().unwrap()), (2, 0));
        ns.ip("rule del pref 1");
        ns.ip("-6 rule del pref 1");
        assert_eq!((rules(ns).len(), guard.restore().unwrap()), (0, 2));
        assert_eq!((rules(ns), guard.restore().unwrap()), (before, 0));
        assert_eq!(guarded("g0").unwrap(), prefixes(&REMOTE));
        guard.remove().unwrap();
    });
    assert_eq!(rules(ns), [""; 0]);
}

#[test]
fn a_refusal_names_the_prefix_and_leaves_nothing() {
    let ns = Ns::new();
    let unusable = "an-interface-with-too-long-a-name";
    let error = ns.run(|| Guard::install(unusable, &prefixes(&REMOTE))).unwrap_err();
    assert!(
        matches!(error, GuardError::Install { prefix, .. } if prefix == prefixes(&REMOTE)[0]),
        "{error:?}"
    );
    assert!(rules(&ns).is_empty());
}

/// Packets around the seal do not reach the hosts by the kernel's forwarding, whatever interface
/// they come by.
#[test]
fn roce_in_a_remote_hosts_name_is_not_forwarded_to_the_hosts() {
    for v6 in [false, true] {
        let way = Way::new(v6, true);
        let any: IpAddr = if v6 { "::".parse().unwrap() } else { "0.0.0.0".parse().unwrap() };
        let bind = |port: u16| {
            let socket = way.site.host.run(|| UdpSocket::bind((any, port))).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (target, other) = (bind(ROCE_PORT), bind(ROCE_PORT + 1));
        let host: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
        way.far_routes_back(v6);
        let spoof = |payload: &[u8], port: u16| {
            way.other.send_to(payload, (host, port)).unwrap();
        };
        spoof(b"before", ROCE_PORT);
        assert_eq!(way.forwarded(&target), b"before", "without a guard it arrives");

        let guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        spoof(b"guarded", ROCE_PORT);
        spoof(b"other", ROCE_PORT + 1);
        assert_eq!(way.forwarded(&other), b"other", "other ports are left alone");
        assert!(nothing_there(&target), "forwarded in spite of the guard");

        guard.remove().unwrap();
        spoof(b"after", ROCE_PORT);
        assert_eq!(way.forwarded(&target), b"after");
    }
}

/// A fragment's port is seen by no routing rule.
#[test]
fn fragments_of_roce_do_not_leave_unsealed() {
    let long = vec![7; 4000];
    for v6 in [false, true] {
        let way = Way::new(v6, true);
        let arrives = |socket: &UdpSocket| {
            let mut bytes = vec![0; 5000];
            uninterrupted(|| socket.recv(&mut bytes)).expect("the kernel forwards it")
        };
        way.send(&long, ROCE_PORT);
        assert_eq!(arrives(&way.roce), long.len(), "without a guard it crosses");
        let (ip, prefix) = if v6 { ("-6 ", REMOTE[1]) } else { ("", REMOTE[0]) };
        let rule = format!("to {prefix} iif g0 ipproto udp dport 4791 blackhole");
        way.site.gateway.ip(&format!("{ip}rule add pref 1 {rule}"));
        way.send(&long, ROCE_PORT);
        assert_eq!(arrives(&way.roce), long.len(), "a rule does not see it");
        way.site.gateway.ip(&format!("{ip}rule del pref 1"));

        let guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        way.send(&long, ROCE_PORT);
        way.send(&long, ROCE_PORT + 1);
        assert_eq!(arrives(&way.other), long.len(), "other ports' fragments are left alone");
        assert!(nothing_there(&way.roce), "forwarded in spite of the guard");

        guard.remove().unwrap();
        way.send(&long, ROCE_PORT);
        assert_eq!(arrives(&way.roce), long.len());
    }
}

/// Whoever is behind another interface needs no remote host's name to be kept out.
#[test]
fn roce_by_other_interfaces_is_not_forwarded_to_the_hosts_whatever_its_source() {
    for v6 in [false, true] {
        let way = Way::new(v6, true);
        let any: IpAddr = if v6 { "::".parse().unwrap() } else { "0.0.0.0".parse().unwrap() };
        let host: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
        let stranger: IpAddr = if v6 { "2001:db8::7" } else { "192.0.2.7" }.parse().unwrap();
        let bind = |ns: &Ns, port: u16, address: IpAddr| {
            let socket = ns.run(|| UdpSocket::bind((address, port))).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        way.far_routes_back(v6);
        way.far.ip(&format!("addr add {stranger} dev w1{}", if v6 { " nodad" } else { "" }));
        let (roce, other) = (bind(&way.site.host, ROCE_PORT, any), bind(&way.site.host, ROCE_PORT + 1, any));
        let attacker = bind(&way.far, 7000, stranger);
        let send = |payload: &[u8], port: u16| {
            attacker.send_to(payload, (host, port)).unwrap();
        };
        send(b"before", ROCE_PORT);
        assert_eq!(way.forwarded(&roce), b"before", "without a guard it arrives");

        let guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        send(b"guarded", ROCE_PORT);
        send(&[7; 4000], ROCE_PORT);
        send(b"other", ROCE_PORT + 1);
        assert_eq!(way.forwarded(&other), b"other", "other ports are left alone");
        assert!(nothing_there(&roce), "forwarded in spite of the guard");
        guard.remove().unwrap();
        send(b"after", ROCE_PORT);
        assert_eq!(way.forwarded(&roce), b"after");
    }
}

/// All of a packet is kept from the link, not its first fragment alone.
#[test]
fn no_fragment_of_roce_leaves_unsealed() {
    for v6 in [false, true] {
        let way = Way::new(v6, true);
        let every = i32::from((libc::ETH_P_ALL as u16).to_be());
        let wire = way.far.run(|| {
            let wire =
                socket2::Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(every))).unwrap();
            wire.set_nonblocking(true).unwrap();
            UdpSocket::from(wire)
        });
        // Bytes of a payload that were seen on the wire by now.
        let seen = |mark: u8| {
            let (mut bytes, mut count) = ([0; 2000], 0);
            while let Ok(length) = wire.recv(&mut bytes) {
                count += bytes[..length].iter().filter(|byte| **byte == mark).count();
            }
            count
        };
        way.send(&[0xa5; 4000], ROCE_PORT);
        uninterrupted(|| way.roce.recv(&mut [0; 5000])).unwrap();
        assert!(seen(0xa5) >= 4000, "without a guard");
        let guard = way.site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE))).unwrap();
        for _ in 0..3 {
            way.send(&[0xa6; 4000], ROCE_PORT);
            way.send(&[0x5a; 4000], ROCE_PORT + 1);
            // Sent by the same thread over the same wire.
            let length = uninterrupted(|| way.other.recv(&mut [0; 5000])).unwrap();
            assert_eq!(length, 4000, "other ports' fragments are left alone");
        }
        assert!(seen(0xa6) < 40, "fragments left in spite of the guard");
        guard.remove().unwrap();
    }
}

/// A question for the gateway's address in this name, from this link-layer address.
fn question(v6: bool, number: u16, mac: [u8; 6]) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    if !v6 {
        let head = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac].concat();
        return [&head[..], &[11, 0, high, low], &[0; 6], &[10, 0, 0, 254]].concat();
    }
    let address = |head: u16, high: u8, last: u16| {
        let mut address = [0; 16];
        address[..2].copy_from_slice(&head.to_be_bytes());
        (address[11], address[12]) = (if head >= 0xff00 { 1 } else { 0 }, high);
        address[14..].copy_from_slice(&last.to_be_bytes());
        address
    };
    let (source, to, target) =
        (address(0xfd00, 0, 0x1000 + number), address(0xff02, 0xff, 0xfe), address(0xfd00, 0, 0xfe));
    let mut icmp = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target, &[1, 1], &mac].concat();
    let words = [&source[..], &to, &[0, 32, 0, 58], &icmp].concat();
    let sum: u32 = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    icmp[2..4].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let head = [&[0x33, 0x33, 0xff, 0, 0, 0xfe][..], &mac, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]];
    [&head.concat()[..], &source, &to, &icmp].concat()
}

/// In as many names as there may be neighbours, one would keep the kernel from finding any other.
#[test]
fn hosts_add_few_neighbours_whatever_they_ask() {
    const ASKED: u16 = 600;
    for v6 in [false, true] {
        let site = Site::new(1500);
        let guard = site.gateway.run(|| Guard::install("g0", &prefixes(&REMOTE)).unwrap());
        let host = Injector::new(&site);
        let known = |name: &str| {
            let list = site.gateway.ip(&format!("{} neigh show dev g0", if v6 { "-6" } else { "-4" }));
            list.lines().filter(|line| line.contains(name)).count()
        };
        let name = if v6 { "fd00::1" } else { "11.0." };
        for number in 0..ASKED {
            host.send_frame(&question(v6, number, HOST_MAC));
        }
        // 30 at once, and 10 a second.
        let added = known(name);
        assert!((1..ASKED as usize / 2).contains(&added), "{added} of {ASKED}");
        // Another host is heard of nevertheless.
        host.send_frame(&question(v6, 0xefe, [2, 0, 0, 0, 0, 7]));
        assert_eq!(known(if v6 { "fd00::1efe " } else { "11.0.14.254 " }), 1);
        // So many link-layer addresses have no more together than what is for all.
        for number in 0..ASKED {
            let [high, low] = number.to_be_bytes();
            host.send_frame(&question(v6, 0x800 + number, [2, 0, 0, 1, high, low]));
        }
        let added = known(name);
        assert!((100..=ASKED as usize).contains(&added), "{added} of {}", 2 * ASKED);
        guard.remove().unwrap();
        assert!(site.gateway.run(|| Neighbours::install("g0").is_ok()), "nothing is left");
    }
}
