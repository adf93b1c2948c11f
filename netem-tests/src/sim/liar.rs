//! A peer that lies: WAN packets that pass the seal and say whatever costs most.

mod overheard;
mod words;

use std::net::IpAddr;

use overheard::Overheard;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::Addressing;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use splice::record::{FlowId, Head, Opening, Reason};

/// Streams that a receiver takes.
const STREAMS: u16 = 96;
/// Longest packet.
const LONGEST: usize = 1400;
/// First bytes, without the coding of the stream's.
const DATA: u8 = 0x80;
const PARITY: u8 = 0xc0;
const REPORT: u8 = 3;
const PATH: u8 = 4;
const MTU: u8 = 6;
const PIECE: u8 = 7;
const REPORT_HEADER: usize = 48;
const PATH_LEN: usize = 188;
/// The flows that a gateway opens have the lowest numbers.
const LIARS_FLOWS: u32 = 1 << 30;

/// The part of the protocol that a liar lies about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everything.
    Anything,
    /// Streams, flows and hosts that the peer's honest part has nothing to do with, and nothing
    /// about the link.
    Aside,
}

/// How a liar lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A piece of a byte at offset 65535 of records of ever other numbers.
    FarPiece,
    /// Pieces that state other lengths of one record.
    Contradiction,
    /// Records begin anywhere in a window.
    Leap,
    /// Sequence numbers at both ends of the window, and one window further.
    WindowTwice,
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
    /// Requests of flows that there are, nearly as they come next.
    Request,
    /// Responses to requests that there are, nearly as they come next.
    Response,
    /// Ends of flows that there are, for every reason.
    End,
    /// Words on whose turn it is: tries again, rests and doubts.
    Turn,
    /// Packets that are not terminated, of transports that are, and connection management.
    Carried,
    /// Words between members of sites, and flows that are said to live.
    Member,
    /// Many short words in a packet, each of which asks for an answer.
    Many,
    /// Reports of what was never sent, with ranges of all sizes.
    Report,
    /// Accounts of the path that contradict each other.
    Path,
    /// Probes of the MTU, and answers to none.
    Mtu,
    /// Pieces of packets that are never whole.
    Piece,
    /// Anything.
    Noise,
}

impl Lie {
    /// Every way to lie.
    pub const ALL: [Self; 23] = [
        Self::FarPiece,
        Self::Contradiction,
        Self::Leap,
        Self::WindowTwice,
        Self::Group,
        Self::Shape,
        Self::Amid,
        Self::Flow,
        Self::Lan,
        Self::Ordered,
        Self::Word,
        Self::Request,
        Self::Response,
        Self::End,
        Self::Turn,
        Self::Carried,
        Self::Member,
        Self::Many,
        Self::Report,
        Self::Path,
        Self::Mtu,
        Self::Piece,
        Self::Noise,
    ];

    fn is_about_link(self) -> bool {
        matches!(self, Self::Path | Self::Mtu)
    }

    fn is_about_flows(self) -> bool {
        use Lie::{Carried, End, Member, Request, Response, Turn};
        matches!(self, Request | Response | End | Turn | Carried | Member)
    }
}

/// A liar, which draws its packets from a seed.
#[derive(Clone, Debug)]
pub struct Liar {
    rng: Pcg64Mcg,
    reach: Reach,
    lies: Vec<Lie>,
    sequence: u64,
    /// Numbers of the sites of its own hosts, and of those that it lies to.
    sites: [u8; 2],
    overheard: Overheard,
    /// A host of its site or the other, of whose flows it says nothing.
    spared: Option<IpAddr>,
}

