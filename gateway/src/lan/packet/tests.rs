//! Against a real kernel, in network name spaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::lan::netns::{GATEWAY_MAC, HOST_MAC, Ns, Site};
use crate::lan::wake::{PollFd, PollFlags, poll};
use crate::lan::{MAX_PACKET, ROCE_PORT, inner};
use crate::steering::thread_of;

pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const KINDS: [Option<Duration>; 2] = [None, Some(Duration::from_millis(1))];
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const REMOTE6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);

fn open(ns: &Ns, interface: &str, ring: usize, retire: Option<Duration>) -> Packet {
    ns.run(|| Packet::open(&PacketConfig { ring, retire, ..PacketConfig::new(interface) })).unwrap()
}

/// A UDP socket of the host's.
pub(super) fn udp(site: &Site, local: IpAddr) -> UdpSocket {
    let socket = site.host.run(|| UdpSocket::bind(SocketAddr::new(local, 0))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(super) fn any(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Receives until `count` packets came.
pub(super) fn take(packet: &mut Packet, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while got.len() < count {
        let budget = count - got.len();
        if packet.receive(budget, &mut |bytes| got.push(bytes.to_vec())).unwrap() == 0 {
            let mut fds = [PollFd::from_borrowed_fd(packet.fd(), PollFlags::IN)];
            poll(&mut fds, Some(PATIENCE)).unwrap();
            assert!(Instant::now() < deadline, "{} of {count} came", got.len());
        }
    }
    got
}

/// Returns what follows the IP (without options) and UDP headers.
pub(super) fn payload(packet: &[u8]) -> &[u8] {
    &packet[if packet[0] >> 4 == 4 { 28 } else { 48 }..]
}

/// An IP packet with UDP for port 4791.
pub(super) fn datagram(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0];
            header[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => panic!("of one family"),
    };
    packet.extend(0xc000u16.to_be_bytes());
    packet.extend(ROCE_PORT.to_be_bytes());
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

pub(super) fn send(packet: &mut Packet, bytes: &[u8]) {
    packet.reserve().unwrap()[..bytes.len()].copy_from_slice(bytes);
    packet.commit(bytes.len());
}

/// Flushes until nothing waits for the way to its destination. Returns how many packets left.
pub(super) fn deliver(packet: &mut Packet) -> usize {
    let mut sent = packet.flush().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while let Some(ways) = packet.ways_fd() {
        poll(&mut [PollFd::from_borrowed_fd(ways, PollFlags::IN)], Some(PATIENCE)).unwrap();
        sent += packet.flush().unwrap();
        assert!(Instant::now() < deadline, "{:?}", packet.transmit_stats());
    }
    sent
}

/// Sends frames as they are from the host's interface.
pub(in crate::lan) struct Injector(Socket);

impl Injector {
    pub(in crate::lan) fn new(site: &Site) -> Self {
        Self(site.host.run(|| {
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0))).unwrap();
            ring::bind(socket.as_fd(), name_to_index(&socket, "v0").unwrap()).unwrap();
            socket
        }))
    }

    fn send(&self, to: [u8; 6], ether: &[u8], l3: &[u8]) {
        self.send_frame(&[&to[..], &HOST_MAC, ether, l3].concat());
    }

    pub(in crate::lan) fn send_frame(&self, frame: &[u8]) {
        assert_eq!(self.0.send(frame).unwrap(), frame.len());
    }
}

#[test]
fn frames_are_seen_once_and_whole() {
    for retire in KINDS {
        let site = Site::new(4400);
        let mut gateway = open(&site.gateway, "g0", 1 << 20, retire);
        for v6 in [false, true] {
            let socket = udp(&site, any(v6));
            let remote: IpAddr = if v6 { REMOTE6.into() } else { REMOTE.into() };
            let payloads: Vec<Vec<u8>> =
                [0, 1, 12, 1024, 4096, 4333].iter().map(|&len| (0..len).map(|i| i as u8).collect()).collect();
            for payload in &payloads {
                socket.send_to(b"another port", (remote, ROCE_PORT + 1)).unwrap();
                socket.send_to(payload, (remote, ROCE_PORT)).unwrap();
            }
            let got = take(&mut gateway, payloads.len());
            for (packet, expected) in got.iter().zip(&payloads) {
                assert_eq!(payload(packet), expected);
                assert_eq!(inner(packet).unwrap().destination(), remote);
                let local: IpAddr = if v6 { "fd00::1".parse().unwrap() } else { "10.0.0.1".parse().unwrap() };
                assert_eq!(inner(packet).unwrap().source(), local);
            }
        }
        assert_eq!(gateway.receive(100, &mut |_| panic!("one too many")).unwrap(), 0);
        assert_eq!(gateway.ring_stats().received, 12);
    }
}

