//! The completion-time model against the streams it describes, in virtual time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod world;

use std::time::Duration;

use reliability::link::Link;
use reliability::model::{Block, Candidate, Completion, Message, Timers, completion};
use world::{Loss, MS, Path, Setup};

/// Bytes of a record that fills a packet of 1400 bytes.
const RECORD: usize = 1370;

fn link(rate: u64, rtt: Duration, drop: f64, burst: f64) -> Link {
    Link { rate, rtt, drop, burst, packet: RECORD, overhead: 30 + 66 }
}

fn model(link: &Link, candidate: Candidate, packets: usize) -> Completion {
    completion(link, &Timers::default(), candidate, Message::new((packets * RECORD) as u64))
}

/// One message of `packets` packets on a stream that has been in use before, in seconds until the answer is back.
fn measure(link: &Link, candidate: Candidate, packets: usize, seed: u64) -> f64 {
    let delay = link.rtt / 2;
    let clean = Path::clean(delay);
    let setup = Setup {
        forward: clean,
        backward: clean,
        rate: link.rate,
        rtt_hint: link.rtt,
        window: 1 << 16,
        max_backlog: 1 << 30,
        ..Setup::new(seed, candidate.scheme().unwrap())
    };
    let mut world = setup.build();
    world.load(200, RECORD..=RECORD, Duration::from_micros(500)).run();
    world.run_until(world.now + 40 * MS);
    let enter = link.drop / (1.0 - link.drop) / link.burst();
    let loss = Loss::Bursts { enter, leave: 1.0 / link.burst(), loss: 1.0 };
    world.set_paths(Path { loss, ..clean }, clean);
    let start = world.now;
    world.load(packets, RECORD..=RECORD, Duration::ZERO).run().all_delivered();
    (world.completed + delay).as_secs_f64() - start.as_secs_f64()
}

#[test]
fn explore() {
    for (rate, rtt) in [(1_000_000_000u64, 20), (50_000_000, 20), (10_000_000_000, 50)] {
        for c in [
            Candidate::Sr,
            Candidate::mds(32, 8),
            Candidate::xor(32, 8),
            Candidate::mds(32, 2),
            Candidate::Mds(Block { k: 16, m: 4, depth: 4 }),
        ] {
            for (p, b) in [(0.001, 1.0), (0.01, 1.0), (0.1, 1.0), (0.01, 5.0)] {
                for n in [1usize, 10, 150, 3000] {
                    let l = link(rate, rtt * MS, p, b);
                    let runs = if n > 1000 { 40 } else { 300 };
                    let mut v: Vec<f64> = (0..runs).map(|s| 1e3 * measure(&l, c, n, s + 1)).collect();
                    v.sort_by(f64::total_cmp);
                    let m = v.iter().sum::<f64>() / runs as f64;
                    let sd = (v.iter().map(|x| (x - m) * (x - m)).sum::<f64>()).sqrt() / runs as f64;
                    let d = model(&l, c, n);
                    let mm = d.mean().as_secs_f64() * 1e3;
                    println!(
                        "{}{rate} {c:<10} p{p} b{b} n{n:<5} least {:.2} {:.2}  mean {mm:.2} real {m:.2}+-{sd:.2}  p50 {:.2} {:.2} p90 {:.2} {:.2} p97 {:.2} {:.2}",
                        if (mm - m).abs() > 3.0 * sd + 0.05 * m { "!!" } else { "  " },
                        d.least().as_secs_f64() * 1e3,
                        v[0],
                        d.percentile(50.0).as_secs_f64() * 1e3,
                        v[runs as usize / 2],
                        d.percentile(90.).as_secs_f64() * 1e3,
                        v[runs as usize * 9 / 10],
                        d.percentile(97.).as_secs_f64() * 1e3,
                        v[runs as usize * 97 / 100]
                    );
                }
            }
        }
    }
}