impl Liar {
    /// The liar of a seed, which prefers one to three ways.
    #[must_use]
    pub fn new(seed: u64, reach: Reach) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x11a5);
        let within = |lie: &Lie| reach == Reach::Anything || !lie.is_about_link();
        let known: Vec<_> = Lie::ALL.into_iter().filter(within).collect();
        let count = rng.random_range(1..4);
        let lies = (0..count).filter_map(|_| known.get(rng.random_range(0..known.len())).copied()).collect();
        let overheard = Overheard::default();
        Self { rng, reach, lies, sequence: 0, sites: [0, 1], overheard, spared: None }
    }

    /// Its hosts are at the site with the first number, and it lies to the other.
    #[must_use]
    pub fn between(self, sites: [u8; 2]) -> Self {
        Self { sites, ..self }
    }

    /// It says nothing of flows from or to this host.
    #[must_use]
    pub fn sparing(self, host: IpAddr) -> Self {
        Self { spared: Some(host), ..self }
    }

    /// Hears a WAN packet, in plaintext, of the gateways between which it stands.
    pub fn overhear(&mut self, packet: &[u8]) {
        self.overheard.hear(packet);
    }

    /// One that lies in one way.
    #[must_use]
    pub fn of(lie: Lie, seed: u64) -> Self {
        Self::new(seed, Reach::Anything).by(lie)
    }

    /// It lies in this way alone.
    #[must_use]
    pub fn by(self, lie: Lie) -> Self {
        Self { lies: vec![lie], ..self }
    }

    /// How it lies.
    #[must_use]
    pub fn lies(&self) -> &[Lie] {
        &self.lies
    }

    /// The next WAN packet, in plaintext.
    pub fn packet(&mut self) -> Vec<u8> {
        self.sequence += 1;
        let first = if self.reach == Reach::Aside { 2 } else { 0 };
        // Mostly on all streams, and much on one of them.
        let stream =
            if self.rng.random_bool(0.9) { self.rng.random_range(first..STREAMS) } else { first + 1 };
        let index = self.rng.random_range(0..self.lies.len());
        match self.lies.get(index).copied().unwrap_or(Lie::Noise) {
            lie @ (Lie::FarPiece | Lie::Contradiction | Lie::Leap | Lie::WindowTwice) => {
                self.join(lie, stream)
            }
            lie @ (Lie::Group | Lie::Shape | Lie::Amid) => self.block(lie, stream),
            lie @ (Lie::Flow | Lie::Lan | Lie::Ordered | Lie::Word) => {
                let (head, body) = self.record(lie);
                self.data(stream, [1, 0, 0, 0], &whole(&[head.emit().as_ref(), &body].concat()))
            }
            Lie::Many => {
                let mut frames = Vec::new();
                while frames.len() < LONGEST / 2 - 100 {
                    let (head, body) = self.word_to_answer();
                    frames.extend(whole(&[head.emit().as_ref(), &body].concat()));
                }
                self.data(stream, [1, 0, 0, 0], &frames)
            }
            lie if lie.is_about_flows() => {
                let (head, body) = self.word(lie);
                self.data(stream, [1, 0, 0, 0], &whole(&[head.emit().as_ref(), &body].concat()))
            }
            lie => self.control(lie, stream),
        }
    }

    /// Records that are never whole.
    fn join(&mut self, lie: Lie, stream: u16) -> Vec<u8> {
        let rng = &mut self.rng;
        let frame = match lie {
            Lie::FarPiece => piece(1, 65_536, 65_535),
            Lie::Contradiction => {
                let total = rng.random_range(2000..65_536);
                piece(rng.random_range(0..50), total, rng.random_range(0..total - 1))
            }
            Lie::Leap => piece(rng.random_range(0..0x8000), 9000, 1),
            _ => {
                let window = 1 << rng.random_range(15..20);
                self.sequence += if rng.random_bool(0.5) { window } else { 1 };
                piece(0, 9000, 0)
            }
        };
        self.data(stream, [1, 0, 0, 0], &frame)
    }

    fn block(&mut self, lie: Lie, stream: u16) -> Vec<u8> {
        let rng = &mut self.rng;
        match lie {
            Lie::Group => {
                let k = rng.random_range(1..3_u8);
                self.sequence += rng.random_range(0..10);
                self.data(stream, [3, k, 255 - k, 255], &whole(&[7; 20]))
            }
            Lie::Shape => {
                let (k, m) = (rng.random_range(1..120_u8), rng.random_range(1..120_u8));
                self.sequence += u64::from(k);
                parity(stream, self.sequence, [3, k, m, 1], 1, m)
            }
            _ => parity(stream, 2 * rng.random_range(0..16_000), [3, 2, 3, 1], 2, 3),
        }
    }

    fn record(&mut self, lie: Lie) -> (Head, Vec<u8>) {
        let flow = FlowId(self.flow(3000));
        let addressing = self.addressing();
        let aside = self.reach == Reach::Aside;
        let rng = &mut self.rng;
        match lie {
            Lie::Flow => {
                let seq = rng.random_range(0..100_000);
                let to = rng.random_range(0..9000) + if aside { 0x9000 } else { 0 };
                let head = Head::Request {
                    flow,
                    seq,
                    replay: false,
                    rested: false,
                    opens: Opening::Full(addressing),
                };
                (head, request(Opcode::SendFirst, to, seq, 256))
            }
            Lie::Lan => {
                let mut body = vec![0; if rng.random_bool(0.5) { 12 } else { 1200 }];
                // XRC.
                body.iter_mut().take(1).for_each(|opcode| *opcode = 0xa0);
                (Head::Datagram(addressing), body)
            }
            Lie::Ordered => {
                (Head::Ordered { flow, seq: rng.random_range(0..8_000_000), addressing }, vec![0xa0; 16])
            }
            _ => {
                let word = rng.random_range(0..5);
                let requests = rng.random();
                let flow = FlowId(self.flow(u32::MAX));
                let head = match word {
                    0 => Head::Close { flow, requests },
                    1 => Head::Idle { flow },
                    2 => Head::Abort { flow, reason: Reason::NoRoom },
                    3 => Head::Request { flow, seq: 3, replay: false, rested: false, opens: Opening::Short },
                    _ => Head::Request { flow, seq: 3, replay: false, rested: false, opens: Opening::Known },
                };
                (head, request(Opcode::SendOnly, 3, 7, 8))
            }
        }
    }

    /// One of so many flows.
    fn flow(&mut self, count: u32) -> u32 {
        match self.reach {
            Reach::Anything => self.rng.random_range(0..count),
            Reach::Aside => LIARS_FLOWS + self.rng.random_range(0..count.min(LIARS_FLOWS)),
        }
    }

    /// From a host behind the peer to one of those that honest hosts talk to.
    fn addressing(&mut self) -> Addressing {
        let first = if self.reach == Reach::Aside { 50 } else { 1 };
        let [own, there] = self.sites;
        // Those that it spares have the lowest numbers.
        let to = if self.spared.is_some() { 2 } else { 1 };
        let (src, dst) = ([10, 0, own, self.rng.random_range(first..250)].into(), [10, 0, there, to].into());
        Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 }
    }

    /// Returns a lie about streams and the link.
    fn control(&mut self, lie: Lie, stream: u16) -> Vec<u8> {
        let [high, low] = stream.to_be_bytes();
        let rng = &mut self.rng;
        let mut noise = |len: usize, kind: u8, flags: u8, id: [u8; 2]| {
            let mut packet = vec![0; len];
            rng.fill_bytes(&mut packet);
            put(&mut packet, 0, &[kind, flags, id[0], id[1]]);
            packet
        };
        match lie {
            Lie::Report => {
                let (words, ranges) = (self.sequence % 16, self.sequence % 20);
                let len = REPORT_HEADER + (8 * words + 6 * ranges) as usize;
                let mut packet = noise(len, REPORT, 0, [high, low]);
                // Of what may have been sent.
                put(&mut packet, 8, &(self.sequence % 5000).to_be_bytes());
                put(&mut packet, 36, &((self.sequence % 7) as u32).to_be_bytes());
                put(&mut packet, 44, &[0, words as u8, 0, ranges as u8]);
                packet
            }
            Lie::Path => {
                let mut packet = noise(PATH_LEN, PATH, 2, [0, 0]);
                put(&mut packet, 4, &(self.sequence as u32).to_be_bytes());
                packet
            }
            Lie::Mtu => {
                let len = if self.sequence.is_multiple_of(2) { LONGEST } else { 32 };
                noise(len, MTU, self.sequence as u8 & 1, [0, 0])
            }
            Lie::Piece => {
                let mut packet = noise(16 + 64, PIECE, 0, [0, 0]);
                put(&mut packet, 4, &(self.sequence as u32).to_be_bytes());
                let index = (self.sequence % 31) as u8;
                put(&mut packet, 8, &[0x23, 0x28, 0, index * 64, index, 32, 0, 0]);
                packet
            }
            _ => {
                let len = rng.random_range(4..LONGEST);
                let kinds = if self.reach == Reach::Aside { 1..4 } else { 1..8 };
                let kind = rng.random_range(kinds);
                let mut packet = vec![0; len];
                rng.fill_bytes(&mut packet);
                let coding = rng.random_range(0..4) << 2;
                match kind {
                    1 => put(&mut packet, 0, &[DATA | coding, low]),
                    2 => put(&mut packet, 0, &[PARITY | coding, low]),
                    _ => put(&mut packet, 0, &[kind, 0, high, low]),
                }
                packet
            }
        }
    }

    /// A DATA packet somewhere in the window.
    fn data(&mut self, stream: u16, shape: [u8; 4], frames: &[u8]) -> Vec<u8> {
        let sequence = (self.sequence % 30_000 + 1) as u32;
        let [coding, block @ ..] = shape;
        // Now and then the window moves on.
        let floor = if self.rng.random_bool(0.001) { 0 } else { 0xff };
        let mut packet = vec![DATA | coding << 2, stream as u8, 0, floor, 0, 0, 0];
        packet.extend(sequence.to_be_bytes());
        if coding > 1 {
            packet.extend(block);
            packet.extend([0; 5]);
        }
        packet.extend(frames);
        packet
    }
}

