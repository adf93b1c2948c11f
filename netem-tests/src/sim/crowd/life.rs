//! One incarnation while it is played: its memory, what was posted, what has come of it.

#![expect(clippy::indexing_slicing, reason = "ends are 0 and 1")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::wire::{Psn, Qpn};

use super::scenario::{CrowdLife, CrowdOp};
use crate::host::{Access, Completion, Host, HostError, RegionHandle, Remote, RemoteAddr, Status, Work};
use crate::sim::pattern;

/// Marks a receive's work request.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The regions of one operation.
#[derive(Clone, Copy, Debug)]
struct Buffers {
    op: CrowdOp,
    seed: u64,
    /// The regions of the requester, and of its target.
    local: RegionHandle,
    remote: RegionHandle,
}

/// One end.
#[derive(Debug, Default)]
pub(super) struct Side {
    buffers: Vec<Buffers>,
    pub(super) connected: Option<Instant>,
    posted: usize,
    /// When those were posted that are under way.
    begun: VecDeque<Instant>,
    pub(super) done: usize,
    pub(super) first: Option<Instant>,
    /// A request of this end ended in an error.
    pub(super) failed: bool,
    /// Sum of what its atomics found and must have found.
    added: u64,
}

/// An incarnation that runs.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) number: usize,
    pub(super) plan: CrowdLife,
    pub(super) begun: Instant,
    pub(super) sides: [Side; 2],
    pub(super) change_at: Option<Instant>,
    changes: u8,
    /// How long each request took that succeeded.
    pub(super) took: Vec<Duration>,
}

impl Life {
    pub(super) fn begin(number: usize, plan: &CrowdLife, hosts: &mut [&mut Host; 2], now: Instant) -> Self {
        let mut sides = [Side::default(), Side::default()];
        for end in 0..2 {
            let mut cell = None;
            for (index, op) in plan.work[end].iter().copied().enumerate() {
                let seed = (number as u64) << 20 | (end as u64) << 16 | index as u64 | 1 << 50;
                let len = op.len() as usize;
                let (mine, theirs) = match op {
                    CrowdOp::Read(_) => (vec![0; len], pattern(len, seed)),
                    CrowdOp::FetchAdd(_) => (vec![0; 8], vec![0; 8]),
                    _ => (pattern(len, seed), vec![0; len]),
                };
                let local = hosts[end].register(mine, Access::LOCAL);
                let remote = match (op, cell) {
                    (CrowdOp::FetchAdd(_), Some(cell)) => cell,
                    _ => hosts[1 - end].register(theirs, Access::ALL),
                };
                if matches!(op, CrowdOp::FetchAdd(_)) {
                    cell = Some(remote);
                }
                sides[end].buffers.push(Buffers { op, seed, local, remote });
            }
        }
        let change_at = plan.restless.map(|every| now + every);
        Self { number, plan: plan.clone(), begun: now, sides, change_at, changes: 0, took: Vec::new() }
    }

    /// When one of its programs acts next, but for completions.
    pub(super) fn next_event(&self, patience: Duration) -> Option<Instant> {
        let skewed =
            (self.sides[1].connected.is_none() && !self.plan.dead).then_some(self.begun + self.plan.skew);
        let cut = self.begun + self.plan.cut.unwrap_or(patience);
        [skewed, self.change_at, Some(cut)].into_iter().flatten().min()
    }

    /// Connects an end and posts its receives.
    pub(super) fn connect(
        &mut self,
        end: usize,
        host: &mut Host,
        qpns: [Qpn; 2],
        peer: std::net::IpAddr,
        now: Instant,
    ) -> Result<(), HostError> {
        let psn = self.plan.psn.map(Psn::new);
        let remote = Remote { ip: peer, qpn: qpns[1 - end], psn: psn[1 - end] };
        host.connect(qpns[end], psn[end], remote)?;
        for (index, buffers) in self.sides[1 - end].buffers.iter().enumerate() {
            if let CrowdOp::Send(len) = buffers.op {
                let wr_id = RECEIVE | (self.number as u64) << 32 | index as u64;
                host.post_recv(qpns[end], wr_id, buffers.remote.slice(0, len))?;
            }
        }
        self.sides[end].connected = Some(now);
        Ok(())
    }

