//! `sdr_crossover`: from which size on coding beats repetition, measured and predicted.
//!
//! Messages go one by one on sealed UDP, through an emulated link of 1 Gbit/s and 25 ms.
//! Each takes until the sender knows that the peer has all of it. Beside that stands what
//! `longhaul plan` expects of the same link, with chunks in place of packets.
//! It fails if a crossover is off by more than a factor of two.
//!
//! ```text
//! sdr_crossover [DROP [MESSAGES]]     default: 1e-3, 50 for each size and layer, 200 below 1 MiB
//! ```

#[path = "sdr_allreduce/emulated.rs"]
mod emulated;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emulated::connected;
use fec::Code;
use reliability::human::size as bytes_text;
use reliability::link::Link;
use reliability::model::{Candidate, Timers, plan};
use sdr::layers::{ReceiveError, Receiving, Scheme, Sending, Timing};
use sdr::udp::now;
use sdr::wire::DATA_HEADER;
use sdr::{Buffer, Mtu, QpAttr};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Percentile of a size's and layer's times that is compared.
const PERCENTILE: f64 = 90.0;
/// Bytes that a datagram takes beyond its packet: the seal's, and those of IPv4 and UDP.
const OVERHEAD: usize = DATA_HEADER + session::OVERHEAD + 28;
/// Pause between two looks of a layer.
const PAUSE: Duration = Duration::from_micros(100);
/// Coding is ahead where it is faster by so much. It saves a round trip, at once.
const AHEAD: f64 = 1.25;
/// Below this size, where a message in ten or fewer loses a packet, there are [`SMALL_TIMES`] as
/// many messages. A percentile of 50 is then a matter of luck: with one in 16, it is a
/// repetition's in one run of five, and with 200 in one of fifty.
const SMALL: u64 = 1 << 20;
const SMALL_TIMES: usize = 4;
/// Messages that the receiver awaits ahead.
const AWAITED: usize = 2;

fn attr() -> QpAttr {
    QpAttr {
        chunk_log: 12,
        in_flight_log: 29,
        messages_log: 8,
        mtu: Mtu::B4096,
        rate: 1_000_000_000,
        rtt: Duration::from_millis(25),
        ..QpAttr::default()
    }
}

/// Powers of two, from 128 KiB to 32 MiB.
fn sizes() -> Vec<u64> {
    (17..=25).map(|log| 1 << log).collect()
}

/// Returns how long each message took, sorted.
#[expect(clippy::disallowed_methods, reason = "a program may rest between two looks")]
fn measure(scheme: &Scheme, size: u64, messages: usize, drop: f64, seed: u64) -> Result<Vec<Duration>> {
    let attr = attr();
    let (near, mut far, relay) = connected(attr, drop, seed)?;
    let timing = Timing::new(attr.rtt, attr.rate);
    let send = near.send.ok_or("no sending side")?;
    let receive = far.receive.take().ok_or("no receiving side")?;
    let mut sending = Sending::new(send, scheme.clone(), timing, now())?;
    let mut receiving = Receiving::new(receive, scheme.clone(), timing, now())?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let receiver = std::thread::spawn(move || -> std::result::Result<(), ReceiveError> {
        let (mut expected, mut taken) = (0, 0);
        while !stopped.load(Ordering::Relaxed) {
            while expected < taken + AWAITED {
                receiving.expect(size as usize)?;
                expected += 1;
            }
            receiving.poll(&far.control, now())?;
            taken += usize::from(receiving.take().is_some());
            std::thread::sleep(PAUSE);
        }
        Ok(())
    });
    let data = Arc::new(Buffer::from(vec![7; size as usize]));
    let mut times = Vec::new();
    for _ in 0..messages {
        // Credits come, and what was repeated without need is gone.
        let rested = now() + attr.rtt * 2;
        while now() < rested {
            sending.poll(&near.control, now())?;
            std::thread::sleep(PAUSE);
        }
        let start = now();
        let message = sending.send(&data)?;
        while !sending.is_done(message) {
            sending.poll(&near.control, now())?;
            std::thread::sleep(PAUSE);
        }
        times.push(now() - start);
    }
    stop.store(true, Ordering::Relaxed);
    receiver.join().map_err(|_| "the receiver panicked")??;
    std::mem::drop(relay);
    times.sort_unstable();
    Ok(times)
}