/// A byte of a record that began so many packets before.
fn piece(back: u16, total: u32, offset: u32) -> Vec<u8> {
    let mut frame = vec![0xff];
    frame.extend(back.to_be_bytes());
    frame.extend((0x8000_0000 | total).to_be_bytes());
    if back > 0 {
        frame.extend((0x8000_0000 | offset).to_be_bytes());
    }
    frame.push(5);
    frame
}

fn whole(record: &[u8]) -> Vec<u8> {
    let mut frame = (record.len() as u16 + 1).to_be_bytes().to_vec();
    frame.extend(record);
    frame
}

fn parity(stream: u16, base: u64, shape: [u8; 4], count: u16, parities: u8) -> Vec<u8> {
    let [coding, block @ ..] = shape;
    let mut packet = vec![PARITY | coding << 2, stream as u8, 0, 0, 0];
    packet.extend((base as u32).to_be_bytes());
    packet.extend(block);
    packet.extend([0, 0]);
    packet.extend(count.to_be_bytes());
    packet.push(parities);
    // The symbol of a packet of nothing but padding.
    packet.extend([0, 4, 0, 0, 0, 0]);
    packet
}

/// A packet that asks for an answer, its payload so long.
fn request(opcode: Opcode, to: u32, psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(to), Psn::new(psn)) };
    let repr = Repr { bth, ext: Ext::None, payload: &vec![1; len] };
    let mut bytes = vec![0; repr.buffer_len()];
    // Its length is that of an empty payload, or of whole words.
    let len = repr.emit(&mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
}

fn put(packet: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, byte) in packet.iter_mut().skip(at).zip(bytes) {
        *to = *byte;
    }
}
