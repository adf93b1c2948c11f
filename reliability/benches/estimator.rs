//! Nanoseconds per packet that watching the path costs: observing at the receiver, counting at the
//! sender, and the reports between them.
//!
//! `cargo bench -p reliability --bench estimator`. 1.4 KiB packets a microsecond apart in virtual
//! time, 20 ms round trip.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark measures time, and may fail")]

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::estimator::{
    Activity, Arrival, Ecn, EstimateConfig, LaneId, ObserverConfig, PATH_PACKET, PathEstimate, PathObserver,
    PathReport,
};

const PACKETS: usize = 4_000_000;

fn main() {
    println!("{:<34}{:>16}{:>16}", "path", "observer ns", "sender ns");
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let all: Vec<u64> = (0..PACKETS as u64).collect();
    let mut lossy = |share: f64| all.iter().copied().filter(|_| !rng.random_bool(share)).collect::<Vec<_>>();
    let [rare, much] = [1e-3, 0.1].map(&mut lossy);
    let mut disorder: Vec<(u64, u64)> = all.iter().map(|n| (n + rng.random_range(0..200), *n)).collect();
    disorder.sort_unstable();
    let disorder: Vec<u64> = disorder.into_iter().map(|(_, number)| number).collect();
    for (name, numbers) in [
        ("in order", &all),
        ("0.1 % lost", &rare),
        ("10 % lost", &much),
        ("out of order by up to 200", &disorder),
    ] {
        let best = (0..5).map(|_| run(numbers)).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        println!("{name:<34}{:>16.1}{:>16.1}", best.0, best.1);
    }
}

/// Nanoseconds per packet at the receiver and at the sender.
fn run(numbers: &[u64]) -> (f64, f64) {
    let origin = Instant::now();
    let rtt = Duration::from_millis(20);
    let mut observer = PathObserver::new(ObserverConfig::new(rtt), origin);
    let mut estimate = PathEstimate::new(EstimateConfig::new(rtt), origin);
    let begin = Instant::now();
    (0..PACKETS).for_each(|_| estimate.sent(1400));
    let sender = begin.elapsed();
    let mut out = [0; PATH_PACKET];
    let mut now = origin;
    let begin = Instant::now();
    // As the gateway does: a batch at one time, then what is due.
    for batch in numbers.chunks(32) {
        now += Duration::from_micros(32);
        for number in batch {
            let arrival = Arrival { lane: LaneId(0), number: *number, bytes: 1400, ecn: Ecn::NotEct };
            observer.observe(&arrival, Activity::Traffic, now);
        }
        if let Some(len) = observer.poll_report(now, &mut out) {
            let report = PathReport::parse(out.get(..len).unwrap()).unwrap();
            estimate.handle_report(&report, now).unwrap();
        }
    }
    let receiver = begin.elapsed();
    let each = |time: Duration| time.as_secs_f64() * 1e9 / PACKETS as f64;
    (each(receiver), each(sender))
}
