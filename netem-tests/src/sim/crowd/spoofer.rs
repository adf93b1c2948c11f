//! Somebody on a LAN who sends packets in the name of its host, and knows the queue pairs' numbers.

#![expect(clippy::indexing_slicing, reason = "kinds of packets are 0 to 2, places in a MAD are fixed")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::Addressing;
use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, RnrTimer,
    Syndrome, Transport,
};

use crate::host::Standing;
use crate::sim::draw::Dice;

/// How often, and how well aimed.
#[derive(Clone, Copy, Debug)]
pub struct Spoofing {
    /// Mean time between two packets.
    pub every: Duration,
    /// Packets of each spoofer, at most.
    pub most: u64,
    /// PSNs are drawn up to so far from those at which connections began; `None`: from all there
    /// are.
    pub reach: Option<u32>,
}

/// Packets that spoofers sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spoofed {
    /// Requests, responses, and messages of connection management.
    pub sent: [u64; 3],
    /// Requests whose PSN was the one expected, and responses whose PSN was outstanding.
    pub hits: [u64; 2],
    /// How many of either had to be expected of PSNs drawn from all there are.
    pub chance: [f64; 2],
}

impl Spoofed {
    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            sent: [0, 1, 2].map(|kind| self.sent[kind] + other.sent[kind]),
            hits: [0, 1].map(|kind| self.hits[kind] + other.hits[kind]),
            chance: [0, 1].map(|kind| self.chance[kind] + other.chance[kind]),
        }
    }

    /// All packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// A packet is about to be sent to a queue pair that stands so.
    pub(super) fn count(&mut self, packet: &Packet<'_>, standing: Option<Standing>) {
        if packet.bth.opcode.transport() != Transport::Rc {
            self.sent[2] += 1;
            return;
        }
        let kind = usize::from(packet.bth.opcode.is_response());
        self.sent[kind] += 1;
        let Some(Standing { expected, oldest, outstanding }) = standing else { return };
        let (first, count) = if kind == 0 { (expected, 1) } else { (oldest, outstanding) };
        self.hits[kind] += u64::from(packet.bth.psn.is_within(first, count));
        self.chance[kind] += f64::from(count) / f64::from(1 << 24);
    }
}

/// The spoofer of one world.
pub(super) struct Spoofer {
    plan: Spoofing,
    dice: Dice,
    next: Instant,
    pub(super) spoofed: Spoofed,
}

/// Attributes of connection management, from the request to connect to the reply to a disconnect.
const REQ: u8 = 0x10;
const DREP: u8 = 0x16;

const REQUESTS: [Opcode; 7] = [
    Opcode::SendOnly,
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::WriteOnly,
    Opcode::WriteLast,
    Opcode::ReadRequest,
    Opcode::FetchAdd,
];

impl Spoofer {
    pub(super) fn new(plan: Spoofing, seed: u64, now: Instant) -> Self {
        Self {
            plan,
            dice: Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x5900_f000)),
            next: now,
            spoofed: Spoofed::default(),
        }
    }

    /// When it sends next.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.spoofed.total() < self.plan.most).then_some(self.next)
    }

    /// Nobody is connected now.
    pub(super) fn put_off(&mut self, until: Instant) {
        self.next = until;
    }

    /// Draws the next packet to one of these queue pairs, whose connections began at these PSNs:
    /// its addressing and its bytes.
    pub(super) fn draw(&mut self, ips: [IpAddr; 2], qpns: &[Qpn], firsts: &[u32]) -> (Addressing, Vec<u8>) {
        self.next += self.plan.every.mul_f64(2.0 * self.dice.0.random::<f64>());
        let near = self.dice.pick(qpns).get();
        let to = Qpn::new(if self.dice.chance(0.8) { near } else { near + 1 });
        let psn = match self.plan.reach {
            None => self.dice.0.random_range(0..1 << 24),
            Some(reach) => self.dice.pick(firsts).wrapping_add(self.dice.0.random_range(0..reach)),
        };
        let addressing = |dice: &mut Dice| {
            let src_port = 0xc000 | dice.0.random_range(0..1 << 14);
            Addressing { src: ips[0], dst: ips[1], src_port, tclass: 0, ttl: 64 }
        };
        if self.dice.chance(0.1) {
            let transport = self.management(to);
            return (addressing(&mut self.dice), transport);
        }
        let is_response = self.dice.chance(0.4);
        let (opcode, ext) = if is_response { self.response() } else { self.request() };
        let length = if opcode.has_payload() { 64 } else { 0 };
        let bth = Bth { ack_req: true, ..Bth::new(opcode, to, Psn::new(psn & 0xff_ffff)) };
        let repr = Repr { bth, ext, payload: &vec![0xee; length] };
        let mut transport = vec![0; repr.buffer_len()];
        let len = repr.emit(&mut transport).unwrap_or(0);
        transport.truncate(len);
        (addressing(&mut self.dice), transport)
    }

    /// A message of connection management that names the queue pair wherever one can be named, and
    /// communication IDs drawn from all there are.
    fn management(&mut self, about: Qpn) -> Vec<u8> {
        let attribute = self.dice.0.random_range(REQ..=DREP);
        let mut mad = [0u8; 24 + 232];
        self.dice.0.fill(&mut mad[24..]);
        // Base version, class, its version, and the method Send.
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        // In a REP, a DREQ and a REQ.
        for at in [12, 8, 32] {
            mad[24 + at..][..3].copy_from_slice(&about.get().to_be_bytes()[1..]);
        }
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
        let ext = Ext::Deth(Deth { qkey: 0x8001_0000, src_qp: Qpn::GSI });
        let repr = Repr { bth, ext, payload: &mad };
        let mut transport = vec![0; repr.buffer_len()];
        let len = repr.emit(&mut transport).unwrap_or(0);
        transport.truncate(len);
        transport
    }

    fn request(&mut self) -> (Opcode, Ext) {
        let opcode = self.dice.pick(&REQUESTS);
        let reth = Reth { virtual_address: self.dice.0.random(), rkey: self.dice.0.random(), dma_length: 64 };
        let ext = match opcode {
            Opcode::WriteOnly | Opcode::ReadRequest => Ext::Reth(reth),
            Opcode::FetchAdd => Ext::Atomic(AtomicEth {
                virtual_address: reth.virtual_address,
                rkey: reth.rkey,
                swap_or_add: 1,
                compare: 0,
            }),
            _ => Ext::None,
        };
        (opcode, ext)
    }

    fn response(&mut self) -> (Opcode, Ext) {
        let syndrome = self.dice.pick(&[
            Syndrome::ACK,
            Syndrome::ACK,
            Syndrome::Nak(Nak::PsnSequence),
            Syndrome::Nak(Nak::RemoteOperation),
            Syndrome::Rnr { timer: RnrTimer::new(20) },
        ]);
        let aeth = Aeth { syndrome, msn: self.dice.0.random_range(0..1 << 24) };
        match self.dice.range(0, 5) {
            0 => (Opcode::ReadResponseOnly, Ext::Aeth(aeth)),
            1 => (Opcode::AtomicAcknowledge, Ext::AtomicAck(aeth, AtomicAckEth(self.dice.0.random()))),
            _ => (Opcode::Acknowledge, Ext::Aeth(aeth)),
        }
    }
}
