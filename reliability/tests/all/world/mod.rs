//! A stream over an impaired link, in virtual time. Everything follows from the seed.
//!
//! This crate lies below `transport`, so the world drives sender and receiver itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::pacing::Pacer;
use reliability::stream::{
    Kind, Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId, TransmitKind, classify,
};

pub const STREAM: StreamId = StreamId(7);
pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);

/// How packets are lost.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    Independent(f64),
    /// Gilbert-Elliott: chance to enter a burst, to leave it, and of loss inside it.
    Bursts {
        enter: f64,
        leave: f64,
        loss: f64,
    },
}

/// One direction of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub delay: Duration,
    pub loss: Loss,
    /// Chance of a packet to be held back, and by how much at most.
    pub reorder: (f64, Duration),
    pub duplicate: f64,
}

impl Path {
    pub fn clean(delay: Duration) -> Self {
        Self { delay, loss: Loss::Independent(0.0), reorder: (0.0, Duration::ZERO), duplicate: 0.0 }
    }

    pub fn lossy(delay: Duration, p: f64) -> Self {
        Self { loss: Loss::Independent(p), ..Self::clean(delay) }
    }
}

#[derive(Debug)]
struct Link {
    path: Path,
    rng: Pcg64Mcg,
    in_burst: bool,
    order: u64,
    flying: BTreeMap<(Duration, u64), Vec<u8>>,
    /// Drops the packets it says true to; called with each packet's number.
    drop: Option<fn(&[u8], u64) -> bool>,
}

impl Link {
    fn new(path: Path, seed: u64) -> Self {
        let rng = Pcg64Mcg::seed_from_u64(seed);
        Self { path, rng, in_burst: false, order: 0, flying: BTreeMap::new(), drop: None }
    }

    fn send(&mut self, now: Duration, packet: &[u8]) {
        self.order += 1;
        if self.loses() || self.drop.is_some_and(|drop| drop(packet, self.order)) {
            return;
        }
        let copies = if self.rng.random_bool(self.path.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let (chance, most) = self.path.reorder;
            let extra =
                if self.rng.random_bool(chance) { most.mul_f64(self.rng.random()) } else { Duration::ZERO };
            self.order += 1;
            self.flying.insert((now + self.path.delay + extra, self.order), packet.to_vec());
        }
    }

    fn loses(&mut self) -> bool {
        match self.path.loss {
            Loss::Independent(p) => self.rng.random_bool(p),
            Loss::Bursts { enter, leave, loss } => {
                let turn = if self.in_burst { leave } else { enter };
                self.in_burst ^= self.rng.random_bool(turn);
                self.in_burst && self.rng.random_bool(loss)
            }
        }
    }

