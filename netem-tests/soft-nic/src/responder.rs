//! The receiving half of a queue pair: executes requests in PSN order and queues what to answer.

mod again;

use std::collections::VecDeque;
use std::time::Instant;

use roce::wire::{Aeth, AtomicAckEth, AtomicEth, Ext, Kind, Nak, Opcode, Packet, Psn, Reth, Syndrome};

use super::ahead::Ahead;
use super::memory::{Memory, Want};
use super::personality::{AckPolicy, DuplicateAck, Repeats, credit_code};
use super::requester::Outgoing;
use super::types::{HostStats, Operation, QpConfig, Sge, Status};

/// A posted receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) local: Sge,
}

/// A finished receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) wr_id: u64,
    pub(super) operation: Operation,
    pub(super) status: Status,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    pub(super) invalidated: Option<u32>,
    pub(super) solicited: bool,
}

impl Received {
    fn failed(receive: Receive, status: Status, byte_len: u32) -> Self {
        let (wr_id, operation) = (receive.wr_id, Operation::Recv);
        Self { wr_id, operation, status, byte_len, imm: None, invalidated: None, solicited: false }
    }
}

/// The message being received.
#[derive(Debug, Clone, Copy)]
enum Message {
    None,
    Send { receive: Receive, filled: u32 },
    Write { va: u64, rkey: u32, remaining: u32, total: u32 },
}

/// Something to answer. The queue of these is in PSN order.
#[derive(Debug, Clone, Copy)]
enum Reply {
    /// ACK, NAK or RNR NAK.
    Acknowledge {
        psn: Psn,
        aeth: Aeth,
    },
    /// The packets of a READ from `psn` on that are not sent yet.
    Read {
        psn: Psn,
        va: u64,
        rkey: u32,
        remaining: u32,
        started: bool,
        aeth: Aeth,
    },
    Once {
        psn: Psn,
        result: Answer,
        aeth: Aeth,
    },
}

/// The answer to a request that must not run twice.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// An atomic: the value before.
    Original(u64),
    /// ATOMIC WRITE, FLUSH.
    Done,
}

impl Reply {
    fn psn(&self) -> Psn {
        match self {
            Reply::Acknowledge { psn, .. } | Reply::Read { psn, .. } | Reply::Once { psn, .. } => *psn,
        }
    }
}

/// The effect of a request on the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Continue,
    /// A fatal NAK is queued: the queue pair goes to error.
    Fatal,
}

/// Why a request is not executed.
enum Refusal {
    /// Answer with this NAK and go to error; the receive in use ends with the status.
    Nak(Nak, Status),
    /// No receive is posted.
    NotReady,
    /// A SEND's key cannot be made invalid: the queue pair goes to error, and only the target's
    /// program is told (Soft-RoCE; the specification's class J).
    BadInvalidate,
}

#[derive(Debug)]
pub(super) struct Responder {
    config: QpConfig,
    expected: Psn,
    /// The PSN after the last one executed that was no READ's, over all incarnations.
    after_write: Psn,
    msn: u32,
    message: Message,
    receives: VecDeque<Receive>,
    /// Finished receives in order, to be collected by the queue pair.
    pub(super) done: VecDeque<Received>,
    replies: VecDeque<Reply>,
    /// Answers of a NIC that answers late, with the time of each. `true`: to a duplicate.
    late: VecDeque<(Instant, Reply, bool)>,
    /// An ACK that waits for others to join it: when it goes, and up to where it is.
    joint: Option<(Instant, Psn)>,
    ahead: Ahead,
    watched: bool,
    /// Executed packets, to be collected by the queue pair if it is watched.
    pub(super) executed: VecDeque<Vec<u8>>,
    /// The answers to the last requests that must not run twice, for duplicates.
    answers: VecDeque<(Psn, Answer)>,
    /// A NAK for `expected` is out; silence until it comes.
    nak_sent: bool,
}

