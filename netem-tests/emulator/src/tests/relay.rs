//! The relay over loopback.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::super::*;
use linksim::impair::LinkSpec;

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(any()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn relay(ports: Vec<Port>, link: &str) -> Relay {
    let link: LinkSpec = link.parse().unwrap();
    Relay::start(&RelaySpec { ports, lanes: 1, a_to_b: link, b_to_a: LinkSpec::default(), seed: 3 }).unwrap()
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    (buffer[..len].to_vec(), from)
}

#[test]
fn it_learns_where_a_side_is_and_answers_there() {
    let b = socket();
    let port = Port {
        a: Side { listen: any(), peer: None, learn: true },
        b: Side { listen: any(), peer: Some(b.local_addr().unwrap()), learn: false },
    };
    let relay = relay(vec![port], "delay 1ms");
    let (for_a, for_b) = relay.addresses(0).unwrap();
    // Nobody is known on side A yet.
    b.send_to(b"early", for_b).unwrap();
    while relay.stats().b_to_a.no_peer == 0 {
        std::thread::yield_now();
    }
    for round in 0u8..3 {
        let a = socket();
        a.send_to(&[round], for_a).unwrap();
        assert_eq!(receive(&b), (vec![round], for_b));
        b.send_to(&[round + 100], for_b).unwrap();
        assert_eq!(receive(&a), (vec![round + 100], for_a));
    }
    let stats = relay.stop().unwrap();
    assert_eq!((stats.a_to_b.received, stats.a_to_b.forwarded), (3, 3));
    assert_eq!((stats.b_to_a.received, stats.b_to_a.forwarded, stats.b_to_a.no_peer), (4, 3, 1));
}

#[test]
fn bulk_replies_go_to_the_listening_port_whatever_the_lane() {
    let (a, b, lane) = (socket(), socket(), socket());
    let at = |socket: &UdpSocket| socket.local_addr().unwrap();
    let port = Port {
        a: Side { listen: any(), peer: Some(at(&a)), learn: false },
        b: Side { listen: any(), peer: Some(at(&b)), learn: false },
    };
    let relay = relay(vec![port], "");
    let (for_a, for_b) = relay.addresses(0).unwrap();
    lane.send_to(b"bulk", for_a).unwrap();
    assert_eq!(receive(&b), (b"bulk".to_vec(), for_b));
    b.send_to(b"report", for_b).unwrap();
    assert_eq!(receive(&a), (b"report".to_vec(), for_a));
}

#[test]
fn each_lane_has_a_link_of_its_own() {
    // A gateway's bulk port, and the next one up, which its second lane leaves by.
    let (a, lane) = loop {
        let a = socket();
        let next = a.local_addr().unwrap().port().checked_add(1);
        if let Some(lane) = next.and_then(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()) {
            break (a, lane);
        }
    };
    let b = socket();
    let side =
        |peer: &UdpSocket| Side { listen: any(), peer: Some(peer.local_addr().unwrap()), learn: false };
    let clear = LinkSpec::default();
    let spec = RelaySpec {
        ports: vec![Port { a: side(&a), b: side(&b) }],
        lanes: 2,
        a_to_b: clear,
        b_to_a: clear,
        seed: 3,
    };
    let relay = Relay::start(&spec).unwrap();
    relay.set_lane(1, "loss 100%".parse().unwrap(), clear);
    let (for_a, _) = relay.addresses(0).unwrap();
    while relay.stats().a_to_b.link.lost == 0 {
        lane.send_to(b"lost", for_a).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    a.send_to(b"good", for_a).unwrap();
    // What left by the lane before its link had changed may have come.
    while receive(&b).0 != b"good" {}
    relay.set_lane(1, clear, clear);
    b.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut buffer = [0; 64];
    let healed = (0..1000).any(|_| {
        lane.send_to(b"again", for_a).unwrap();
        b.recv(&mut buffer).is_ok_and(|len| &buffer[..len] == b"again")
    });
    assert!(healed);
}

#[test]
fn a_pair_of_gateways_gets_two_ports() {
    let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let [quic, bulk] = Port::gateway_pair(address(10), address(20), address(30), address(40));
    assert_eq!((quic.a.listen, quic.a.peer, quic.a.learn), (address(10), Some(address(20)), true));
    assert_eq!((bulk.a.listen, bulk.a.peer, bulk.a.learn), (address(11), Some(address(21)), false));
    assert_eq!((bulk.b.listen, bulk.b.peer, bulk.b.learn), (address(31), Some(address(41)), false));
}

#[test]
fn a_partition_begins_and_ends_under_way() {
    let (a, b) = (socket(), socket());
    let port = Port {
        a: Side { listen: any(), peer: None, learn: true },
        b: Side { listen: any(), peer: Some(b.local_addr().unwrap()), learn: false },
    };
    let relay = relay(vec![port], "");
    let (for_a, _) = relay.addresses(0).unwrap();
    a.send_to(b"before", for_a).unwrap();
    assert_eq!(receive(&b).0, b"before");
    relay.set_links("loss 100%".parse().unwrap(), LinkSpec::default());
    while relay.stats().a_to_b.link.lost == 0 {
        a.send_to(b"during", for_a).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    relay.set_links(LinkSpec::default(), LinkSpec::default());
    b.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut buffer = [0; 64];
    let healed = (0..1000).any(|_| {
        a.send_to(b"after", for_a).unwrap();
        b.recv(&mut buffer).is_ok_and(|len| &buffer[..len] == b"after")
    });
    assert!(healed && relay.is_running());
}

#[test]
fn an_address_in_use_is_an_error() {
    let taken = socket();
    let side = |listen| Side { listen, peer: None, learn: true };
    let port = Port { a: side(taken.local_addr().unwrap()), b: side(any()) };
    let spec = RelaySpec {
        ports: vec![port],
        lanes: 1,
        a_to_b: LinkSpec::default(),
        b_to_a: LinkSpec::default(),
        seed: 0,
    };
    assert_eq!(Relay::start(&spec).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn ports_share_a_link_and_keep_apart() {
    let targets = [socket(), socket(), socket()];
    let ports = targets.iter().map(|target| Port {
        a: Side { listen: any(), peer: None, learn: true },
        b: Side { listen: any(), peer: Some(target.local_addr().unwrap()), learn: false },
    });
    // Slow enough that datagrams of all ports come out together.
    let relay = relay(ports.collect(), "delay 20ms");
    let a = socket();
    for index in 0u8..90 {
        let (for_a, _) = relay.addresses(usize::from(index) % 3).unwrap();
        a.send_to(&[index; 100], for_a).unwrap();
    }
    for index in 0u8..90 {
        assert_eq!(receive(&targets[usize::from(index) % 3]).0, [index; 100]);
    }
}
