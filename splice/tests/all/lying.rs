//! A peer that lies: packets that pass the seal and say whatever costs most.
//!
//! Each seed plays one peer. `SEED=n` plays that one alone, `SEEDS=n` so many.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::Addressing;
use roce::wire::{Ext, Opcode};
use splice::record::{FlowId, Head, Reason};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

use crate::sites::packet;

const MAX_PACKET: usize = 1400;
const TOTAL: usize = 64 << 20;

fn seeds(default: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SEEDS").unwrap_or(default)).collect(),
    }
}

struct Liar {
    rng: Pcg64Mcg,
    now: Instant,
    gateway: Gateway,
    number: u64,
    /// Ways that this one prefers.
    ways: Vec<Way>,
    sequence: u64,
    id: u32,
    out: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// A piece of a byte far into a record of ever other numbers.
    FarPiece,
    /// Pieces that state other lengths of one record.
    Contradiction,
    /// Record numbers leap by a window.
    Leap,
    /// Groups as wide as they may be.
    Group,
    /// Blocks of ever new shapes that can be decoded.
    Shape,
    /// Groups amid others.
    Amid,
    /// Records of flows, in any order, that are never whole.
    Flow,
    /// Long packets for the LAN, then tiny ones.
    Lan,
    /// Packets numbered for a queue pair, with gaps.
    Ordered,
    /// Words of flows that nobody knows.
    Word,
    /// Anything.
    Noise,
}

const WAYS: [Way; 11] = [
    Way::FarPiece,
    Way::Contradiction,
    Way::Leap,
    Way::Group,
    Way::Shape,
    Way::Amid,
    Way::Flow,
    Way::Lan,
    Way::Ordered,
    Way::Word,
    Way::Noise,
];

fn settings() -> Settings {
    let settings = Settings::new(vec!["10.0.0.0/24".parse().unwrap()], 1_000_000_000, MAX_PACKET);
    Settings { total_buffer: TOTAL, flows: 2000, ..settings }
}

impl Liar {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut gateway = Gateway::new(settings(), now);
        gateway.session_up(Duration::from_millis(10), MAX_PACKET, 1, &[], now);
        let ways = (0..rng.random_range(1..4)).map(|_| WAYS[rng.random_range(0..WAYS.len())]).collect();
        let (number, sequence, id) = (0, 0, 0);
        Self { rng, now, gateway, number, ways, sequence, id, out: vec![0; 10_000] }
    }

    fn run(&mut self, packets: usize) {
        for turn in 0..packets {
            let way = self.ways[self.rng.random_range(0..self.ways.len())];
            let stream = if self.rng.random_bool(0.9) { self.rng.random_range(0..96) } else { 1 };
            let packet = self.packet(way, stream);
            self.send(&packet);
            if turn % 50 == 0 {
                self.now += Duration::from_micros(self.rng.random_range(0..500));
                self.gateway.handle_timeout(self.now);
                while self.gateway.poll_wan(self.now, &mut self.out).is_some() {}
                if self.rng.random_bool(0.5) {
                    while self.gateway.poll_lan(self.now, &mut self.out).is_some() {}
                }
            }
        }
    }

    fn send(&mut self, packet: &[u8]) {
        let bytes = packet.len();
        let arrival = Arrival { lane: LaneId(0), number: self.number, bytes, ecn: Ecn::NotEct };
        self.number += 1;
        self.gateway.handle_wan(packet, arrival, self.now);
    }

    fn packet(&mut self, way: Way, stream: u16) -> Vec<u8> {
        self.sequence += 1;
        let rng = &mut self.rng;
        match way {
            Way::FarPiece => {
                self.id = self.id.wrapping_add(1);
                self.data(stream, [1, 0, 0, 0], 0, &piece(self.id, 65_536, 65_535, 1))
            }
            Way::Contradiction => {
                let (id, total) = (rng.random_range(0..50), rng.random_range(2000..65_536));
                let offset = rng.random_range(0..total - 1);
                self.data(stream, [1, 0, 0, 0], 0, &piece(id, total, offset, 1))
            }
            Way::Leap => {
                self.id = self.id.wrapping_add(rng.random_range(0..131_072));
                self.data(stream, [1, 0, 0, 0], 0, &piece(self.id, 9000, 0, 1))
            }
            Way::Group => {
                let k = rng.random_range(1..3_u8);
                self.sequence += rng.random_range(0..10);
                self.data(stream, [3, k, 255 - k, 255], 0, &whole(&[7; 20]))
            }
            Way::Shape => {
                let (k, m) = (rng.random_range(1..120_u8), rng.random_range(1..120_u8));
                self.sequence += u64::from(k);
                parity(stream, self.sequence, [3, k, m, 1], 0, 1, m)
            }
            Way::Amid => {
                let base = 2 * rng.random_range(0..16_000);
                parity(stream, base, [3, 2, 3, 1], 0, 2, 3)
            }
            Way::Flow => {
                let host = rng.random_range(1..250);
                let flow = FlowId(rng.random_range(0..3000));
                let (seq, open) = (rng.random_range(0..100_000), Some(addressing(host)));
                let head = Head::Request { flow, seq, replay: false, open };
                let body = packet(Opcode::SendFirst, rng.random_range(0..9000), seq, Ext::None, 256);
                self.data(stream, [1, 0, 0, 0], 0, &whole(&[head.emit().as_ref(), &body].concat()))
            }
            Way::Lan => {
                let head = Head::Datagram(addressing(1));
                let len = if rng.random_bool(0.5) { 12 } else { 1200 };
                let mut body = vec![0; len];
                body[0] = 0xa0;
                self.data(stream, [1, 0, 0, 0], 0, &whole(&[head.emit().as_ref(), &body].concat()))
            }
            Way::Ordered => {
                let (flow, seq) = (FlowId(rng.random_range(0..3000)), rng.random_range(0..8_000_000));
                let head = Head::Ordered { flow, seq, addressing: addressing(1) };
                self.data(stream, [1, 0, 0, 0], 0, &whole(&[head.emit().as_ref(), &[0xa0; 16]].concat()))
            }
            Way::Word => {
                let flow = FlowId(rng.random());
                let head = match rng.random_range(0..4) {
                    0 => Head::Close { flow, requests: rng.random() },
                    1 => Head::Idle { flow },
                    2 => Head::Abort { flow, reason: Reason::NoRoom },
                    _ => Head::Request { flow, seq: 3, replay: false, open: None },
                };
                let body = packet(Opcode::SendOnly, 3, 7, Ext::None, 8);
                self.data(stream, [1, 0, 0, 0], 0, &whole(&[head.emit().as_ref(), &body].concat()))
            }
            Way::Noise => {
                let mut noise = vec![0; rng.random_range(4..MAX_PACKET)];
                rng.fill_bytes(&mut noise);
                noise[..4].copy_from_slice(&[rng.random_range(1..8), 0, 0, stream as u8]);
                noise
            }
        }
    }

    /// A DATA packet somewhere in the window.
    fn data(&mut self, stream: u16, shape: [u8; 4], position: u16, frames: &[u8]) -> Vec<u8> {
        let sequence = self.sequence % 30_000 + 1;
        let mut packet = vec![1, 0];
        packet.extend(stream.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(sequence.to_be_bytes());
        packet.extend(shape);
        packet.extend(position.to_be_bytes());
        packet.extend([0; 2]);
        // Now and then the window moves on.
        let floor = if self.rng.random_bool(0.001) { 0 } else { sequence as u32 };
        packet.extend(floor.to_be_bytes());
        packet.extend(frames);
        packet
    }
}

