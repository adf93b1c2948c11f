//! Nothing is allocated per packet: neither by the host nor by the link.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, which clippy does not take for one"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use linksim::impair::Link;
use netem_tests::host::{Access, Completion, Host, MAX_PACKET, QpConfig, RegionHandle, Remote, RemoteAddr};
use roce::wire::{PathMtu, Psn, Qpn};

const MESSAGE: u32 = 40_000;

struct Pair {
    hosts: [Host; 2],
    qpns: [Qpn; 2],
    regions: [RegionHandle; 2],
    links: [Link; 2],
    now: Instant,
    buffer: Vec<u8>,
}

impl Pair {
    fn new() -> Pair {
        let ip = |side: usize| IpAddr::V4(Ipv4Addr::new(10, 0, 0, side as u8));
        let mut hosts = [Host::new(ip(0), 16), Host::new(ip(1), 16)];
        let config = QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() };
        let qpns = [0, 1].map(|side| hosts[side].create_qp(config).unwrap());
        let regions = [0, 1].map(|side: usize| {
            let bytes = vec![side as u8; MESSAGE as usize];
            hosts[side].register(bytes, Access::ALL)
        });
        for side in 0..2 {
            let remote = Remote { ip: ip(1 - side), qpn: qpns[1 - side], psn: Psn::new(0) };
            hosts[side].connect(qpns[side], Psn::new(0), remote).unwrap();
        }
        let link = |seed| {
            let spec = "delay 100us loss 1% duplicate 1% rate 10gbit".parse().unwrap();
            Link::new(spec, seed)
        };
        let (now, buffer) = (Instant::now(), vec![0; MAX_PACKET]);
        Pair { hosts, qpns, regions, links: [link(1), link(2)], now, buffer }
    }

    /// Keeps one operation of each kind outstanding for a while; returns the completions seen.
    fn run(&mut self, steps: u32) -> u32 {
        let mut completions = 0;
        for _ in 0..steps {
            self.post();
            for side in 0..2 {
                while let Some(len) = self.hosts[side].poll_transmit(self.now, &mut self.buffer) {
                    self.links[side].submit(self.now, &self.buffer[..len]);
                }
                while let Some(packet) = self.links[side].poll(self.now) {
                    self.hosts[1 - side].handle_packet(packet, self.now);
                }
                while let Some(Completion { .. }) = self.hosts[side].poll_completion() {
                    completions += 1;
                }
                self.hosts[side].handle_timeout(self.now);
            }
            self.now += Duration::from_micros(50);
        }
        completions
    }

    fn post(&mut self) {
        let [near, far] = &mut self.hosts;
        let (local, target) = (self.regions[0].slice(0, MESSAGE), self.regions[1]);
        let at = RemoteAddr { va: target.va, rkey: target.key };
        // Full queues refuse, which is what keeps them full.
        let _ = far.post_recv(self.qpns[1], 0, target.slice(0, MESSAGE));
        let _ = near.post_write(self.qpns[0], 0, local, at, None);
        let _ = near.post_send(self.qpns[0], 1, local, None);
        let _ = near.post_read(self.qpns[0], 2, local, at);
        let _ = near.post_fetch_add(self.qpns[0], 3, self.regions[0].slice(0, 8), at, 1);
    }
}

#[test]
fn the_data_path_does_not_allocate() {
    let mut pair = Pair::new();
    // Buffers grow to their working size first.
    pair.run(150_000);
    let mut completions = 0;
    let allocated = allocation_counter::measure(|| completions = pair.run(20_000));
    assert!(completions > 500, "{completions} completions");
    assert!(pair.hosts[0].stats().naks_in > 10 && pair.hosts[0].stats().timeouts > 0);
    assert_eq!(allocated.count_total, 0);
}
