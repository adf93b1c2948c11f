//! The sending half of a queue pair: go-back-N as Soft-RoCE's requester and completer do it.
//!
//! Sequence numbers are 64 bit inside and never wrap; the 24-bit PSN on the wire is mapped to the
//! nearest one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::wire::{AtomicEth, Ext, Feth, Ieth, ImmDt, Opcode, Psn, Reth, RnrTimer};

use super::memory::Memory;
use super::personality::{QUICK, Repeats};
use super::types::{HostStats, Operation, QpConfig, RemoteAddr, Sge, Status, Work};

/// A posted send work request: the sequence numbers `first .. first + count`.
#[derive(Debug, Clone, Copy)]
struct Request {
    wr_id: u64,
    work: Work,
    local: Sge,
    solicited: bool,
    first: u64,
    count: u64,
}

impl Request {
    fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Bytes of the message that stand before sequence number `seq`.
    fn offset(&self, seq: u64, mtu: u32) -> u32 {
        let packets = u32::try_from(seq.saturating_sub(self.first)).unwrap_or(u32::MAX);
        packets.saturating_mul(mtu).min(self.local.len)
    }
}

/// One finished send work request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) wr_id: u64,
    pub(super) operation: Operation,
    pub(super) status: Status,
    pub(super) byte_len: u32,
}

/// A packet to send now; its payload is still in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) ack_req: bool,
    pub(super) solicited: bool,
    pub(super) migreq: bool,
    pub(super) ext: Ext,
    pub(super) payload: Sge,
}

/// The effect of an incoming response on the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Continue,
    /// The oldest request failed with this status: the queue pair goes to error.
    Fatal(Status),
}

#[derive(Debug)]
pub(super) struct Requester {
    config: QpConfig,
    base: Psn,
    queue: VecDeque<Request>,
    /// Finished, in posting order, to be collected by the queue pair.
    pub(super) done: VecDeque<Done>,
    /// Oldest sequence number not acknowledged; within the front request unless the queue is empty.
    una: u64,
    /// Next to send.
    next: u64,
    /// One past the highest ever sent.
    sent: u64,
    /// One past the last posted.
    posted: u64,
    /// Index into `queue` of the request that holds `next`.
    cursor: usize,
    rd_atomic: u8,
    since_ack_req: u32,
    retries: u8,
    rnr_retries: u8,
    /// Quick tries without progress, of a NIC that has them.
    quick: usize,
    /// To be sent again by itself: a NAK named it.
    named: Option<u64>,
    /// Went back and has seen no progress since: a further NAK changes nothing (a timeout does).
    went_back: bool,
    deadline: Option<Instant>,
    rnr_until: Option<Instant>,
}

impl Requester {
    pub(super) fn new(config: QpConfig, base: Psn) -> Self {
        Self {
            config,
            base,
            queue: VecDeque::with_capacity(config.send_depth),
            done: VecDeque::with_capacity(config.send_depth),
            una: 0,
            next: 0,
            sent: 0,
            posted: 0,
            cursor: 0,
            rd_atomic: 0,
            since_ack_req: 0,
            retries: config.retry_cnt,
            rnr_retries: config.rnr_retry,
            quick: 0,
            named: None,
            went_back: false,
            deadline: None,
            rnr_until: None,
        }
    }

    pub(super) fn post(&mut self, wr_id: u64, work: Work, local: Sge, solicited: bool) {
        let count = u64::from(self.config.mtu.psn_span(local.len));
        let solicited = solicited && work.takes_receive();
        self.queue.push_back(Request { wr_id, work, local, solicited, first: self.posted, count });
        self.posted += count;
    }

    /// Returns true if [`Requester::poll`] may have something now.
    pub(super) fn wants_to_send(&self) -> bool {
        self.rnr_until.is_none() && (self.named.is_some() || self.next_allowed())
    }

    /// How long it waits for progress.
    fn wait(&self) -> Option<Duration> {
        match self.config.personality.repeats {
            Repeats::Adaptive => QUICK.get(self.quick).copied().or(self.config.timeout),
            Repeats::GoBackN | Repeats::Selective => self.config.timeout,
        }
    }

