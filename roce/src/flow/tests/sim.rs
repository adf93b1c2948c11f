//! Whole flows: requester, lossy LAN, near, long pipe, far, lossy LAN, target.
//!
//! `FLOW_SEED=n` runs one seed with a trace, `FLOW_SEEDS=n` so many of each kind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::requester::Requester;
use super::target::Target;
use super::{Rng, epoch, parse};
use crate::cm::Terms;
use crate::flow::far::{self, Failure};
use crate::flow::near::{self, Deliver};
use crate::flow::{Far, FarConfig, Near, NearConfig};
use crate::wire::{Nak, PathMtu, Psn, Syndrome};

/// A LAN direction: loses, duplicates, delays and so reorders.
struct Lan {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    queue: BTreeMap<(Instant, u64), Vec<u8>>,
    count: u64,
    clear: Instant,
}

impl Lan {
    fn new(rng: &mut Rng, now: Instant) -> Lan {
        let clean = rng.chance(200);
        Lan {
            loss: if clean { 0 } else { rng.pick(&[0, 2, 20, 80]) },
            duplicate: if clean { 0 } else { rng.pick(&[0, 0, 10, 50]) },
            reorder: if clean { 0 } else { rng.pick(&[0, 0, 10, 50]) },
            queue: BTreeMap::new(),
            count: 0,
            clear: now,
        }
    }

    fn send(&mut self, bytes: &[u8], rng: &mut Rng, now: Instant) {
        if rng.chance(self.loss) {
            return;
        }
        self.clear = self.clear.max(now) + Duration::from_nanos(100 + bytes.len() as u64);
        let copies = 1 + u64::from(rng.chance(self.duplicate));
        for _ in 0..copies {
            let late = if rng.chance(self.reorder) { rng.below(300) } else { 0 };
            let at = self.clear + Duration::from_micros(5 + late);
            self.count += 1;
            self.queue.insert((at, self.count), bytes.to_vec());
        }
    }

    fn next(&self) -> Option<Instant> {
        self.queue.keys().next().map(|&(at, _)| at)
    }

    fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.next().filter(|&at| at <= now)?;
        self.queue.pop_first().map(|(_, bytes)| bytes)
    }
}

/// The long way: nothing lost, everything in order.
struct Wan<T> {
    delay: Duration,
    queue: VecDeque<(Instant, T)>,
}

impl<T> Wan<T> {
    fn send(&mut self, record: T, now: Instant) {
        self.queue.push_back((now + self.delay, record));
    }

    fn next(&self) -> Option<Instant> {
        self.queue.front().map(|&(at, _)| at)
    }

    fn receive(&mut self, now: Instant) -> Option<T> {
        self.next().filter(|&at| at <= now)?;
        self.queue.pop_front().map(|(_, record)| record)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// All goes well in the end.
    Lossy,
    /// All goes well, and requesters are told so before their targets are, of some messages.
    Local,
    /// The target refuses one operation.
    Refusing,
    /// The target falls silent.
    Dying,
    /// Both gateways lose everything they knew and start anew.
    Restarting,
    /// The session breaks: the near side fails the flow, the far side aborts it.
    Breaking,
}

/// The fate of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    /// The first of a new flow.
    First,
    Next,
    Replay,
    /// None: the requester tries again after RNR.
    Retry,
    /// None: what is outstanding may be nobody's any more, or is somebody's after all.
    Suspend(bool),
}

struct Sim {
    rng: Rng,
    trace: bool,
    now: Instant,
    start: Instant,
    requester: Requester,
    near: Near,
    far: Far<Vec<u8>>,
    near_config: NearConfig,
    far_config: FarConfig,
    /// The terms that connection management told, and the first PSN.
    terms: Option<(Terms, Psn)>,
    /// Numbers of the flows that near and far belong to.
    flows: [u32; 2],
    /// The flow of the near half, and whether the far half was told to leave it alone.
    suspended: (u32, bool),
    target: Target,
    /// Requester to near, near to requester, far to target, target to far.
    lans: [Lan; 4],
    requests: Wan<(u32, As, Vec<u8>)>,
    responses: Wan<(u32, Vec<u8>)>,
    broken_at: Option<Instant>,
    /// There is no session to begin a flow in.
    broken: bool,
    told: bool,
    piece: u32,
    /// Messages in a thousand that are done once they have come.
    local: u64,
    batch: u64,
    toggles: u64,
}

