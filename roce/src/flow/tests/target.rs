//! A strict responder: executes in PSN order what must be exactly the requester's stream, and
//! answers duplicates as Soft-RoCE does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::requester::{Op, What, pattern};
use super::{R, Rng, emit, parse};
use crate::wire::{Aeth, AtomicAckEth, Bth, Ext, Kind, Nak, Opcode, Packet, Psn, RnrTimer, Syndrome};

/// READs and atomics that can be answered again.
const RESOURCES: usize = 16;

/// An operation, or a piece of a READ, that can be answered again.
#[derive(Clone, Copy, Debug)]
struct Kept {
    id: usize,
    /// The bytes asked for, if it is of a READ.
    from: u32,
    to: u32,
    /// The byte from where a READ was asked for last.
    again: u32,
    value: u64,
}

#[derive(Debug)]
pub(super) struct Target {
    ops: Vec<Op>,
    mtu: u32,
    /// Operations executed, and packets of the current one.
    pub(super) executed: usize,
    packets: u32,
    /// Bytes of the current READ that were asked for.
    asked: u32,
    pub(super) expected: Psn,
    msn: u32,
    nak_sent: bool,
    counter: u64,
    kept: VecDeque<Kept>,
    rnr_until: Option<Instant>,
    rnr_chance: u64,
    /// Refuses this operation.
    pub(super) refuse: Option<(usize, Nak)>,
    /// Its queue pair is in error.
    pub(super) broken: bool,
    /// Answers nothing.
    pub(super) dead: bool,
    /// As Soft-RoCE (`rxe_resp.c`): a READ asked for again from its middle on begins with Middle or
    /// Last (`rdatm_res_state_replay`), not with First or Only, and what lies before that is not
    /// answered any more (`duplicate_request`).
    soft: bool,
    pub(super) out: VecDeque<Vec<u8>>,
}

impl Target {
    pub(super) fn new(rng: &mut Rng, ops: Vec<Op>, mtu: u32, first: Psn) -> Target {
        Target {
            ops,
            mtu,
            executed: 0,
            packets: 0,
            asked: 0,
            expected: first,
            msn: 0,
            nak_sent: false,
            counter: 0,
            kept: VecDeque::new(),
            rnr_until: None,
            rnr_chance: rng.pick(&[0, 0, 100]),
            refuse: None,
            broken: false,
            dead: false,
            soft: rng.chance(500),
            out: VecDeque::new(),
        }
    }

    pub(super) fn handle(&mut self, bytes: &[u8], rng: &mut Rng, now: Instant) {
        if self.broken || self.dead {
            return;
        }
        let packet = parse(bytes);
        let psn = packet.bth.psn;
        match psn.distance(self.expected) {
            1.. => {
                if !std::mem::replace(&mut self.nak_sent, true) {
                    self.acknowledge(self.expected, Syndrome::Nak(Nak::PsnSequence));
                }
            }
            0 => self.in_order(&packet, rng, now),
            _ => self.duplicate(&packet),
        }
    }

    fn in_order(&mut self, packet: &Packet<'_>, rng: &mut Rng, now: Instant) {
        self.nak_sent = false;
        let psn = packet.bth.psn;
        if self.is_poison(packet) {
            self.refuse_with(Nak::InvalidRequest);
            return;
        }
        let op = self.ops[self.executed].clone();
        if packet.bth.opcode.needs_receive() {
            if self.rnr_until.is_none() && rng.chance(self.rnr_chance) {
                self.rnr_until = Some(now + Duration::from_micros(rng.below(30_000)));
            }
            if self.rnr_until.is_some_and(|until| now < until) {
                let timer = RnrTimer::new(rng.pick(&[1, 10, 14, 18]));
                self.acknowledge(psn, Syndrome::Rnr { timer });
                return;
            }
            self.rnr_until = None;
        }
        if let Some((_, nak)) = self.refuse.filter(|&(id, _)| id == self.executed) {
            self.refuse_with(nak);
            return;
        }
        if op.what == What::Read {
            let reth = *packet.ext.reth().unwrap();
            let to = self.asked + reth.dma_length;
            assert_eq!(packet.bth.opcode, Opcode::ReadRequest);
            assert_eq!((reth.virtual_address, reth.rkey), (op.address + u64::from(self.asked), 7));
            assert!(to == op.length || to < op.length && to.is_multiple_of(self.mtu), "{to} of {op:?}");
            return self.execute_read(&op, to);
        }
        // The very packet the requester sent, but for AckReq.
        let mut sent = op.packet(self.executed, self.packets, self.mtu);
        Bth::set_ack_req(sent.first_chunk_mut().unwrap(), packet.bth.ack_req);
        assert!(packet.bytes == sent, "operation {} packet {}", self.executed, self.packets);
        self.execute(&op, packet.bth.ack_req);
    }

