//! The programs on a connection's two ends: they post what the scenario says, and check what they
//! get.

#![expect(
    clippy::indexing_slicing,
    reason = "ends, hosts and operations are numbered by the world that made them"
)]

mod check;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::wire::Qpn;

use super::flow::{Atomics, Flow};
use super::judge::{Bond, Judge};
use super::scenario::{Connection, Life, Op};
use super::site::{Site, Use};
use super::{Broken, pattern};
use crate::host::{Access, HostError, RegionHandle, Remote, RemoteAddr, Work as Request};

/// Where an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) site: usize,
    pub(super) host: usize,
    pub(super) qpn: Qpn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next life's pause began then.
    Waiting(Instant),
    Running,
    Over,
}

/// A connection and its programs.
pub(super) struct Program {
    number: u64,
    /// The ends of the life that waits, runs, or was the last.
    pub(super) ends: [End; 2],
    /// The ends of each life.
    places: Vec<[End; 2]>,
    plan: Connection,
    forgetful: bool,
    /// Both gateways die.
    traceless: bool,
    /// Index of the life that waits, runs, or was the last.
    pub(super) life: usize,
    state: State,
    begun: Instant,
    halves: [Half; 2],
    /// Requests of end 0, of end 1; of this life, and of the lives before.
    flows: [Vec<Flow>; 2],
    /// Messages whose requester gave up for want of a receive, and may send otherwise by now: end,
    /// index of the flow, message.
    not_received: Vec<(usize, usize, usize)>,
    /// Nothing may write to these any more: host, key.
    sealed: Vec<(usize, usize, u32)>,
    pub(super) tally: Tally,
}

/// How operations ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) not_posted: u64,
    pub(super) gave_up: u64,
    /// Operations that succeeded before their target had them, and how many of these it never got.
    pub(super) early: u64,
    pub(super) lost: u64,
    /// How long each one took that succeeded.
    pub(super) times: Vec<Duration>,
}

/// One end's program.
#[derive(Debug, Default)]
struct Half {
    ops: Vec<Posted>,
    next: usize,
    done: usize,
    /// Operations that succeeded and have not arrived at the target.
    early: VecDeque<usize>,
    post_at: Option<Instant>,
    receives: Vec<Receive>,
    posted_receives: usize,
    received: usize,
    /// Atomics that succeeded.
    atomics: usize,
    receive_at: Option<Instant>,
    failed: bool,
    /// Closed by its own program.
    stopped: bool,
    op_failed: bool,
    /// Requests were under way when the queue pair went, and nobody had refused any.
    abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    op: Op,
    seed: u64,
    /// The requester's region.
    local: RegionHandle,
    /// The target's region.
    remote: RegionHandle,
    /// Atomics: the cell's value before.
    before: u64,
    /// SEND with invalidate: the key that it ends.
    key: u32,
    solicited: bool,
    /// Index in the model.
    message: usize,
    /// Which of the target's receives it takes.
    receive: Option<usize>,
    /// When it was.
    at: Option<Instant>,
}