    fn next_allowed(&self) -> bool {
        if self.next >= self.posted || self.next.saturating_sub(self.una) >= u64::from(self.config.window) {
            return false;
        }
        match self.queue.get(self.cursor) {
            Some(request) => !request.work.needs_response() || self.rd_atomic < self.config.max_rd_atomic,
            None => false,
        }
    }

    /// The next request packet, if the window, the READ depth and the RNR wait allow one.
    pub(super) fn poll(&mut self, now: Instant, stats: &mut HostStats) -> Option<Outgoing> {
        if !self.wants_to_send() {
            return None;
        }
        if let Some(seq) = self.named.take() {
            return self.repeat(seq, stats);
        }
        let request = *self.queue.get(self.cursor)?;
        let seq = self.next;
        let outgoing = if request.work.needs_response() {
            self.rd_atomic += 1;
            self.next = request.end();
            self.since_ack_req = 0;
            self.response_request(&request, seq, stats.retransmitted)?
        } else {
            self.next = seq + 1;
            self.segment(&request, seq)
        };
        if self.next >= request.end() {
            self.cursor += 1;
        }
        if seq < self.sent {
            stats.retransmitted += 1;
        }
        self.sent = self.sent.max(self.next);
        if self.deadline.is_none() {
            self.deadline = self.wait().map(|wait| now + wait);
        }
        Some(outgoing)
    }

    /// The packet with this sequence number once more, and no other.
    fn repeat(&mut self, seq: u64, stats: &mut HostStats) -> Option<Outgoing> {
        let request = *self.queue.iter().find(|request| seq < request.end())?;
        stats.retransmitted += 1;
        if request.work.needs_response() {
            return self.response_request(&request, seq, stats.retransmitted);
        }
        Some(Outgoing { ack_req: true, ..self.segment(&request, seq) })
    }

    /// A READ (possibly from its middle on), an atomic or a FLUSH. `noise` is another number for
    /// each retry.
    fn response_request(&self, request: &Request, seq: u64, noise: u64) -> Option<Outgoing> {
        let skipped = request.offset(seq, self.config.mtu.bytes());
        let forgotten = self.config.forgets_addresses && seq < self.sent;
        let address = |remote: RemoteAddr| if forgotten { 0 } else { remote.va };
        let mut payload = Sge::default();
        let (opcode, ext) = match request.work {
            Work::Read { remote } => {
                let va = remote.va.wrapping_add(u64::from(skipped));
                (
                    Opcode::ReadRequest,
                    Ext::Reth(Reth {
                        virtual_address: va,
                        rkey: remote.rkey,
                        dma_length: request.local.len - skipped,
                    }),
                )
            }
            // What stands in the comparand's place means nothing, and Soft-RoCE sends another thing
            // each time.
            Work::FetchAdd { remote, add } => (Opcode::FetchAdd, atomic(remote, add, noise)),
            Work::CompareSwap { remote, compare, swap } => {
                (Opcode::CompareSwap, atomic(remote, swap, compare))
            }
            Work::AtomicWrite { remote } => {
                payload = request.local;
                let reth = Reth { virtual_address: address(remote), rkey: remote.rkey, dma_length: 8 };
                (Opcode::AtomicWrite, Ext::Reth(reth))
            }
            Work::Flush { remote, len, region } => {
                let reth = Reth { virtual_address: address(remote), rkey: remote.rkey, dma_length: len };
                (Opcode::Flush, Ext::Flush(Feth(GLOBAL | u32::from(region) << 4), reth))
            }
            Work::Send { .. } | Work::SendInvalidate { .. } | Work::Write { .. } => return None,
        };
        Some(Outgoing {
            opcode,
            psn: self.psn(seq),
            ack_req: true,
            solicited: false,
            migreq: self.config.migreq,
            ext,
            payload,
        })
    }

