//! Two hosts and the links between them, in virtual time.

mod errors;
mod personalities;
mod protocol;
mod rare;
mod traffic;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::*;
use linksim::impair::Link;

/// A packet seen by a test: parsed, with its direction (0: from host 0).
type Filter = Box<dyn FnMut(usize, &Packet<'_>) -> bool>;

/// Two hosts with one queue pair each, joined by a link per direction.
struct Pair {
    hosts: [Host; 2],
    qpns: [Qpn; 2],
    links: [Link; 2],
    now: Instant,
    start: Instant,
    /// Packets for which it returns false never enter the link.
    filter: Filter,
}

impl Pair {
    fn new(configs: [QpConfig; 2], link: &str, seed: u64) -> Self {
        let ips = [ip(1), ip(2)];
        let mut hosts = [Host::new(ips[0], 0x11), Host::new(ips[1], 0x1234)];
        let qpns = [0, 1].map(|side| hosts[side].create_qp(configs[side]).unwrap());
        // Close to the wrap, so that every longer test crosses it.
        let psns = [Psn::new(0xff_ffe0), Psn::new(0x7f_fff0)];
        for side in 0..2 {
            let peer = 1 - side;
            let remote = Remote { ip: ips[peer], qpn: qpns[peer], psn: psns[peer] };
            hosts[side].connect(qpns[side], psns[side], remote).unwrap();
        }
        let links = [0, 1].map(|side| Link::new(link.parse().unwrap(), seed * 2 + side));
        let now = Instant::now();
        Self { hosts, qpns, links, now, start: now, filter: Box::new(|_, _| true) }
    }

    fn perfect(config: QpConfig) -> Self {
        Self::new([config, config], "delay 1ms", 0)
    }

    fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Moves everything that can move now.
    fn settle(&mut self) {
        let mut buffer = vec![0; MAX_PACKET];
        let mut moved = true;
        while moved {
            moved = false;
            for side in 0..2 {
                while let Some(len) = self.hosts[side].poll_transmit(self.now, &mut buffer) {
                    moved = true;
                    let datagram = Datagram::parse(&buffer[..len]).expect("a host's packet is valid");
                    let packet = Packet::parse(datagram.transport).unwrap();
                    if (self.filter)(side, &packet) {
                        self.links[side].submit(self.now, &buffer[..len]);
                    }
                }
                while let Some(packet) = self.links[side].poll(self.now) {
                    moved = true;
                    self.hosts[1 - side].handle_packet(packet, self.now);
                }
            }
        }
    }

    /// Goes to the next event; false if there is none.
    fn step(&mut self) -> bool {
        self.settle();
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        let Some(next) = timers.chain(self.links.iter().filter_map(Link::next_timeout)).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
        true
    }

    /// Runs until nothing is left to happen.
    fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 5_000_000, "does not come to rest");
        }
    }

    fn completions(&mut self, side: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.hosts[side].poll_completion()).collect()
    }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

fn remote(region: &RegionHandle, offset: u64) -> RemoteAddr {
    RemoteAddr { va: region.va + offset, rkey: region.key }
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|completion| (completion.wr_id, completion.status)).collect()
}
