//! Strangers on the WAN's own link against the control connection, in network name spaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use session::ThreadCounts;
use session::control::{Command, Config, Control, Event};
use session::identity::Identity;
use session::message::{Cipher, Ciphers};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::keys::{self, Request};
use crate::lan::netns::{Ns, Site};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 4800;
/// Bytes that the kernel counts for a datagram on a link with an MTU of 1500.
const TRUE_SIZE: usize = 2304;
/// Bytes that wait at most: 32 datagrams at once, and 8 a second while a neighbour is looked for.
/// That takes three seconds, and another one may pass until its end is seen.
const MOST: usize = (32 + 4 * 8) * TRUE_SIZE;

/// Runs control in a name space.
fn start(ns: &Ns, runtime: &Runtime, config: Config) -> (mpsc::Receiver<Event>, mpsc::Sender<Command>) {
    let (events, received) = mpsc::channel(4);
    let (commands, given) = mpsc::channel(4);
    ns.run(|| {
        let control = runtime.block_on(async { Control::bind(config) }).unwrap();
        runtime.spawn(control.run(events, given));
    });
    (received, commands)
}

fn config(identity: Identity, [site, peer]: [&str; 2], [listen, peer_address]: [SocketAddr; 2]) -> Config {
    Config {
        site: site.to_owned(),
        peer: peer.to_owned(),
        listen,
        peer_address,
        peer_scope: Arc::default(),
        identity,
        revoked: Vec::new(),
        dead_after: Duration::from_secs(20),
        resume_for: Duration::ZERO,
        outlives: Arc::new(AtomicBool::new(true)),
        max_datagram: 1472,
        lanes: 1,
        threads: ThreadCounts::alike(1),
        ciphers: Ciphers::detect(&Cipher::ALL),
        remote: Vec::new(),
        pairings: vec![watch::channel(Arc::from([])).1],
        build: String::new(),
        pulse: Arc::default(),
        refusals: Arc::default(),
        key_log: None,
    }
}

/// A UDP datagram in an IP packet.
fn packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut udp = [PORT.to_be_bytes(), PORT.to_be_bytes(), length.to_be_bytes(), [0; 2]].concat();
    udp.extend(payload);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
            packet[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            [packet, from.octets().to_vec(), to.octets().to_vec(), udp].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let words = addresses.chunks(2).chain(udp.chunks(2));
            let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
            let sum = sum + u32::from(length) + 17;
            let sum = (sum & 0xffff) + (sum >> 16);
            udp[6..8].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            packet[4..6].copy_from_slice(&length.to_be_bytes());
            [packet, addresses, udp].concat()
        }
        _ => panic!("of one family"),
    }
}

/// A long header with a version that nobody has: it asks for Version Negotiation.
fn unknown_version() -> Vec<u8> {
    let mut datagram = vec![0; 1200];
    datagram[..6].copy_from_slice(&[0xc0, 0xba, 0xba, 0xba, 0xba, 8]);
    datagram[14] = 8;
    datagram
}

/// Bytes that wait in the control socket to be sent, and to be received.
fn queues(ns: &Ns, v6: bool) -> [usize; 2] {
    let file = if v6 { "/proc/thread-self/net/udp6" } else { "/proc/thread-self/net/udp" };
    let table = ns.run(|| std::fs::read_to_string(file)).unwrap();
    let port = format!(":{PORT:04X}");
    let line = table.lines().find(|line| line.split_whitespace().nth(1).unwrap_or("").ends_with(&port));
    let (sent, received) = line.unwrap().split_whitespace().nth(4).unwrap().split_once(':').unwrap();
    [sent, received].map(|bytes| usize::from_str_radix(bytes, 16).unwrap())
}

#[test]
fn answers_to_absent_strangers_take_little_of_the_control_socket() {
    let keys = tempfile::tempdir().unwrap();
    let dir = keys.path();
    keys::generate(&Request { dir, sites: &["a".to_owned(), "b".to_owned()], force: false }).unwrap();
    let identity = |site: &str| {
        let file = |name: &str, kind| dir.join(format!("{name}.{kind}"));
        Identity::load(&file(site, "crt"), &file(site, "key"), &file("ca", "crt")).unwrap()
    };
    for v6 in [false, true] {
        let at = |host: u8| -> IpAddr {
            match v6 {
                true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
                false => Ipv4Addr::new(10, 0, 0, host).into(),
            }
        };
        let site = Site::new(1500);
        let runtime = Runtime::new().unwrap();
        let listen: IpAddr = if v6 { "fd00::fe".parse().unwrap() } else { at(254) };
        let addresses = [SocketAddr::new(listen, PORT), SocketAddr::new(at(1), PORT)];
        let mut listener = start(&site.gateway, &runtime, config(identity("b"), ["b", "a"], addresses));

        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        // IPPROTO_RAW: with headers of ours.
        let raw = site.host.run(|| Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))));
        let raw = raw.unwrap();
        let datagram = unknown_version();
        let to = SocketAddr::new(listen, 0).into();
        let mut most = 0;
        for number in 0..3000_u32 {
            let packet = packet(at(100 + (number % 100) as u8), listen, &datagram);
            assert_eq!(raw.send_to(&packet, &to).unwrap(), packet.len());
            if number % 50 == 49 {
                while queues(&site.gateway, v6)[1] > 0 {
                    std::thread::yield_now();
                }
                most = most.max(queues(&site.gateway, v6)[0]);
            }
        }
        // Another thread answers, and may be late.
        let end = Instant::now() + PATIENCE;
        while most == 0 && Instant::now() < end {
            std::thread::yield_now();
            most = queues(&site.gateway, v6)[0];
        }
        assert!((1..=MOST).contains(&most), "{most} bytes of at most {MOST}");

        // The peer is not a stranger.
        let [b, a] = addresses;
        let mut dialer = start(&site.host, &runtime, config(identity("a"), ["a", "b"], [a, b]));
        for (events, _) in [&mut listener, &mut dialer] {
            let event = runtime.block_on(async { timeout(PATIENCE, events.recv()).await }).unwrap();
            assert!(matches!(event, Some(Event::Up(_))), "{event:?}");
        }
    }
}
