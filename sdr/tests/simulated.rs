//! Two queue pairs over a path that loses, repeats, delays and reorders, from seeds.
//!
//! After every step: a bit is set if and only if all bytes of its chunk are in place, a completed
//! buffer
//! has not changed, and the n-th message is in the n-th receive.
//!
//! `SDR_SEEDS=10000 cargo test -p sdr --release --test simulated` runs as many seeds, from
//! `SDR_FIRST` on.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod link;

use std::time::{Duration, Instant};

use link::{Faults, Link};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sdr::blob::{BackEnd, Blob};
use sdr::{
    Buffer, Closing, Completed, Connected, Mtu, PostError, QpAttr, RecvHandle, SendError, SendHandle,
    SendStream, connect, max_datagram,
};

const STEP: Duration = Duration::from_micros(200);

/// Byte `at` of message `number`.
fn pattern(number: u32, at: usize) -> u8 {
    let mixed = (number.wrapping_mul(0x9e37_79b9) ^ at as u32).wrapping_mul(0x85eb_ca6b);
    // Never the byte that buffers are filled with.
    ((mixed >> 24) as u8).max(1)
}

struct Open {
    handle: RecvHandle,
    bytes: usize,
    since: Instant,
    patience: Duration,
}

struct World {
    seed: u64,
    rng: Pcg64Mcg,
    now: Instant,
    attr: QpAttr,
    ends: [Connected; 2],
    links: [Link; 2],
    opened: Vec<Open>,
    closing: Vec<(Closing, Vec<u8>)>,
    /// Completed receives with what was in them then.
    done: Vec<(Completed, Vec<u8>)>,
    streams: Vec<(SendStream, Vec<u32>, usize, Instant)>,
    sent: Vec<SendHandle>,
    issued: u32,
    counts: Counts,
    /// The path is good from now on.
    repaired: bool,
}

#[derive(Default, Debug, Clone, Copy)]
struct Counts {
    whole: u32,
    partial: u32,
    imms: u32,
    late: u64,
    wraps: u32,
}

fn below(rng: &mut Pcg64Mcg, end: u64) -> u64 {
    rng.next_u64() % end
}

/// Each message's length is known to both sides: a few chunks, and sometimes a rest.
fn length(number: u32, attr: &QpAttr) -> usize {
    let most = 1usize << (attr.in_flight_log - attr.messages_log);
    let mixed = number.wrapping_mul(0x27d4_eb2f) >> 7;
    (mixed as usize % most).max(1)
}

fn imm(number: u32) -> u32 {
    number.wrapping_mul(0xc2b2_ae35) ^ 0x5bd1
}