/// Each thread's socket gets what its hosts say, and all of them together everything once.
#[test]
fn threads_get_their_parts() {
    let site = Site::new(4400);
    for threads in [2, 3] {
        let open =
            |part| site.gateway.run(|| Packet::open(&PacketConfig { part, ..PacketConfig::new("g0") }));
        let mut sockets: Vec<_> = Part::all(threads).map(|part| open(part).unwrap()).collect();
        let mut expected = vec![Vec::new(); usize::from(threads)];
        let local: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let hosts = [udp(&site, any(false)), udp(&site, any(true))];
        for last in 1..=40u8 {
            let remotes: [IpAddr; 2] = [
                Ipv4Addr::new(10, 0, 1, last).into(),
                Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, last.into()).into(),
            ];
            for (v6, ((host, local), remote)) in hosts.iter().zip(local).zip(remotes).enumerate() {
                let payload = vec![v6 as u8, last];
                host.send_to(&payload, (remote, ROCE_PORT)).unwrap();
                expected[usize::from(thread_of(remote, local, threads))].push(payload);
            }
        }
        for (socket, expected) in sockets.iter_mut().zip(&expected) {
            assert!(!expected.is_empty());
            let got: Vec<Vec<u8>> =
                take(socket, expected.len()).iter().map(|packet| payload(packet).to_vec()).collect();
            assert_eq!(got, *expected);
        }
        for socket in &mut sockets {
            assert_eq!(socket.receive(100, &mut |_| panic!("another thread's")).unwrap(), 0);
        }
    }
}

#[test]
fn what_is_sent_arrives_as_written_and_is_not_received_back() {
    let site = Site::new(4400);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    // AF_PACKET at the host too: it shows the header, and a UDP checksum of zero is no matter.
    let mut host = open(&site.host, "v0", 1 << 20, None);
    for round in 0..3u8 {
        // The remote host's own address as the source, which is not an address of the gateway's.
        let v4 =
            datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), &vec![round; 4000 + usize::from(round)]);
        let v6 = datagram(REMOTE6.into(), "fd00::1".parse().unwrap(), &[round; 13]);
        send(&mut gateway, &v4);
        send(&mut gateway, &v6);
        assert_eq!(gateway.backlog(), 2);
        assert_eq!(deliver(&mut gateway), 2);
        let got = take(&mut host, 2);
        let (mut first, second) =
            if got[0][0] >> 4 == 4 { (got[0].clone(), &got[1]) } else { (got[1].clone(), &got[0]) };
        assert_ne!(first[10..12], [0, 0], "the kernel fills in the checksum");
        first[10..12].fill(0);
        assert!(first == v4);
        assert!(*second == v6);
    }
    // The next packet the gateway sees is not one of those.
    udp(&site, any(false)).send_to(b"sentinel", (REMOTE, ROCE_PORT)).unwrap();
    assert_eq!(payload(&take(&mut gateway, 1)[0]), b"sentinel");
    assert_eq!(gateway.transmit_stats().sent, 6);
}