    /// The current READ is asked for up to the byte `to`.
    fn execute_read(&mut self, op: &Op, to: u32) {
        let (id, from) = (self.executed, std::mem::replace(&mut self.asked, to));
        self.msn += 1;
        if to == op.length {
            self.asked = 0;
            self.executed += 1;
            self.expected = op.last().next();
        } else {
            self.expected = op.first + to / self.mtu;
        }
        self.keep(Kept { id, from, to, again: from, value: 0 });
        self.answer(op, from / self.mtu, to - from, 0, false);
    }

    fn keep(&mut self, kept: Kept) {
        self.kept.push_back(kept);
        let mut ids: Vec<_> = self.kept.iter().map(|kept| kept.id).collect();
        ids.dedup();
        let oldest = ids[ids.len().saturating_sub(RESOURCES)];
        self.kept.retain(|old| old.id >= oldest);
    }

    fn execute(&mut self, op: &Op, ack_req: bool) {
        let id = self.executed;
        if op.is_answered() {
            self.expected = op.last().next();
            self.msn += 1;
            self.executed += 1;
            let value = self.counter;
            self.counter += u64::from(op.what == What::FetchAdd);
            self.keep(Kept { id, from: 0, to: 0, again: 0, value });
            self.answer(op, 0, op.length, value, false);
            return;
        }
        self.expected = self.expected.next();
        self.packets += 1;
        if self.packets == op.span {
            self.packets = 0;
            self.executed += 1;
            self.msn += 1;
        }
        if ack_req {
            self.acknowledge(self.expected.prev(), Syndrome::ACK);
        }
    }

    /// Answers `length` bytes of an operation from response `index` on; `resumes`: as if the
    /// responses before had just been sent.
    fn answer(&mut self, op: &Op, index: u32, length: u32, value: u64, resumes: bool) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        if op.what != What::Read {
            let (opcode, ext) = match op.what {
                What::FetchAdd => (Opcode::AtomicAcknowledge, Ext::AtomicAck(aeth, AtomicAckEth(value))),
                _ => (Opcode::ReadResponseOnly, Ext::Aeth(aeth)),
            };
            self.out.push_back(emit(Bth::new(opcode, R, op.first), ext, &[]));
            return;
        }
        let count = length.div_ceil(self.mtu).max(1);
        for at in 0..count {
            let opcode = match (at == 0 && !resumes, at + 1 == count) {
                (true, true) => Opcode::ReadResponseOnly,
                (true, false) => Opcode::ReadResponseFirst,
                (false, false) => Opcode::ReadResponseMiddle,
                (false, true) => Opcode::ReadResponseLast,
            };
            let offset = (index + at) * self.mtu;
            let payload: Vec<u8> = (0..(length - at * self.mtu).min(self.mtu))
                .map(|byte| pattern(op.address + u64::from(offset + byte)))
                .collect();
            let ext = match opcode {
                Opcode::ReadResponseMiddle => Ext::None,
                _ => Ext::Aeth(aeth),
            };
            self.out.push_back(emit(Bth::new(opcode, R, op.first + (index + at)), ext, &payload));
        }
    }

    fn duplicate(&mut self, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let kept = self.kept.iter_mut().find(|kept| {
            let op = &self.ops[kept.id];
            psn.is_within(op.first + kept.from / self.mtu, (kept.to - kept.from).div_ceil(self.mtu).max(1))
        });
        match (packet.bth.opcode.kind(), kept) {
            (Kind::Send | Kind::Write, _) => self.acknowledge(self.expected.prev(), Syndrome::ACK),
            (Kind::Read, Some(&mut Kept { id, from, to, value, ref mut again })) => {
                let op = self.ops[id].clone();
                let index = psn.distance(op.first).unsigned_abs();
                let reth = *packet.ext.reth().unwrap();
                let offset = index * self.mtu;
                assert_eq!(op.what, What::Read);
                assert_eq!(reth.virtual_address, op.address + u64::from(offset));
                // Only what lies within the request it has had, as Soft-RoCE.
                if offset + reth.dma_length <= to && (!self.soft || *again <= offset) {
                    *again = offset;
                    let resumes = self.soft && offset != from;
                    self.answer(&op, index, reth.dma_length, value, resumes);
                }
            }
            (_, Some(&mut Kept { id, value, .. })) => {
                let op = self.ops[id].clone();
                self.answer(&op, 0, 0, value, false);
            }
            (_, None) => {}
        }
    }

    fn is_poison(&self, packet: &Packet<'_>) -> bool {
        let middle = matches!(packet.bth.opcode, Opcode::SendMiddle | Opcode::WriteMiddle);
        middle && packet.payload.is_empty()
    }

    fn refuse_with(&mut self, nak: Nak) {
        self.acknowledge(self.expected, Syndrome::Nak(nak));
        self.broken = true;
    }

    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: self.msn };
        let bth = Bth::new(Opcode::Acknowledge, R, psn);
        self.out.push_back(emit(bth, Ext::Aeth(aeth), &[]));
    }
}
