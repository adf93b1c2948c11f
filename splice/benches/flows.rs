//! The cost of flows by how many there are: opening one, a message on one while the others are
//! idle, messages on all of them in turn, a look at the timers, forgetting one, an answer that none
//! of as many flows has had while all wait for their first.
//!
//! `cargo bench -p splice --bench flows`. Both gateways' cores run in turn on this thread, without
//! seal and sockets; a message is one packet with its acknowledgement; few flows that are forgotten
//! wake the gateways one by one, many at once. Each column is printed as it is and as a multiple of
//! the first row's: what grows with the number of flows is a scan, or, where all of them are
//! touched in turn, memory that no cache holds.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark measures time, and may fail"
)]

#[allow(dead_code, reason = "tests use more of it")]
#[path = "../tests/all/sites/mod.rs"]
mod sites;

#[allow(dead_code, reason = "tests use more of it")]
#[path = "../tests/all/crowd/mod.rs"]
mod crowd;

use std::hint::black_box;
use std::time::Instant;

use crowd::Crowd;
use roce::wire::{Psn, Qpn};
use sites::STEP;
use splice::Settings;

const COUNTS: [u32; 4] = [100, 1000, 10_000, 100_000];
/// Flows opened, messages sent and timers looked at for each figure.
const SAMPLE: u32 = 20_000;
const NAMES: [&str; 6] = ["open", "message", "in turn", "timers", "forget", "stray"];

fn main() {
    println!("{:>8}{}", "flows", NAMES.map(|name| format!("{:>20}", format!("{name}, ns"))).concat());
    let mut first = None;
    for count in COUNTS {
        let found = costs(count);
        let first = *first.get_or_insert(found);
        let columns =
            found.iter().zip(first).map(|(found, first)| format!("{found:>12.0} ({:>4.2}x)", found / first));
        println!("{count:>8}{}", columns.collect::<String>());
    }
}

/// Nanoseconds for each of [`NAMES`] among so many flows.
fn costs(count: u32) -> [f64; 6] {
    let mut opened = 0.0;
    let mut forgotten = 0.0;
    let mut rounds = 0.0;
    let mut last = None;
    // Few flows are opened and forgotten over and over, for as many samples.
    for _ in 0..(SAMPLE / count).max(1) {
        let mut crowd = Crowd::new(|settings| Settings { flows: 2 * count as usize, ..settings });
        opened += nanoseconds(|| (1..=count).for_each(|qp| crowd.write(qp, 0)));
        let mut kept = Crowd::new(|settings| settings);
        std::mem::swap(&mut kept, &mut crowd);
        if let Some(before) = last.replace(kept) {
            forgotten += forget(before);
            rounds += 1.0;
        }
    }
    let mut crowd = last.unwrap();
    let each = f64::from(count) * f64::from((SAMPLE / count).max(1));
    let in_turn =
        nanoseconds(|| (0..SAMPLE).for_each(|sent| crowd.write(1 + sent % count, 1 + sent / count)));
    let one = count.min(SAMPLE % count + 1);
    let from = 1 + SAMPLE.div_ceil(count);
    let message = nanoseconds(|| (from..from + SAMPLE).for_each(|psn| crowd.write(one, psn)));
    let now = crowd.sites.now;
    let timers = nanoseconds(|| {
        for _ in 0..SAMPLE {
            crowd.sites.gateways.iter_mut().for_each(|gateway| {
                gateway.handle_timeout(now);
                black_box(gateway.next_timeout(now));
            });
        }
    });
    forgotten += forget(crowd);
    rounds += 1.0;
    [
        opened / each,
        message / f64::from(SAMPLE),
        in_turn / f64::from(SAMPLE),
        timers / f64::from(SAMPLE) / 2.0,
        (forgotten / rounds - forget(Crowd::new(|settings| settings))).max(0.0) / f64::from(count),
        stray(count) / f64::from(SAMPLE),
    ]
}

/// Answers to queue pairs that have asked nothing, at the PSN that as many flows are to ask about,
/// whose targets say nothing.
fn stray(count: u32) -> f64 {
    let mut crowd =
        Crowd::new(|settings| Settings { flows: 2 * count as usize, total_buffer: 1 << 32, ..settings });
    for qp in 1..=count {
        crowd.post(qp, 0);
        crowd.sites.cross();
        while crowd.sites.deliver(1).is_some() {}
    }
    crowd.rest(STEP * 1000);
    // At the targets' gateway those that began last have given way, if there are very many.
    assert_eq!(crowd.flows()[0], u64::from(count));
    let (first, psn) = (0x40_0000, Psn::new(0));
    nanoseconds(|| (first..first + SAMPLE).for_each(|qp| crowd.sites.acknowledge(Qpn::new(qp), psn, 1)))
}

/// Until all flows of both gateways have been idle for too long.
fn forget(mut crowd: Crowd) -> f64 {
    let time = Settings::new(Vec::new(), 1, 1400).idle_flow * 3;
    let took = nanoseconds(|| crowd.rest(time));
    assert_eq!(crowd.flows(), [0; 2]);
    took
}

fn nanoseconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_nanos() as f64
}
