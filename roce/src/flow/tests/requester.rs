//! A go-back-N requester after Soft-RoCE's, which panics when it is told what cannot be true.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Rng, T, emit, parse};
use crate::wire::{Aeth, AtomicEth, Bth, Ext, Feth, ImmDt, Kind, Nak, Opcode, Place, Psn, Reth, Syndrome};

/// Where READs read from: byte `a` of this region holds `pattern(a)` for ever.
pub(super) fn pattern(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Send,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    Flush,
    AtomicWrite,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) what: What,
    pub(super) length: u32,
    pub(super) address: u64,
    pub(super) first: Psn,
    pub(super) span: u32,
}

impl Op {
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.what, What::Send | What::Write | What::WriteImmediate)
    }

    pub(super) fn last(&self) -> Psn {
        self.first + (self.span - 1)
    }

    /// Packet `index` of the operation as first sent; a READ as resumed at response `index`.
    pub(super) fn packet(&self, id: usize, index: u32, mtu: u32) -> Vec<u8> {
        let offset = index * mtu;
        let left = self.length - offset;
        let only = self.span == 1;
        let (starts, ends) = (index == 0, index + 1 == self.span);
        let opcode = match self.what {
            What::Send if only => Opcode::SendOnly,
            What::Send if starts => Opcode::SendFirst,
            What::Send if ends => Opcode::SendLast,
            What::Send => Opcode::SendMiddle,
            What::Write if only => Opcode::WriteOnly,
            What::WriteImmediate if only => Opcode::WriteOnlyImmediate,
            What::WriteImmediate if ends => Opcode::WriteLastImmediate,
            What::Write if ends => Opcode::WriteLast,
            What::Write | What::WriteImmediate if starts => Opcode::WriteFirst,
            What::Write | What::WriteImmediate => Opcode::WriteMiddle,
            What::Read => Opcode::ReadRequest,
            What::FetchAdd => Opcode::FetchAdd,
            What::Flush => Opcode::Flush,
            What::AtomicWrite => Opcode::AtomicWrite,
        };
        let is_read = self.what == What::Read;
        let reth = Reth {
            virtual_address: self.address + u64::from(if is_read { offset } else { 0 }),
            rkey: 7,
            dma_length: if is_read { left } else { self.length },
        };
        let imm = ImmDt((id as u32).to_be_bytes());
        let ext = match opcode {
            Opcode::WriteOnly | Opcode::WriteFirst | Opcode::ReadRequest | Opcode::AtomicWrite => {
                Ext::Reth(reth)
            }
            Opcode::WriteOnlyImmediate => Ext::RethImm(reth, imm),
            Opcode::WriteLastImmediate => Ext::Imm(imm),
            Opcode::Flush => Ext::Flush(Feth(1), reth),
            Opcode::FetchAdd => {
                Ext::Atomic(AtomicEth { virtual_address: self.address, rkey: 7, swap_or_add: 1, compare: 0 })
            }
            _ => Ext::None,
        };
        let payload: Vec<u8> = match self.what {
            What::Read | What::FetchAdd | What::Flush => Vec::new(),
            _ => (0..left.min(mtu)).map(|at| (id as u32 * 31 + (offset + at) * 7) as u8).collect(),
        };
        let mut bth = Bth::new(opcode, T, self.first + index);
        bth.ack_req = ends && !self.is_answered();
        emit(bth, ext, &payload)
    }
}

#[derive(Debug)]
pub(super) struct Requester {
    pub(super) ops: Vec<Op>,
    mtu: u32,
    /// Operations completed; the first of the rest is the oldest outstanding.
    pub(super) done: usize,
    /// The operation that failed, and how.
    pub(super) error: Option<(usize, Syndrome)>,
    /// First PSN not acknowledged.
    una: Psn,
    /// The position to send next: operation, packet.
    next: (usize, u32),
    high: Psn,
    window: i32,
    depth: usize,
    timeout: Duration,
    eager: bool,
    /// Any response restarts its timer, as with Soft-RoCE.
    patient: bool,
    /// Nothing overtakes anything on the way to it.
    pub(super) orderly: bool,
    progress: Instant,
    rnr_until: Option<Instant>,
    /// PSN of the latest request for the READ at the head.
    read_asked: Psn,
    since_ack_req: u32,
    asked_again: Option<Psn>,
    pub(super) fetched: VecDeque<u64>,
    pub(super) middle_for_first: u64,
}

