//! The client: keeps every queue pair busy, measures and checks.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use roce::wire::Qpn;

use super::workload::{Limit, Op, Workload, first_qpn};
use super::{EndpointConfig, EndpointError, Progress, Role, Span, Tally};
use soft_nic::{Access, Completion, Host, HostError, RegionHandle, RemoteAddr, Sge, Status, fill, holds};

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Posting, up to the limit.
    Run,
    /// Reading back what was written, to check it.
    ReadBack,
}

/// One queue pair's share.
struct Lane {
    qpn: Qpn,
    /// Messages posted; the next one's sequence number.
    posted: u64,
    /// Messages completed, in order.
    completed: u64,
    /// When each outstanding message was posted.
    since: VecDeque<Instant>,
    /// The message last written to each remote buffer, if any.
    written: Vec<Option<u64>>,
    /// Remote buffers already asked for when reading back.
    asked: usize,
    /// Buffers asked for and not yet answered.
    reading: VecDeque<usize>,
    atomics: u64,
    dead: bool,
    /// It stands in [`Client::roomy`].
    queued: bool,
}

/// Part of the receive ring that outstanding messages may fill: packets are repeated, and the
/// gateways send others.
const RING_PARTS: u64 = 4;

pub(super) struct Client {
    workload: Workload,
    local: RegionHandle,
    lanes: Vec<Lane>,
    /// Queue pairs that may have room for another message, so that nobody looks at thousands that
    /// have none. Each once.
    roomy: VecDeque<u32>,
    /// Bytes of a receive ring outstanding over all queue pairs, and the most of that.
    outstanding: u64,
    most: u64,
    phase: Phase,
    /// Set by the first call.
    started: Option<Instant>,
    measured_from: Option<Instant>,
    last_progress: Option<Instant>,
    tally: Tally,
}

impl Client {
    /// `ring`: bytes that the host's receive ring holds.
    pub(super) fn new(config: &EndpointConfig, ring: usize) -> Result<(Host, Self), EndpointError> {
        let workload = config.workload.clone();
        let ring = u64::try_from(ring).unwrap_or(u64::MAX);
        let most = if workload.within_ring { ring / RING_PARTS } else { u64::MAX };
        let mut host = Host::new(config.ip, first_qpn(Role::Client));
        let bytes = usize::try_from(workload.slots() * workload.slot())
            .map_err(|_| EndpointError::Workload("size"))?;
        let local = host.register(vec![0; bytes], Access::LOCAL);
        let depth = usize::try_from(workload.depth).map_err(|_| EndpointError::Workload("depth"))?;
        let mut lanes = Vec::new();
        for qp in 0..workload.qps {
            let qpn = host.create_qp(workload.qp_config())?;
            host.connect(
                qpn,
                workload.psn(Role::Client, qp),
                workload.remote(Role::Server, config.remote_ip, qp),
            )?;
            lanes.push(Lane {
                qpn,
                posted: 0,
                completed: 0,
                since: VecDeque::with_capacity(depth),
                written: vec![None; depth],
                asked: 0,
                reading: VecDeque::with_capacity(depth),
                atomics: 0,
                dead: false,
                queued: true,
            });
        }
        let tally = Tally::new()?;
        let roomy = (0..workload.qps).collect();
        let client = Self {
            workload,
            local,
            lanes,
            roomy,
            outstanding: 0,
            most,
            phase: Phase::Run,
            started: None,
            measured_from: None,
            last_progress: None,
            tally,
        };
        Ok((host, client))
    }

    pub(super) fn into_tally(mut self) -> Tally {
        if let Some(started) = self.started.filter(|_| self.workload.timeline) {
            let since = self.lanes.iter().flat_map(|lane| &lane.since);
            let unfinished =
                since.map(|since| Span { posted: since.saturating_duration_since(started), completed: None });
            self.tally.timeline.extend(unfinished);
        }
        self.tally
    }