    /// One packet of a SEND or WRITE.
    fn segment(&mut self, request: &Request, seq: u64) -> Outgoing {
        let mtu = self.config.mtu.bytes();
        let first = seq == request.first;
        let last = seq + 1 == request.end();
        let offset = request.offset(seq, mtu);
        let len = (request.local.len - offset).min(mtu);
        let (opcode, ext) = match request.work {
            Work::Write { remote, imm } => write_head(first, last, remote, request.local.len, imm),
            Work::SendInvalidate { rkey } if last => invalidate_head(first, rkey),
            Work::Send { imm } => send_head(first, last, imm),
            // The rest has no segments. An empty SEND keeps this total.
            _ => send_head(first, last, None),
        };
        self.since_ack_req += 1;
        // The window's last packet must ask, or nobody would open it again before the timer.
        let window_full = seq + 1 - self.una.min(seq) >= u64::from(self.config.window);
        let ack_req = last || window_full || self.since_ack_req >= self.config.ack_every;
        if ack_req {
            self.since_ack_req = 0;
        }
        let payload =
            Sge { key: request.local.key, va: request.local.va.wrapping_add(u64::from(offset)), len };
        let solicited = last && request.solicited;
        Outgoing { opcode, psn: self.psn(seq), ack_req, solicited, migreq: self.config.migreq, ext, payload }
    }

