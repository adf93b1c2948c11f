//! The completion-time model against the streams it describes, in virtual time.

use std::time::Duration;

use crate::world::{Loss, MS, Path, Setup, World};
use reliability::link::Link;
use reliability::model::{Block, Candidate, Completion, Message, Timers, completion};
use reliability::stream::Scheme;

/// Bytes of a record that fills a packet of 1400 bytes.
const RECORD: usize = 1370;

const CANDIDATES: [Candidate; 5] = [
    Candidate::Sr,
    Candidate::mds(32, 8),
    Candidate::mds(32, 2),
    Candidate::xor(32, 8),
    Candidate::Mds(Block { k: 16, m: 4, depth: 4 }),
];

fn link(rate: u64, rtt: Duration, drop: f64) -> Link {
    // DATA header and record header; what the world's pacer adds.
    Link { overhead: 30 + 66, ..Link::new(rate, rtt, drop, RECORD) }
}

fn model(link: &Link, candidate: Candidate, packets: usize) -> Completion {
    completion(link, &Timers::default(), candidate, Message::new((packets * RECORD) as u64))
}

/// A stream that has been in use before and now does nothing, about to lose packets.
fn prepared(link: &Link, scheme: Scheme, seed: u64) -> World {
    let clean = Path::clean(link.rtt / 2);
    let setup = Setup {
        forward: clean,
        backward: clean,
        rate: link.rate,
        rtt_hint: link.rtt,
        window: 1 << 16,
        max_backlog: 1 << 30,
        ..Setup::new(seed, scheme)
    };
    let mut world = setup.build();
    world.load(100, RECORD..=RECORD, Duration::from_millis(1)).run();
    world.run_until(world.now + 40 * MS);
    world.set_paths(Path { loss: Loss::Independent(link.drop), ..clean }, clean);
    world
}

/// One message of `packets` packets, in seconds until the answer is back.
fn measure(link: &Link, candidate: Candidate, packets: usize, seed: u64) -> f64 {
    let mut world = prepared(link, candidate.scheme(), seed);
    let start = world.now;
    world.load(packets, RECORD..=RECORD, Duration::ZERO).run().all_delivered();
    (world.completed + link.rtt / 2).as_secs_f64() - start.as_secs_f64()
}

/// Mean, its deviation, and 90th percentile over as many messages as there are seeds.
fn measured(link: &Link, candidate: Candidate, packets: usize, seeds: u64) -> (f64, f64, f64) {
    let mut times: Vec<f64> = (1..=seeds).map(|seed| measure(link, candidate, packets, seed)).collect();
    times.sort_by(f64::total_cmp);
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    (mean, (variance / count).sqrt(), times[times.len() * 9 / 10])
}

#[test]
fn streams_take_as_long_as_the_model_says() {
    for (rate, rtt) in [(1_000_000_000, 20 * MS), (10_000_000_000, 50 * MS), (50_000_000, 20 * MS)] {
        for drop in [0.01, 0.1] {
            for (packets, seeds) in [(1, 150), (10, 150), (150, 80), (2000, 12)] {
                for candidate in CANDIDATES {
                    let link = link(rate, rtt, drop);
                    let (mean, deviation, p90) = measured(&link, candidate, packets, seeds);
                    let model = model(&link, candidate, packets);
                    let expected = model.mean().as_secs_f64();
                    let what = format!("{candidate}, {packets} packets at {rate} bit/s, {drop} lost");
                    // The world's first packet arrives without having been on the wire.
                    let start = link.packet_seconds();
                    assert!(
                        (expected - mean).abs() <= 0.05 * mean + 3.5 * deviation + start,
                        "{what}: {expected}, measured {mean} +- {deviation}"
                    );
                    // Where a tenth of the messages take a whole repair longer, the percentile is
                    // not known better than that.
                    let around = [80.0, 96.0].map(|percent| model.percentile(percent).as_secs_f64());
                    // Of twelve messages it is the second slowest, which says little.
                    assert!(
                        seeds < 50 || p90 >= 0.93 * around[0] - start && p90 <= 1.07 * around[1] + start,
                        "{what}: p90 {p90}, expected within {around:?}"
                    );
                }
            }
        }
    }
}

/// The model knows how many parities a short block gets, for it adds their time and strength.
#[test]
fn streams_send_as_much_parity_as_the_model_says() {
    let link = link(1_000_000_000, 20 * MS, 0.0);
    for candidate in
        [Candidate::mds(32, 8), Candidate::xor(10, 3), Candidate::Mds(Block { k: 7, m: 5, depth: 3 })]
    {
        for packets in 1..=45 {
            let mut world = prepared(&link, candidate.scheme(), 1);
            let before = world.sender.stats().parity_packets;
            world.load(packets, RECORD..=RECORD, Duration::ZERO).run().all_delivered();
            let sent = world.sender.stats().parity_packets - before;
            let expected = model(&link, candidate, packets).overhead() * packets as f64;
            assert!((expected - sent as f64).abs() < 1e-6, "{candidate}, {packets}: {expected}, sent {sent}");
        }
    }
}

/// `hybrid` fits depth and parity to the losses that it is told of, and the model to those of the
/// link.
#[test]
fn streams_fit_their_parity_to_the_losses_as_the_model_does() {
    for (drop, burst) in [(1e-3, 1.0), (1e-2, 4.0), (2e-3, 20.0)] {
        let link = Link { burst, ..link(10_000_000_000, 20 * MS, drop) };
        for candidate in [Candidate::hybrid(32, 8), Candidate::hybrid(8, 2), Candidate::hybrid(64, 16)] {
            for packets in [1, 2, 3, 5, 10, 30, 45, 100, 150] {
                let mut world = prepared(&Link { drop: 0.0, ..link }, candidate.scheme(), 1);
                world.announce = true;
                world.sender.set_drop(drop);
                world.sender.set_burst(link.burst());
                let before = world.sender.stats().parity_packets;
                world.load(packets, RECORD..=RECORD, Duration::ZERO).run().all_delivered();
                let sent = (world.sender.stats().parity_packets - before) as f64;
                let model = model(&link, candidate, packets);
                // Of the repairs, which it counts too, there are fewer than losses to be expected.
                let expected = model.overhead() * packets as f64;
                let repairs = 2.0 * drop * (packets as f64 + sent);
                let what = format!("{candidate}, {packets} packets, {drop} lost in runs of {burst}");
                assert!(
                    (sent - 1e-6..=sent + 1e-6 + repairs).contains(&expected),
                    "{what}: {expected:.2}, sent {sent}"
                );
            }
        }
    }
}