impl Sim {
    fn new(seed: u64, trace: bool) -> Sim {
        let mut rng = Rng(seed);
        let now = epoch();
        let mtu = rng.pick(&[256u32, 256, 256, 256, 256, 256, 512, 1024, 4096]);
        let first = Psn::new(rng.pick(&[0, 0, 1000, 0xff_fff0, 0x7f_fff8]));
        let count = 1 + rng.below(40);
        let requester = Requester::new(&mut rng, mtu, first, count, now);
        let hint = PathMtu::from_bytes(mtu as usize).filter(|_| rng.chance(300));
        let wrong = rng.chance(50).then_some(PathMtu::B4096);
        let near = NearConfig {
            mtu: wrong.or(hint),
            hard_limit: rng.pick(&[20_000, 64 << 20]),
            mid_ack_limit: rng.pick(&[5_000, 64 << 20]),
            max_messages: rng.pick(&[3, 4096]),
            nak_rearm: Duration::from_millis(rng.pick(&[1, 10])),
            // A whole window takes milliseconds on these LANs.
            lan_turn: Duration::from_millis(5),
            ..NearConfig::default()
        };
        let far = FarConfig {
            mtu: wrong.or(hint),
            window_packets: rng.pick(&[1, 4, 64]),
            max_reads: rng.pick(&[1, 16]),
            // Whether READs are cut must not change what else a seed draws.
            read_piece: if seed.is_multiple_of(3) { 1 << 20 } else { 4096 },
            target_dead_after: Duration::from_secs(3),
            rnr_local_retries: rng.pick(&[0, 2]),
            rnr_local_time: Duration::from_millis(rng.pick(&[0, 20])),
            rto_initial: Duration::from_millis(10),
            rto_max: Duration::from_millis(100),
            ..FarConfig::default()
        };
        let paired = rng.chance(500);
        let target = Target::new(&mut rng, requester.ops.clone(), mtu, first);
        let delay = Duration::from_micros(rng.pick(&[50, 1_000, 12_000, 40_000]));
        let (near_config, far_config) = (near, far);
        let mut near = Near::new(near_config.clone(), Arc::default(), now);
        if paired {
            near.pair(super::R);
        }
        let mut far = Far::new(far_config.clone(), Arc::default(), now);
        let rnr_retry = rng.pick(&[6, 7]);
        let terms = rng
            .chance(300)
            .then_some((Terms { path_mtu: hint, max_reads: 16, rnr_retry, ..Terms::default() }, first));
        if let Some((terms, first)) = &terms {
            near.set_terms(terms, Some(*first));
            far.set_terms(terms);
        }
        let lans: [Lan; 4] = std::array::from_fn(|_| Lan::new(&mut rng, now));
        let mut requester = requester;
        requester.orderly = lans[1].reorder == 0 && lans[1].duplicate == 0;
        Sim {
            near,
            piece: far_config.read_piece,
            far,
            terms,
            near_config,
            far_config,
            flows: [0; 2],
            suspended: (0, false),
            lans,
            requests: Wan { delay, queue: VecDeque::new() },
            responses: Wan { delay, queue: VecDeque::new() },
            toggles: 20,
            local: 0,
            batch: rng.pick(&[1, 1, 8]),
            requester,
            target,
            trace,
            now,
            start: now,
            broken_at: None,
            broken: false,
            told: paired,
            rng,
        }
    }

    fn log(&self, what: &str, bytes: &[u8]) {
        if self.trace {
            let p = parse(bytes);
            let aeth = p.ext.aeth().map(|aeth| aeth.syndrome);
            let time = self.now - self.start;
            let (opcode, psn, ack) = (p.bth.opcode, p.bth.psn, p.bth.ack_req);
            println!("{time:?} {what} {opcode:?} {psn} {aeth:?} {ack} {}", p.payload.len());
        }
    }

    fn run(&mut self, limit: Duration) {
        let end = self.start + limit;
        loop {
            self.step();
            let lans = self.lans.iter().map(Lan::next);
            let rest = [
                self.requests.next(),
                self.responses.next(),
                self.requester.next_timeout(),
                self.near.next_timeout(),
                self.far.next_timeout(),
                self.broken_at,
            ];
            let more = self.requester.may_transmit().then(|| self.now + Duration::from_micros(1));
            let Some(next) = lans.chain(rest).flatten().chain(more).min() else {
                return;
            };
            if next > end {
                return;
            }
            self.now = self.now.max(next);
        }
    }