    /// A positive ACK up to and including `psn`.
    pub(super) fn handle_ack(&mut self, psn: Psn, now: Instant, stats: &mut HostStats) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        if self.acknowledge(seq + 1, now) {
            // An ACK past an unanswered READ or atomic: its response is lost (rxe_comp.c,
            // check_psn).
            return self.try_again(now);
        }
        Outcome::Continue
    }

    /// One packet of READ response.
    pub(super) fn handle_read_response(
        &mut self,
        psn: Psn,
        payload: &[u8],
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        let blocked = self.acknowledge(seq, now);
        let Some(request) = self.queue.front().copied() else {
            return Outcome::Continue;
        };
        let fits = matches!(request.work, Work::Read { .. } | Work::AtomicWrite { .. } | Work::Flush { .. });
        if blocked || seq != self.una || !fits || seq >= request.end() {
            stats.stale_responses += 1;
            if self.config.restart_reads_on_gap && seq > self.una {
                return self.try_again(now);
            }
            return Outcome::Continue;
        }
        let mtu = self.config.mtu.bytes();
        let offset = request.offset(seq, mtu);
        // What only writes is answered by as much as a READ of nothing.
        let wanted = if matches!(request.work, Work::Read { .. }) { request.local.len - offset } else { 0 };
        let expected = usize::try_from(wanted.min(mtu)).unwrap_or(usize::MAX);
        if payload.len() != expected {
            return Outcome::Fatal(Status::LocalLength);
        }
        if expected > 0 {
            let va = request.local.va.wrapping_add(u64::from(offset));
            let Some(target) = memory.local_mut(request.local.key, va, expected) else {
                return Outcome::Fatal(Status::LocalProtection);
            };
            target.copy_from_slice(payload);
        }
        self.progress(seq + 1, now);
        Outcome::Continue
    }

    /// The answer to an atomic.
    pub(super) fn handle_atomic_response(
        &mut self,
        psn: Psn,
        original: u64,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        let blocked = self.acknowledge(seq, now);
        let Some(request) = self.queue.front().copied() else {
            return Outcome::Continue;
        };
        let atomic = matches!(request.work, Work::FetchAdd { .. } | Work::CompareSwap { .. });
        if blocked || seq != self.una || !atomic {
            stats.stale_responses += 1;
            return if blocked { self.try_again(now) } else { Outcome::Continue };
        }
        let Some(target) = memory.local_mut(request.local.key, request.local.va, 8) else {
            return Outcome::Fatal(Status::LocalProtection);
        };
        target.copy_from_slice(&original.to_ne_bytes());
        self.progress(seq + 1, now);
        Outcome::Continue
    }

    /// NAK 0x60: everything before `psn` arrived, `psn` did not.
    pub(super) fn handle_sequence_nak(&mut self, psn: Psn, now: Instant, stats: &mut HostStats) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        stats.naks_in += 1;
        self.acknowledge(seq, now);
        if self.config.personality.repeats == Repeats::Selective && seq < self.next {
            self.named = Some(seq);
            return Outcome::Continue;
        }
        self.try_again(now)
    }

    /// RNR NAK for `psn`: wait, then go back to it.
    pub(super) fn handle_rnr(
        &mut self,
        psn: Psn,
        timer: RnrTimer,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        stats.rnr_in += 1;
        if self.acknowledge(seq, now) {
            // Past an unanswered READ or atomic, as above.
            return self.try_again(now);
        }
        if self.rnr_until.is_some() {
            return Outcome::Continue;
        }
        match self.rnr_retries {
            0 => return Outcome::Fatal(Status::RnrRetryExceeded),
            7 => {}
            _ => self.rnr_retries -= 1,
        }
        self.go_back();
        self.deadline = None;
        self.rnr_until = Some(now + timer.duration());
        Outcome::Continue
    }

    /// A fatal NAK (0x61, 0x62, 0x63) for `psn`.
    pub(super) fn handle_fatal_nak(
        &mut self,
        psn: Psn,
        status: Status,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let Some(seq) = self.outstanding(psn) else {
            stats.stale_responses += 1;
            return Outcome::Continue;
        };
        if self.acknowledge(seq, now) {
            // Past an unanswered READ or atomic, as above.
            return self.try_again(now);
        }
        Outcome::Fatal(status)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match (self.deadline, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, stats: &mut HostStats) -> Outcome {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if self.rnr_until.is_some() || self.deadline.is_none_or(|deadline| deadline > now) {
            return Outcome::Continue;
        }
        self.deadline = None;
        if self.queue.is_empty() || self.sent <= self.una {
            return Outcome::Continue;
        }
        stats.timeouts += 1;
        self.went_back = false;
        if self.config.personality.repeats == Repeats::Adaptive && self.quick < QUICK.len() {
            self.quick += 1;
            self.go_back();
            self.went_back = true;
            self.deadline = self.wait().map(|wait| now + wait);
            return Outcome::Continue;
        }
        self.try_again(now)
    }

    /// Ends everything: the oldest request with `status`, the rest flushed.
    pub(super) fn fail(&mut self, status: Status) {
        let mut status = status;
        while let Some(request) = self.queue.pop_front() {
            self.finish(&request, status);
            status = Status::Flushed;
        }
        self.una = self.posted;
        self.next = self.posted;
        self.cursor = 0;
        self.named = None;
        self.deadline = None;
        self.rnr_until = None;
    }

    /// Goes back once per loss; a retry counter at 7 never runs out.
    fn try_again(&mut self, now: Instant) -> Outcome {
        if self.went_back || self.queue.is_empty() {
            return Outcome::Continue;
        }
        match self.retries {
            0 => return Outcome::Fatal(Status::RetryExceeded),
            7 => {}
            _ => self.retries -= 1,
        }
        self.go_back();
        self.went_back = true;
        self.deadline = self.wait().map(|wait| now + wait);
        Outcome::Continue
    }

    fn go_back(&mut self) {
        self.named = None;
        self.next = self.una;
        self.cursor = 0;
        self.rd_atomic = 0;
        self.since_ack_req = 0;
    }

    /// Acknowledges up to, not including, `end`. Stops at a READ or atomic, which only its response
    /// completes; true if it stopped before `end` for that reason.
    fn acknowledge(&mut self, end: u64, now: Instant) -> bool {
        let mut reached = self.una;
        let mut blocked = false;
        for request in &self.queue {
            if end <= request.first {
                break;
            }
            if request.work.needs_response() {
                blocked = end > reached;
                break;
            }
            reached = reached.max(end.min(request.end()));
        }
        if reached > self.una {
            self.progress(reached, now);
        }
        blocked
    }

    /// Moves the lower edge to `una` and completes what lies below it.
    fn progress(&mut self, una: u64, now: Instant) {
        self.una = una;
        while let Some(request) = self.queue.front().copied() {
            if request.end() > una {
                break;
            }
            self.queue.pop_front();
            if self.cursor > 0 {
                self.cursor -= 1;
                if request.work.needs_response() {
                    self.rd_atomic = self.rd_atomic.saturating_sub(1);
                }
            }
            self.finish(&request, Status::Success);
        }
        if self.next < una {
            // Acknowledged although we had gone back: an answer to the first transmission.
            self.next = una;
        }
        self.retries = self.config.retry_cnt;
        self.rnr_retries = self.config.rnr_retry;
        self.quick = 0;
        self.named = self.named.filter(|seq| *seq >= una);
        self.went_back = false;
        let waiting = self.sent > una && self.rnr_until.is_none();
        self.deadline = if waiting { self.wait().map(|wait| now + wait) } else { None };
    }

    fn finish(&mut self, request: &Request, status: Status) {
        let byte_len = request.local.len;
        self.done.push_back(Done {
            wr_id: request.wr_id,
            operation: request.work.operation(),
            status,
            byte_len,
        });
    }

    /// The sequence number of a PSN, if it was sent and is not acknowledged.
    fn outstanding(&self, psn: Psn) -> Option<u64> {
        let ahead = u64::try_from(psn.distance(self.psn(self.una))).ok()?;
        let seq = self.una + ahead;
        (seq < self.sent).then_some(seq)
    }

    /// The oldest PSN that was sent and is not acknowledged, and how many are.
    pub(super) fn awaited(&self) -> (Psn, u32) {
        (self.psn(self.una), u32::try_from(self.sent.saturating_sub(self.una)).unwrap_or(u32::MAX))
    }

    fn psn(&self, seq: u64) -> Psn {
        self.base + u32::try_from(seq & 0x00ff_ffff).unwrap_or(0)
    }
}

