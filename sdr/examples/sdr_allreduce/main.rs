//! `sdr_allreduce`: a ring allreduce, on any reliability layer.
//!
//! - `sdr_allreduce site INDEX ADDRESS ADDRESS...` is one site of a ring, counted from 0; contents
//!   are checked. Each site names all addresses in the same order.
//!   `docs/sdr.md` has its options, and a lab of three sites.
//!
//! The others compare layers over four sites:
//! - `sdr_allreduce native` runs it on sealed UDP, through emulated links of 1 Gbit/s and 25 ms;
//!   contents are checked.
//! - `sdr_allreduce virtual [RUNS]` compares layers at 400 Gbit/s by events, 10,000 runs a cell.
//! - `sdr_allreduce packets [RUNS]` does the same packet by packet, for smaller segments; contents
//!   are checked.
//!
//! `native` does not measure what two programs in one machine do at the same time: its times are
//! upper bounds.

mod emulated;
mod events;
#[path = "../../tests/link/mod.rs"]
mod link;
mod model;
mod native;
mod packets;
mod ring;
mod site;

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sdr::{Mtu, QpAttr, Shape};

use events::{Drawn, Hop};
use model::mean;
use packets::ByPlace;
use ring::{COMPARED, SITES, quantile, schemes, text};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Probabilities that a packet is lost.
const DROPS: [f64; 4] = [1e-5, 1e-4, 1e-3, 1e-2];
/// Bytes that each site has to add up. Published are ratios for 128 MiB.
const BUFFERS: [u64; 3] = [8 << 20, 128 << 20, 1 << 30];

/// The published link, with chunks of 2^`chunk_log` bytes and 1 GiB in flight.
fn attr(chunk_log: u32) -> QpAttr {
    QpAttr {
        chunk_log,
        in_flight_log: 30,
        messages_log: if chunk_log > 12 { 9 } else { 10 },
        mtu: Mtu::B4096,
        rate: 400_000_000_000,
        rtt: Duration::from_millis(25),
        ..QpAttr::default()
    }
}

/// Prints a row. Returns the 99.9th percentile in seconds.
fn row(name: &str, scheme: &str, times: &mut [Duration], model: f64, first: Option<f64>) -> f64 {
    times.sort_unstable();
    let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len().max(1) as f64;
    let tail = quantile(times, COMPARED).as_secs_f64();
    println!(
        "  {name:10} {scheme:10} mean {:8.1} ms (model {:8.1})  p50 {:8.1}  p99 {:8.1}  p99.9 {:8.1}  sr rto / this {:5.2}",
        mean * 1e3,
        model * 1e3,
        quantile(times, 0.5).as_secs_f64() * 1e3,
        quantile(times, 0.99).as_secs_f64() * 1e3,
        tail * 1e3,
        first.unwrap_or(tail) / tail
    );
    tail
}

fn virtually(runs: u64) -> Result<()> {
    println!("{SITES} sites, 400 Gbit/s, 25 ms, packets of 4096 bytes, {runs} runs a cell");
    println!("Published for p99.9: SR RTO takes 3 to more than 6 times as long as EC.");
    let (mut worst, mut place) = (0.0, String::new());
    for chunk_log in [12, 16] {
        let attr = attr(chunk_log);
        let shape = Shape::new(&attr)?;
        for buffer in BUFFERS {
            for drop in DROPS {
                println!("chunks of {} KiB, {} MiB, drop {drop:.0e}", shape.chunk() >> 10, buffer >> 20);
                let bytes = buffer / SITES as u64;
                let mut tails = Vec::new();
                for (name, scheme) in schemes(&attr, drop, bytes)? {
                    let mut hop = Hop::new(&attr, &shape, &scheme, bytes);
                    let rng = Pcg64Mcg::seed_from_u64(1);
                    let mut losses = Drawn::new(drop, shape.packets_per_chunk(), rng);
                    let mut times: Vec<Duration> = (0..runs)
                        .map(|_| Duration::from_secs_f64(events::run(&mut hop, &mut losses)))
                        .collect();
                    let model = mean(&attr, &shape, &scheme, bytes, drop);
                    tails.push(row(name, &text(&scheme), &mut times, model, tails.first().copied()));
                }
                let auto = tails.pop().unwrap_or_default();
                let ratio = auto / tails.into_iter().fold(f64::INFINITY, f64::min);
                if ratio > worst {
                    (worst, place) = (
                        ratio,
                        format!(
                            "chunks of {} KiB, {} MiB, drop {drop:.0e}",
                            shape.chunk() >> 10,
                            buffer >> 20
                        ),
                    );
                }
            }
        }
    }
    println!("auto against the best fixed layer at p99.9: {worst:.3} at most ({place})");
    Ok(())
}

fn by_packets(runs: u64) -> Result<()> {
    let attr = QpAttr { in_flight_log: 27, messages_log: 7, ..attr(12) };
    let (shape, numbers) = (Shape::new(&attr)?, 1 << 17);
    let bytes = numbers as u64 * 8;
    println!(
        "{SITES} sites, segments of {bytes} bytes, 400 Gbit/s, 25 ms, {runs} runs a cell; contents are checked"
    );
    for drop in DROPS {
        println!("drop {drop:.0e}");
        let mut first = None;
        for (name, scheme) in schemes(&attr, drop, bytes)? {
            let mut times = Vec::new();
            for seed in 0..runs {
                times.push(packets::run(&attr, &scheme, &ByPlace { seed, drop }, numbers)?);
            }
            let model = mean(&attr, &shape, &scheme, bytes, drop);
            let tail = row(name, &text(&scheme), &mut times, model, first);
            first.get_or_insert(tail);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next();
    if what.as_deref() == Some("site") {
        return site::site(arguments);
    }
    let runs = arguments.next().map(|runs| runs.parse()).transpose()?;
    match what.as_deref() {
        Some("native") => native::native(),
        Some("virtual") => virtually(runs.unwrap_or(10_000)),
        Some("packets") => by_packets(runs.unwrap_or(100)),
        _ => Err(format!("usage: {} | native | virtual [RUNS] | packets [RUNS]", site::USAGE).into()),
    }
}