    /// Posts what may be under way. Returns whether anything was.
    pub(super) fn post(
        &mut self,
        end: usize,
        host: &mut Host,
        qpn: Qpn,
        now: Instant,
    ) -> Result<bool, HostError> {
        let (depth, number) = (self.plan.depth, self.number as u64);
        let side = &mut self.sides[end];
        let mut acted = false;
        while side.connected.is_some()
            && host.is_ready(qpn)
            && side.posted - side.done < depth
            && let Some(buffers) = side.buffers.get(side.posted).copied()
        {
            let remote = RemoteAddr { va: buffers.remote.va, rkey: buffers.remote.key };
            let work = match buffers.op {
                CrowdOp::Send(_) => Work::Send { imm: None },
                CrowdOp::Write(_) => Work::Write { remote, imm: None },
                CrowdOp::Read(_) => Work::Read { remote },
                CrowdOp::FetchAdd(add) => Work::FetchAdd { remote, add },
            };
            let local = buffers.local.slice(0, buffers.op.len());
            host.post(qpn, number << 32 | side.posted as u64, work, local, false)?;
            side.posted += 1;
            side.begun.push_back(now);
            acted = true;
        }
        Ok(acted)
    }

    /// The programs change a flag in the buffers that are under way.
    pub(super) fn change(&mut self, hosts: [&mut Host; 2], now: Instant) {
        self.changes = self.changes.wrapping_add(1);
        for (side, host) in self.sides.iter().zip(hosts) {
            for buffers in side.buffers.get(side.done..side.posted).unwrap_or_default() {
                let source = matches!(buffers.op, CrowdOp::Send(_) | CrowdOp::Write(_));
                let flag = host.memory_mut(buffers.local.key).and_then(<[u8]>::first_mut);
                if let Some(flag) = flag.filter(|_| source) {
                    *flag = self.changes;
                }
            }
        }
        self.change_at = self.plan.restless.map(|every| now + every);
    }

    /// A work request has ended; what is wrong with that, if anything is.
    pub(super) fn completed(
        &mut self,
        end: usize,
        completion: &Completion,
        hosts: [&Host; 2],
        now: Instant,
    ) -> Option<(&'static str, String)> {
        if completion.wr_id & RECEIVE != 0 || completion.status == Status::Flushed {
            return None;
        }
        let side = &mut self.sides[end];
        let index = side.done;
        side.done += 1;
        let begun = side.begun.pop_front();
        if completion.status != Status::Success {
            side.failed = true;
            return Some(("failed", format!("request {index} of end {end}: {:?}", completion.status)));
        }
        side.first.get_or_insert(now);
        self.took.extend(begun.map(|begun| now.saturating_duration_since(begun)));
        let buffers = side.buffers.get(index).copied()?;
        let local = hosts[end].memory(buffers.local.key)?;
        let remote = hosts[1 - end].memory(buffers.remote.key)?;
        let expected = pattern(buffers.op.len() as usize, buffers.seed);
        // The first byte is the flag that a restless program changes.
        let from = usize::from(self.plan.restless.is_some());
        let good = match buffers.op {
            CrowdOp::Send(_) | CrowdOp::Write(_) => remote.get(from..) == expected.get(from..),
            CrowdOp::Read(_) => local == expected,
            CrowdOp::FetchAdd(add) => {
                let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                let good = number(local) == Some(side.added);
                side.added += add;
                good && number(remote) >= Some(side.added)
            }
        };
        (!good).then(|| {
            ("data", format!("request {index} of end {end}, {:?}: memory is not what was sent", buffers.op))
        })
    }

    /// Returns true if all that was to be done is.
    pub(super) fn is_done(&self) -> bool {
        !self.plan.dead && self.sides.iter().all(|side| side.done == side.buffers.len())
    }

    /// The programs give up, or are done.
    pub(super) fn is_over(&self, patience: Duration, now: Instant) -> bool {
        let cut = self.begun + self.plan.cut.unwrap_or(patience);
        now >= cut || self.is_done() && self.plan.cut.is_none() || self.sides.iter().any(|side| side.failed)
    }

    /// Time from the moment both ends were connected to an end's first success.
    pub(super) fn first(&self, end: usize) -> Option<Duration> {
        let both = self.sides[0].connected?.max(self.sides[1].connected?);
        self.sides[end].first.map(|at| at.saturating_duration_since(both))
    }

    /// An end waits for its first answer.
    pub(super) fn waits(&self, end: usize) -> bool {
        let side = &self.sides[end];
        side.connected.is_some() && side.posted > 0 && side.first.is_none()
    }
}
