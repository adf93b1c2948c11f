//! A software RDMA endpoint: an RNIC's reliable connections as a pure state machine, for the demo,
//! the simulator and the benchmarks.
//!
//! It speaks go-back-N as Linux' Soft-RoCE does, so two hosts joined by a bad link without a
//! gateway *are* the plain RC baseline. A [`Personality`] gives it other NICs' habits. Reliable
//! connections only; no memory windows, no fences.
//!
//! [`flood`] is a host that heeds nothing. Neither has sockets or a clock.

mod ahead;
mod contents;
pub mod flood;
mod memory;
mod pace;
mod personality;
mod qp;
mod requester;
mod responder;
#[cfg(test)]
mod tests;
mod types;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

pub use contents::{fill, holds};
use memory::Memory;
pub use memory::RegionHandle;
pub use personality::{AckPolicy, DuplicateAck, FirstPsn, Personality, PortPolicy, Repeats, Spray};
use qp::QueuePair;
pub use qp::Standing;
use requester::Outgoing;
use responder::Receive;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Ext, Opcode, Packet, Psn, Qpn, Repr};
pub use types::{
    Access, Completion, HostError, HostStats, Operation, QpConfig, Remote, RemoteAddr, Sge, Status, Work,
    verbs_timeout,
};

/// Room for the largest packet a host sends: IPv6, UDP, BTH, the longest headers, 4096 bytes, ICRC.
pub const MAX_PACKET: usize = 40 + 8 + 12 + 28 + 4096 + 4;

/// Longest BTH..padding a host sends.
const MAX_TRANSPORT: usize = 12 + 28 + 4096;
/// Congestion experienced (RFC 3168).
const CE: u8 = 3;

/// One RDMA host: an address, registered memory, queue pairs and one completion queue.
///
/// # Driver contract
/// No I/O, no clock. In any order, as often as there is work:
/// 1. [`handle_packet`](Host::handle_packet) with each IP packet for this host;
/// 2. [`handle_timeout`](Host::handle_timeout) at or after [`next_timeout`](Host::next_timeout)
///    (calling it early is harmless);
/// 3. then [`poll_transmit`](Host::poll_transmit) until it returns `None`, sending each packet;
/// 4. [`poll_completion`](Host::poll_completion) until `None`; then ask `next_timeout` again.
///
/// A driver that cannot send may stop polling: what is queued to be sent is bounded and nothing is
/// lost. `now` must not run backwards.
///
/// # Bounds
/// Work queues: [`QpConfig::send_depth`] and `recv_depth`; a work request occupies its place until
/// its completion is polled, so the completion queue is bounded by their sum; beyond that posting
/// is refused with [`HostError::Full`]. Queued responses: twice `max_dest_rd_atomic`; a READ,
/// atomic or FLUSH beyond that is answered with NAK 0x61, a repeated one dropped. Nothing is
/// allocated per packet.
#[derive(Debug)]
pub struct Host {
    ip: IpAddr,
    memory: Memory,
    first_qpn: u32,
    qps: Vec<QueuePair>,
    /// Queue pairs that may have something to send, each at most once (round robin, one packet
    /// each).
    ready: VecDeque<usize>,
    completions: VecDeque<Completion>,
    /// Executed request packets, of queue pairs that are watched.
    executed: VecDeque<(Qpn, Vec<u8>)>,
    /// Queue pairs made from now on are watched.
    watch: bool,
    /// The queue pair that sent last.
    sender: Qpn,
    ident: u16,
    scratch: Box<[u8]>,
    stats: HostStats,
}

impl Host {
    /// A host with no memory and no queue pairs. Queue pairs get the numbers `first_qpn`,
    /// `first_qpn + 1`, ...
    pub fn new(ip: IpAddr, first_qpn: u32) -> Self {
        Self {
            ip,
            memory: Memory::default(),
            first_qpn: first_qpn & 0x00ff_ffff,
            qps: Vec::new(),
            ready: VecDeque::new(),
            completions: VecDeque::new(),
            executed: VecDeque::new(),
            watch: false,
            sender: Qpn::default(),
            ident: 0,
            scratch: vec![0; MAX_TRANSPORT].into_boxed_slice(),
            stats: HostStats::default(),
        }
    }

    /// This host's address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Counters since the start.
    pub fn stats(&self) -> &HostStats {
        &self.stats
    }

    /// Registers memory.
    pub fn register(&mut self, bytes: Vec<u8>, access: Access) -> RegionHandle {
        self.memory.register(bytes, access)
    }

