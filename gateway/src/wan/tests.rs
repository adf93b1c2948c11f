//! Over loopback: boundaries, order and content through GSO and GRO.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::*;
use crate::lan::netns::Site;
use crate::lan::wake::{PollFd, PollFlags, poll};

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn pair(config: BulkConfig) -> (Bulk, Bulk) {
    (Bulk::bind(loopback(), config).unwrap(), Bulk::bind(loopback(), config).unwrap())
}

/// The datagram's number, then a pattern of its own.
fn fill(number: u32, datagram: &mut [u8]) {
    for (index, byte) in datagram.iter_mut().enumerate() {
        *byte = number.to_be_bytes()[index % 4].wrapping_add((index / 4) as u8);
    }
}

fn receive_all(socket: &mut Bulk, count: usize) -> Vec<(Vec<u8>, Arrival)> {
    let mut got = Vec::new();
    while got.len() < count {
        if socket.receive(count, &mut |datagram, arrival| {
            got.push((datagram.to_vec(), arrival));
        }) == 0
        {
            let mut fds = [PollFd::new(&*socket, PollFlags::IN)];
            assert!(
                poll(&mut fds, Some(Duration::from_secs(5))).unwrap() > 0,
                "{} of {count} came",
                got.len()
            );
        }
    }
    got
}

impl std::os::fd::AsFd for Bulk {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd()
    }
}