impl Requester {
    pub(super) fn new(rng: &mut Rng, mtu: u32, first: Psn, count: u64, now: Instant) -> Requester {
        let mut psn = first;
        let style = rng.below(4);
        let ops = (0..count)
            .map(|_| {
                let what = match style {
                    0 => rng.pick(&[What::Send, What::Write]),
                    1 => rng.pick(&[What::Read, What::Read, What::Write]),
                    _ => rng.pick(&[
                        What::Send,
                        What::Write,
                        What::WriteImmediate,
                        What::Read,
                        What::Read,
                        What::FetchAdd,
                        What::Flush,
                        What::AtomicWrite,
                    ]),
                };
                let length = match what {
                    What::FetchAdd | What::Flush => 0,
                    What::AtomicWrite => 8,
                    _ if rng.chance(300) => rng.below(u64::from(mtu) + 1) as u32,
                    _ if rng.chance(50) => 0,
                    _ => rng.below(u64::from(mtu) * 24) as u32,
                };
                let op = Op {
                    what,
                    length,
                    address: rng.below(1 << 20) & !7,
                    first: psn,
                    span: length.div_ceil(mtu).max(1),
                };
                psn += op.span;
                op
            })
            .collect();
        Requester {
            ops,
            mtu,
            done: 0,
            error: None,
            una: first,
            next: (0, 0),
            high: first,
            window: rng.pick(&[4, 32, 128, 1000]),
            depth: rng.pick(&[1, 4, 16]),
            timeout: Duration::from_millis(rng.pick(&[4, 20, 67, 500])),
            eager: rng.chance(500),
            patient: rng.chance(500),
            orderly: false,
            progress: now,
            rnr_until: None,
            read_asked: first,
            since_ack_req: 0,
            asked_again: None,
            fetched: VecDeque::new(),
            middle_for_first: 0,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.error.is_some() || self.done == self.ops.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.is_finished() {
            return None;
        }
        self.rnr_until.or((self.una != self.high).then_some(self.progress + self.timeout))
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        self.rnr_until = None;
        self.progress = now;
        self.go_back();
    }

    fn go_back(&mut self) {
        let op = &self.ops[self.done.min(self.ops.len() - 1)];
        self.next = (self.done, self.una.distance(op.first).unsigned_abs());
    }

    /// Returns true if window, depth and timers allow a packet.
    pub(super) fn may_transmit(&self) -> bool {
        let (id, index) = self.next;
        let Some(op) = self.ops.get(id).filter(|_| !self.is_finished()) else {
            return false;
        };
        let before = &self.ops[self.done..id];
        let outstanding = before.iter().filter(|op| op.is_answered()).count();
        let psn = op.first + index;
        self.rnr_until.is_none()
            && (!op.is_answered() || outstanding < self.depth)
            && psn.distance(self.una) < self.window
    }

    /// The next packet to send.
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if !self.may_transmit() {
            return None;
        }
        let (id, index) = self.next;
        let op = &self.ops[id];
        let psn = op.first + index;
        let mut bytes = op.packet(id, index, self.mtu);
        self.since_ack_req += 1;
        if self.since_ack_req >= 32 && !op.is_answered() {
            Bth::set_ack_req(bytes.first_chunk_mut().unwrap(), true);
        }
        if parse(&bytes).bth.ack_req {
            self.since_ack_req = 0;
        }
        if self.una == self.high {
            self.progress = now;
        }
        let sent_to = if op.is_answered() {
            self.next = (id + 1, 0);
            op.last().next()
        } else {
            self.next = if index + 1 == op.span { (id + 1, 0) } else { (id, index + 1) };
            psn.next()
        };
        if op.what == What::Read && id == self.done {
            self.read_asked = psn;
        }
        if sent_to.is_after(self.high) {
            self.high = sent_to;
        }
        Some(bytes)
    }

    /// A response. `executed` is how many operations the target has executed.
    pub(super) fn handle(&mut self, bytes: &[u8], executed: usize, now: Instant) {
        let packet = parse(bytes);
        let psn = packet.bth.psn;
        if self.is_finished() {
            return;
        }
        if self.patient {
            self.progress = now;
        }
        match (packet.bth.opcode.kind(), packet.ext) {
            (Kind::ReadResponse | Kind::AtomicAcknowledge, _) => {
                self.handle_answer(&packet, executed, now);
            }
            (_, Ext::Aeth(Aeth { syndrome, .. })) => {
                let fatal = syndrome.is_fatal();
                if psn.is_before(self.una) {
                    let head = &self.ops[self.done];
                    let inside_read = head.is_answered() && self.una != head.first;
                    assert!(!(self.orderly && inside_read), "ACK at {psn} in the midst of a READ");
                    return;
                }
                assert!(psn.is_before(self.high), "{syndrome:?} at {psn}, sent up to {}", self.high);
                let to = if syndrome.is_ack() { psn.next() } else { psn };
                let whole = self.acknowledged(to, executed, now);
                match syndrome {
                    _ if !whole || self.is_finished() => {}
                    Syndrome::Rnr { timer } => {
                        self.rnr_until = Some(now + timer.duration());
                        self.go_back();
                    }
                    Syndrome::Nak(Nak::PsnSequence) => self.go_back(),
                    _ if fatal => self.error = Some((self.done, syndrome)),
                    _ => {}
                }
            }
            _ => panic!("not a response: {packet:?}"),
        }
    }

