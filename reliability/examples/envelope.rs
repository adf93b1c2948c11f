//! Completion times of messages by `sr`, `mds` and `hybrid`, and how far `hybrid` is from the
//! better of the others.
//!
//! `cargo run --release -p reliability --example envelope [-- OPTION=VALUE ...]`. Virtual time,
//! through the production sender and receiver, one message at a time. Options: `rate` in Gbit/s
//! (10), `rtt` in ms (25), `run` mean length of a run of losses (1), `packets` to be sent per cell
//! and scheme (500000), `size` in bytes and `drop` for one of each, `seed` (1), `told` whether the
//! drop rate is known (1).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a measurement may fail")]

#[allow(dead_code, unreachable_pub, reason = "tests use more of it")]
#[path = "../tests/all/transfer/mod.rs"]
mod transfer;

use std::time::Duration;

use reliability::stream::Scheme;
use transfer::{Line, Outcome, RECORD, measure};

const DROPS: [f64; 6] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
const SIZES: [usize; 8] = [4 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 32 << 20, 64 << 20, 256 << 20];
const SCHEMES: [(&str, Scheme); 3] =
    [("sr", Scheme::sr()), ("mds", Scheme::mds(32, 8)), ("hybrid", Scheme::hybrid(32, 8))];

fn main() {
    let options: Vec<(String, f64)> = std::env::args().skip(1).map(|option| parse(&option)).collect();
    let option = |name: &str| options.iter().find(|(key, _)| key == name).map(|&(_, value)| value);
    let line = Line {
        rate: (option("rate").unwrap_or(10.0) * 1e9) as u64,
        rtt: Duration::from_secs_f64(option("rtt").unwrap_or(25.0) / 1e3),
        drop: 0.0,
        run: option("run").unwrap_or(1.0),
        told: option("told") != Some(0.0),
    };
    let packets = option("packets").unwrap_or(5e5);
    let seed = option("seed").unwrap_or(1.0) as u64;
    println!("{} Gbit/s, {:?} round trip, seed {seed}; times in ms", line.rate as f64 / 1e9, line.rtt);
    println!(
        "{:>10} {:>8} {:>6}  {:8}{:>9}{:>9}{:>9}{:>8}   of the better one: mean   p99",
        "bytes", "drop", "count", "scheme", "mean", "p50", "p99", "sent"
    );
    let mut worst = [0.0_f64; 2];
    let sizes = option("size").map_or(SIZES.to_vec(), |size| vec![size as usize]);
    let drops = option("drop").map_or(DROPS.to_vec(), |drop| vec![drop]);
    for &size in &sizes {
        for &drop in &drops {
            let count = (packets / size.div_ceil(RECORD) as f64).clamp(20.0, 5000.0) as usize;
            let line = Line { drop, ..line };
            let outcomes = SCHEMES.map(|(_, scheme)| measure(scheme, line, size, count, seed));
            let ratios = ratios(&outcomes);
            for ((name, _), outcome) in SCHEMES.into_iter().zip(&outcomes) {
                let [mean, p50, p99] = [outcome.mean(), outcome.percentile(50.0), outcome.percentile(99.0)];
                let [mean, p50, p99] = [mean, p50, p99].map(|seconds| seconds * 1e3);
                print!(
                    "{size:>10} {drop:>8.0e} {count:>6}  {name:8}{mean:>9.3}{p50:>9.3}{p99:>9.3}{:>8.4}",
                    outcome.bytes_per_byte
                );
                if name == "hybrid" {
                    print!("{:>24.3}{:>6.3}", ratios[0], ratios[1]);
                    worst = [worst[0].max(ratios[0]), worst[1].max(ratios[1])];
                }
                println!();
            }
        }
    }
    println!("worst: mean {:.3}, p99 {:.3} of the better one", worst[0], worst[1]);
}

/// Mean and 99th percentile of the last outcome against the least of the others.
fn ratios(outcomes: &[Outcome; 3]) -> [f64; 2] {
    let [sr, mds, hybrid] = outcomes;
    [
        hybrid.mean() / sr.mean().min(mds.mean()),
        hybrid.percentile(99.0) / sr.percentile(99.0).min(mds.percentile(99.0)),
    ]
}

fn parse(option: &str) -> (String, f64) {
    const KNOWN: [&str; 8] = ["rate", "rtt", "run", "packets", "drop", "size", "seed", "told"];
    match option.split_once('=') {
        Some((key, value)) if KNOWN.contains(&key) => {
            (key.to_owned(), value.parse().unwrap_or_else(|_| panic!("{key} is a number, not {value:?}")))
        }
        _ => panic!("{option:?}: write one of {KNOWN:?}, `=` and a number"),
    }
}