/// Sends to the host until packets go straight to it.
fn until_direct(gateway: &mut Packet, packet: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    let before = gateway.transmit_stats().direct;
    while gateway.transmit_stats().direct == before {
        assert!(Instant::now() < deadline, "{:?}", gateway.transmit_stats());
        send(gateway, packet);
        assert_eq!(deliver(gateway), 1);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Packets that go past the routing table are the same as those that went through it, and in order.
#[test]
fn packets_go_straight_to_hosts_that_the_kernel_knows() {
    let site = Site::new(4400);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let mut host = open(&site.host, "v0", 1 << 22, None);
    for (remote, local) in [(REMOTE.into(), "10.0.0.1"), (REMOTE6.into(), "fd00::1")] {
        let packet = |payload: &[u8]| datagram(remote, local.parse::<IpAddr>().unwrap(), payload);
        send(&mut gateway, &packet(&[7; 4333]));
        assert_eq!(deliver(&mut gateway), 1);
        let expected = take(&mut host, 1).remove(0);
        until_direct(&mut gateway, &packet(&[7; 4333]));
        let deadline = Instant::now() + PATIENCE;
        let mut received = 0;
        let sent = gateway.transmit_stats().sent - host.ring_stats().received;
        while received < sent {
            assert!(Instant::now() < deadline);
            received += host.receive(100, &mut |packet| assert!(packet == expected)).unwrap() as u64;
        }
        let direct = gateway.transmit_stats().direct;
        for number in 0..20 {
            send(&mut gateway, &packet(&[number; 9]));
        }
        assert_eq!(gateway.flush().unwrap(), 20);
        assert_eq!(gateway.transmit_stats().direct, direct + 20);
        let got = take(&mut host, 20);
        assert!(got.iter().zip(0..).all(|(packet, number)| payload(packet) == [number; 9]));
    }
    site.gateway.ip("link set g0 mtu 1500");
    let packet = |length| datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), &vec![1; length]);
    send(&mut gateway, &packet(1473));
    send(&mut gateway, &packet(1472));
    assert_eq!(gateway.flush().unwrap(), 1);
    assert_eq!(gateway.transmit_stats().too_big, 1);
    assert_eq!(gateway.ring_stats().received, 0);
}

#[test]
fn a_neighbour_that_moves_or_is_doubted_is_found_again() {
    let site = Site::new(1500);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let packet = datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), b"where to");
    until_direct(&mut gateway, &packet);
    let neighbour = || site.gateway.ip("neigh show 10.0.0.1 dev g0");
    // Doubted: the kernel sees packets, looks, and the host answers.
    site.gateway.ip("neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 nud stale dev g0");
    let deadline = Instant::now() + PATIENCE;
    while neighbour().contains("STALE") {
        assert!(Instant::now() < deadline, "{}", neighbour());
        send(&mut gateway, &packet);
        deliver(&mut gateway);
        thread::sleep(Duration::from_millis(1));
    }
    until_direct(&mut gateway, &packet);
    // Moved: packets follow, and back again.
    for (mac, heard) in [("02:00:00:00:00:05", false), ("02:00:00:00:00:01", true)] {
        site.gateway.ip(&format!("neigh replace 10.0.0.1 lladdr {mac} nud permanent dev g0"));
        let mut host = open(&site.host, "v0", 1 << 20, None);
        let deadline = Instant::now() + PATIENCE;
        let mut is_heard = !heard;
        while is_heard != heard {
            assert!(Instant::now() < deadline, "{mac}");
            let direct = gateway.transmit_stats().direct;
            while host.receive(100, &mut |_| ()).unwrap() > 0 {}
            for _ in 0..8 {
                send(&mut gateway, &packet);
            }
            gateway.flush().unwrap();
            let is_direct = gateway.transmit_stats().direct > direct;
            thread::sleep(Duration::from_millis(5));
            if is_direct {
                is_heard = host.receive(100, &mut |_| ()).unwrap() > 0;
            }
        }
    }
}