/// A FLUSH's placement type.
const GLOBAL: u32 = 1;

fn atomic(remote: RemoteAddr, swap_or_add: u64, compare: u64) -> Ext {
    Ext::Atomic(AtomicEth { virtual_address: remote.va, rkey: remote.rkey, swap_or_add, compare })
}

fn immediate(imm: u32) -> ImmDt {
    ImmDt(imm.to_be_bytes())
}

fn send_head(first: bool, last: bool, imm: Option<u32>) -> (Opcode, Ext) {
    match (first, last, imm) {
        (true, false, _) => (Opcode::SendFirst, Ext::None),
        (false, false, _) => (Opcode::SendMiddle, Ext::None),
        (false, true, None) => (Opcode::SendLast, Ext::None),
        (false, true, Some(imm)) => (Opcode::SendLastImmediate, Ext::Imm(immediate(imm))),
        (true, true, None) => (Opcode::SendOnly, Ext::None),
        (true, true, Some(imm)) => (Opcode::SendOnlyImmediate, Ext::Imm(immediate(imm))),
    }
}

fn invalidate_head(first: bool, rkey: u32) -> (Opcode, Ext) {
    let opcode = if first { Opcode::SendOnlyInvalidate } else { Opcode::SendLastInvalidate };
    (opcode, Ext::Ieth(Ieth(rkey)))
}

fn write_head(first: bool, last: bool, remote: RemoteAddr, len: u32, imm: Option<u32>) -> (Opcode, Ext) {
    let reth = Reth { virtual_address: remote.va, rkey: remote.rkey, dma_length: len };
    match (first, last, imm) {
        (true, false, _) => (Opcode::WriteFirst, Ext::Reth(reth)),
        (false, false, _) => (Opcode::WriteMiddle, Ext::None),
        (false, true, None) => (Opcode::WriteLast, Ext::None),
        (false, true, Some(imm)) => (Opcode::WriteLastImmediate, Ext::Imm(immediate(imm))),
        (true, true, None) => (Opcode::WriteOnly, Ext::Reth(reth)),
        (true, true, Some(imm)) => (Opcode::WriteOnlyImmediate, Ext::RethImm(reth, immediate(imm))),
    }
}