    /// Ends a registration and gives the memory back; `None` if the key is not valid.
    pub fn deregister(&mut self, key: u32) -> Option<Vec<u8>> {
        self.memory.deregister(key)
    }

    /// A region's bytes; `None` if the key is not valid.
    pub fn memory(&self, key: u32) -> Option<&[u8]> {
        self.memory.bytes(key)
    }

    /// As [`Host::memory`], writable.
    pub fn memory_mut(&mut self, key: u32) -> Option<&mut [u8]> {
        self.memory.bytes_mut(key)
    }

    /// Returns the remote side's rights on a region; `None` if the key is not valid.
    pub fn access(&self, key: u32) -> Option<Access> {
        self.memory.access(key)
    }

    /// A new queue pair, not connected. Receives may be posted at once.
    pub fn create_qp(&mut self, config: QpConfig) -> Result<Qpn, HostError> {
        check(&config)?;
        let number = u32::try_from(self.qps.len()).unwrap_or(u32::MAX).saturating_add(self.first_qpn);
        if number > 0x00ff_ffff {
            return Err(HostError::Config("number of queue pairs"));
        }
        let qpn = Qpn::new(number);
        self.qps.push(QueuePair::new(qpn, config, self.watch));
        Ok(qpn)
    }

    /// Connects a queue pair (INIT to RTS at once): requests start at `psn`, the remote's at
    /// `remote.psn`. Calling it on a connected or failed queue pair starts it afresh; what was
    /// posted to it is flushed first.
    pub fn connect(&mut self, qpn: Qpn, psn: Psn, remote: Remote) -> Result<(), HostError> {
        let ip = self.ip;
        let index = self.index(qpn)?;
        let qp = self.qps.get_mut(index).ok_or(HostError::UnknownQp(qpn))?;
        qp.connect(ip, psn, remote);
        qp.collect(&mut self.completions, &mut self.executed);
        Ok(())
    }

    /// Moves a queue pair to error: everything posted is flushed, packets for it are dropped.
    pub fn fail(&mut self, qpn: Qpn) -> Result<(), HostError> {
        let index = self.index(qpn)?;
        let qp = self.qps.get_mut(index).ok_or(HostError::UnknownQp(qpn))?;
        qp.fail_locally();
        qp.collect(&mut self.completions, &mut self.executed);
        Ok(())
    }

    /// Returns true if the queue pair is connected and not in error.
    pub fn is_ready(&self, qpn: Qpn) -> bool {
        self.index(qpn).ok().and_then(|index| self.qps.get(index)).is_some_and(QueuePair::is_ready)
    }

    /// Returns the PSNs that a packet to a connected queue pair can hit.
    pub fn standing(&self, qpn: Qpn) -> Option<Standing> {
        self.index(qpn).ok().and_then(|index| self.qps.get(index)).and_then(QueuePair::standing)
    }

    /// SEND from `local`, with an immediate or without.
    pub fn post_send(&mut self, qpn: Qpn, wr_id: u64, local: Sge, imm: Option<u32>) -> Result<(), HostError> {
        self.post(qpn, wr_id, Work::Send { imm }, local, false)
    }

    /// RDMA WRITE from `local`, with an immediate (which consumes a receive at the remote side) or
    /// without.
    pub fn post_write(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        local: Sge,
        remote: RemoteAddr,
        imm: Option<u32>,
    ) -> Result<(), HostError> {
        self.post(qpn, wr_id, Work::Write { remote, imm }, local, false)
    }

    /// RDMA READ into `local`.
    pub fn post_read(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        local: Sge,
        remote: RemoteAddr,
    ) -> Result<(), HostError> {
        self.post(qpn, wr_id, Work::Read { remote }, local, false)
    }

