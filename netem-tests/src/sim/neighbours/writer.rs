//! A program that keeps WRITEs outstanding and looks at the target's memory as each completes.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::wire::{PathMtu, Psn, Qpn};

use crate::host::{Access, Host, HostError, QpConfig, RegionHandle, Remote, RemoteAddr, Status};
use crate::host::{fill, holds};

/// Payload of a message, which is a packet.
pub(super) const MESSAGE: usize = 4096;
/// Queue pairs of a program, and messages outstanding on each.
const QUEUE_PAIRS: usize = 4;
const DEPTH: u64 = 16;
/// A connection ends after so many tries without progress: it is to be seen if one has none.
const RETRIES: u8 = 6;

#[derive(Debug)]
struct Lane {
    qpn: Qpn,
    completed: u64,
    /// When each outstanding message was posted.
    since: VecDeque<Instant>,
}

#[derive(Debug)]
pub(super) struct Writer {
    lanes: Vec<Lane>,
    local: RegionHandle,
    remote: RegionHandle,
    latencies: Vec<Duration>,
    /// When a message last completed, and the longest time without.
    last: Option<Instant>,
    stall: Duration,
    failed: u64,
    wrong: u64,
}

impl Writer {
    /// Connects the queue pairs of a requester and its target.
    pub(super) fn new(requester: &mut Host, target: &mut Host) -> Result<Self, HostError> {
        let config = QpConfig { mtu: PathMtu::B4096, retry_cnt: RETRIES, ..QpConfig::default() };
        let bytes = QUEUE_PAIRS * DEPTH as usize * MESSAGE;
        let local = requester.register(vec![0; bytes], Access::LOCAL);
        let remote = target.register(vec![0; bytes], Access::ALL);
        let end = |ip: IpAddr, qpn| Remote { ip, qpn, psn: Psn::new(0) };
        let mut lanes = Vec::new();
        for _ in 0..QUEUE_PAIRS {
            let (qpn, other) = (requester.create_qp(config)?, target.create_qp(config)?);
            requester.connect(qpn, Psn::new(0), end(target.ip(), other))?;
            target.connect(other, Psn::new(0), end(requester.ip(), qpn))?;
            lanes.push(Lane { qpn, completed: 0, since: VecDeque::new() });
        }
        Ok(Self {
            lanes,
            local,
            remote,
            latencies: Vec::new(),
            last: None,
            stall: Duration::ZERO,
            failed: 0,
            wrong: 0,
        })
    }

    /// Takes completions and posts what there is room for. True if anything happened.
    pub(super) fn drive(
        &mut self,
        requester: &mut Host,
        target: &mut Host,
        now: Instant,
    ) -> Result<bool, HostError> {
        let mut moved = false;
        while let Some(completion) = requester.poll_completion() {
            moved = true;
            let found = self.lanes.iter_mut().enumerate().find(|(_, lane)| lane.qpn == completion.qpn);
            let Some((index, lane)) = found else { continue };
            let place = place(index, lane.completed);
            if completion.status != Status::Success {
                self.failed += 1;
                continue;
            }
            let memory = target.memory(self.remote.key).unwrap_or_default();
            let is_there = memory.get(place..place + MESSAGE);
            self.wrong += u64::from(!is_there.is_some_and(|there| holds(key(index, lane.completed), there)));
            lane.completed += 1;
            self.stall = self.stall.max(self.last.replace(now).map_or(Duration::ZERO, |last| now - last));
            self.latencies.extend(lane.since.pop_front().map(|since| now - since));
        }
        // Targets have nothing posted; what failed there failed here, too.
        while target.poll_completion().is_some() {}
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            while requester.is_ready(lane.qpn) && (lane.since.len() as u64) < DEPTH {
                let sequence = lane.completed + lane.since.len() as u64;
                let place = place(index, sequence);
                let memory = requester.memory_mut(self.local.key).unwrap_or_default();
                if let Some(message) = memory.get_mut(place..place + MESSAGE) {
                    fill(key(index, sequence), message);
                }
                let at = place as u64;
                let remote = RemoteAddr { va: self.remote.va + at, rkey: self.remote.key };
                let local = self.local.slice(at, MESSAGE as u32);
                requester.post_write(lane.qpn, sequence, local, remote, None)?;
                lane.since.push_back(now);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Returns true if this is a queue pair of the requester's.
    pub(super) fn has(&self, qpn: Qpn) -> bool {
        self.lanes.iter().any(|lane| lane.qpn == qpn)
    }

    /// Forgets what was measured so far. Failures stay.
    pub(super) fn begin(&mut self) {
        self.latencies.clear();
        self.stall = Duration::ZERO;
    }

    pub(super) fn result(&self, now: Instant, rate: u64, time: Duration) -> super::Neighbour {
        let completed = self.latencies.len();
        let waiting = self.lanes.iter().flat_map(|lane| &lane.since).map(|since| now - *since);
        let mut latencies: Vec<_> = self.latencies.iter().copied().chain(waiting).collect();
        latencies.sort_unstable();
        super::Neighbour {
            goodput: (completed * MESSAGE * 8) as f64 / time.as_secs_f64() / rate as f64,
            p99: latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default(),
            stall: self.stall.max(self.last.map_or(time, |last| now - last)),
            completed,
            failed: self.failed,
            wrong: self.wrong,
            stray: 0,
            aimed: 0,
        }
    }
}

/// Where a message stands in either region.
fn place(lane: usize, sequence: u64) -> usize {
    (lane * DEPTH as usize + (sequence % DEPTH) as usize) * MESSAGE
}

fn key(lane: usize, sequence: u64) -> u64 {
    (lane as u64) << 56 | sequence
}