    /// Everything before `to` is acknowledged, by implication or not. A READ or atomic without its
    /// answer stops that: ask again.
    fn acknowledged(&mut self, to: Psn, executed: usize, now: Instant) -> bool {
        while let Some(op) = self.ops.get(self.done).filter(|op| op.first.is_before(to)) {
            if op.is_answered() {
                if self.una.is_before(to) {
                    self.lost_answer();
                    return false;
                }
                break;
            }
            if to.is_after(self.una) {
                self.progress = now;
            }
            if to.is_after(op.last()) {
                self.una = op.last().next();
                self.complete(executed);
            } else {
                if to.is_after(self.una) {
                    self.una = to;
                }
                break;
            }
        }
        // What is acknowledged is not sent again.
        let (id, index) = self.next;
        let next = self.ops.get(id).map(|op| op.first + index);
        if next.is_some_and(|next| next.is_before(self.una)) {
            self.go_back();
        }
        true
    }

    /// Asks again, once for each loss.
    fn lost_answer(&mut self) {
        if self.asked_again != Some(self.una) {
            self.asked_again = Some(self.una);
            self.go_back();
        }
    }

    fn complete(&mut self, executed: usize) {
        assert!(
            executed > self.done,
            "operation {} completed, but the target has executed {executed}",
            self.done
        );
        self.done += 1;
        if let Some(op) = self.ops.get(self.done) {
            self.read_asked = op.first;
        }
    }

    fn handle_answer(&mut self, packet: &crate::wire::Packet<'_>, executed: usize, now: Instant) {
        let psn = packet.bth.psn;
        if psn.is_before(self.una) || !self.acknowledged(psn, executed, now) {
            return;
        }
        let Some(op) = self.ops.get(self.done).cloned() else {
            return;
        };
        if !op.is_answered() {
            return;
        }
        if psn != self.una {
            if self.eager {
                self.lost_answer();
            }
            return;
        }
        let opcode = packet.bth.opcode;
        match op.what {
            What::Read => self.take_read(&op, packet),
            What::FetchAdd => {
                assert_eq!(opcode, Opcode::AtomicAcknowledge);
                let Ext::AtomicAck(_, value) = packet.ext else { panic!("no value") };
                self.fetched.push_back(value.0);
            }
            _ => assert_eq!(opcode, Opcode::ReadResponseOnly),
        }
        self.progress = now;
        self.una = psn.next();
        if psn == op.last() {
            self.complete(executed);
        }
        let (id, _) = self.next;
        if id < self.done {
            self.next = (self.done, 0);
        } else if id == self.done && self.done < self.ops.len() && self.ops[id].first != self.una {
            self.go_back();
        }
    }

    fn take_read(&mut self, op: &Op, packet: &crate::wire::Packet<'_>) {
        let psn = packet.bth.psn;
        let index = psn.distance(op.first).unsigned_abs();
        let place = packet.bth.opcode.place();
        let last = psn == op.last();
        let fresh = psn == self.read_asked;
        match (fresh, last, place) {
            (_, false, Place::Middle) | (_, true, Place::Last) => {
                assert!(index > 0, "READ begins with {place:?}");
                self.middle_for_first += u64::from(fresh);
            }
            (true, false, Place::First) | (true, true, Place::Only) => {}
            _ => panic!("{place:?} at response {index} of {op:?}, asked at {}", self.read_asked),
        }
        let offset = index * self.mtu;
        let expected: Vec<u8> = (0..(op.length - offset).min(self.mtu))
            .map(|at| pattern(op.address + u64::from(offset + at)))
            .collect();
        assert!(packet.payload == expected, "READ data");
    }

    /// The oldest PSN not acknowledged is not one to start from.
    pub(super) fn is_inside_a_message(&self) -> bool {
        let op = &self.ops[self.done];
        !op.is_answered() && self.una != op.first
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "requester: {} of {} done, una {}, next {:?}, high {}",
            self.done,
            self.ops.len(),
            self.una,
            self.next,
            self.high
        )
    }
}