impl Responder {
    pub(super) fn new(config: QpConfig, expected: Psn, watched: bool) -> Self {
        let depth = usize::from(config.max_dest_rd_atomic);
        Self {
            config,
            expected,
            after_write: Psn::default(),
            msn: 0,
            message: Message::None,
            receives: VecDeque::with_capacity(config.recv_depth),
            done: VecDeque::with_capacity(config.recv_depth),
            replies: VecDeque::with_capacity(4 * depth + 4),
            late: VecDeque::new(),
            joint: None,
            ahead: Ahead::default(),
            watched,
            executed: VecDeque::new(),
            answers: VecDeque::with_capacity(depth),
            nak_sent: false,
        }
    }

    /// Sets the first PSN; receives posted before stay.
    pub(super) fn expect(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// Takes over what a reset leaves as it was.
    pub(super) fn follow(&mut self, old: &Responder) {
        self.after_write = old.after_write;
    }

    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    pub(super) fn post(&mut self, receive: Receive) {
        self.receives.push_back(receive);
    }

    pub(super) fn wants_to_send(&self) -> bool {
        !self.replies.is_empty()
    }

    /// One request packet from the remote requester.
    pub(super) fn handle(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let ahead = packet.bth.psn.distance(self.expected);
        if ahead < 0 {
            stats.duplicates += 1;
            self.handle_duplicate(packet, memory, now);
            return Outcome::Continue;
        }
        if ahead > 0 {
            stats.out_of_sequence += 1;
            if self.config.personality.repeats == Repeats::Selective {
                self.ahead.keep(packet.bth.psn, self.expected, packet.bytes);
            }
            self.name_the_gap(now, stats);
            return Outcome::Continue;
        }
        let mut outcome = self.run(packet, memory, now, stats);
        while outcome == Outcome::Continue
            && !self.nak_sent
            && let Some(kept) = self.ahead.take(self.expected)
            && let Ok(packet) = Packet::parse(&kept)
        {
            outcome = self.run(&packet, memory, now, stats);
        }
        if outcome == Outcome::Continue && !self.ahead.is_empty() {
            self.name_the_gap(now, stats);
        }
        outcome
    }

    fn name_the_gap(&mut self, now: Instant, stats: &mut HostStats) {
        if !self.nak_sent {
            self.nak_sent = true;
            stats.naks_out += 1;
            self.acknowledge(self.expected, Syndrome::Nak(Nak::PsnSequence), now);
        }
    }

    /// The packet that is expected.
    fn run(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        match self.execute(packet, memory, now, stats) {
            Ok(()) => {
                self.nak_sent = false;
                stats.executed += 1;
                if self.watched {
                    self.executed.push_back(packet.bytes.to_vec());
                }
                Outcome::Continue
            }
            Err(Refusal::NotReady) => {
                stats.rnr_out += 1;
                self.nak_sent = true;
                self.acknowledge(packet.bth.psn, Syndrome::Rnr { timer: self.config.min_rnr_timer }, now);
                Outcome::Continue
            }
            Err(Refusal::Nak(nak, status)) => {
                self.fail(status);
                self.acknowledge(packet.bth.psn, Syndrome::Nak(nak), now);
                Outcome::Fatal
            }
            Err(Refusal::BadInvalidate) => {
                self.fail(Status::RemoteInvalidRequest);
                Outcome::Fatal
            }
        }
    }

    /// When an answer that waits is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let late = self.late.front().map(|(at, ..)| *at);
        [late, self.joint.map(|(at, _)| at)].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, reply, again)) = self.late.pop_front_if(|(at, ..)| *at <= now) {
            self.release(reply, again);
        }
        if let Some((_, psn)) = self.joint.take_if(|(at, _)| *at <= now) {
            let aeth = self.aeth(Syndrome::ACK);
            self.release(Reply::Acknowledge { psn, aeth }, false);
        }
    }

    /// The next packet to answer with.
    pub(super) fn poll(&mut self) -> Option<Outgoing> {
        let mtu = self.config.mtu.bytes();
        let reply = self.replies.front_mut()?;
        let (outgoing, finished) = match reply {
            Reply::Acknowledge { psn, aeth } => {
                (outgoing(Opcode::Acknowledge, *psn, Ext::Aeth(*aeth), Sge::default()), true)
            }
            Reply::Once { psn, result, aeth } => {
                let (opcode, ext) = match result {
                    Answer::Original(value) => {
                        (Opcode::AtomicAcknowledge, Ext::AtomicAck(*aeth, AtomicAckEth(*value)))
                    }
                    Answer::Done => (Opcode::ReadResponseOnly, Ext::Aeth(*aeth)),
                };
                (outgoing(opcode, *psn, ext, Sge::default()), true)
            }
            Reply::Read { psn, va, rkey, remaining, started, aeth } => {
                let len = (*remaining).min(mtu);
                let last = *remaining <= mtu;
                let aeth = Ext::Aeth(*aeth);
                let (opcode, ext) = match (*started, last) {
                    (false, true) => (Opcode::ReadResponseOnly, aeth),
                    (false, false) => (Opcode::ReadResponseFirst, aeth),
                    (true, false) => (Opcode::ReadResponseMiddle, Ext::None),
                    (true, true) => (Opcode::ReadResponseLast, aeth),
                };
                let packet = outgoing(opcode, *psn, ext, Sge { key: *rkey, va: *va, len });
                *psn = psn.next();
                *va = va.wrapping_add(u64::from(len));
                *remaining -= len;
                *started = true;
                (packet, last)
            }
        };
        if finished {
            self.replies.pop_front();
        }
        Some(Outgoing { migreq: self.config.personality.migreq, ..outgoing })
    }

    /// Ends all receives: the one in use with `status`, the rest flushed. What is queued as an
    /// answer still goes out.
    pub(super) fn fail(&mut self, status: Status) {
        if let Message::Send { receive, filled } = self.message {
            self.done.push_back(Received::failed(receive, status, filled));
        }
        self.message = Message::None;
        while let Some(receive) = self.receives.pop_front() {
            self.done.push_back(Received::failed(receive, Status::Flushed, 0));
        }
    }

    /// Drops what is queued as an answer: the queue pair failed on its own account.
    pub(super) fn silence(&mut self) {
        self.replies.clear();
        self.late.clear();
        self.joint = None;
        self.ahead.clear();
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Result<(), Refusal> {
        let psn = packet.bth.psn;
        match packet.bth.opcode.kind() {
            Kind::Send => self.execute_send(packet, memory)?,
            Kind::Write => self.execute_write(packet, memory)?,
            Kind::Read => return self.execute_read(packet, memory, now),
            Kind::Atomic => {
                self.execute_atomic(packet, memory, now)?;
                stats.atomics += 1;
                return Ok(());
            }
            Kind::AtomicWrite => {
                self.execute_atomic_write(packet, memory, now)?;
                stats.atomics += 1;
                return Ok(());
            }
            Kind::Flush => {
                self.execute_flush(packet, memory, now)?;
                stats.flushes += 1;
                return Ok(());
            }
            _ => return Err(INVALID),
        }
        self.expected = psn.next();
        self.after_write = self.expected;
        if packet.bth.opcode.ends_message() {
            self.count_message();
        }
        match self.config.personality.acks {
            AckPolicy::Each => self.acknowledge(psn, Syndrome::ACK, now),
            _ if !packet.bth.ack_req => {}
            AckPolicy::Coalesced(wait) => {
                let at = self.joint.map_or(now + wait, |(at, _)| at);
                self.joint = Some((at, psn));
            }
            AckPolicy::Asked | AckPolicy::Late(_) => self.acknowledge(psn, Syndrome::ACK, now),
        }
        Ok(())
    }

    fn execute_send(&mut self, packet: &Packet<'_>, memory: &mut Memory) -> Result<(), Refusal> {
        self.check_segment(packet)?;
        let (receive, filled) = match (packet.bth.opcode.starts_message(), self.message) {
            (true, Message::None) => (self.receives.pop_front().ok_or(Refusal::NotReady)?, 0),
            (false, Message::Send { receive, filled }) => (receive, filled),
            _ => return Err(INVALID),
        };
        self.message = Message::Send { receive, filled };
        let len = packet.payload.len();
        let added = u32::try_from(len).unwrap_or(u32::MAX);
        if receive.local.len - filled < added {
            return Err(Refusal::Nak(Nak::InvalidRequest, Status::LocalLength));
        }
        if len > 0 {
            let va = receive.local.va.wrapping_add(u64::from(filled));
            memory
                .local_mut(receive.local.key, va, len)
                .ok_or(Refusal::Nak(Nak::RemoteOperation, Status::LocalProtection))?
                .copy_from_slice(packet.payload);
        }
        let filled = filled + added;
        self.message = Message::Send { receive, filled };
        if let Ext::Ieth(key) = packet.ext
            && !memory.revoke(key.0)
        {
            return Err(Refusal::BadInvalidate);
        }
        if packet.bth.opcode.ends_message() {
            self.message = Message::None;
            self.finish_receive(receive, Operation::Recv, filled, packet);
        }
        Ok(())
    }

    fn execute_write(&mut self, packet: &Packet<'_>, memory: &mut Memory) -> Result<(), Refusal> {
        self.check_segment(packet)?;
        let (va, rkey, remaining, total) = match (packet.ext.reth(), self.message) {
            (Some(reth), Message::None) => {
                if !memory.allows(reth.rkey, reth.virtual_address, u64::from(reth.dma_length), Want::Write) {
                    return Err(DENIED);
                }
                (reth.virtual_address, reth.rkey, reth.dma_length, reth.dma_length)
            }
            (None, Message::Write { va, rkey, remaining, total }) => (va, rkey, remaining, total),
            _ => return Err(INVALID),
        };
        let len = packet.payload.len();
        let left = u32::try_from(len).ok().and_then(|len| remaining.checked_sub(len)).ok_or(INVALID)?;
        let ends = packet.bth.opcode.ends_message();
        if ends != (left == 0) {
            return Err(INVALID);
        }
        let receive = match packet.bth.opcode.has_immediate() {
            true => Some(self.receives.pop_front().ok_or(Refusal::NotReady)?),
            false => None,
        };
        if len > 0 {
            memory.local_mut(rkey, va, len).ok_or(DENIED)?.copy_from_slice(packet.payload);
        }
        let advanced = va.wrapping_add(u64::try_from(len).unwrap_or(0));
        self.message =
            if ends { Message::None } else { Message::Write { va: advanced, rkey, remaining: left, total } };
        if let Some(receive) = receive {
            self.finish_receive(receive, Operation::RecvWriteImm, total, packet);
        }
        Ok(())
    }

    fn execute_read(&mut self, packet: &Packet<'_>, memory: &Memory, now: Instant) -> Result<(), Refusal> {
        let (Message::None, Ext::Reth(reth)) = (self.message, packet.ext) else {
            return Err(INVALID);
        };
        self.check_depth()?;
        self.check_span(&reth)?;
        if !memory.allows(reth.rkey, reth.virtual_address, u64::from(reth.dma_length), Want::Read) {
            return Err(DENIED);
        }
        self.expected = packet.bth.psn + self.config.mtu.psn_span(reth.dma_length);
        self.count_message();
        self.answer(self.read_reply(packet.bth.psn, &reth), false, now);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
    ) -> Result<(), Refusal> {
        let (Message::None, Ext::Atomic(atomic)) = (self.message, packet.ext) else {
            return Err(INVALID);
        };
        self.check_depth()?;
        if !atomic.virtual_address.is_multiple_of(8) {
            return Err(INVALID);
        }
        if !memory.allows(atomic.rkey, atomic.virtual_address, 8, Want::Atomic) {
            return Err(DENIED);
        }
        let psn = packet.bth.psn;
        let original = apply_atomic(packet.bth.opcode, &atomic, memory).ok_or(DENIED)?;
        self.answer_once(psn, Answer::Original(original), now);
        Ok(())
    }

    fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
    ) -> Result<(), Refusal> {
        let (Message::None, Ext::Reth(reth), Some(value)) =
            (self.message, packet.ext, packet.payload.first_chunk::<8>())
        else {
            return Err(INVALID);
        };
        self.check_depth()?;
        if reth.dma_length != 8 {
            return Err(INVALID);
        }
        if !memory.allows(reth.rkey, reth.virtual_address, 8, Want::Write) {
            return Err(DENIED);
        }
        if !reth.virtual_address.is_multiple_of(8) {
            return Err(INVALID);
        }
        memory.local_mut(reth.rkey, reth.virtual_address, 8).ok_or(DENIED)?.copy_from_slice(value);
        self.answer_once(packet.bth.psn, Answer::Done, now);
        Ok(())
    }

    /// Everything is visible as it is executed, so there is nothing to do but to say so.
    fn execute_flush(&mut self, packet: &Packet<'_>, memory: &Memory, now: Instant) -> Result<(), Refusal> {
        let (Message::None, Ext::Flush(feth, reth)) = (self.message, packet.ext) else {
            return Err(INVALID);
        };
        self.check_depth()?;
        let whole = feth.selectivity() == WHOLE_REGION;
        if feth.placement() & PERSISTENCE != 0
            || !memory.flushes(reth.rkey, reth.virtual_address, reth.dma_length, whole)
        {
            return Err(DENIED);
        }
        self.answer_once(packet.bth.psn, Answer::Done, now);
        Ok(())
    }

    /// A request that must not run twice has run.
    fn answer_once(&mut self, psn: Psn, result: Answer, now: Instant) {
        self.expected = psn.next();
        self.after_write = self.expected;
        self.count_message();
        if self.answers.len() >= usize::from(self.config.max_dest_rd_atomic) {
            self.answers.pop_front();
        }
        self.answers.push_back((psn, result));
        let aeth = self.aeth(Syndrome::ACK);
        self.answer(Reply::Once { psn, result, aeth }, false, now);
    }

    /// First and Middle packets fill the path MTU, Last ones hold 1..=PMTU bytes, Only ones
    /// 0..=PMTU.
    fn check_segment(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let mtu = usize::try_from(self.config.mtu.bytes()).unwrap_or(usize::MAX);
        let len = packet.payload.len();
        let opcode = packet.bth.opcode;
        let fits = match (opcode.starts_message(), opcode.ends_message()) {
            (_, false) => len == mtu,
            (false, true) => (1..=mtu).contains(&len),
            (true, true) => len <= mtu,
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    /// A requester that keeps to the depth never has more than that many waiting; duplicates may
    /// add as many again.
    fn check_depth(&self) -> Result<(), Refusal> {
        let limit = 2 * usize::from(self.config.max_dest_rd_atomic);
        if self.responses_waiting() < limit { Ok(()) } else { Err(INVALID) }
    }

    /// A READ may not take more than half the PSN space.
    fn check_span(&self, reth: &Reth) -> Result<(), Refusal> {
        if self.config.mtu.psn_span(reth.dma_length) < 1 << 23 { Ok(()) } else { Err(INVALID) }
    }

    fn responses_waiting(&self) -> usize {
        let late = self.late.iter().map(|(_, reply, _)| reply);
        self.replies.iter().chain(late).filter(|reply| !matches!(reply, Reply::Acknowledge { .. })).count()
    }

    fn read_reply(&self, psn: Psn, reth: &Reth) -> Reply {
        Reply::Read {
            psn,
            va: reth.virtual_address,
            rkey: reth.rkey,
            remaining: reth.dma_length,
            started: false,
            aeth: self.aeth(Syndrome::ACK),
        }
    }

    /// Puts a repeated response where its PSN belongs. Beyond twice the READ depth it is dropped:
    /// the requester asks again.
    fn insert(&mut self, reply: Reply) {
        if self.responses_waiting() >= usize::from(self.config.max_dest_rd_atomic) {
            return;
        }
        let psn = reply.psn();
        let at =
            self.replies.iter().position(|other| !other.psn().is_before(psn)).unwrap_or(self.replies.len());
        if !matches!(self.replies.get(at), Some(Reply::Once { psn: of, .. }) if *of == psn) {
            self.replies.insert(at, reply);
        }
    }

    /// An ACK or NAK, now or as late as this NIC answers.
    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, now: Instant) {
        self.answer(Reply::Acknowledge { psn, aeth: self.aeth(syndrome) }, false, now);
    }

    /// Returns the AETH of an answer: with credits if the NIC grants them.
    fn aeth(&self, syndrome: Syndrome) -> Aeth {
        let credits = self.config.personality.credits && syndrome.is_ack();
        let syndrome =
            if credits { Syndrome::Ack { credits: credit_code(self.receives.len()) } } else { syndrome };
        Aeth { syndrome, msn: self.msn }
    }

    /// Queues an answer, or has it wait; `again`: to a duplicate.
    fn answer(&mut self, reply: Reply, again: bool, now: Instant) {
        match self.config.personality.acks {
            AckPolicy::Late(late) => self.late.push_back((now + late, reply, again)),
            _ => self.release(reply, again),
        }
    }

    /// Queues an answer to be sent; ACKs and NAKs that nothing separates become one, so the queue
    /// stays bounded.
    fn release(&mut self, reply: Reply, again: bool) {
        if again {
            return self.insert(reply);
        }
        // All that is queued from here on acknowledges what is before it.
        self.joint = None;
        let Reply::Acknowledge { aeth, .. } = reply else { return self.replies.push_back(reply) };
        // A NAK or RNR NAK not sent yet is overtaken by whatever came since.
        let superseded = match self.replies.back() {
            Some(Reply::Acknowledge { aeth: last, .. }) => !last.syndrome.is_ack() || aeth.syndrome.is_ack(),
            _ => false,
        };
        if superseded {
            self.replies.pop_back();
        }
        self.replies.push_back(reply);
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
    }

    fn finish_receive(&mut self, receive: Receive, operation: Operation, byte_len: u32, packet: &Packet<'_>) {
        let imm = packet.ext.imm().map(|imm| u32::from_be_bytes(imm.0));
        let invalidated = if let Ext::Ieth(key) = packet.ext { Some(key.0) } else { None };
        self.done.push_back(Received {
            wr_id: receive.wr_id,
            operation,
            status: Status::Success,
            byte_len,
            imm,
            invalidated,
            solicited: packet.bth.solicited,
        });
    }
}

const INVALID: Refusal = Refusal::Nak(Nak::InvalidRequest, Status::RemoteInvalidRequest);
const DENIED: Refusal = Refusal::Nak(Nak::RemoteAccess, Status::RemoteAccess);
/// Bits of a FLUSH: of its placement type, and of its selectivity.
const PERSISTENCE: u8 = 2;
const WHOLE_REGION: u8 = 1;

fn apply_atomic(opcode: Opcode, atomic: &AtomicEth, memory: &mut Memory) -> Option<u64> {
    let cell = memory.local_mut(atomic.rkey, atomic.virtual_address, 8)?.first_chunk_mut::<8>()?;
    let original = u64::from_ne_bytes(*cell);
    let value = match opcode {
        Opcode::FetchAdd => original.wrapping_add(atomic.swap_or_add),
        _ if original == atomic.compare => atomic.swap_or_add,
        _ => original,
    };
    *cell = value.to_ne_bytes();
    Some(original)
}

fn outgoing(opcode: Opcode, psn: Psn, ext: Ext, payload: Sge) -> Outgoing {
    Outgoing { opcode, psn, ack_req: false, solicited: false, migreq: false, ext, payload }
}