fn piece(id: u32, total: u32, offset: u32, len: u16) -> Vec<u8> {
    let mut frame = (0x8000 | len).to_be_bytes().to_vec();
    frame.extend(id.to_be_bytes());
    frame.extend(total.to_be_bytes());
    frame.extend(offset.to_be_bytes());
    frame.resize(frame.len() + usize::from(len), 5);
    frame
}

fn whole(record: &[u8]) -> Vec<u8> {
    let mut frame = (record.len() as u16 + 1).to_be_bytes().to_vec();
    frame.extend(record);
    frame
}

fn parity(stream: u16, base: u64, shape: [u8; 4], index: u8, count: u16, parities: u8) -> Vec<u8> {
    let mut packet = vec![2, 0];
    packet.extend(stream.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(base.to_be_bytes());
    packet.extend(shape);
    packet.extend([0, index]);
    packet.extend(count.to_be_bytes());
    packet.extend([parities, 0]);
    // The symbol of a packet of nothing but padding.
    packet.extend([0, 4, 0, 0, 0, 0]);
    packet
}

fn addressing(host: u8) -> Addressing {
    let (src, dst) = ([10, 0, 0, host].into(), [10, 0, 1, 1].into());
    Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 }
}

/// A gateway allocates no more than the documentation says, whatever the peer says.
#[test]
fn a_lying_peer_gets_no_more_memory_than_is_documented() {
    let most = settings().most_memory();
    let mut highest = (0, 0);
    for seed in seeds(40) {
        println!("SEED={seed}");
        let measured = allocation_counter::measure(|| Liar::new(seed).run(60_000));
        highest = highest.max((measured.bytes_max, seed));
        assert!(measured.bytes_max <= most as u64 * 105 / 100, "{} of {most}", measured.bytes_max);
    }
    println!("at most {} MiB of {} MiB, seed {}", highest.0 >> 20, most >> 20, highest.1);
}

/// The same of each way by itself, on all streams, and against a much lower figure where no more is
/// needed.
#[test]
fn each_lie_by_itself_is_bounded() {
    for way in WAYS {
        let measured = allocation_counter::measure(|| {
            let mut liar = Liar::new(1);
            liar.ways = vec![way];
            liar.run(200_000);
        });
        println!("{way:?}: {} KiB", measured.bytes_max >> 10);
        // Buffers of cut records and blocks, the pool and what keeps order.
        assert!(measured.bytes_max < (5 * TOTAL) as u64, "{way:?}: {}", measured.bytes_max);
    }
}