#[test]
fn the_filter_knows_fragments_tags_and_strangers() {
    let site = Site::new(9000);
    // Promiscuous, as when somebody runs tcpdump.
    site.gateway.ip("link set g0 promisc on");
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let injector = Injector::new(&site);
    let (host, host6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
    let v4 = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = datagram(host, REMOTE.into(), b"payload");
        edit(&mut packet);
        packet
    };
    // With the eight bytes of a fragment header.
    let v6_fragment = |offset: u16, next: u8| {
        let mut packet = datagram(host6, REMOTE6.into(), b"payload");
        packet[6] = 44;
        packet.splice(40..40, [next, 0, (offset >> 8) as u8, offset as u8, 0, 0, 0, 1]);
        packet
    };
    let options = v4(&|packet| {
        packet[0] = 0x46;
        packet.splice(20..20, [1, 1, 1, 0]);
    });
    let (ip, ip6) = ([0x08, 0x00], [0x86, 0xdd]);
    let priority = [0x81, 0x00, 0x60, 0x00, 0x08, 0x00];
    let tagged = [0x81, 0x00, 0x60, 0x05, 0x08, 0x00];
    let stacked = [0x88, 0xa8, 0x00, 0x00, 0x81, 0x00, 0x00, 0x05, 0x08, 0x00];
    let stranger = [2, 0, 0, 0, 0, 9];
    type Case<'a> = (&'a str, bool, [u8; 6], &'a [u8], Vec<u8>);
    // With an extension header of so many times eight bytes.
    let v6_extension = |kind: u8, next: u8, eights: u8| {
        let mut packet = datagram(host6, REMOTE6.into(), b"payload");
        packet[6] = kind;
        let mut header = vec![0; 8 * usize::from(eights)];
        (header[0], header[1]) = (next, eights - 1);
        packet.splice(40..40, header);
        packet
    };
    // A GRH, which is laid out as an IPv6 header.
    let mut grh = datagram(host6, REMOTE6.into(), b"payload");
    grh[6] = 0x1b;
    let cases: [Case<'_>; 23] = [
        ("RoCE v1", true, GATEWAY_MAC, &[0x89, 0x15], grh.clone()),
        ("RoCE v1 for another", false, stranger, &[0x89, 0x15], grh),
        ("hop-by-hop options", true, GATEWAY_MAC, &ip6, v6_extension(0, 17, 1)),
        ("routing header", true, GATEWAY_MAC, &ip6, v6_extension(43, 17, 3)),
        ("destination options", true, GATEWAY_MAC, &ip6, v6_extension(60, 17, 2)),
        ("options before TCP", false, GATEWAY_MAC, &ip6, v6_extension(60, 6, 2)),
        ("another Ethertype", false, GATEWAY_MAC, &[0x89, 0x16], v4(&|_| {})),
        ("plain", true, GATEWAY_MAC, &ip, v4(&|_| {})),
        ("first fragment", true, GATEWAY_MAC, &ip, v4(&|packet| packet[6] = 0x20)),
        ("later fragment", false, GATEWAY_MAC, &ip, v4(&|packet| packet[6..8].copy_from_slice(&[0x20, 1]))),
        ("last fragment", false, GATEWAY_MAC, &ip, v4(&|packet| packet[6..8].copy_from_slice(&[0, 64]))),
        ("options", true, GATEWAY_MAC, &ip, options),
        ("TCP", false, GATEWAY_MAC, &ip, v4(&|packet| packet[9] = 6)),
        ("another port", false, GATEWAY_MAC, &ip, v4(&|packet| packet[23] ^= 1)),
        ("priority tag", true, GATEWAY_MAC, &priority, v4(&|_| {})),
        ("another VLAN", false, GATEWAY_MAC, &tagged, v4(&|_| {})),
        ("two tags", false, GATEWAY_MAC, &stacked, v4(&|_| {})),
        ("for another", false, stranger, &ip, v4(&|_| {})),
        ("broadcast", false, [0xff; 6], &ip, v4(&|_| {})),
        ("first fragment, IPv6", true, GATEWAY_MAC, &ip6, v6_fragment(1, 17)),
        ("later fragment, IPv6", false, GATEWAY_MAC, &ip6, v6_fragment(0x201, 17)),
        ("first fragment of TCP, IPv6", false, GATEWAY_MAC, &ip6, v6_fragment(1, 6)),
        ("cut short", false, GATEWAY_MAC, &ip, v4(&|packet| packet.truncate(22))),
    ];
    let sentinel = v4(&|packet| packet[4..6].fill(0x77));
    for (name, expected, to, ether, packet) in cases {
        injector.send(to, ether, &packet);
        injector.send(GATEWAY_MAC, &ip, &sentinel);
        let first = take(&mut gateway, 1).remove(0);
        if expected {
            assert!(first == packet, "{name} is not seen as it was sent");
            assert!(take(&mut gateway, 1)[0] == sentinel, "{name} is seen twice");
        } else {
            assert!(first == sentinel, "{name} is seen");
        }
    }
    let long = |payload: usize| datagram(host, REMOTE.into(), &vec![1; payload]);
    injector.send(GATEWAY_MAC, &ip, &long(8000));
    injector.send(GATEWAY_MAC, &ip, &long(MAX_PACKET - 28));
    assert_eq!(take(&mut gateway, 1)[0].len(), MAX_PACKET);
    assert_eq!(gateway.ring_stats().truncated, 1);
}

