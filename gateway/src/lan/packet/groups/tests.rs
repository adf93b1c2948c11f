//! Against a real kernel, in network name spaces.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lan::netns::{GATEWAY_MAC, Site};
use crate::lan::packet::tests::{PATIENCE, any, datagram, deliver, payload, send, take, udp};
use crate::lan::packet::{Packet, PacketConfig, ring};
use crate::lan::{Link, ROCE_PORT, inner};
use crate::steering::{Part, thread_of};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 7);
/// As RFC 1112 and RFC 2464 make them of the groups.
const MAC: [u8; 6] = [1, 0, 0x5e, 1, 1, 1];
const MAC6: [u8; 6] = [0x33, 0x33, 0, 0, 0, 7];

/// As many of each family as there may be of both, the last of which are those above.
fn many() -> Vec<IpAddr> {
    let mut groups = Vec::new();
    for number in (1..64).rev() {
        groups.push(Ipv4Addr::new(239, 1, number, 1).into());
        groups.push(Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, number.into(), 7).into());
    }
    groups.extend([IpAddr::from(GROUP), GROUP6.into()]);
    groups
}

fn open(site: &Site, part: Part, groups: &[IpAddr]) -> Packet {
    let config = PacketConfig { ring: 1 << 20, part, groups: groups.to_vec(), ..PacketConfig::new("g0") };
    site.gateway.run(|| Packet::open(&config)).unwrap()
}

/// From the host, as a program of its own would.
fn speak(site: &Site, group: IpAddr, what: &[u8]) {
    udp(site, any(group.is_ipv6())).send_to(what, (group, ROCE_PORT)).unwrap();
}

/// Returns true if the kernel, and so the network, counts the gateway among the members.
fn is_member(site: &Site, group: IpAddr) -> bool {
    site.gateway.ip("maddr show dev g0").split_whitespace().any(|word| word == group.to_string())
}

#[test]
fn a_group_s_packets_are_seen_and_no_other_group_s() {
    let site = Site::new(4400);
    for groups in [vec![GROUP.into(), GROUP6.into()], many()] {
        let mut gateway = open(&site, Part::WHOLE, &groups);
        assert!(is_member(&site, GROUP.into()) && is_member(&site, GROUP6.into()));
        let others = [
            IpAddr::from(Ipv4Addr::new(239, 1, 1, 2)),
            // Of the same link-layer address.
            Ipv4Addr::new(238, 1, 1, 1).into(),
            Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 7).into(),
        ];
        for group in others {
            speak(&site, group, b"for others");
        }
        for group in [IpAddr::from(GROUP), GROUP6.into()] {
            speak(&site, group, b"for us");
            let packet = take(&mut gateway, 1).remove(0);
            assert_eq!((payload(&packet), inner(&packet).unwrap().destination()), (&b"for us"[..], group));
        }
        // What is for the gateway's own address is seen as ever.
        udp(&site, any(false)).send_to(b"sentinel", (Ipv4Addr::new(10, 0, 1, 1), ROCE_PORT)).unwrap();
        assert_eq!(payload(&take(&mut gateway, 1)[0]), b"sentinel");
        assert_eq!(gateway.receive(100, &mut |_| panic!("one too many")).unwrap(), 0);
    }
    // A program that another test starts has the descriptor until it is loaded.
    let is_left = || !is_member(&site, GROUP.into()) && !is_member(&site, GROUP6.into());
    for _ in 0..250 {
        if is_left() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not closed with the socket");
}

#[test]
fn without_groups_none_is_seen() {
    let site = Site::new(1500);
    let mut gateway = open(&site, Part::WHOLE, &[]);
    speak(&site, GROUP.into(), b"for others");
    speak(&site, GROUP6.into(), b"for others");
    udp(&site, any(false)).send_to(b"sentinel", (Ipv4Addr::new(10, 0, 1, 1), ROCE_PORT)).unwrap();
    assert_eq!(payload(&take(&mut gateway, 1)[0]), b"sentinel");
}

/// Frames as they leave the gateway, at the host's interface.
fn sniffer(site: &Site) -> Socket {
    site.host.run(|| {
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0))).unwrap();
        ring::bind(socket.as_fd(), name_to_index(&socket, "v0").unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    })
}

/// A program of the gateway machine's own that is a member.
fn member(site: &Site, group: IpAddr) -> UdpSocket {
    site.gateway.run(|| {
        let address = SocketAddr::from((any(group.is_ipv6()), ROCE_PORT));
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None).unwrap();
        if group.is_ipv6() {
            // A process that another test has just forked may still hold the member before, of the
            // other family.
            socket.set_only_v6(true).unwrap();
        }
        socket.bind(&address.into()).unwrap();
        let socket = UdpSocket::from(socket);
        let index = name_to_index(&socket, "g0").unwrap();
        match group {
            IpAddr::V4(group) => socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 0, 0, 254)),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, index),
        }
        .unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    })
}