    /// Fetch-and-add on eight remote bytes (native byte order); the value before goes to the eight
    /// bytes of `local`.
    pub fn post_fetch_add(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        local: Sge,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<(), HostError> {
        self.post(qpn, wr_id, Work::FetchAdd { remote, add }, local, false)
    }

    /// Compare-and-swap on eight remote bytes (native byte order); the value before goes to the
    /// eight bytes of `local`.
    pub fn post_compare_swap(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        local: Sge,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<(), HostError> {
        self.post(qpn, wr_id, Work::CompareSwap { remote, compare, swap }, local, false)
    }

    /// Any of these operations, and the others. `solicited`: what takes a receive at the remote
    /// side asks for an event there.
    pub fn post(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        work: Work,
        local: Sge,
        solicited: bool,
    ) -> Result<(), HostError> {
        let index = self.index(qpn)?;
        if !self.memory.covers(&local) || work.local_len().is_some_and(|len| local.len != len) {
            return Err(HostError::BadBuffer(local));
        }
        let qp = self.qps.get_mut(index).ok_or(HostError::UnknownQp(qpn))?;
        qp.post_send(wr_id, work, local, solicited)?;
        self.enqueue(index);
        Ok(())
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, local: Sge) -> Result<(), HostError> {
        let index = self.index(qpn)?;
        if !self.memory.covers(&local) {
            return Err(HostError::BadBuffer(local));
        }
        let qp = self.qps.get_mut(index).ok_or(HostError::UnknownQp(qpn))?;
        qp.post_recv(Receive { wr_id, local })
    }

    /// The next completion. Completions of one work queue come in posting order.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        if let Some(qp) = self.index(completion.qpn).ok().and_then(|index| self.qps.get_mut(index)) {
            qp.completion_polled(completion.operation);
        }
        Some(completion)
    }

    /// Keeps each request packet that queue pairs made from now on execute, for
    /// [`Host::poll_executed`]. This allocates.
    pub fn watch(&mut self) {
        self.watch = true;
    }

    /// The next request packet that a watched queue pair executed, from the BTH to the padding.
    pub fn poll_executed(&mut self) -> Option<(Qpn, Vec<u8>)> {
        self.executed.pop_front()
    }

    /// Takes one whole IP packet. Damaged and foreign ones are counted and dropped.
    pub fn handle_packet(&mut self, l3: &[u8], now: Instant) {
        match Datagram::parse(l3) {
            Ok(datagram) => self.handle_datagram(&datagram, now),
            Err(_) => {
                self.stats.packets_in += 1;
                self.stats.bad_datagram += 1;
            }
        }
    }

    /// As [`Host::handle_packet`], for a datagram already checked.
    pub fn handle_datagram(&mut self, datagram: &Datagram<'_>, now: Instant) {
        self.stats.packets_in += 1;
        let Ok(packet) = Packet::parse(datagram.transport) else {
            self.stats.bad_packet += 1;
            return;
        };
        if datagram.addressing.dst != self.ip {
            self.stats.unmatched += 1;
            return;
        }
        if packet.bth.opcode == Opcode::Cnp {
            self.stats.cnps_in += 1;
            self.slow_down(packet.bth.dest_qp, now);
            return;
        }
        let index = self.index(packet.bth.dest_qp).ok();
        let Some((index, qp)) = index.and_then(|index| Some((index, self.qps.get_mut(index)?))) else {
            self.stats.unmatched += 1;
            return;
        };
        if !qp.accepts(&datagram.addressing) {
            self.stats.unmatched += 1;
            return;
        }
        if datagram.addressing.tclass & CE == CE {
            qp.marked(now);
        }
        qp.handle(&packet, &mut self.memory, now, &mut self.stats);
        qp.collect(&mut self.completions, &mut self.executed);
        self.enqueue(index);
    }