#[test]
fn a_hundred_thousand_frames_keep_their_order_around_the_ring() {
    const FRAMES: usize = 50_000;
    // Fewer than any ring holds, or the kernel's own queue between the two ends of the pair.
    const WINDOW: usize = 150;
    for retire in KINDS {
        let site = Site::new(1500);
        let mut gateway = open(&site.gateway, "g0", 1 << 20, retire);
        let socket = udp(&site, any(false));
        let done = AtomicUsize::new(0);
        let mut next = 0usize;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut payload = [0; 1400];
                for number in 0..FRAMES {
                    while number >= done.load(Ordering::Relaxed) + WINDOW {
                        thread::yield_now();
                    }
                    payload[..8].copy_from_slice(&number.to_be_bytes());
                    let len = 8 + number * 37 % 1392;
                    socket.send_to(&payload[..len], (REMOTE, ROCE_PORT)).unwrap();
                }
            });
            let deadline = Instant::now() + 4 * PATIENCE;
            while next < FRAMES && Instant::now() < deadline {
                let taken = gateway.receive(64, &mut |packet| {
                    let payload = payload(packet);
                    assert_eq!(payload[..8], next.to_be_bytes());
                    assert_eq!(payload.len(), 8 + next * 37 % 1392);
                    next += 1;
                    done.store(next, Ordering::Relaxed);
                });
                if taken.unwrap() == 0 {
                    poll(&mut [PollFd::from_borrowed_fd(gateway.fd(), PollFlags::IN)], Some(PATIENCE))
                        .unwrap();
                }
            }
            // Lets the sender finish, whatever happened.
            done.store(FRAMES, Ordering::Relaxed);
        });
        gateway.check().unwrap();
        assert_eq!((next, gateway.ring_stats().dropped, gateway.ring_stats().truncated), (FRAMES, 0, 0));
    }
}

#[test]
fn a_full_ring_drops_and_counts() {
    const FRAMES: u64 = 700;
    for retire in KINDS {
        let site = Site::new(1500);
        let mut gateway = open(&site.gateway, "g0", 0, retire);
        let socket = udp(&site, any(false));
        let mut payload = [0; 1400];
        for number in 0..FRAMES {
            payload[..8].copy_from_slice(&number.to_be_bytes());
            socket.send_to(&payload, (REMOTE, ROCE_PORT)).unwrap();
        }
        let mut last = None;
        let deadline = Instant::now() + PATIENCE;
        // As the data plane does about every second.
        while gateway.ring_stats().received + gateway.ring_stats().dropped < FRAMES {
            assert!(Instant::now() < deadline, "{:?}", gateway.ring_stats());
            let mut check = |packet: &[u8]| {
                let number = Some(u64::from_be_bytes(packet[28..36].try_into().unwrap()));
                assert!(number > last);
                last = number;
            };
            gateway.receive(1000, &mut check).unwrap();
            gateway.check().unwrap();
        }
        let stats = gateway.ring_stats();
        // How many fit is the kernel's: blocks also retire half full, by time.
        assert!(stats.dropped > 0 && stats.received > 0, "{stats:?}");
        assert_eq!(stats.received + stats.dropped, FRAMES);
        let mut snapshot = crate::telemetry::Snapshot::default();
        let dropped = stats.dropped;
        snapshot.set_lan(&crate::lan::Lan::Packet(gateway));
        assert_eq!(snapshot.lan_ring_dropped, dropped);
    }
}

#[test]
fn the_budget_ends_a_batch_and_the_rest_follows() {
    for retire in KINDS {
        let site = Site::new(1500);
        let mut gateway = open(&site.gateway, "g0", 1 << 20, retire);
        let socket = udp(&site, any(false));
        for number in 0..100 {
            socket.send_to(&[number], (REMOTE, ROCE_PORT)).unwrap();
        }
        let mut got = take(&mut gateway, 1);
        got.extend(take(&mut gateway, 30));
        got.extend(take(&mut gateway, 69));
        assert!(got.iter().enumerate().all(|(number, packet)| payload(packet) == [number as u8]));
    }
}