    fn restart(&mut self) {
        let lan_turn = self.near_config.lan_turn;
        self.near_config = NearConfig { lan_turn, ..NearConfig::default() };
        self.far_config = FarConfig::default();
        self.near = Near::new(self.near_config.clone(), Arc::default(), self.now);
        self.near.pair(super::R);
        self.terms = None;
        self.far_config.read_piece = self.piece;
        self.far = Far::new(self.far_config.clone(), Arc::default(), self.now);
        self.flows = [self.flows[0]; 2];
        self.requests.queue.clear();
        self.responses.queue.clear();
        self.told = true;
    }

    /// Lets what is under way come to its end.
    fn settle(&mut self) {
        self.toggles = 0;
        self.near.set_writable(true, self.now);
        self.far.set_room(usize::MAX);
        self.run(self.now - self.start + Duration::from_secs(10));
    }

    fn step(&mut self) {
        let now = self.now;
        if self.broken_at.is_some_and(|at| at <= now) {
            self.broken_at = None;
            self.broken = true;
            // What was under way ends with its session.
            self.requests.queue.clear();
            self.near.fail(now);
            self.far.abort(now);
        }
        if self.rng.chance(self.toggles) {
            let writable = self.rng.chance(700);
            self.near.set_writable(writable, now);
        }
        if self.rng.chance(self.toggles) {
            let room = self.rng.pick(&[usize::MAX, usize::MAX, usize::MAX, 3000, 0]);
            self.far.set_room(room);
        }
        self.requester.handle_timeout(now);
        self.near.handle_timeout(now);
        self.far.handle_timeout(now);
        let burst = self.rng.below(20) + 1;
        for _ in 0..burst {
            let Some(bytes) = self.requester.transmit(now) else {
                break;
            };
            self.log("R>", &bytes);
            self.lans[0].send(&bytes, &mut self.rng, now);
        }
        self.step_near();
        self.step_far();
        while let Some(bytes) = self.lans[2].receive(now) {
            self.target.handle(&bytes, &mut self.rng, now);
            while let Some(bytes) = self.target.out.pop_front() {
                self.log("T>", &bytes);
                self.lans[3].send(&bytes, &mut self.rng, now);
            }
        }
        while let Some(bytes) = self.lans[1].receive(now) {
            self.log(">R", &bytes);
            let executed = if self.local > 0 { usize::MAX } else { self.target.executed };
            self.requester.handle(&bytes, executed, now);
        }
    }

    /// A response on its way that may overtake those before it.
    fn overtaking(&mut self) -> Option<Vec<u8>> {
        let (near, flow) = (&self.near, self.flows[0]);
        let may = |(of, bytes): &(_, Vec<u8>)| *of == flow && near.may_overtake(&parse(bytes));
        let at = self.responses.queue.iter().position(|(_, record)| may(record))?;
        self.responses.queue.remove(at).map(|(_, (_, bytes))| bytes)
    }

    fn step_near(&mut self) {
        let now = self.now;
        while let Some(bytes) = self.lans[0].receive(now) {
            let packet = parse(&bytes);
            let doubted = self.near.doubts(&packet, now) && !self.broken;
            if doubted {
                self.near = self.near.anew(self.near_config.clone(), &packet, now);
                self.flows[0] += 1;
                if self.told {
                    self.near.pair(super::R);
                }
                if let Some((terms, _)) = &self.terms {
                    self.near.set_terms(terms, None);
                }
            }
            if packet.bth.opcode.starts_message() && self.local > 0 {
                let local = self.rng.chance(self.local);
                self.near.set_local(local);
            }
            let verdict = self.near.handle_request(&packet, now);
            if self.trace {
                self.log(&format!(">N {verdict:?}"), &bytes);
            }
            match verdict {
                near::Verdict::Forward => {
                    let first = if doubted { As::First } else { As::Next };
                    self.requests.send((self.flows[0], first, bytes), now);
                }
                near::Verdict::Replay => self.requests.send((self.flows[0], As::Replay, bytes), now),
                near::Verdict::Drop(_) => {}
            }
            if self.rng.below(self.batch) == 0 {
                self.poll_near();
            }
        }
        if self.rng.chance(200)
            && let Some(bytes) = self.overtaking()
        {
            self.respond(&bytes);
        }
        while let Some((flow, bytes)) = self.responses.receive(now) {
            if flow == self.flows[0] {
                self.respond(&bytes);
            }
        }
        self.poll_near();
        assert!(self.near.outstanding_bytes() <= 65 << 20);
    }