    /// Writes the next packet to send, a whole IP packet, to the front of `out` and returns its
    /// length. `None` if there is nothing to send now, or `out` is shorter than [`MAX_PACKET`].
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if out.len() < MAX_PACKET {
            return None;
        }
        loop {
            let index = self.ready.pop_front()?;
            let qp = self.qps.get_mut(index)?;
            qp.queued = false;
            if let Some(addressing) = qp.notification() {
                let to = qp.remote_qpn();
                self.enqueue(index);
                self.stats.packets_out += 1;
                self.stats.cnps_out += 1;
                self.sender = self.number(index);
                return self.emit_cnp(&addressing, to, out);
            }
            let Some(outgoing) = qp.poll(now, &mut self.stats) else {
                continue;
            };
            let addressing = qp.addressing_of_next();
            let bth = Bth {
                solicited: outgoing.solicited,
                migreq: outgoing.migreq,
                ack_req: outgoing.ack_req,
                ..Bth::new(outgoing.opcode, qp.remote_qpn(), outgoing.psn)
            };
            self.enqueue(index);
            if let Some(len) = self.emit(&addressing, bth, &outgoing, out) {
                self.stats.packets_out += 1;
                self.sender = self.number(index);
                return Some(len);
            }
            // The region was deregistered while in use.
            if let Some(qp) = self.qps.get_mut(index) {
                qp.fail_locally();
                qp.collect(&mut self.completions, &mut self.executed);
            }
        }
    }

    /// The queue pair whose packet [`Host::poll_transmit`] returned last: no packet names it.
    pub fn sender(&self) -> Qpn {
        self.sender
    }

    /// When [`Host::handle_timeout`] is due; `None` = no timer runs. Looks at every queue pair.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.qps.iter().filter_map(QueuePair::next_timeout).min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.qps.len() {
            let Some(qp) = self.qps.get_mut(index) else {
                continue;
            };
            if qp.next_timeout().is_some_and(|at| at <= now) {
                qp.handle_timeout(now, &mut self.stats);
                qp.collect(&mut self.completions, &mut self.executed);
                self.enqueue(index);
            }
        }
    }

    /// A congestion notification for this queue pair.
    fn slow_down(&mut self, qpn: Qpn, now: Instant) {
        let qp = self.index(qpn).ok().and_then(|index| self.qps.get_mut(index));
        if qp.is_some_and(|qp| qp.slow_down(now)) {
            self.stats.slowed += 1;
        }
    }

    fn emit_cnp(&mut self, addressing: &Addressing, to: Qpn, out: &mut [u8]) -> Option<usize> {
        let bth = Bth { becn: true, ..Bth::new(Opcode::Cnp, to, Psn::new(0)) };
        let len = Repr { bth, ext: Ext::None, payload: &[0; 16] }.emit(&mut self.scratch).ok()?;
        self.frame(addressing, len, out)
    }

    fn emit(
        &mut self,
        addressing: &Addressing,
        bth: Bth,
        outgoing: &Outgoing,
        out: &mut [u8],
    ) -> Option<usize> {
        let payload = match usize::try_from(outgoing.payload.len).ok()? {
            0 => &[][..],
            len => self.memory.local(outgoing.payload.key, outgoing.payload.va, len)?,
        };
        let repr = Repr { bth, ext: outgoing.ext, payload };
        let len = repr.emit(&mut self.scratch).ok()?;
        self.frame(addressing, len, out)
    }

    /// Puts the first `len` bytes of the scratch memory into an IP packet.
    fn frame(&mut self, addressing: &Addressing, len: usize, out: &mut [u8]) -> Option<usize> {
        self.ident = self.ident.checked_add(1).unwrap_or(1);
        roce::ip::emit(addressing, self.ident, self.scratch.get(..len)?, out).ok()
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(qp) = self.qps.get_mut(index)
            && !qp.queued
            && qp.wants_to_send()
        {
            qp.queued = true;
            self.ready.push_back(index);
        }
    }

    fn number(&self, index: usize) -> Qpn {
        Qpn::new(self.first_qpn + u32::try_from(index).unwrap_or(0))
    }

    fn index(&self, qpn: Qpn) -> Result<usize, HostError> {
        let index = qpn.get().checked_sub(self.first_qpn).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.qps.len()).ok_or(HostError::UnknownQp(qpn))
    }
}

/// The UDP source port that both ends of a connection derive from their QP numbers (Soft-RoCE,
/// mlx5; flow label 0).
pub fn source_port(a: Qpn, b: Qpn) -> u16 {
    let mut v = u64::from(a.get()) * u64::from(b.get());
    v ^= v >> 20;
    v ^= v >> 40;
    let label = v & 0xf_ffff;
    let folded = (label & 0x3fff) ^ (label >> 14);
    0xC000 | u16::try_from(folded).unwrap_or(0)
}

fn check(config: &QpConfig) -> Result<(), HostError> {
    let refuse = |what| Err(HostError::Config(what));
    match config {
        c if !(1..1 << 22).contains(&c.window) => refuse("window"),
        c if c.ack_every == 0 => refuse("ack_every"),
        c if c.timeout.is_some_and(|timeout| timeout.is_zero()) => refuse("timeout"),
        c if c.retry_cnt > 7 => refuse("retry_cnt"),
        c if c.rnr_retry > 7 => refuse("rnr_retry"),
        c if c.max_rd_atomic == 0 => refuse("max_rd_atomic"),
        c if c.max_dest_rd_atomic == 0 => refuse("max_dest_rd_atomic"),
        c if c.send_depth == 0 => refuse("send_depth"),
        c if c.ttl == 0 => refuse("ttl"),
        _ => Ok(()),
    }
}
