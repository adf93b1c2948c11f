//! Workers put packets in place while the program reads finished chunks, completes and posts again.
//!
//! `cargo +nightly miri test -p sdr --no-default-features --test workers` looks for data races and
//! for accesses out of bounds, or of memory that is gone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sdr::blob::{BackEnd, Blob};
use sdr::imm::PacketImm;
use sdr::{Buffer, Mtu, PostError, QpAttr, RecvHandle, RecvQp, Refused, Unposted, connect};

const WORKERS: usize = 3;
const PACKETS: usize = 40;
const MTU: usize = 64;
/// The last packet is short.
const BYTES: usize = PACKETS * MTU - 7;

fn attr() -> QpAttr {
    QpAttr {
        chunk_log: 8,
        in_flight_log: 14,
        messages_log: 2,
        mtu: Mtu::B64,
        rtt: Duration::from_micros(1),
        ..QpAttr::default()
    }
}

/// The byte at `at` of message `number`.
fn byte(number: u32, at: usize) -> u8 {
    (at as u32 * 31 + number * 7 + 1) as u8
}

/// Stops all however one of them ends: a scope waits for its threads, after a panic as well.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the workers go on.
fn pause(stop: &AtomicBool) {
    assert!(!stop.load(Ordering::Relaxed), "a worker ended");
    std::thread::yield_now();
}

/// Posts a receive, as soon as the last worker inside the slot has left it.
#[expect(clippy::panic, reason = "a test that cannot go on fails")]
fn post(receive: &mut RecvQp, stop: &AtomicBool) -> RecvHandle {
    let mut buffer = Buffer::zeroed(BYTES);
    loop {
        match receive.post(buffer) {
            Ok(handle) => return handle,
            Err(Unposted { error: PostError::Retry, buffer: again }) => buffer = again,
            Err(other) => panic!("{other}"),
        }
        pause(stop);
    }
}

#[test]
fn finished_chunks_are_read_while_workers_write_others() {
    let messages = if cfg!(miri) { 6 } else { 200 };
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    let now = Instant::now();
    let blob = Blob::new(attr(), BackEnd::None, Vec::new()).unwrap();
    let mut far = connect(&blob, &blob, 0, now).unwrap();
    let generations = far.agreed.generations;
    let mut receive = far.receive.take().unwrap();
    let (open, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    // Which message each worker is at. None stays behind for as long as ids take to come round.
    let places: [AtomicU32; WORKERS] = Default::default();
    let lander = receive.lander();
    scope(|scope| {
        for (at, seed) in places.iter().zip(0..) {
            let (lander, open, stop) = (lander.clone(), &open, &stop);
            scope.spawn(move || {
                let _stop = Stop(stop);
                let mut rng = Pcg64Mcg::seed_from_u64(seed);
                while !stop.load(Ordering::Relaxed) {
                    // Mostly of the open message, at times of the one before: late, or a duplicate.
                    let newest = open.load(Ordering::Acquire);
                    at.store(newest, Ordering::Release);
                    let number = newest.saturating_sub(u32::from(rng.next_u64().is_multiple_of(8)));
                    let place = (rng.next_u64() % PACKETS as u64) as usize;
                    let range = place * MTU..BYTES.min((place + 1) * MTU);
                    let payload: Vec<u8> = range.map(|at| byte(number, at)).collect();
                    let imm = PacketImm { id: number % 4, offset: place as u32, fragment: 0 };
                    let generation = (number / 4 % generations) as u8;
                    let landed = lander.land(generation, imm.encode(), &payload);
                    assert!(!matches!(landed, Err(Refused::Length | Refused::Slot | Refused::Direction)));
                }
            });
        }
        let _stop = Stop(&stop);
        for number in 0..messages {
            while places.iter().any(|at| at.load(Ordering::Acquire) + 8 < number) {
                pause(&stop);
            }
            let handle = post(&mut receive, &stop);
            open.store(number, Ordering::Release);
            // Every third message is completed with chunks missing.
            let wanted = if number % 3 == 2 { 4 } else { handle.chunks() };
            let mut read = 0;
            while read < wanted {
                read = 0;
                for chunk in 0..handle.chunks() {
                    let Some(bytes) = handle.chunk(chunk) else { continue };
                    read += 1;
                    let first = chunk as usize * 256;
                    let is_right =
                        bytes.iter().enumerate().all(|(at, found)| *found == byte(number, first + at));
                    assert!(is_right, "message {number}, chunk {chunk}");
                }
                pause(&stop);
            }
            let mut closing = handle.complete();
            let completed = loop {
                match closing.poll() {
                    Ok(completed) => break completed,
                    Err(again) => closing = again,
                }
                pause(&stop);
            };
            let chunks = completed.chunks;
            let bytes = completed.buffer.into_vec();
            for (chunk, _) in chunks.iter().enumerate().filter(|(_, there)| **there) {
                let range = chunk * 256..BYTES.min((chunk + 1) * 256);
                assert!(range.clone().all(|at| bytes[at] == byte(number, at)), "{number}: {range:?}");
            }
        }
    });
}