    fn respond(&mut self, bytes: &[u8]) {
        let packet = parse(bytes);
        if !self.told && packet.bth.dest_qp.get() != 0 {
            self.told = true;
            self.near.pair(packet.bth.dest_qp);
        }
        self.log(">n", bytes);
        if let Deliver::Emit(passed) = self.near.handle_response(&packet, self.now) {
            let [head, tail] = passed.parts(bytes);
            let out = [head, tail].concat();
            self.log("N>", &out);
            self.lans[1].send(&out, &mut self.rng, self.now);
        }
    }

    fn poll_near(&mut self) {
        while let Some(reply) = self.near.poll_transmit(self.now) {
            self.log("N>", &reply);
            self.lans[1].send(&reply, &mut self.rng, self.now);
        }
        if self.near.wants_retry() {
            self.near.note_retried();
            self.requests.send((self.flows[0], As::Retry, Vec::new()), self.now);
        }
        let is_suspended = self.near.is_contradicted();
        if self.suspended != (self.flows[0], is_suspended) {
            self.suspended = (self.flows[0], is_suspended);
            self.requests.send((self.flows[0], As::Suspend(is_suspended), Vec::new()), self.now);
        }
    }

    fn step_far(&mut self) {
        let now = self.now;
        while let Some((flow, how, bytes)) = self.requests.receive(now) {
            if self.trace && !bytes.is_empty() {
                self.log(&format!(">F {flow} {how:?}"), &bytes);
            }
            match how {
                As::First => {
                    self.flows[1] = flow;
                    // What the near half knows by now the far half must not contradict on a hint.
                    let config = FarConfig { mtu: None, ..self.far_config.clone() };
                    self.far = self.far.anew(config, now);
                    if let Some((terms, _)) = &self.terms {
                        self.far.set_terms(terms);
                    }
                }
                As::Next => {}
                As::Replay => {
                    self.far.handle_replay(bytes, now);
                    continue;
                }
                As::Retry => {
                    self.far.retry();
                    continue;
                }
                As::Suspend(is_suspended) => {
                    self.far.suspend(is_suspended);
                    continue;
                }
            }
            match self.far.handle_request(bytes, now) {
                Ok(()) | Err(far::Refused::Dead) => {}
                Err(refused) => panic!("far refused: {refused}"),
            }
        }
        while let Some(bytes) = self.lans[3].receive(now) {
            let verdict = self.far.handle_response(&parse(&bytes), now);
            if self.trace {
                self.log(&format!(">f {verdict:?}"), &bytes);
            }
            if let far::Verdict::Relay(passed) = verdict {
                self.responses.send((self.flows[1], passed.parts(&bytes).concat()), now);
            }
            self.relay_own();
        }
        self.relay_own();
        let mut out = [0; far::MAX_PACKET];
        while let Some(len) = self.far.poll_transmit(now, &mut out) {
            self.log("F>", &out[..len]);
            self.lans[2].send(&out[..len], &mut self.rng, now);
        }
    }

    fn relay_own(&mut self) {
        while let Some(reply) = self.far.poll_response() {
            self.log("F>n", &reply);
            self.responses.send((self.flows[1], reply.to_vec()), self.now);
        }
    }

    fn describe(&self) -> String {
        let time = self.now - self.start;
        let (near, far) = (self.near.stats(), self.far.stats());
        let requester = self.requester.describe();
        let target = (self.target.executed, self.target.expected);
        format!("at {time:?}: {requester}, target {target:?}\n{near:?}\n{far:?}")
    }
}

/// Everything a run must have in common: all executed is what was asked, in order (the target
/// checks that), and atomics once.
fn check(sim: &Sim) {
    let done = sim.requester.done;
    assert!(done <= sim.target.executed, "{}", sim.describe());
    let fetched = sim.requester.fetched.iter().copied();
    assert!(fetched.eq(0..sim.requester.fetched.len() as u64), "atomics ran once each, in order");
}