impl Posted {
    /// Returns the request to the host.
    fn request(&self) -> Request {
        let remote = RemoteAddr { va: self.remote.va, rkey: self.remote.key };
        match self.op {
            Op::Send(_, imm) => Request::Send { imm },
            Op::SendInvalidate(_) => Request::SendInvalidate { rkey: self.key },
            Op::Write(_, imm) => Request::Write { remote, imm },
            Op::Read(_) => Request::Read { remote },
            Op::FetchAdd(add) => Request::FetchAdd { remote, add },
            Op::CompareSwap(swap) => Request::CompareSwap { remote, compare: self.before, swap },
            Op::AtomicWrite(_) => Request::AtomicWrite { remote },
            Op::Flush(len) => Request::Flush { remote, len, region: self.seed & 1 == 1 },
            Op::BadKey(_) => {
                let remote = RemoteAddr { rkey: remote.rkey ^ 0x55, ..remote };
                Request::Write { remote, imm: None }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Receive {
    region: RegionHandle,
    op: Op,
    seed: u64,
    key: u32,
    solicited: bool,
}

const RECEIVE: u64 = 1 << 63;
/// The byte that memory holds before anything is written to it, and that a program overwrites it
/// with afterwards.
const BLANK: u8 = 0xee;

impl Program {
    /// The gateways may lose every trace of a flow, by crashes of both (`traceless`), or for want
    /// of room as well (`forgetful`). `own` are the connection's own queue pairs, `places` those of
    /// each life.
    pub(super) fn new(
        number: usize,
        plan: &Connection,
        own: [End; 2],
        places: Vec<[End; 2]>,
        (forgetful, traceless): (bool, bool),
        now: Instant,
    ) -> Self {
        let state = if plan.lives.is_empty() { State::Over } else { State::Waiting(now) };
        Self {
            number: number as u64,
            ends: places.first().copied().unwrap_or(own),
            places,
            plan: plan.clone(),
            forgetful,
            traceless,
            life: 0,
            state,
            begun: now,
            halves: Default::default(),
            flows: Default::default(),
            not_received: Vec::new(),
            sealed: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Since when the life runs that runs.
    pub(super) fn running_since(&self) -> Option<Instant> {
        (self.state == State::Running).then_some(self.begun)
    }

    pub(super) fn next_event(&self, sites: &[Site; 2]) -> Option<Instant> {
        match self.state {
            State::Waiting(since) => self.begins_at(since, sites),
            State::Running => {
                let posts =
                    (0..2).filter(|end| self.may_post(*end)).filter_map(|end| self.halves[end].post_at);
                posts.chain(self.halves.iter().filter_map(|half| half.receive_at)).min()
            }
            State::Over => None,
        }
    }

    /// When the next life begins; `None` while another connection has one of its queue pairs.
    fn begins_at(&self, since: Instant, sites: &[Site; 2]) -> Option<Instant> {
        let life = self.plan.lives.get(self.life)?;
        let free = self.ends.iter().try_fold(since, |since, end| {
            let used = sites[end.site].hosts[end.host].uses.get(&end.qpn);
            used.map_or(Some(since), |used| Some(used.left?.max(since)))
        });
        free.map(|since| since + life.pause)
    }

    /// Fewer operations are under way than may be.
    fn may_post(&self, end: usize) -> bool {
        let half = &self.halves[end];
        half.next - half.done < self.plan.lives[self.life].work[end].depth.max(1)
    }

    /// The requests of end `end` in a life, if it has begun.
    pub(super) fn flow(&self, end: usize, life: usize) -> Option<&Flow> {
        self.flows.get(end)?.get(life)
    }

    pub(super) fn flow_mut(&mut self, end: usize, life: usize) -> Option<&mut Flow> {
        self.flows.get_mut(end)?.get_mut(life)
    }

    pub(super) fn atomics(&self) -> Atomics {
        self.flows.iter().flatten().fold(Atomics::default(), |mut sum, flow| {
            sum += flow.atomics();
            sum
        })
    }

    /// Does what the programs do now. Returns whether anything was done.
    pub(super) fn act(
        &mut self,
        sites: &mut [Site; 2],
        judge: &mut Judge,
        now: Instant,
    ) -> Result<bool, Broken> {
        match self.state {
            State::Waiting(since) if self.begins_at(since, sites).is_some_and(|at| at <= now) => {
                self.begin(sites, judge, now)
                    .map_err(|error| ("model", format!("a life does not begin: {error}")))?;
                Ok(true)
            }
            State::Running => {
                let mut acted = false;
                for end in 0..2 {
                    acted |= self.post_receives(end, sites, now)?;
                    acted |= self.post_ops(end, sites, now)?;
                    acted |= self.note_arrivals(end, sites)?;
                }
                if self.is_finished(sites) {
                    self.finish(sites, now)?;
                    acted = true;
                }
                Ok(acted)
            }
            _ => Ok(false),
        }
    }

    fn begin(&mut self, sites: &mut [Site; 2], judge: &mut Judge, now: Instant) -> Result<(), HostError> {
        let Some(life) = self.plan.lives.get(self.life).cloned() else { return Ok(()) };
        self.halves = Default::default();
        self.begun = now;
        self.state = State::Running;
        let first = life.psn.map(|psn| psn + self.moved(sites));
        for end in self.ends {
            let unused = Use { left: None, moved: 0 };
            sites[end.site].hosts[end.host].uses.entry(end.qpn).or_insert(unused).left = None;
        }
        let bond = Bond {
            number: self.number << 16 | self.life as u64,
            ends: self.ends.map(|end| (sites[end.site].hosts[end.host].ip, end.qpn)),
            psn: first,
            mtu: self.plan.qp.mtu,
        };
        for end in 0..2 {
            judge.connected(bond, end);
            let [me, peer] = [self.ends[end], self.ends[1 - end]];
            let ip = sites[peer.site].hosts[peer.host].ip;
            let remote = Remote { ip, qpn: peer.qpn, psn: first[1 - end] };
            sites[me.site].hosts[me.host].host.connect(me.qpn, first[end], remote)?;
            self.flows[end].push(Flow::new(first[end], self.plan.qp.mtu, now));
        }
        for end in 0..2 {
            self.prepare(end, &life, sites);
            let half = &mut self.halves[end];
            half.post_at = Some(now);
            half.receive_at = Some(now + life.work[end].receives_after);
        }
        Ok(())
    }

    /// Registers what end `end`'s operations need, at both ends.
    fn prepare(&mut self, end: usize, life: &Life, sites: &mut [Site; 2]) {
        let [me, peer] = [self.ends[end], self.ends[1 - end]];
        let mut cell: Option<(RegionHandle, u64)> = None;
        for (index, op) in life.work[end].ops.iter().copied().enumerate() {
            let seed = (self.life as u64) << 40
                | (end as u64) << 32
                | self.number << 20
                | index as u64
                | u64::from(me.qpn.get()) << 48
                | 1 << 60;
            let len = op.len() as usize;
            let (mine, theirs) = match op {
                Op::Read(_) => (vec![BLANK; len], pattern(len, seed)),
                Op::FetchAdd(_) | Op::CompareSwap(_) => (vec![BLANK; 8], vec![0; 8]),
                Op::AtomicWrite(value) => (value.to_ne_bytes().to_vec(), vec![0; 8]),
                Op::Flush(len) => (Vec::new(), vec![BLANK; len as usize]),
                _ => (pattern(len, seed), vec![BLANK; len]),
            };
            let local = sites[me.site].hosts[me.host].host.register(mine, Access::LOCAL);
            let target = &mut sites[peer.site].hosts[peer.host].host;
            let mut before = 0;
            let remote = match (op, cell) {
                (op, Some((handle, value))) if op.is_atomic() => {
                    before = value;
                    handle
                }
                _ => target.register(theirs, Access::ALL),
            };
            if op.is_atomic() {
                cell = Some((remote, op.applied(before)));
            }
            let key = match op {
                Op::SendInvalidate(_) => target.register(vec![BLANK; 8], Access::ALL).key,
                _ => 0,
            };
            let every = life.work[end].solicited_every;
            let solicited = every > 0 && index % every == 0;
            let receives = &mut self.halves[1 - end].receives;
            let receive = op.takes_receive().then_some(receives.len());
            if op.takes_receive() {
                let region = if op.is_send() { remote } else { target.register(Vec::new(), Access::LOCAL) };
                receives.push(Receive { region, op, seed, key, solicited });
            }
            self.halves[end].ops.push(Posted {
                op,
                seed,
                local,
                remote,
                before,
                key,
                solicited,
                message: 0,
                receive,
                at: None,
            });
        }
    }

    fn post_receives(&mut self, end: usize, sites: &mut [Site; 2], now: Instant) -> Result<bool, Broken> {
        let me = self.ends[end];
        let half = &mut self.halves[end];
        let mut acted = false;
        while half.receive_at.is_some_and(|at| at <= now) {
            let Some(receive) = half.receives.get(half.posted_receives).copied() else {
                half.receive_at = None;
                break;
            };
            let len = if receive.op.is_send() { receive.op.len() } else { 0 };
            let wr_id = RECEIVE | (self.number << 16 | self.life as u64) << 32 | half.posted_receives as u64;
            let host = &mut sites[me.site].hosts[me.host].host;
            match host.post_recv(me.qpn, wr_id, receive.region.slice(0, len)) {
                Ok(()) => {}
                Err(HostError::NotReady(_)) => {
                    half.receive_at = None;
                    break;
                }
                Err(error) => return Err(("model", format!("a receive is refused: {error}"))),
            }
            half.posted_receives += 1;
            acted = true;
            half.receive_at =
                half.receive_at.map(|at| at + self.plan.lives[self.life].work[end].receives_every);
        }
        Ok(acted)
    }

    fn post_ops(&mut self, end: usize, sites: &mut [Site; 2], now: Instant) -> Result<bool, Broken> {
        let me = self.ends[end];
        let work = &self.plan.lives[self.life].work[end];
        let half = &mut self.halves[end];
        let mut acted = false;
        while half.post_at.is_some_and(|at| at <= now) && half.next - half.done < work.depth.max(1) {
            let host = &mut sites[me.site].hosts[me.host].host;
            if half.next >= half.ops.len() || !host.is_ready(me.qpn) {
                half.post_at = None;
                break;
            }
            let posted = &mut half.ops[half.next];
            let flow = self.flows[end].last_mut();
            let wr_id = (self.number << 16 | self.life as u64) << 32 | half.next as u64;
            let local = posted.local.slice(0, posted.op.len());
            let done = host.post(me.qpn, wr_id, posted.request(), local, posted.solicited);
            done.map_err(|error| ("model", format!("an operation is refused: {error}")))?;
            if let Some(flow) = flow {
                posted.message = flow.post(posted.op, posted.remote.va, posted.remote.key);
            }
            posted.at = Some(now);
            half.next += 1;
            acted = true;
            if !work.think.is_zero() {
                half.post_at = Some(now + work.think);
            }
        }
        Ok(acted)
    }

    fn is_finished(&self, sites: &[Site; 2]) -> bool {
        let ready = |end: usize| {
            let End { site, host, qpn } = self.ends[end];
            sites[site].hosts[host].host.is_ready(qpn)
        };
        // An end whose queue pair failed while it asked for nothing: the other, which only waits,
        // learns of it from the program, if at all.
        let failed = self.halves.iter().any(|half| half.failed || half.stopped) || !ready(0) || !ready(1);
        // Half a message that will not go on: the target's program is told, unless nobody is left
        // to tell.
        let half_done = |end: usize| self.flows[end].last().is_some_and(Flow::is_half_done);
        let told = (0..2).all(|end| {
            !half_done(end)
                || !ready(1 - end)
                || sites[self.ends[1 - end].site].hosts[self.ends[1 - end].host].is_silent()
        });
        (told || self.forgetful)
            && (0..2).all(|end| {
                let half = &self.halves[end];
                let posted = half.next == half.ops.len() || !ready(end);
                // Where both gateways died only the next request would tell.
                let lost = self.traceless && self.halves.iter().any(|half| !half.early.is_empty());
                let whole = half.received == half.receives.len() && half.early.is_empty();
                let received = failed || lost || whole;
                half.done == half.next && posted && received
            })
    }

    fn finish(&mut self, sites: &mut [Site; 2], now: Instant) -> Result<(), Broken> {
        for end in 0..2 {
            self.check_atomics(end, sites)?;
            self.tally.not_posted += (self.halves[end].ops.len() - self.halves[end].next) as u64;
            let End { site, host, qpn } = self.ends[end];
            // Both programs are done with it.
            let _ = sites[site].hosts[host].host.fail(qpn);
        }
        let mut moved = self.moved(sites);
        for flow in self.flows.iter_mut().filter_map(|flows| flows.last_mut()) {
            flow.over = true;
        }
        let lost: usize = self.halves.iter().map(|half| half.early.len()).sum();
        self.tally.lost += lost as u64;
        if lost > 0 || self.halves.iter().any(|half| half.abandoned) {
            // What is still under way would reach the next life if that began at the same PSNs.
            moved += 1 << 18;
        }
        for end in self.ends {
            sites[end.site].hosts[end.host].uses.insert(end.qpn, Use { left: Some(now), moved });
        }
        self.life += 1;
        self.state = State::Over;
        if let Some(ends) = self.places.get(self.life) {
            (self.ends, self.state) = (*ends, State::Waiting(now));
        }
        Ok(())
    }

    /// Returns the offset of the PSNs of the life that has these queue pairs.
    fn moved(&self, sites: &[Site; 2]) -> u32 {
        let used = |end: &End| sites[end.site].hosts[end.host].uses.get(&end.qpn).map(|used| used.moved);
        self.ends.iter().filter_map(used).max().unwrap_or(0)
    }

    /// The program of one end closes its queue pair.
    pub(super) fn stop(&mut self, end: usize, sites: &mut [Site; 2]) {
        if self.state == State::Running {
            let End { site, host, qpn } = self.ends[end];
            self.halves[end].stopped = true;
            let _ = sites[site].hosts[host].host.fail(qpn);
        }
    }

    /// The programs that have waited too long: an error unless nothing could tell them.
    pub(super) fn check_patience(
        &mut self,
        patience: Duration,
        sites: &mut [Site; 2],
        now: Instant,
    ) -> Result<(), Broken> {
        if self.running_since().is_none_or(|since| now < since + patience) {
            return Ok(());
        }
        let mut gave_up = false;
        for end in 0..2 {
            let half = &self.halves[end];
            // A queue pair that retries for ever (`retry_cnt` 7 on Soft-RoCE) can be told only by
            // its number. Nobody knows that while its target has not answered the flow that the
            // gateways have now. If that target is gone it never will, as without gateways.
            let End { site, host, qpn } = self.ends[1 - end];
            let target_gone = !sites[site].hosts[host].host.is_ready(qpn);
            let unheard = self.flows[end].last().is_some_and(|flow| !flow.target_spoke());
            // Nor does anybody where both gateways died while it was amid a message.
            let is_long = |posted: &Posted| posted.op.len() > self.plan.qp.mtu.bytes();
            let amid = self.traceless && half.ops.get(half.done).is_some_and(is_long);
            let unknown = unheard || target_gone || amid;
            let mute = self.plan.qp.retry_cnt == 7 && unknown;
            let waits = half.done < half.next;
            if waits && !mute {
                return Err((
                    "I7",
                    format!("end {end}: operation {} {:?} never ends", half.done, half.ops[half.done].op),
                ));
            }
            if waits {
                self.tally.gave_up += 1;
                self.stop(end, sites);
                gave_up = true;
            }
        }
        if gave_up {
            // From here on it is for the target's program to be told.
            self.begun = now;
            return Ok(());
        }
        let received = self.halves.each_ref().map(|half| (half.received, half.receives.len()));
        let qpns = self.ends.map(|end| end.qpn.get());
        let half_done = self.flows.each_ref().map(|flows| flows.last().is_some_and(Flow::is_half_done));
        let early = self.halves.each_ref().map(|half| half.early.len());
        let what = "a program that only receives, or whose messages are done early, is never told";
        Err((
            "I7",
            format!(
                "{what}: queue pairs {qpns:?}, receives {received:?}, half done {half_done:?}, early {early:?}"
            ),
        ))
    }
}