    /// Takes completions, posts what may be posted; true when the run is over.
    pub(super) fn drive(
        &mut self,
        host: &mut Host,
        now: Instant,
        progress: &Progress,
    ) -> Result<bool, HostError> {
        let started = *self.started.get_or_insert(now);
        if self.measured_from.is_none() && now >= started + self.workload.warmup {
            self.measured_from = Some(now);
            self.tally.reset_measurements();
        }
        while let Some(completion) = host.poll_completion() {
            self.last_progress = Some(now);
            self.complete(host, &completion, now, progress);
        }
        let posting = match self.workload.limit {
            Limit::Messages(_) => true,
            Limit::Time(time) => now < started + time,
        };
        while self.has_room()
            && let Some(qp) = self.roomy.pop_front()
        {
            if let Some(lane) = lane(&mut self.lanes, qp) {
                lane.queued = false;
            }
            match self.phase {
                Phase::Run if posting => self.post(host, qp, now)?,
                Phase::Run => {}
                Phase::ReadBack => self.post_read_back(host, qp)?,
            }
        }
        if self.is_drained(posting) {
            return Ok(self.next_phase());
        }
        let waited = now.saturating_duration_since(self.last_progress.unwrap_or(started));
        self.tally.stalled = waited >= self.workload.patience;
        Ok(self.tally.stalled)
    }

    /// Returns true if the host may have another message outstanding; one it may have in any case.
    fn has_room(&self) -> bool {
        self.outstanding == 0 || self.outstanding.saturating_add(self.workload.cost()) <= self.most
    }

    fn post(&mut self, host: &mut Host, qp: u32, now: Instant) -> Result<(), HostError> {
        let Self { workload, local, lanes, roomy, outstanding, .. } = self;
        let Some(lane) = lane(lanes, qp) else {
            return Ok(());
        };
        let limit = match workload.limit {
            Limit::Messages(messages) => messages,
            Limit::Time(_) => u64::MAX,
        };
        while !lane.dead && lane.posted < limit && lane.posted - lane.completed < u64::from(workload.depth) {
            if workload.within_ring && lane.queued {
                break;
            }
            let (sequence, qpn) = (lane.posted, lane.qpn);
            let offset = workload.buffer(qp, sequence);
            let operation = workload.operation(qp, sequence);
            let buffer = local.slice(offset, if operation == Op::Atomic { 8 } else { workload.message });
            if workload.verify && operation != Op::Read {
                prepare(host, local, offset, workload.message, workload.key(qp, sequence));
            }
            match post_one(host, workload, qp, sequence, qpn, buffer) {
                // In error although nothing of ours failed: the server broke the rules.
                Err(HostError::NotReady(_)) => lane.dead = true,
                result => {
                    result?;
                    lane.posted += 1;
                    lane.since.push_back(now);
                    *outstanding += workload.cost();
                    if workload.within_ring {
                        lane.queued = true;
                        roomy.push_back(qp);
                    }
                }
            }
        }
        Ok(())
    }

    fn complete(&mut self, host: &Host, completion: &Completion, now: Instant, progress: &Progress) {
        let Self { workload, local, lanes, roomy, outstanding, phase, started, tally, .. } = self;
        let qp = completion.qpn.get().saturating_sub(first_qpn(Role::Client));
        *outstanding = outstanding.saturating_sub(workload.cost());
        let Some(lane) = lane(lanes, qp) else { return };
        if !std::mem::replace(&mut lane.queued, true) {
            roomy.push_back(qp);
        }
        if completion.status != Status::Success {
            lane.dead = true;
            lane.completed += 1;
            tally.failure(completion, progress);
            return;
        }
        let sequence = lane.completed;
        lane.completed += 1;
        if *phase == Phase::ReadBack {
            tally.read_back += u64::from(completion.byte_len);
            let right = lane
                .reading
                .pop_front()
                .is_some_and(|slot| read_back_is_right(workload, local, host, lane, qp, slot));
            if !right {
                tally.wrong(progress);
            }
            return;
        }
        if let Some(since) = lane.since.pop_front() {
            let nanos = now.saturating_duration_since(since).as_nanos();
            tally.latency.saturating_record(u64::try_from(nanos).unwrap_or(u64::MAX));
            if let Some(started) = started.as_ref().filter(|_| workload.timeline) {
                let from_start = |at: Instant| at.saturating_duration_since(*started);
                tally.timeline.push(Span { posted: from_start(since), completed: Some(from_start(now)) });
            }
        }
        let operation = workload.operation(qp, sequence);
        if completion.wr_id != sequence || !completed_right(workload, local, host, lane, qp, operation) {
            tally.wrong(progress);
        }
        tally.messages += 1;
        tally.bytes += u64::from(completion.byte_len);
        if let Some(from) = self.measured_from {
            tally.elapsed = now.saturating_duration_since(from);
        }
        progress.messages.fetch_add(1, Ordering::Relaxed);
        progress.bytes.fetch_add(u64::from(completion.byte_len), Ordering::Relaxed);
    }