fn message(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| pattern(number, at)).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let now = Instant::now();
        let attr = QpAttr {
            chunk_log: 7 + below(&mut rng, 3) as u32,
            in_flight_log: 13,
            messages_log: below(&mut rng, 3) as u32,
            mtu: if below(&mut rng, 2) == 0 { Mtu::B64 } else { Mtu::B128 },
            channels: 1 + below(&mut rng, 4) as u8,
            send: true,
            receive: true,
            rate: 20_000_000,
            rtt: Duration::from_millis(10),
            patience: Duration::from_secs(60),
        };
        let faults = Faults::drawn(&mut rng);
        let blob = Blob::new(attr, BackEnd::None, Vec::new()).unwrap();
        let ends = [0, 1].map(|_| connect(&blob, &blob, 0, now).unwrap());
        World {
            seed,
            rng,
            now,
            attr,
            ends,
            links: [Link::new(faults), Link::new(faults)],
            opened: Vec::new(),
            closing: Vec::new(),
            done: Vec::new(),
            streams: Vec::new(),
            sent: Vec::new(),
            issued: 0,
            counts: Counts::default(),
            repaired: false,
        }
    }

    fn exchange(&mut self) {
        let mut out = vec![0; max_datagram(&self.attr)];
        for (end, link) in self.ends.iter_mut().zip(&mut self.links) {
            while let Some(packet) = end.engine.poll_transmit(self.now, &mut out) {
                link.send(&out[..packet.len], self.now, &mut self.rng);
            }
        }
        for (from, link) in self.links.iter_mut().enumerate() {
            for datagram in link.due(self.now) {
                // Refused packets are part of the game: the checks below see that they change
                // nothing.
                let _ = self.ends[1 - from].engine.handle(&datagram, self.now);
            }
        }
    }

    fn post(&mut self) {
        let receive = self.ends[1].receive.as_mut().unwrap();
        let number = receive.posted();
        let bytes = length(number, &self.attr);
        match receive.post(Buffer::zeroed(bytes)) {
            Ok(handle) => {
                assert_eq!(handle.number(), number);
                let patience = Duration::from_micros(below(&mut self.rng, 40_000));
                self.opened.push(Open { handle, bytes, since: self.now, patience });
            }
            Err(unposted) => assert_eq!(unposted.error, PostError::Retry),
        }
    }

    fn send(&mut self) {
        let number = self.issued;
        let bytes = length(number, &self.attr);
        let data = message(number, bytes);
        let send = self.ends[0].send.as_mut().unwrap();
        let packets = send.shape().packets(bytes as u32);
        let chunks = send.shape().chunks(bytes as u32);
        let with_imm = (packets >= 8).then(|| imm(number));
        let result = if number.is_multiple_of(2) {
            send.post(data.into(), 0, with_imm, self.now).map(|handle| self.sent.push(handle))
        } else {
            send.stream(with_imm, self.now).map(|stream| {
                let mut todo: Vec<u32> = (0..chunks).collect();
                for at in (1..todo.len()).rev() {
                    todo.swap(at, below(&mut self.rng, at as u64 + 1) as usize);
                }
                let until = self.now + Duration::from_micros(below(&mut self.rng, 60_000));
                self.streams.push((stream, todo, bytes, until));
            })
        };
        match result {
            Ok(()) => self.issued += 1,
            Err(error) => assert_eq!(error, SendError::Retry),
        }
    }

    /// Writes chunks of open streams: each once, and then some of them again.
    fn stream(&mut self) {
        let chunk = 1usize << self.attr.chunk_log;
        for (stream, todo, bytes, _) in &mut self.streams {
            let chunks = (*bytes).div_ceil(chunk) as u64;
            let next = todo.pop().unwrap_or_else(|| below(&mut self.rng, chunks) as u32);
            let start = next as usize * chunk;
            let data = message(stream.number(), *bytes)[start..(start + chunk).min(*bytes)].to_vec();
            match stream.write(next, data.into()) {
                Ok(()) => {}
                Err(SendError::Retry) => todo.push(next),
                Err(error) => panic!("{error}"),
            }
        }
        let now = self.now;
        for (stream, ..) in
            self.streams.extract_if(.., |(_, todo, _, until)| todo.is_empty() && *until <= now)
        {
            self.sent.push(stream.end().unwrap());
        }
        self.sent.retain(|handle| !handle.poll().unwrap());
    }

    fn complete(&mut self) {
        let now = self.now;
        for open in self.opened.extract_if(.., |open| {
            now >= open.since + open.patience
                && (open.handle.bitmap().all() || open.patience.as_micros() % 2 == 0)
        }) {
            let seen = contents(&open.handle);
            self.closing.push((open.handle.complete(), seen));
        }
        // Handles that are merely dropped have to leave their slot usable.
        if !self.repaired && below(&mut self.rng, 200) == 0 && !self.opened.is_empty() {
            let at = below(&mut self.rng, self.opened.len() as u64) as usize;
            self.opened.remove(at);
        }
        // Some are polled late.
        let closing = std::mem::take(&mut self.closing);
        for (handle, seen) in closing {
            if below(&mut self.rng, 3) == 0 {
                self.closing.push((handle, seen));
                continue;
            }
            let Ok(completed) = handle.poll() else { panic!("seed {}: no worker is inside", self.seed) };
            self.counts.whole += u32::from(completed.is_whole());
            self.counts.partial += u32::from(!completed.is_whole());
            if let Some(found) = completed.imm
                && completed.buffer.len().div_ceil(self.attr.mtu.bytes() as usize) >= 8
            {
                assert_eq!(found, imm(completed.number), "seed {}", self.seed);
                self.counts.imms += 1;
            }
            let copy = completed.buffer.as_slice().to_vec();
            self.done.push((completed, copy));
        }
    }

    fn check(&self) {
        for Open { handle, bytes, .. } in &self.opened {
            self.check_open(handle, *bytes);
        }
        // Older ones are checked at the end.
        for (completed, copy) in self.done.iter().rev().take(8) {
            assert_eq!(completed.buffer.as_slice(), &copy[..], "seed {}: changed", self.seed);
        }
    }

    /// Bits against what is known: a chunk with a bit has all its bytes, and one without it lacks a
    /// packet.
    fn check_open(&self, handle: &RecvHandle, bytes: usize) {
        let chunk_bytes = 1usize << self.attr.chunk_log;
        for chunk in 0..handle.chunks() {
            let packets: Vec<bool> = handle.packets(chunk).collect();
            assert_eq!(handle.has(chunk), packets.iter().all(|there| *there), "seed {}", self.seed);
            let start = chunk as usize * chunk_bytes;
            let end = (start + chunk_bytes).min(bytes);
            if let Some(found) = handle.chunk(chunk) {
                let number = handle.number();
                assert!(
                    found.len() == end - start
                        && found.iter().zip(start..).all(|(byte, at)| *byte == pattern(number, at)),
                    "seed {}: message {number}, chunk {chunk}",
                    self.seed
                );
            }
        }
    }

    /// A completed buffer has each packet wholly or not at all, and of its own message.
    fn check_done(&self) {
        let mtu = self.attr.mtu.bytes() as usize;
        let chunk = 1usize << self.attr.chunk_log;
        for (completed, copy) in &self.done {
            let found = completed.buffer.as_slice();
            assert_eq!(found, &copy[..], "seed {}: changed", self.seed);
            let wanted = message(completed.number, found.len());
            for (there, (found, wanted)) in
                completed.chunks.iter().zip(found.chunks(chunk).zip(wanted.chunks(chunk)))
            {
                assert_eq!(*there, found == wanted, "seed {}: message {}", self.seed, completed.number);
                for (found, wanted) in found.chunks(mtu).zip(wanted.chunks(mtu)) {
                    assert!(found == wanted || found.iter().all(|byte| *byte == 0), "seed {}", self.seed);
                }
            }
        }
    }

    fn run(mut self, steps: u32) -> Counts {
        for _ in 0..steps {
            for _ in 0..below(&mut self.rng, 3) {
                self.post();
            }
            for _ in 0..below(&mut self.rng, 3) {
                self.send();
            }
            self.stream();
            self.exchange();
            self.complete();
            self.check();
            self.now += STEP;
        }
        self.check_done();
        if !cfg!(miri) {
            self.settle();
        }
        let lander = self.ends[1].receive.as_ref().unwrap().lander();
        self.counts.late = lander.refused(sdr::Refused::Late);
        self.counts.wraps = self.issued >> self.attr.messages_log;
        self.counts
    }

    /// Once the path is good, whatever was lost before: messages get through again.
    fn settle(&mut self) {
        self.links.iter_mut().for_each(Link::repair);
        self.repaired = true;
        let before = self.done.len();
        for open in std::mem::take(&mut self.opened) {
            drop(open.handle);
        }
        self.streams.clear();
        let start = self.now;
        while self.now < start + Duration::from_secs(2)
            && self.done[before..].iter().filter(|(done, _)| done.is_whole()).count() < 3
        {
            self.post();
            for open in &mut self.opened {
                // Odd: only a whole message is completed.
                open.patience = Duration::from_micros(1);
            }
            self.send();
            self.stream();
            self.exchange();
            self.complete();
            self.now += STEP;
        }
        let whole = self.done[before..].iter().filter(|(done, _)| done.is_whole()).count();
        assert!(whole >= 3, "seed {}: {whole} messages after the path was repaired", self.seed);
        self.check_done();
    }
}

/// The handle's finished chunks.
fn contents(handle: &RecvHandle) -> Vec<u8> {
    (0..handle.chunks()).filter_map(|chunk| handle.chunk(chunk)).flatten().copied().collect()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect(name))
}

#[test]
fn bits_buffers_and_order_hold_under_every_fault() {
    let (first, seeds) = (number("SDR_FIRST", 0), number("SDR_SEEDS", if cfg!(miri) { 1 } else { 300 }));
    let mut sum = Counts::default();
    for seed in first..first + seeds {
        let counts = World::new(seed).run(if cfg!(miri) { 30 } else { 2000 });
        sum.whole += counts.whole;
        sum.partial += counts.partial;
        sum.imms += counts.imms;
        sum.late += counts.late;
        sum.wraps += counts.wraps;
    }
    println!("{seeds} seeds from {first} on: {sum:?}");
    if seeds >= 100 {
        assert!(sum.whole > 0 && sum.partial > 0 && sum.imms > 0 && sum.late > 0 && sum.wraps > 0);
    }
}
