//! One message after the other through a sender and a receiver over a lossy line, in virtual time.
//! Everything follows from the seed.
//!
//! This crate lies below `transport`, so the test drives sender and receiver itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::pacing::Pacer;
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};

/// Bytes per record; one fills a packet.
pub const RECORD: usize = 4096;
const MAX_PACKET: usize = RECORD + 32;
/// Seal, UDP, IP and Ethernet.
const OVERHEAD: usize = 98;
/// Messages whose completion does not count: the round-trip time settles.
const WARM_UP: usize = 24;

/// A line, and what the sender is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Bits per second.
    pub rate: u64,
    pub rtt: Duration,
    /// Share of packets lost, each way.
    pub drop: f64,
    /// Mean length of a run of lost packets; 1: lost independently.
    pub run: f64,
    /// The sender is told the drop rate and the run length.
    pub told: bool,
}

/// The outcome of a scheme for some messages of a size.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the first push to the target's acknowledgement being back, in seconds, ascending.
    times: Vec<f64>,
    /// Bytes sent per byte of the messages.
    pub bytes_per_byte: f64,
}

impl Outcome {
    pub fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len() as f64
    }

    pub fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.times.len() as f64).ceil() as usize;
        self.times[rank.clamp(1, self.times.len()) - 1]
    }
}