    fn next(&self) -> Option<Duration> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    fn receive(&mut self, now: Duration) -> Option<Vec<u8>> {
        let entry = self.flying.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

pub type Hook = Box<dyn FnMut(&mut Sender, Duration)>;

pub struct World {
    pub start: Instant,
    pub now: Duration,
    pub sender: Sender,
    pub receiver: Receiver,
    pub pacer: Pacer,
    forward: Link,
    backward: Link,
    max_packet: usize,
    window: usize,
    limits: (usize, usize),
    /// Records still to be pushed: when, and how long.
    workload: std::collections::VecDeque<(Duration, usize)>,
    /// The next record, if it was refused.
    refused: Option<Vec<u8>>,
    pushed: Vec<usize>,
    delivered: Vec<u32>,
    pub completed: Duration,
    /// Largest backlog and in flight seen.
    pub peak: (usize, usize),
    pub packets: u64,
    pub report_packets: u64,
    seed: u64,
    /// The sender is told how many bytes are still to be pushed.
    pub announce: bool,
    /// Runs at each turn, for tests that interfere.
    pub hook: Option<Hook>,
}

pub struct Setup {
    pub seed: u64,
    pub scheme: Scheme,
    pub forward: Path,
    pub backward: Path,
    /// Bits per second.
    pub rate: u64,
    pub max_packet: usize,
    /// The longest that the test sets on the way, if that is more.
    pub most_packet: usize,
    pub window: usize,
    pub rtt_hint: Duration,
    pub flush: Duration,
    pub reorder_time: Duration,
    pub max_record: usize,
    pub max_backlog: usize,
    /// If not the sender's.
    pub receiver_window: Option<usize>,
    pub decode_buffer: usize,
}

impl Setup {
    pub fn new(seed: u64, scheme: Scheme) -> Self {
        Self {
            seed,
            scheme,
            forward: Path::clean(5 * MS),
            backward: Path::clean(5 * MS),
            rate: 1_000_000_000,
            max_packet: 1400,
            most_packet: 0,
            window: 4096,
            rtt_hint: 10 * MS,
            flush: 200 * US,
            reorder_time: MS,
            max_record: 64 << 10,
            max_backlog: 1 << 20,
            receiver_window: None,
            decode_buffer: 64 << 20,
        }
    }

    pub fn build(self) -> World {
        let start = origin();
        let sender = SenderConfig {
            scheme: self.scheme,
            window: self.window,
            rtt_hint: self.rtt_hint,
            flush: self.flush,
            reorder_time: self.reorder_time,
            max_record: self.max_record,
            max_backlog: self.max_backlog,
            rate: Some(self.rate),
            ..SenderConfig::new(STREAM, self.max_packet)
        };
        let receiver = ReceiverConfig {
            window: self.receiver_window.unwrap_or(self.window),
            rtt_hint: self.rtt_hint,
            reorder_time: self.reorder_time,
            max_record: self.max_record,
            decode_buffer: self.decode_buffer,
            ..ReceiverConfig::new(STREAM, self.max_packet.max(self.most_packet))
        };
        World {
            start,
            now: Duration::ZERO,
            limits: (sender.max_backlog, sender.max_buffered),
            sender: Sender::new(sender, start),
            receiver: Receiver::new(receiver, start),
            pacer: Pacer::new(self.rate, 3000, 66, start),
            forward: Link::new(self.forward, self.seed),
            backward: Link::new(self.backward, self.seed ^ 0x5eed),
            max_packet: self.max_packet.max(self.most_packet),
            window: self.window,
            workload: std::collections::VecDeque::new(),
            refused: None,
            pushed: Vec::new(),
            delivered: Vec::new(),
            completed: Duration::ZERO,
            peak: (0, 0),
            packets: 0,
            report_packets: 0,
            seed: self.seed,
            announce: false,
            hook: None,
        }
    }
}

impl World {
    /// `count` records of `sizes` bytes, one every `gap`.
    pub fn load(&mut self, count: usize, sizes: std::ops::RangeInclusive<usize>, gap: Duration) -> &mut Self {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ 0xa11);
        let begin = self.now.max(self.workload.back().map_or(Duration::ZERO, |(at, _)| *at));
        for i in 0..count {
            self.workload.push_back((begin + gap * i as u32, rng.random_range(sizes.clone())));
        }
        self
    }

    pub fn drop_forward(&mut self, drop: fn(&[u8], u64) -> bool) -> &mut Self {
        self.forward.drop = Some(drop);
        self
    }

    pub fn set_paths(&mut self, forward: Path, backward: Path) {
        self.forward.path = forward;
        self.backward.path = backward;
    }

    /// Runs until nothing is left to happen.
    pub fn run(&mut self) -> &mut Self {
        let mut turns = 0_u64;
        while self.turn(None) {
            turns += 1;
            assert!(turns < 20_000_000, "seed {}: it does not come to an end", self.seed);
            assert!(self.now < Duration::from_secs(3600), "seed {}: it takes for ever", self.seed);
        }
        assert!(self.workload.is_empty(), "seed {}: stuck with records to push", self.seed);
        assert!(self.sender.is_idle(), "seed {}: ended, but the sender is not idle", self.seed);
        assert_eq!(self.sender.next_timeout(), None, "seed {}: a timer is left", self.seed);
        assert_eq!(self.receiver.next_timeout(), None, "seed {}: a timer is left", self.seed);
        assert_eq!((self.sender.backlog(), self.sender.in_flight()), (0, 0));
        self
    }

    pub fn run_until(&mut self, end: Duration) -> &mut Self {
        while self.turn(Some(end)) {}
        self
    }

    /// One step of virtual time; false if nothing is left to happen (before `end`).
    fn turn(&mut self, end: Option<Duration>) -> bool {
        let now = self.start + self.now;
        if let Some(hook) = &mut self.hook {
            hook(&mut self.sender, self.now);
        }
        self.push(now);
        let starved = self.transmit(now);
        self.report(now);
        self.check_bounds();
        let mut next = [
            self.forward.next(),
            self.backward.next(),
            self.at(self.sender.next_timeout()),
            self.at(self.receiver.next_timeout()),
            (!starved).then(|| self.pacer.next_ready() - self.start),
            self.workload.front().map(|(at, _)| *at).filter(|at| *at > self.now),
        ]
        .into_iter()
        .flatten()
        .min();
        if let Some(end) = end {
            next = next.filter(|next| *next <= end);
        }
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        self.arrive();
        true
    }

    fn push(&mut self, now: Instant) {
        while let Some(&(at, len)) = self.workload.front() {
            if at > self.now {
                return;
            }
            let make = || content(self.seed, self.pushed.len() as u32, len);
            let record = self.refused.take().unwrap_or_else(make);
            let (head, tail) = record.split_at(len / 3);
            if self.sender.push(&[head, tail], now).is_err() {
                self.refused = Some(record);
                return;
            }
            self.workload.pop_front();
            self.pushed.push(len);
            self.delivered.push(0);
            if self.announce {
                self.sender.expect(self.workload.iter().map(|&(_, len)| len as u64).sum());
            }
        }
    }

    /// True if there is nothing to send.
    fn transmit(&mut self, now: Instant) -> bool {
        let mut out = vec![0xa5; self.max_packet];
        while self.pacer.ready(now) {
            let Some(transmit) = self.sender.poll_transmit(now, &mut out) else {
                return true;
            };
            let packet = &out[..transmit.len];
            let kind = if transmit.kind == TransmitKind::Parity { Kind::Parity } else { Kind::Data };
            assert_eq!(classify(packet), Ok((kind, STREAM)));
            self.pacer.consume(transmit.len, now);
            self.packets += 1;
            self.forward.send(self.now, packet);
        }
        false
    }

    fn report(&mut self, now: Instant) {
        let mut out = vec![0xa5; self.max_packet];
        while let Some(len) = self.receiver.poll_report(now, &mut out) {
            assert_eq!(classify(&out[..len]), Ok((Kind::Report, STREAM)));
            self.report_packets += 1;
            self.backward.send(self.now, &out[..len]);
        }
    }

    fn arrive(&mut self) {
        let now = self.start + self.now;
        while let Some(packet) = self.forward.receive(self.now) {
            let (seed, pushed, delivered) = (self.seed, &self.pushed, &mut self.delivered);
            let mut completed = None;
            let time = self.now;
            let mut deliver = |record: &[u8]| {
                let id = u32::from_be_bytes(record[..4].try_into().unwrap()) as usize;
                assert_eq!(
                    record,
                    content(seed, id as u32, pushed[id]),
                    "seed {seed}: record {id} was damaged"
                );
                delivered[id] += 1;
                assert_eq!(delivered[id], 1, "seed {seed}: record {id} was delivered twice");
                completed = Some(time);
            };
            self.receiver.handle_packet(&packet, now, &mut deliver).unwrap();
            self.completed = completed.unwrap_or(self.completed);
        }
        while let Some(packet) = self.backward.receive(self.now) {
            self.sender.handle_report(&packet, now).unwrap();
        }
        if self.sender.next_timeout().is_some_and(|at| at <= now) {
            self.sender.handle_timeout(now);
        }
        if self.receiver.next_timeout().is_some_and(|at| at <= now) {
            self.receiver.handle_timeout(now);
        }
    }

    fn check_bounds(&mut self) {
        let (backlog, in_flight) = (self.sender.backlog(), self.sender.in_flight());
        // Framing comes on top of what `push` was asked to admit.
        assert!(backlog <= self.limits.0 + self.limits.0 / 4 + (128 << 10), "backlog {backlog}");
        assert!(in_flight <= self.window * self.max_packet, "in flight {in_flight}");
        self.peak = (self.peak.0.max(backlog), self.peak.1.max(in_flight));
    }

    fn at(&self, instant: Option<Instant>) -> Option<Duration> {
        instant.map(|instant| instant.saturating_duration_since(self.start))
    }

    pub fn all_delivered(&mut self) -> &mut Self {
        let missing = self.delivered.iter().filter(|times| **times == 0).count();
        assert_eq!(missing, 0, "seed {}: of {} records", self.seed, self.delivered.len());
        self
    }

    pub fn delivered(&self) -> usize {
        self.delivered.iter().filter(|times| **times == 1).count()
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
pub fn origin() -> Instant {
    Instant::now()
}

/// A record that can be told from any other; at least 4 bytes.
fn content(seed: u64, id: u32, len: usize) -> Vec<u8> {
    let mut record = id.to_be_bytes().to_vec();
    let mut state = seed ^ (u64::from(id) << 20) | 1;
    while record.len() < len {
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        record.extend_from_slice(&state.to_be_bytes());
    }
    record.truncate(len.max(4));
    record
}