#[test]
fn refused_packets_are_counted_and_hold_nothing_up() {
    let site = Site::new(1500);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let mut host = open(&site.host, "v0", 1 << 20, None);
    let to = |destination: &str, len: usize| {
        datagram(REMOTE.into(), destination.parse().unwrap(), &vec![len as u8; len])
    };
    // Of packets whose way is not known, only the first few are kept.
    send(&mut gateway, &to("10.0.0.1", 99));
    assert_eq!(deliver(&mut gateway), 1);
    send(&mut gateway, &to("10.0.0.1", 100));
    send(&mut gateway, &to("10.0.0.1", 2000));
    send(&mut gateway, &to("10.0.0.1", 101));
    send(&mut gateway, &datagram(REMOTE6.into(), "2001:db8::1".parse().unwrap(), b"no route"));
    send(&mut gateway, &to("10.0.0.1", 103));
    send(&mut gateway, b"no IP packet");
    send(&mut gateway, &[]);
    send(&mut gateway, &to("10.0.0.1", 104));
    assert_eq!(deliver(&mut gateway), 4);
    let got: Vec<_> = take(&mut host, 5).iter().map(|packet| payload(packet).len()).collect();
    assert_eq!(got, [99, 100, 101, 103, 104]);
    let expected = TransmitStats {
        sent: 5,
        sent_bytes: 5 * 28 + 507,
        direct: 5,
        too_big: 1,
        unreachable: 1,
        not_ip: 2,
        ..TransmitStats::default()
    };
    assert_eq!(*gateway.transmit_stats(), expected);
    assert!(gateway.blocked_fd().is_none());
}

#[test]
fn the_transmit_queue_is_bounded_and_keeps_its_order() {
    let site = Site::new(1500);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let mut host = open(&site.host, "v0", 1 << 22, None);
    let packet = |number: u32| datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), &number.to_be_bytes());
    send(&mut gateway, &packet(u32::MAX));
    assert_eq!(deliver(&mut gateway), 1);
    take(&mut host, 1);
    let mut committed = 0;
    while let Some(slot) = gateway.reserve() {
        let packet = packet(committed);
        slot[..packet.len()].copy_from_slice(&packet);
        gateway.commit(packet.len());
        committed += 1;
    }
    assert_eq!((committed, gateway.backlog()), (1024, 1024));
    assert!(gateway.blocked_fd().is_some());
    assert_eq!(gateway.flush().unwrap(), 1024);
    // The queue between the two ends is shorter, so some may be lost on the way; none is out of
    // order.
    let mut numbers = Vec::new();
    while numbers.last() != Some(&u32::MAX) {
        send(&mut gateway, &packet(u32::MAX));
        gateway.flush().unwrap();
        let mut collect =
            |packet: &[u8]| numbers.push(u32::from_be_bytes(payload(packet).try_into().unwrap()));
        host.receive(2048, &mut collect).unwrap();
    }
    numbers.retain(|&number| number != u32::MAX);
    assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.len() >= 32, "{numbers:?}");
}

/// One who sends to addresses where nobody is takes nothing from those whose hosts are known, and
/// hosts that are there are found beside it.
#[test]
fn absent_hosts_hold_up_nobody_elses_packets() {
    const ROUNDS: u32 = 200;
    let site = Site::new(1500);
    site.host.ip("addr add 10.0.0.2/24 dev v0");
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let mut host = open(&site.host, "v0", 1 << 22, None);
    let known = |number: u32| datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), &number.to_be_bytes());
    until_direct(&mut gateway, &known(u32::MAX));
    let attacker6: IpAddr = "fd01::9".parse().unwrap();
    let (attacker, third) = (Ipv4Addr::new(10, 0, 1, 9), Ipv4Addr::new(10, 0, 1, 3));
    let mut heard = (Vec::new(), 0);
    let listen = |heard: &mut (Vec<u32>, u32), host: &mut Packet| {
        host.receive(2048, &mut |packet| match payload(packet).try_into().map(u32::from_be_bytes) {
            Ok(u32::MAX) => {}
            Ok(number) => heard.0.push(number),
            Err(_) => heard.1 += 1,
        })
        .unwrap();
    };
    for number in 0..ROUNDS {
        send(&mut gateway, &known(number));
        for nth in 0..100 {
            let last = 100 + (number * 100 + nth) % 150;
            let absent = match nth % 2 {
                0 => datagram(attacker.into(), Ipv4Addr::new(10, 0, 0, last as u8).into(), &[0; 1000]),
                _ => datagram(
                    attacker6,
                    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last as u16).into(),
                    &[0; 1000],
                ),
            };
            send(&mut gateway, &absent);
        }
        // As many as wait for an answer, however long that takes.
        if number % 50 == 0 {
            send(&mut gateway, &datagram(third.into(), Ipv4Addr::new(10, 0, 0, 2).into(), b"third"));
        }
        gateway.flush().unwrap();
        assert!(gateway.blocked_fd().is_none(), "{:?}", gateway.transmit_stats());
        listen(&mut heard, &mut host);
    }
    let in_doubt = site.gateway.ip("neigh show dev g0").matches("INCOMPLETE").count();
    assert!((1..=150).contains(&in_doubt), "{in_doubt}");
    deliver(&mut gateway);
    let deadline = Instant::now() + PATIENCE;
    while heard.0.len() < ROUNDS as usize || heard.1 < 4 {
        assert!(Instant::now() < deadline, "{} {}: {:?}", heard.0.len(), heard.1, gateway.transmit_stats());
        listen(&mut heard, &mut host);
    }
    assert!(heard.0.into_iter().eq(0..ROUNDS));
    let stats = gateway.transmit_stats();
    assert_eq!(stats.no_neighbour + stats.wait_full, u64::from(100 * ROUNDS), "{stats:?}");
    assert!(stats.no_neighbour > 0 && stats.blocked + stats.no_room == 0, "{stats:?}");
}

