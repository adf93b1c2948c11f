//! Somebody on a LAN who sends packets in the name of its host, and knows the queue pairs' numbers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::Addressing;
use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ext, Nak, Opcode, Psn, Qpn, Repr, Reth, RnrTimer, Syndrome,
};

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

/// The spoofer of one world.
pub(super) struct Spoofer {
    plan: Spoofing,
    dice: Dice,
    next: Instant,
    /// Requests and responses sent.
    pub(super) sent: [u64; 2],
}

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
        Self { plan, dice: Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x5900_f000)), next: now, sent: [0; 2] }
    }

    /// When it sends next.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.sent.iter().sum::<u64>() < self.plan.most).then_some(self.next)
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
        let is_response = self.dice.chance(0.4);
        let [requests, responses] = &mut self.sent;
        *(if is_response { responses } else { requests }) += 1;
        let (opcode, ext) = if is_response { self.response() } else { self.request() };
        let length = if opcode.has_payload() { 64 } else { 0 };
        let bth = Bth { ack_req: true, ..Bth::new(opcode, to, Psn::new(psn & 0xff_ffff)) };
        let repr = Repr { bth, ext, payload: &vec![0xee; length] };
        let mut transport = vec![0; repr.buffer_len()];
        let len = repr.emit(&mut transport).unwrap_or(0);
        transport.truncate(len);
        let src_port = 0xc000 | self.dice.0.random_range(0..1 << 14);
        (Addressing { src: ips[0], dst: ips[1], src_port, tclass: 0, ttl: 64 }, transport)
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