#[test]
fn what_is_sent_to_a_group_has_its_link_layer_address_and_does_not_come_back() {
    let site = Site::new(4400);
    let ways: [(IpAddr, IpAddr, [u8; 6], [u8; 2]); 2] = [
        ("10.0.1.1".parse().unwrap(), GROUP.into(), MAC, [8, 0]),
        ("fd01::1".parse().unwrap(), GROUP6.into(), MAC6, [0x86, 0xdd]),
    ];
    let mut gateway = open(&site, Part::WHOLE, &[GROUP.into(), GROUP6.into()]);
    let mut wire = sniffer(&site);
    for (source, group, mac, ether) in ways {
        let here = member(&site, group);
        let sent = datagram(source, group, b"from the other site");
        send(&mut gateway, &sent);
        assert_eq!(deliver(&mut gateway), 1);
        let mut frame = [0; 200];
        let frame = loop {
            let len = wire.read(&mut frame).unwrap();
            // IGMP and MLD pass, too.
            if frame[..len].ends_with(b"from the other site") {
                break &mut frame[..len];
            }
        };
        assert_eq!((&frame[..6], &frame[6..12], &frame[12..14]), (&mac[..], &GATEWAY_MAC[..], &ether[..]));
        if group.is_ipv4() {
            // The kernel fills in the checksum.
            frame[24..26].fill(0);
        }
        assert!(frame[14..] == sent, "as it was written");
        assert_eq!(here.recv(&mut [0; 200]).unwrap_err().kind(), ErrorKind::WouldBlock, "{group}");
    }
    // The next packet that the gateway sees is not one of those.
    speak(&site, GROUP.into(), b"sentinel");
    assert_eq!(payload(&take(&mut gateway, 1)[0]), b"sentinel");
}

#[test]
fn each_packet_is_one_thread_s() {
    let site = Site::new(1500);
    for threads in [2, 3] {
        let groups = many();
        let mut sockets: Vec<_> = Part::all(threads).map(|part| open(&site, part, &groups)).collect();
        let mut expected = vec![Vec::new(); usize::from(threads)];
        for (number, group) in groups.iter().enumerate() {
            let source: IpAddr = if group.is_ipv4() { "10.0.0.1" } else { "fd00::1" }.parse().unwrap();
            speak(&site, *group, &[number as u8]);
            expected[usize::from(thread_of(source, *group, threads))].push(vec![number as u8]);
        }
        for (socket, expected) in sockets.iter_mut().zip(&expected) {
            assert!(!expected.is_empty());
            let got: Vec<_> =
                take(socket, expected.len()).iter().map(|packet| payload(packet).to_vec()).collect();
            assert_eq!(got, *expected);
        }
        for socket in &mut sockets {
            assert_eq!(socket.receive(100, &mut |_| panic!("another thread's")).unwrap(), 0);
        }
    }
}

#[test]
fn groups_are_joined_again_on_an_interface_that_returns() {
    let site = Site::new(1500);
    let mut gateway = open(&site, Part::WHOLE, &[GROUP.into(), GROUP6.into()]);
    // More often than IPv4 lets one socket be a member.
    for _ in 0..25 {
        site.gateway.ip("link del g0");
        assert_eq!(gateway.check().unwrap(), Link::Gone);
        let _ = gateway.receive(10, &mut |_| ());
        site.connect(1500);
        assert!(!is_member(&site, GROUP.into()));
        assert_eq!(gateway.check().unwrap(), Link::Up);
    }
    for group in [IpAddr::from(GROUP), GROUP6.into()] {
        assert!(is_member(&site, group), "{group}");
        speak(&site, group, b"again");
        assert_eq!(payload(&take(&mut gateway, 1)[0]), b"again");
    }
}

#[test]
fn a_group_that_cannot_be_joined_is_an_error_that_names_it() {
    let site = Site::new(1500);
    // Less than IPv6 does with.
    site.gateway.ip("link set g0 mtu 1200");
    let config = PacketConfig { groups: vec![GROUP.into(), GROUP6.into()], ..PacketConfig::new("g0") };
    let error = site.gateway.run(|| Packet::open(&config)).err().unwrap();
    assert!(error.to_string().starts_with("joining the multicast group ff1e::7: "), "{error}");
}