fn percentile(times: &[Duration]) -> f64 {
    let at = (times.len().saturating_sub(1)) as f64 * PERCENTILE / 100.0;
    times.get(at.ceil() as usize).map_or(0.0, Duration::as_secs_f64)
}

/// Returns where `ratios` by size cross `limit`, from one side to the other, after `from`.
fn crossing(ratios: &[(u64, f64)], from: u64, limit: f64, rises: bool) -> Option<u64> {
    let is_over = |ratio: f64| (ratio > limit) == rises;
    ratios.windows(2).filter(|pair| pair.iter().all(|(size, _)| *size >= from)).find_map(|pair| {
        let &[(low, before), (high, after)] = pair else { return None };
        if is_over(before) || !is_over(after) {
            return None;
        }
        let share = (limit / before).ln() / (after / before).ln();
        Some((low as f64 * (high as f64 / low as f64).powf(share)) as u64)
    })
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let drop: f64 = arguments.next().map_or(Ok(1e-3), |drop| drop.parse())?;
    let messages: usize = arguments.next().map_or(Ok(50), |messages| messages.parse())?;
    let (attr, sizes) = (attr(), sizes());
    let link = Link { overhead: OVERHEAD, ..Link::new(attr.rate, attr.rtt, drop, attr.mtu.bytes() as usize) };
    let candidates = [Candidate::Sr, Candidate::mds(32, 8)];
    let plan = plan(&link, &Timers::default(), &candidates, &sizes, PERCENTILE);
    println!("1 Gbit/s, 25 ms, drop {drop:.0e}, packets and chunks of 4096 bytes");
    println!("{messages} messages each, {} below {}", messages * SMALL_TIMES, bytes_text(SMALL));
    println!("p{PERCENTILE} in ms      measured               predicted");
    println!("    bytes     nack  mds:32,8  ratio     sr  mds(32,8)  ratio");
    let schemes = [Scheme::SrNack, Scheme::Ec(Code::mds(32, 8)?)];
    let mut ratios = Vec::new();
    for (row, seed) in plan.rows.iter().zip(1..) {
        let mut times = [0.0; 2];
        let messages = if row.size < SMALL { messages * SMALL_TIMES } else { messages };
        for (time, scheme) in times.iter_mut().zip(&schemes) {
            *time = percentile(&measure(scheme, row.size, messages, drop, seed)?) * 1e3;
        }
        let [repeated, coded] = times;
        let predicted: Vec<f64> = row.cells.iter().map(|cell| cell.percentile.as_secs_f64() * 1e3).collect();
        let [sr, mds] = predicted[..] else { return Err("two candidates".into()) };
        println!(
            "{:>9}  {repeated:7.1}  {coded:8.1}  {:5.2}  {sr:5.1}  {mds:9.1}  {:5.2}",
            row.size,
            repeated / coded,
            sr / mds
        );
        ratios.push((row.size, repeated / coded));
    }
    let from = crossing(&ratios, 0, AHEAD, true);
    let to = from.and_then(|from| crossing(&ratios, from, 1.0, false));
    let mut predicted = plan.crossovers.iter().map(|crossover| crossover.size);
    let mut off = Vec::new();
    for (what, measured) in [("coding is faster from", from), ("repetition again from", to)] {
        let (Some(measured), Some(predicted)) = (measured, predicted.next()) else {
            return Err(format!("{what}: no crossover within these sizes").into());
        };
        let factor = measured as f64 / predicted as f64;
        println!(
            "{what}: measured {}, predicted {}: factor {factor:.2}",
            bytes_text(measured),
            bytes_text(predicted)
        );
        if !(0.5..=2.0).contains(&factor) {
            off.push(what);
        }
    }
    if off.is_empty() {
        Ok(())
    } else {
        Err(format!("off by more than a factor of two: {}", off.join(", ")).into())
    }
}