    fn post_read_back(&mut self, host: &mut Host, qp: u32) -> Result<(), HostError> {
        let Self { workload, local, lanes, outstanding, .. } = self;
        let Some(lane) = lane(lanes, qp) else {
            return Ok(());
        };
        while !lane.dead && lane.asked < lane.written.len() {
            let slot = lane.asked;
            lane.asked += 1;
            if lane.written.get(slot).copied().flatten().is_none() {
                continue;
            }
            let offset = workload.buffer(qp, u64::try_from(slot).unwrap_or(0));
            prepare(host, local, offset, workload.message, !0);
            let buffer = local.slice(offset, workload.message);
            host.post_read(lane.qpn, lane.posted, buffer, at(&workload.target(), offset))?;
            lane.posted += 1;
            *outstanding += workload.cost();
            lane.reading.push_back(slot);
        }
        Ok(())
    }

    /// Returns true if nothing is outstanding and nothing more is to be posted in this phase.
    fn is_drained(&self, posting: bool) -> bool {
        let limit = match self.workload.limit {
            Limit::Messages(messages) => messages,
            Limit::Time(_) => u64::MAX,
        };
        self.lanes.iter().all(|lane| {
            let done = match self.phase {
                Phase::Run => !posting || lane.posted >= limit,
                Phase::ReadBack => lane.asked >= lane.written.len(),
            };
            lane.posted == lane.completed && (done || lane.dead)
        })
    }

    /// True when there is no next phase.
    fn next_phase(&mut self) -> bool {
        if self.phase == Phase::ReadBack || !self.workload.verify {
            return true;
        }
        self.phase = Phase::ReadBack;
        self.lanes.iter_mut().for_each(|lane| lane.queued = true);
        self.roomy = (0..self.workload.qps).collect();
        false
    }
}

fn post_one(
    host: &mut Host,
    workload: &Workload,
    qp: u32,
    sequence: u64,
    qpn: Qpn,
    buffer: Sge,
) -> Result<(), HostError> {
    let target = at(&workload.target(), workload.buffer(qp, sequence));
    match workload.operation(qp, sequence) {
        Op::Write => host.post_write(qpn, sequence, buffer, target, None),
        Op::WriteImm => host.post_write(qpn, sequence, buffer, target, Some(immediate(sequence))),
        Op::Send => host.post_send(qpn, sequence, buffer, None),
        Op::Read => {
            let from = sequence % workload.sources() * workload.slot();
            host.post_read(qpn, sequence, buffer, at(&workload.source(), from))
        }
        Op::Atomic => {
            let counter = at(&workload.counters(), u64::from(qp) * 8);
            host.post_fetch_add(qpn, sequence, buffer, counter, 1)
        }
    }
}

/// Checks what a completion says was fetched, and notes what was written.
fn completed_right(
    workload: &Workload,
    local: &RegionHandle,
    host: &Host,
    lane: &mut Lane,
    qp: u32,
    operation: Op,
) -> bool {
    if !workload.verify {
        return true;
    }
    let sequence = lane.completed - 1;
    let bytes = |len| buffer(host, local, workload.buffer(qp, sequence), len);
    match operation {
        Op::Send => true,
        Op::Write | Op::WriteImm => {
            let slot = usize::try_from(sequence % u64::from(workload.depth)).unwrap_or(0);
            lane.written.iter_mut().skip(slot).take(1).for_each(|last| *last = Some(sequence));
            true
        }
        Op::Read => bytes(workload.message)
            .is_some_and(|bytes| holds(workload.source_key(sequence % workload.sources()), bytes)),
        Op::Atomic => {
            let before = lane.atomics;
            lane.atomics += 1;
            bytes(8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes) == Some(before)
        }
    }
}