#[test]
fn an_interface_that_returns_is_taken_up_again() {
    let site = Site::new(1500);
    let mut gateway = open(&site.gateway, "g0", 1 << 20, None);
    let error = |result: io::Result<usize>| Errno::from_io_error(&result.unwrap_err()).unwrap();
    let works = |gateway: &mut Packet| {
        udp(&site, any(false)).send_to(b"in", (REMOTE, ROCE_PORT)).unwrap();
        assert_eq!(payload(&take(gateway, 1)[0]), b"in");
        let mut host = open(&site.host, "v0", 1 << 20, None);
        send(gateway, &datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), b"out"));
        assert_eq!(deliver(gateway), 1);
        assert_eq!(payload(&take(&mut host, 1)[0]), b"out");
    };
    assert_eq!(gateway.check().unwrap(), Link::Up);
    works(&mut gateway);

    site.gateway.ip("link set g0 down");
    assert_eq!(error(gateway.receive(10, &mut |_| ())), Errno::NETDOWN);
    assert_eq!(gateway.receive(10, &mut |_| ()).unwrap(), 0, "said once");
    assert_eq!(gateway.check().unwrap(), Link::Down);
    site.gateway.ip("link set g0 up");
    // The kernel says a while later that there is a carrier.
    site.settle();
    assert_eq!(gateway.check().unwrap(), Link::Up);
    works(&mut gateway);

    site.gateway.ip("link del g0");
    assert_eq!(error(gateway.receive(10, &mut |_| ())), Errno::NETDOWN);
    assert_eq!(gateway.check().unwrap(), Link::Gone);
    send(&mut gateway, &datagram(REMOTE.into(), "10.0.0.1".parse().unwrap(), b"lost"));
    let deadline = Instant::now() + PATIENCE;
    let lost = loop {
        match gateway.flush() {
            Ok(_) => assert!(Instant::now() < deadline, "{:?}", gateway.transmit_stats()),
            Err(lost) => break Err(lost),
        }
    };
    assert_eq!(error(lost), Errno::NODEV);
    assert_eq!((gateway.transmit_stats().link_down, gateway.backlog()), (1, 0));

    site.connect(1500);
    assert_eq!(gateway.check().unwrap(), Link::Up);
    works(&mut gateway);
}

#[test]
fn the_longest_packet_follows_the_interface() {
    let site = Site::new(1500);
    let open = |mtu| {
        let config = PacketConfig { mtu, ring: 1 << 20, ..PacketConfig::new("g0") };
        site.gateway.run(|| Packet::open(&config)).unwrap()
    };
    let packets = [open(1400), open(usize::MAX)];
    let longest = || packets.each_ref().map(|packet| packet.mtu().unwrap());
    assert_eq!(longest(), [1400, 1500]);
    site.gateway.ip("link set g0 mtu 1300");
    assert_eq!(longest(), [1300, 1300]);
    site.gateway.ip("link set g0 mtu 9000");
    assert_eq!(longest(), [1400, MAX_PACKET]);
    site.gateway.ip("link del g0");
    assert_eq!(Errno::from_io_error(&packets[0].mtu().unwrap_err()), Some(Errno::NODEV));
    site.connect(1480);
    assert_eq!(longest(), [1400, 1480]);
}

#[test]
fn an_interface_that_is_not_there_is_an_error() {
    let error = Ns::new().run(|| Packet::open(&PacketConfig::new("g0"))).err().unwrap();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NODEV));
}
