//! The bridge between two name spaces. Needs root, `unshare`, `nsenter` and `ip`; says so and
//! passes without.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::super::frames::{FrameSocket, MAX_FRAME, Received};
use super::super::*;
use crate::udp::{Inbox, Socket, wait};

/// A network name space that lives as long as a process in it.
struct Ns(Child);

impl Ns {
    fn new() -> Ns {
        // The process says when it is inside.
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up; echo; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        Ns(child)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn ip(&self, arguments: &str) {
        let status = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg("ip")
            .args(arguments.split_whitespace())
            .status()
            .unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    /// Runs `f` on a thread inside; sockets made there stay there.
    fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let inside = || {
            let netns = File::open(self.path()).unwrap();
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            f()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }
}

impl Drop for Ns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two hosts, 10.77.0.1 and 10.77.0.2, and the name space between them that the bridge spans.
struct Sites {
    hosts: [Ns; 2],
    middle: Ns,
}

impl Sites {
    fn new() -> Option<Sites> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: name spaces need root");
            return None;
        }
        let sites = Sites { hosts: [Ns::new(), Ns::new()], middle: Ns::new() };
        for (host, name) in sites.hosts.iter().zip(["left", "right"]) {
            let pid = host.0.id();
            sites.middle.ip(&format!("link add name {name} mtu 1500 type veth peer name eth0 netns {pid}"));
            sites.middle.ip(&format!("link set dev {name} up"));
            host.ip(&format!("addr add 10.77.0.{}/24 dev eth0", if name == "left" { 1 } else { 2 }));
            host.ip("link set eth0 mtu 1500 up");
        }
        Some(sites)
    }

    fn bridge(&self, link: &str) -> Bridge {
        let side = |name: &str| format!("{}:{name}", self.middle.path()).parse().unwrap();
        let link = link.parse().unwrap();
        Bridge::start(&BridgeSpec { a: side("left"), b: side("right"), a_to_b: link, b_to_a: link, seed: 5 })
            .unwrap()
    }
}

fn address(host: u8, port: u16) -> SocketAddr {
    ([10, 77, 0, host], port).into()
}

#[test]
fn udp_batches_cross_as_single_datagrams() {
    let Some(sites) = Sites::new() else { return };
    let bridge = sites.bridge("delay 1ms");
    let [a, b] =
        [0, 1].map(|side| sites.hosts[side].run(|| Socket::bind(address(side as u8 + 1, 5000)).unwrap()));
    let batch: Vec<u8> = (0..20u8).flat_map(|index| [index; 1400]).collect();
    assert_eq!(a.send(address(2, 5000), None, &batch, 1400).datagrams, 20);
    let mut inbox = Inbox::new();
    let mut received = Vec::new();
    for _ in 0..500 {
        while b.receive(&mut inbox).unwrap() {
            received.extend(
                inbox.batches().flat_map(|batch| batch.datagrams().map(<[u8]>::to_vec).collect::<Vec<_>>()),
            );
        }
        if received.len() == 20 {
            break;
        }
        wait(&mut [rustix::event::PollFd::new(&b, rustix::event::PollFlags::IN)], Duration::from_millis(10))
            .unwrap();
    }
    assert_eq!(received, (0..20u8).map(|index| vec![index; 1400]).collect::<Vec<_>>());
    let stats = bridge.stop().unwrap();
    // Twenty datagrams and at least an ARP request; nothing longer than the MTU.
    assert!(stats.a_to_b.received > 20 && stats.a_to_b.uncut == 0, "{stats:?}");
    // What the hosts' kernels said to each other at the last moment is still on the link.
    let DirectionStats { forwarded, send_full, refused, overrun, .. } = stats.a_to_b;
    assert!(forwarded > 20 && send_full + refused + overrun == 0, "{stats:?}");
}

/// However late it is taken.
#[test]
fn a_frame_says_when_it_came() {
    let Some(sites) = Sites::new() else { return };
    let socket = sites.hosts[1].run(|| FrameSocket::open("lo").unwrap());
    let sender = sites.hosts[1].run(|| Socket::bind("127.0.0.1:5000".parse().unwrap()).unwrap());
    let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut buffer = vec![0; MAX_FRAME];
    let mut says_when = || {
        let before = since_epoch();
        assert_eq!(sender.send("127.0.0.1:5002".parse().unwrap(), None, &[7; 100], 100).datagrams, 1);
        let after = since_epoch();
        std::thread::sleep(Duration::from_millis(5));
        // All of them: besides the datagram there is the ICMP error it causes, and what came late
        // of an attempt before.
        let received: Vec<Received> = std::iter::from_fn(|| socket.receive(&mut buffer).unwrap()).collect();
        let is_timely = |frame: &Received| frame.at.is_some_and(|at| before <= at && at <= after);
        received.iter().any(|frame| frame.len >= 100 && is_timely(frame))
    };
    // The kernel begins to note times a while after it was asked to.
    assert!((0..200).any(|_| says_when()));
}

#[test]
fn tcp_crosses_a_lossy_bridge_whole() {
    let Some(sites) = Sites::new() else { return };
    let bridge = sites.bridge("delay 200us loss 0.5%");
    let listener = sites.hosts[1].run(|| TcpListener::bind(address(2, 5001)).unwrap());
    let sent: Vec<u8> = (0..600_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = sites.hosts[0].run(|| TcpStream::connect(address(2, 5001)).unwrap());
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(received == sent);
    let stats = bridge.stop().unwrap();
    assert!(stats.a_to_b.link.lost > 0 && stats.a_to_b.uncut == 0, "{stats:?}");
    assert!(stats.a_to_b.received > 600_000 / 1500, "every segment for itself: {stats:?}");
}

#[test]
fn interfaces_are_read_and_missing_ones_are_errors() {
    let interface: Interface = "site:wan0".parse().unwrap();
    assert_eq!(interface, Interface { netns: Some("site".into()), name: "wan0".into() });
    let path: Interface = "/proc/1/ns/net:lo".parse().unwrap();
    assert_eq!(path.netns.as_deref(), Some("/proc/1/ns/net"));
    let missing: Interface = "no-such-if0".parse().unwrap();
    let link = linksim::impair::LinkSpec::default();
    let spec = BridgeSpec { a: missing.clone(), b: missing, a_to_b: link, b_to_a: link, seed: 0 };
    assert!(Bridge::start(&spec).is_err());
}