/// Sends `count` messages of `size` bytes, each after the one before has been acknowledged.
pub fn measure(scheme: Scheme, line: Line, size: usize, count: usize, seed: u64) -> Outcome {
    let mut pair = Pair::new(scheme, line, seed);
    for _ in 0..WARM_UP {
        pair.send(RECORD);
    }
    let before = pair.sender.stats().bytes;
    let mut times: Vec<f64> = (0..count).map(|_| pair.send(size).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let sent = pair.sender.stats().bytes - before;
    Outcome { times, bytes_per_byte: sent as f64 / (size * count) as f64 }
}

/// One direction. Packets keep their order.
struct Wire {
    delay: Duration,
    drop: f64,
    run: f64,
    in_run: bool,
    rng: Pcg64Mcg,
    flying: VecDeque<(Duration, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Wire {
    fn new(line: Line, seed: u64) -> Self {
        Self {
            delay: line.rtt / 2,
            drop: line.drop,
            run: line.run,
            in_run: false,
            rng: Pcg64Mcg::seed_from_u64(seed),
            flying: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    fn send(&mut self, now: Duration, packet: &[u8]) {
        if self.loses() {
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        self.flying.push_back((now + self.delay, copy));
    }

    /// A run ends with chance `1 / run` after each of its packets, and begins so often that the
    /// share is right.
    fn loses(&mut self) -> bool {
        if self.run <= 1.0 {
            return self.rng.random_bool(self.drop);
        }
        let chance =
            if self.in_run { 1.0 - 1.0 / self.run } else { self.drop / (1.0 - self.drop) / self.run };
        self.in_run = self.rng.random_bool(chance);
        self.in_run
    }

    fn next(&self) -> Option<Duration> {
        self.flying.front().map(|(at, _)| *at)
    }

    fn receive(&mut self, now: Duration) -> Option<Vec<u8>> {
        (self.next()? <= now).then(|| self.flying.pop_front().unwrap().1)
    }
}

struct Pair {
    seed: u64,
    start: Instant,
    now: Duration,
    sender: Sender,
    receiver: Receiver,
    pacer: Pacer,
    there: Wire,
    back: Wire,
}

impl Pair {
    fn new(scheme: Scheme, line: Line, seed: u64) -> Self {
        let start = origin();
        let on_its_way = (line.rate as f64 / 8.0 * line.rtt.as_secs_f64()) as usize / MAX_PACKET;
        let window = (4 * on_its_way).max(32 << 10);
        let config = SenderConfig {
            scheme,
            window,
            max_buffered: usize::MAX / 2,
            rtt_hint: line.rtt,
            rate: Some(line.rate),
            ..SenderConfig::new(StreamId(1), MAX_PACKET)
        };
        let mut sender = Sender::new(config, start);
        if line.told {
            sender.set_drop(line.drop);
            sender.set_burst(line.run);
        }
        let config = ReceiverConfig {
            window,
            rtt_hint: line.rtt,
            decode_buffer: 1 << 30,
            ..ReceiverConfig::new(StreamId(1), MAX_PACKET)
        };
        Self {
            seed,
            start,
            now: Duration::ZERO,
            sender,
            receiver: Receiver::new(config, start),
            pacer: Pacer::new(line.rate, 0, OVERHEAD, start),
            there: Wire::new(line, seed),
            back: Wire::new(line, seed ^ 0x5eed),
        }
    }

    /// Sends a message and waits until nothing of it is left; its completion time.
    fn send(&mut self, size: usize) -> Duration {
        let begin = self.now;
        let mut left = size;
        let mut message = Message::new(size);
        loop {
            self.push(&mut left);
            let idle = self.transmit();
            let mut next = [
                self.there.next(),
                self.back.next(),
                self.at(self.sender.next_timeout()),
                self.at(self.receiver.next_timeout()),
                (!idle).then(|| self.at(Some(self.pacer.next_ready()))).flatten(),
            ];
            let Some(next) = next.iter_mut().flat_map(|next| next.take()).min() else { break };
            self.now = self.now.max(next);
            self.arrive(&mut message);
        }
        assert!(self.sender.is_idle() && message.missing == 0, "seed {}: a message got stuck", self.seed);
        message.completed + self.there.delay - begin
    }

    fn push(&mut self, left: &mut usize) {
        const FILL: [u8; RECORD] = [0x5a; RECORD];
        while *left > 0 {
            // The offset from the end tells the record.
            let head = (*left as u64).to_be_bytes();
            let len = RECORD.min(*left).max(head.len());
            if self.sender.push(&[&head, &FILL[head.len()..len]], self.start + self.now).is_err() {
                break;
            }
            *left = left.saturating_sub(len);
            self.sender.expect(*left as u64);
        }
    }

    /// Sends what may be sent; true if there is nothing to send.
    fn transmit(&mut self) -> bool {
        let now = self.start + self.now;
        let mut out = [0; MAX_PACKET];
        while let Some(len) = self.receiver.poll_report(now, &mut out) {
            self.back.send(self.now, &out[..len]);
        }
        while self.pacer.ready(now) {
            let Some(transmit) = self.sender.poll_transmit(now, &mut out) else { return true };
            self.pacer.consume(transmit.len, now);
            self.there.send(self.now, &out[..transmit.len]);
        }
        false
    }

    fn arrive(&mut self, message: &mut Message) {
        let now = self.start + self.now;
        while let Some(packet) = self.there.receive(self.now) {
            let mut deliver = |record: &[u8]| message.take(record, self.now);
            self.receiver.handle_packet(&packet, now, &mut deliver).unwrap();
            self.there.spare.push(packet);
        }
        while let Some(packet) = self.back.receive(self.now) {
            self.sender.handle_report(&packet, now).unwrap();
            self.back.spare.push(packet);
        }
        if self.sender.next_timeout().is_some_and(|at| at <= now) {
            self.sender.handle_timeout(now);
        }
        if self.receiver.next_timeout().is_some_and(|at| at <= now) {
            self.receiver.handle_timeout(now);
        }
    }

    fn at(&self, instant: Option<Instant>) -> Option<Duration> {
        instant.map(|instant| instant.saturating_duration_since(self.start))
    }
}

/// The part that is here of the message under way.
struct Message {
    size: usize,
    here: Vec<bool>,
    missing: usize,
    completed: Duration,
}

impl Message {
    fn new(size: usize) -> Self {
        let records = size.div_ceil(RECORD);
        Self { size, here: vec![false; records], missing: records, completed: Duration::ZERO }
    }

    fn take(&mut self, record: &[u8], now: Duration) {
        let left = u64::from_be_bytes(record[..8].try_into().unwrap()) as usize;
        let index = (self.size - left) / RECORD;
        assert!(!std::mem::replace(&mut self.here[index], true), "record {index} was delivered twice");
        self.missing -= 1;
        if self.missing == 0 {
            self.completed = now;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
fn origin() -> Instant {
    Instant::now()
}