fn read_back_is_right(
    workload: &Workload,
    local: &RegionHandle,
    host: &Host,
    lane: &Lane,
    qp: u32,
    slot: usize,
) -> bool {
    let Some(sequence) = lane.written.get(slot).copied().flatten() else {
        return false;
    };
    let bytes = buffer(host, local, workload.buffer(qp, sequence), workload.message);
    bytes.is_some_and(|bytes| holds(workload.key(qp, sequence), bytes))
}

fn lane(lanes: &mut [Lane], qp: u32) -> Option<&mut Lane> {
    lanes.get_mut(usize::try_from(qp).ok()?)
}

fn at(region: &RegionHandle, offset: u64) -> RemoteAddr {
    RemoteAddr { va: region.va.wrapping_add(offset), rkey: region.key }
}

fn immediate(sequence: u64) -> u32 {
    u32::try_from(sequence & 0xffff_ffff).unwrap_or(0)
}

fn buffer<'a>(host: &'a Host, region: &RegionHandle, offset: u64, len: u32) -> Option<&'a [u8]> {
    let start = usize::try_from(offset).ok()?;
    host.memory(region.key)?.get(start..start.checked_add(usize::try_from(len).ok()?)?)
}

fn prepare(host: &mut Host, region: &RegionHandle, offset: u64, len: u32, key: u64) {
    let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    if let Some((start, len)) = range
        && let Some(bytes) = host.memory_mut(region.key).and_then(|memory| memory.get_mut(start..start + len))
    {
        fill(key, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use roce::ip::Datagram;
    use roce::wire::Packet;
    use soft_nic::MAX_PACKET;

    use super::*;

    fn config(workload: Workload) -> EndpointConfig {
        let [here, there] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        let (bind, gateway, role) = (nowhere, nowhere, Role::Client);
        EndpointConfig { bind, gateway, ip: here, remote_ip: there, role, workload }
    }

    /// Packets that the client sends without an answer, by queue pair.
    fn sent_at_once(workload: Workload, ring: usize) -> BTreeMap<u32, usize> {
        let now = Instant::now();
        let (mut host, mut client) = Client::new(&config(workload), ring).unwrap();
        assert!(!client.drive(&mut host, now, &Progress::default()).unwrap());
        let mut sent = BTreeMap::new();
        let mut out = [0; MAX_PACKET];
        while let Some(len) = host.poll_transmit(now, &mut out) {
            let datagram = Datagram::parse(&out[..len]).unwrap();
            let packet = Packet::parse(datagram.transport).unwrap();
            *sent.entry(packet.bth.dest_qp.get()).or_default() += 1;
        }
        sent
    }

    #[test]
    fn all_queue_pairs_together_fit_the_receive_ring() {
        let workload = Workload {
            qps: 100,
            message: 64,
            depth: 3,
            verify: false,
            within_ring: true,
            ..Workload::default()
        };
        let cost = usize::try_from(workload.cost()).unwrap();
        let parts = usize::try_from(RING_PARTS).unwrap();
        let sent = |messages| sent_at_once(workload.clone(), messages * cost * parts);
        // Each has its turn before any has another one.
        assert_eq!(sent(150).values().filter(|packets| **packets == 2).count(), 50);
        assert_eq!(sent(150).values().sum::<usize>(), 150);
        assert_eq!(sent(10).values().sum::<usize>(), 10);
        assert_eq!(sent(0).values().sum::<usize>(), 1, "one in any case");
        assert_eq!(sent(1000).values().sum::<usize>(), 300, "no more than their own depths");
        let unbounded = Workload { within_ring: false, ..workload.clone() };
        assert_eq!(sent_at_once(unbounded, 0).values().sum::<usize>(), 300);
    }
}