fn exchange(config: BulkConfig, lengths: &[usize]) -> (BulkStats, BulkStats) {
    let (mut a, mut b) = pair(config);
    let to = b.local_addr().unwrap();
    for (number, &len) in lengths.iter().enumerate() {
        fill(number as u32, &mut a.reserve(len).unwrap()[..len]);
        a.commit(len, to);
    }
    assert_eq!(a.flush(), lengths.len());
    assert_eq!(a.backlog(), 0);
    for (number, (datagram, arrival)) in receive_all(&mut b, lengths.len()).into_iter().enumerate() {
        let mut expected = vec![0; lengths[number]];
        fill(number as u32, &mut expected);
        assert!(
            datagram == expected,
            "datagram {number} of {} bytes came as {}",
            lengths[number],
            datagram.len()
        );
        assert_eq!(arrival.from, a.local_addr().unwrap());
        assert_eq!(arrival.to, Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(arrival.ecn, config.ecn);
    }
    (*a.stats(), *b.stats())
}

const ODD: [usize; 14] = [1449, 1449, 1449, 77, 1449, 1, 1, 1, 2, 9001, 9001, 9000, 4243, 4243];

#[test]
fn boundaries_survive_offload() {
    let (sent, received) = exchange(BulkConfig::default(), &ODD);
    assert_eq!((sent.sent, sent.sent_batches), (14, 6));
    assert_eq!((received.received, received.received_bytes), (14, ODD.iter().sum::<usize>() as u64));
    assert!(received.received_batches < 14, "GRO joined nothing");
}

#[test]
fn boundaries_survive_without_offload() {
    let (sent, received) = exchange(BulkConfig { gso: false, ..BulkConfig::default() }, &ODD);
    assert_eq!((sent.sent, sent.sent_batches), (14, 14));
    assert_eq!(received.received, 14);
}

#[test]
fn full_batches_are_cut_at_the_limits() {
    let (sent, _) = exchange(BulkConfig::default(), &[1448; 91]);
    assert_eq!(sent.sent_batches, 3, "45 of 1448 bytes fit one batch");
    let (sent, _) = exchange(BulkConfig::default(), &[64; 130]);
    assert_eq!(sent.sent_batches, 3, "64 segments are the most");
    let (sent, _) = exchange(BulkConfig::default(), &[65_507, 65_507]);
    assert_eq!(sent.sent_batches, 2);
}

#[test]
fn each_lane_leaves_by_a_port_of_its_own_and_counts_for_itself() {
    let (mut a, mut b) = pair(BulkConfig::default());
    a.add_lane(loopback()).unwrap();
    let to = b.local_addr().unwrap();
    let lanes = [0, 0, 1, 1, 1, 0];
    for (number, lane) in lanes.into_iter().enumerate() {
        a.reserve(100).unwrap()[..100].fill(number as u8);
        a.commit_on(lane, 100, to);
    }
    assert_eq!((a.committed(0), a.committed(1), a.committed(2)), (3, 3, 0));
    assert_eq!(a.flush(), 6);
    assert_eq!(a.stats().sent_batches, 3);
    let mut got = receive_all(&mut b, 6);
    got.sort_by_key(|(datagram, _)| datagram[0]);
    let first = a.local_addr().unwrap();
    let by_first: Vec<_> = got.iter().map(|(_, arrival)| arrival.from == first).collect();
    assert_eq!(by_first, [true, true, false, false, false, true]);
    // What the kernel refuses, broadcast without leave here, is told by lane, and by its number
    // there.
    for (lane, len) in [(0, 100), (1, 100), (1, 200)] {
        let to = if lane == 1 { "255.255.255.255:9".parse().unwrap() } else { to };
        a.reserve(len).unwrap()[..len].fill(1);
        a.commit_on(lane, len, to);
    }
    let mut dropped = Vec::new();
    a.flush_noting(&mut |lane, numbers, _| dropped.push((lane, numbers)));
    assert_eq!(dropped, [(1, 3..4), (1, 4..5)]);
    assert_eq!((a.committed(0), a.committed(1), a.backlog()), (4, 5, 0));
}

#[test]
fn ecn_is_carried() {
    let (_, received) =
        exchange(BulkConfig { ecn: Some(EcnCodepoint::Ect0), ..BulkConfig::default() }, &[100; 3]);
    assert_eq!(received.received_ce, 0);
    let (_, received) =
        exchange(BulkConfig { ecn: Some(EcnCodepoint::Ce), ..BulkConfig::default() }, &[100; 3]);
    assert_eq!(received.received_ce, 3);
}

#[test]
fn a_dead_peer_is_no_error_and_holds_nothing_up() {
    let (mut a, mut b) = pair(BulkConfig::default());
    let (dead, live) = (
        Bulk::bind(loopback(), BulkConfig::default()).unwrap().local_addr().unwrap(),
        b.local_addr().unwrap(),
    );
    for to in [dead, live, dead, live] {
        a.reserve(10).unwrap().fill(1);
        a.commit(10, to);
        a.flush();
    }
    // TEST-NET-1 with a source of 127.0.0.1: no route.
    a.reserve(10).unwrap().fill(1);
    a.commit(10, "192.0.2.1:9".parse().unwrap());
    a.flush();
    assert_eq!(receive_all(&mut b, 2).len(), 2);
    let stats = a.stats();
    assert_eq!(stats.sent + stats.unreachable + stats.send_failed, 5);
    assert_eq!(stats.unreachable + stats.send_failed, 1, "{stats:?}");
    assert_eq!(a.backlog(), 0);
}

#[test]
fn the_queue_is_bounded() {
    let (mut a, b) = pair(BulkConfig { queue: 0, ..BulkConfig::default() });
    let to = b.local_addr().unwrap();
    let mut committed = 0;
    while a.reserve(1000).is_some() {
        a.commit(1000, to);
        committed += 1;
    }
    assert_eq!(committed, 65);
    assert_eq!(a.backlog(), 65_000);
    assert_eq!(a.flush(), 65);
    assert!(a.reserve(1000).is_some());
}

#[test]
fn buffers_are_what_was_asked_or_what_the_system_allows() {
    let (a, _) = pair(BulkConfig { socket_buffer: 1 << 18, ..BulkConfig::default() });
    assert!(a.socket_buffers().receive >= 1 << 18);
    assert!(a.socket_buffers().send >= 1 << 18);
}

#[test]
fn what_the_kernel_has_no_room_for_is_kept_and_sent_later() {
    let site = Site::new(1500);
    let config = BulkConfig { socket_buffer: 0, ..BulkConfig::default() };
    let mut a = site.gateway.run(|| Bulk::bind("10.0.0.254:0".parse().unwrap(), config)).unwrap();
    let mut b = site.host.run(|| Bulk::bind("0.0.0.0:0".parse().unwrap(), BulkConfig::default())).unwrap();
    // An address that nobody answers for yet: the kernel holds on to what it took, and soon takes
    // no more.
    let to = SocketAddr::from(([10, 0, 0, 77], b.local_addr().unwrap().port()));
    let lengths: Vec<_> = (0..150).map(|number| if number % 20 == 19 { 700 } else { 1400 }).collect();
    for (number, &len) in lengths.iter().enumerate() {
        fill(number as u32, a.reserve(len).unwrap());
        a.commit(len, to);
    }
    let mut sent = a.flush();
    assert!(sent < lengths.len() && a.backlog() > 0 && a.stats().blocked == 1, "{:?}", a.stats());

    site.host.ip("addr add 10.0.0.77/24 dev v0");
    site.gateway.ip("neigh replace 10.0.0.77 lladdr 02:00:00:00:00:01 dev g0");
    while a.backlog() > 0 {
        assert!(poll(&mut [PollFd::new(&a, PollFlags::OUT)], Some(Duration::from_secs(5))).unwrap() > 0);
        sent += a.flush();
    }
    assert_eq!(sent, lengths.len());
    for (number, (datagram, _)) in receive_all(&mut b, lengths.len()).into_iter().enumerate() {
        let mut expected = vec![0; lengths[number]];
        fill(number as u32, &mut expected);
        assert!(datagram == expected, "datagram {number}");
    }
}

#[test]
fn a_lane_whose_socket_is_full_holds_up_no_other() {
    const ROUNDS: u32 = 400;
    let site = Site::new(1500);
    // As long as the test takes, and longer.
    site.gateway.sysctl("net/ipv4/neigh/g0/mcast_solicit", "1000");
    let config = BulkConfig { socket_buffer: 0, ..BulkConfig::default() };
    let mut a = site.gateway.run(|| {
        let mut bulk = Bulk::bind("10.0.0.254:0".parse().unwrap(), config).unwrap();
        bulk.add_lane("10.0.0.254:0".parse().unwrap()).unwrap();
        bulk
    });
    let mut b = site.host.run(|| Bulk::bind("0.0.0.0:0".parse().unwrap(), BulkConfig::default())).unwrap();
    let port = b.local_addr().unwrap().port();
    // As by a second router that has died.
    let (absent, there) = (SocketAddr::from(([10, 0, 0, 77], port)), SocketAddr::from(([10, 0, 0, 1], port)));
    let (mut gone, mut came) = (Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        for (lane, to) in [(0, absent), (1, there)] {
            fill(number, a.reserve(1400).expect("room for others"));
            a.commit_on(lane, 1400, to);
        }
        a.flush_noting(&mut |lane, numbers, _| gone.push((lane, numbers)));
        came.extend(receive_all(&mut b, 1));
    }
    for (number, (datagram, _)) in (0..).zip(&came) {
        let mut expected = vec![0; 1400];
        fill(number, &mut expected);
        assert!(*datagram == expected, "datagram {number}");
    }
    assert_eq!((a.full_lanes(), a.blocked_fds().count()), (1, 1));
    let stats = *a.stats();
    let waiting = (a.backlog() / 1400) as u64;
    assert!(stats.lane_full > 0 && a.backlog() <= config.queue / 2, "{stats:?}");
    assert_eq!(stats.sent + stats.lane_full + waiting, u64::from(2 * ROUNDS), "{stats:?}");
    // The oldest of those that waited, and each once.
    let mut next = stats.sent - u64::from(ROUNDS);
    for (lane, numbers) in gone {
        assert_eq!((lane, numbers.start), (0, next));
        next = numbers.end;
    }
    assert_eq!(next + waiting, u64::from(ROUNDS));

    // With none that goes on, all wait.
    while a.reserve(1400).is_some() {
        a.commit_on(0, 1400, absent);
        a.reserve(1400).unwrap_or_default().fill(0);
        a.commit_on(1, 1400, absent);
    }
    let before = a.backlog();
    a.flush();
    assert_eq!((a.full_lanes(), a.blocked_fds().count()), (0, 2));
    assert!(a.stats().lane_full == stats.lane_full && a.backlog() > before - 16 * 1400);
}

#[test]
fn datagrams_above_the_mtu_are_counted() {
    let site = Site::new(1500);
    let bind = |ns: &crate::lan::netns::Ns| {
        ns.run(|| Bulk::bind("0.0.0.0:0".parse().unwrap(), BulkConfig::default())).unwrap()
    };
    let (mut a, mut b) = (bind(&site.gateway), bind(&site.host));
    let to = SocketAddr::from(([10, 0, 0, 1], b.local_addr().unwrap().port()));
    for len in [1473, 1472, 1472, 1472, 3] {
        a.reserve(len).unwrap().fill(7);
        a.commit(len, to);
        a.flush();
    }
    let lengths: Vec<_> = receive_all(&mut b, 4).iter().map(|(datagram, _)| datagram.len()).collect();
    assert_eq!(lengths, [1472, 1472, 1472, 3]);
    assert_eq!((a.stats().too_big, a.stats().sent), (1, 4));
}

/// The kernel counts what has a wrong checksum among the drops of a socket, and anybody can send
/// that.
#[test]
fn what_is_damaged_is_no_overrun() {
    let (_, mut b) = pair(BulkConfig::default());
    let to = b.local_addr().unwrap();
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP));
    let Ok(raw) = raw else {
        println!("skipped: raw sockets need CAP_NET_RAW");
        return;
    };
    // Longer than what the kernel checks before it looks for a socket.
    let mut datagram = vec![0_u8; 8 + 400];
    datagram[..2].copy_from_slice(&9_u16.to_be_bytes());
    datagram[2..4].copy_from_slice(&to.port().to_be_bytes());
    let length = datagram.len() as u16;
    datagram[4..6].copy_from_slice(&length.to_be_bytes());
    datagram[6..8].copy_from_slice(&0x1234_u16.to_be_bytes());
    assert_eq!(b.take_overrun(), 0);
    for _ in 0..50 {
        raw.send_to(&datagram, &SocketAddr::from((*to.ip(), 0)).into()).unwrap();
    }
    let mut came = 0;
    b.receive(usize::MAX, &mut |_, _| came += 1);
    assert_eq!((came, b.take_overrun(), b.stats().overrun), (0, 0, 0));
}

/// A full receive buffer: every datagram either came or was counted.
#[test]
fn what_the_kernel_drops_is_counted() {
    let config = BulkConfig { gso: false, socket_buffer: 4096, ..BulkConfig::default() };
    let (mut a, mut b) = pair(config);
    let to = b.local_addr().unwrap();
    assert_eq!(b.take_overrun(), 0);
    for number in 0..2000 {
        fill(number, &mut a.reserve(1000).unwrap()[..1000]);
        a.commit(1000, to);
        a.flush();
    }
    let came = b.receive(usize::MAX, &mut |_, _| {}) as u64;
    let dropped = b.take_overrun();
    assert!(dropped > 0 && came > 0, "{came} came");
    assert_eq!((came + dropped, b.stats().overrun), (a.stats().sent, dropped));
    assert_eq!(b.take_overrun(), 0);
}