fn scenario(seed: u64, scenario: Scenario, trace: bool) -> Sim {
    let mut sim = Sim::new(seed, trace);
    let count = sim.requester.ops.len();
    let at = Duration::from_micros(sim.rng.below(200_000));
    match scenario {
        Scenario::Lossy => {}
        Scenario::Local => sim.local = sim.rng.pick(&[300, 900, 1000]),
        Scenario::Refusing => {
            let id = sim.rng.below(count as u64) as usize;
            let nak = sim.rng.pick(&[Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation]);
            sim.target.refuse = Some((id, nak));
        }
        Scenario::Dying => {
            sim.run(at);
            sim.target.dead = true;
        }
        Scenario::Restarting => {
            // What was cut before is not known any more, and this target answers nothing that was
            // cut otherwise.
            sim.piece = 1 << 20;
            sim.far_config.read_piece = sim.piece;
            sim.far = Far::new(
                FarConfig { read_piece: sim.piece, ..FarConfig::default() },
                Arc::default(),
                sim.now,
            );
            for _ in 0..1 + sim.rng.below(3) {
                let at = Duration::from_micros(sim.rng.below(100_000));
                sim.run(sim.now - sim.start + at);
                sim.restart();
            }
        }
        Scenario::Breaking => {
            sim.broken_at = Some(sim.now + at);
        }
    }
    if !matches!(scenario, Scenario::Lossy | Scenario::Local) {
        sim.near.pair(super::R);
        sim.told = true;
    }
    // Where all is to end well even the slowest requester gets there: four packets to a timeout of
    // its own.
    let limit =
        if matches!(scenario, Scenario::Lossy | Scenario::Local | Scenario::Restarting) { 300 } else { 150 };
    sim.run(Duration::from_secs(limit));
    sim.settle();
    check(&sim);
    let all = sim.requester.done == count;
    match scenario {
        Scenario::Lossy | Scenario::Local => {
            assert!(all && sim.requester.error.is_none(), "not finished: {}", sim.describe());
            assert!(sim.near.is_idle() && sim.far.is_idle(), "not idle: {}", sim.describe());
            assert_eq!(sim.near.outstanding_bytes(), 0);
            assert_eq!(sim.far.buffered_bytes(), 0);
            assert_eq!(sim.target.executed, count, "{}", sim.describe());
        }
        Scenario::Refusing => {
            // The target refused and broke; its NAK may have been lost, and a broken queue pair
            // answers no more.
            let (id, syndrome) =
                sim.requester.error.unwrap_or_else(|| panic!("no error: {}", sim.describe()));
            let (refused, nak) = sim.target.refuse.unwrap();
            assert!(id <= refused, "{}", sim.describe());
            let silent = Syndrome::Nak(Nak::RemoteOperation);
            match sim.far.failure() {
                // After two lost NAKs a new flow finds a target that is silent.
                Some(Failure::Refused(_)) if sim.flows[1] > 0 => {
                    assert!(syndrome == Syndrome::Nak(nak) || syndrome == silent);
                }
                Some(Failure::Refused(_)) => assert_eq!(syndrome, Syndrome::Nak(nak)),
                _ => assert_eq!(syndrome, silent),
            }
        }
        Scenario::Dying => {
            assert!(all || sim.requester.error.is_some(), "hangs: {}", sim.describe());
        }
        Scenario::Restarting => {
            // A message acknowledged in part cannot go on; its owner must find that out and refuse
            // it.
            let orphan = !all && sim.requester.is_inside_a_message() && sim.near.stats().stale > 0;
            let refused = sim.requester.error.is_some() && sim.near.stats().gaps_abandoned == 1;
            assert!(all || orphan || refused, "hangs: {}", sim.describe());
        }
        Scenario::Breaking => {
            assert!(all || sim.requester.error.is_some(), "hangs: {}", sim.describe());
            assert!(sim.far.is_dead());
            let knows = sim.target.broken || sim.far.target_qpn().is_none();
            assert!(knows || sim.far.failure() == Some(Failure::AbortUnanswered), "{}", sim.describe());
        }
    }
    sim
}

fn run_all(kind: Scenario, default: u64) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("FLOW_SEED") {
        scenario(seed, kind, true);
        return;
    }
    for seed in 0..number("FLOW_SEEDS").unwrap_or(default) {
        let run = std::panic::catch_unwind(|| {
            scenario(seed, kind, false);
        });
        if let Err(cause) = run {
            println!("{kind:?}: FLOW_SEED={seed} reproduces it");
            std::panic::resume_unwind(cause);
        }
    }
}

#[test]
fn lossy_lans_end_well() {
    run_all(Scenario::Lossy, 1000);
}

#[test]
fn what_is_done_before_its_target_had_it_reaches_it_once_and_in_order() {
    run_all(Scenario::Local, 500);
}

#[test]
fn a_refused_operation_fails_where_it_should() {
    run_all(Scenario::Refusing, 250);
}

#[test]
fn a_silent_target_is_reported() {
    run_all(Scenario::Dying, 250);
}

#[test]
fn gateways_that_forget_never_acknowledge_what_they_do_not_know() {
    run_all(Scenario::Restarting, 250);
}

#[test]
fn a_broken_session_ends_both_sides() {
    run_all(Scenario::Breaking, 250);
}
