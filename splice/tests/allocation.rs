//! Nothing is allocated per packet, also while messages of one flow take several classes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods, reason = "test code")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Policy;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::{Arrival, Ecn, Gateway, Settings};

const POLICY: &str = r#"
    [[class]]
    name = "small"
    match = { size = { at_most = "1 KiB" } }
    scheme = "mds"
    k = 4
    m = 2
    priority = 3
    [[class]]
    name = "middle"
    match = { qp = ["0x20-0x2f"], size = { at_most = "4 KiB" } }
    scheme = "xor"
    k = 4
    m = 2
    [[class]]
    name = "default"
    scheme = "sr"
"#;

const STEP: Duration = Duration::from_micros(20);
/// A message is one packet, and names this size in turn.
const SIZES: [u32; 3] = [100, 2000, 900_000];

struct Pair {
    gateways: [Gateway; 2],
    addressing: [Addressing; 2],
    now: Instant,
    /// Numbers of the next WAN packets of either gateway.
    numbers: [u64; 2],
    sent: u32,
    acknowledged: u32,
    request: Vec<u8>,
    out: Vec<u8>,
    /// The requester posts nothing more.
    ends: bool,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let policy = Policy::parse(Path::new("policy.toml"), POLICY).unwrap();
        let gateway = |remote: &str| {
            let remote = vec![remote.parse().unwrap()];
            let settings = Settings { policy: policy.clone(), ..Settings::new(remote, 1_000_000_000, 1400) };
            let mut gateway = Gateway::new(settings, now);
            gateway.session_up(Duration::from_micros(100), 1400, &[], now);
            gateway
        };
        let [a, b] = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let addressing = |src, dst| Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 };
        let ext = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: 0 });
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::WriteOnly, Qpn::new(0x22), Psn::new(0)) };
        let repr = Repr { bth, ext, payload: &[5; 256] };
        let mut request = vec![0; repr.buffer_len()];
        repr.emit(&mut request).unwrap();
        Self {
            gateways: [gateway("10.0.1.0/24"), gateway("10.0.0.0/24")],
            addressing: [addressing(a, b), addressing(b, a)],
            now,
            numbers: [0; 2],
            sent: 0,
            acknowledged: 0,
            request,
            out: vec![0; 10_000],
            ends: false,
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            for _ in 0..4 {
                if !self.ends && self.sent - self.acknowledged < 500 {
                    self.post();
                }
            }
            for site in 0..2 {
                self.gateways[site].handle_timeout(self.now);
                while let Some(len) = self.gateways[site].poll_wan(self.now, &mut self.out) {
                    let bytes = self.gateways[site].wire_bytes(len);
                    let arrival = Arrival { number: self.numbers[site], bytes, ecn: Ecn::NotEct };
                    self.numbers[site] += 1;
                    self.gateways[1 - site].handle_wan(&self.out[..len], arrival, self.now);
                }
            }
            self.target();
            while let Some(len) = self.gateways[0].poll_lan(self.now, &mut self.out) {
                let psn = Packet::parse(&self.out[28..len - 4]).unwrap().bth.psn.get();
                self.acknowledged = self.acknowledged.max(psn + 1);
            }
            self.now += STEP;
        }
    }

    fn post(&mut self) {
        let size = SIZES[self.sent as usize % SIZES.len()];
        Bth::set_psn(self.request.first_chunk_mut().unwrap(), Psn::new(self.sent));
        self.request[24..28].copy_from_slice(&size.to_be_bytes());
        let datagram = Datagram { addressing: self.addressing[0], transport: &self.request };
        self.gateways[0].handle_lan(&datagram, self.now);
        self.sent += 1;
    }

    /// Acknowledges what it is asked to.
    fn target(&mut self) {
        let mut newest = None;
        while let Some(len) = self.gateways[1].poll_lan(self.now, &mut self.out) {
            newest = Some(Packet::parse(&self.out[28..len - 4]).unwrap().bth.psn);
        }
        if let Some(psn) = newest {
            let mut bytes = [0; 16];
            let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 });
            let bth = Bth::new(Opcode::Acknowledge, Qpn::new(0x11), psn);
            Repr { bth, ext, payload: &[] }.emit(&mut bytes).unwrap();
            let datagram = Datagram { addressing: self.addressing[1], transport: &bytes };
            self.gateways[1].handle_lan(&datagram, self.now);
        }
    }
}

#[test]
fn the_data_path_does_not_allocate() {
    let mut pair = Pair::new();
    // Buffers grow to their working size first.
    pair.run(50_000);
    let before =
        (pair.sent, pair.gateways[0].classes().map(|class| class.sent[1].records).collect::<Vec<_>>());
    let allocated = allocation_counter::measure(|| pair.run(20_000));
    let sent = pair.sent - before.0;
    assert!(sent > 20_000, "{sent} messages");
    for (class, records) in pair.gateways[0].classes().zip(before.1) {
        assert!(class.sent[1].records - records > 5000, "{} is hardly used", class.name);
    }
    assert_eq!(allocated.count_total, 0);
}

/// A class that is gone leaves no buffers behind: not where it sent once its streams have drained, nor where it was received.
#[test]
fn streams_without_a_class_keep_nothing() {
    let mut pair = Pair::new();
    let used = allocation_counter::measure(|| pair.run(50_000)).bytes_current;
    pair.ends = true;
    let text = "[[class]]\nname = \"default\"\nscheme = \"sr\"";
    let policy = Arc::new(Policy::parse(Path::new("policy.toml"), text).unwrap());
    let give_back = |pair: &mut Pair, site: usize| {
        allocation_counter::measure(|| {
            match site {
                0 => pair.gateways[0].set_policy(Arc::clone(&policy), pair.now).unwrap(),
                _ => pair.now += Duration::from_secs(11),
            }
            pair.run(1000);
        })
        .bytes_current
    };
    let [sent, received] = [0, 1].map(|site| give_back(&mut pair, site));
    assert!(pair.gateways[0].is_quiet());
    assert!(used > 50_000 && sent < -4096 && received < -4096, "{used} bytes, {sent} and {received}");
}
