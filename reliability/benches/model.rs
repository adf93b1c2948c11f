//! Microseconds for one evaluation of the completion-time model: the distribution, its mean and a
//! percentile; the best of many.
//!
//! `cargo bench -p reliability --bench model`.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use reliability::link::Link;
use reliability::model::{Block, Candidate, Message, Timers, completion};

const ROUNDS: u32 = 200;

fn main() {
    println!("{:<16}{:>8}{:>7}{:>10}{:>10}{:>10}", "scheme", "drop", "burst", "16 KiB", "16 MiB", "16 GiB");
    let candidates = [
        Candidate::Sr,
        Candidate::xor(32, 8),
        Candidate::mds(32, 8),
        Candidate::mds(200, 50),
        Candidate::Mds(Block { k: 32, m: 8, depth: 8 }),
        Candidate::hybrid(32, 8),
    ];
    for candidate in candidates {
        for (drop, burst) in [(1e-6, 1.0), (1e-3, 1.0), (0.1, 1.0), (1e-3, 8.0), (0.1, 8.0)] {
            let link = Link { burst, ..Link::new(100_000_000_000, Duration::from_millis(25), drop, 4096) };
            let cost = |size| {
                let start = Instant::now();
                for _ in 0..ROUNDS {
                    let time =
                        completion(black_box(&link), &Timers::default(), candidate, Message::new(size));
                    black_box((time.mean(), time.percentile(99.9)));
                }
                start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
            };
            let [small, medium, large] = [16 << 10, 16 << 20, 16 << 30].map(cost);
            let name = candidate.to_string();
            println!("{name:<16}{drop:>8}{burst:>7}{small:>7.1} us{medium:>7.1} us{large:>7.1} us");
        }
    }
}
