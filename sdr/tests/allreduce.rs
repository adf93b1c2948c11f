//! `sdr_allreduce`: its runs by events take as long as its runs packet by packet.
//!
//! Both get the same losses, from seeds. Packet by packet, the real layers run, and sums are
//! checked.

#![cfg(feature = "udp")]

#[path = "../examples/sdr_allreduce/events.rs"]
#[allow(dead_code, reason = "losses are not drawn here")]
mod events;
mod link;
#[path = "../examples/sdr_allreduce/packets.rs"]
mod packets;
#[path = "../examples/sdr_allreduce/ring.rs"]
#[allow(dead_code, reason = "nothing is printed here")]
mod ring;

use std::collections::BTreeMap;
use std::time::Duration;

use events::{Hop, Losses, Lost};
use packets::ByPlace;
use ring::schemes;
use sdr::{Mtu, QpAttr, Shape};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The losses of packets, by the chunk.
struct OfChunks {
    losses: ByPlace,
    /// Packets of a chunk.
    packets: u32,
}

impl OfChunks {
    /// Returns true if a chunk is not whole after attempt `last`: a packet was lost at each one.
    fn lacks(&self, link: usize, message: u32, chunk: u32, last: u32) -> bool {
        let first = chunk * self.packets;
        (first..first + self.packets)
            .any(|packet| (0..=last).all(|attempt| self.losses.is_lost(link, message, packet, attempt)))
    }
}

impl Losses for OfChunks {
    fn first(&mut self, link: usize, message: u32, chunks: u32, lost: &mut Vec<Lost>) {
        lost.clear();
        let lacking = (0..chunks).filter(|chunk| self.lacks(link, message, *chunk, 0));
        lost.extend(lacking.map(|chunk| Lost { chunk, packets: 1 }));
    }

    fn again(&mut self, link: usize, message: u32, lost: &mut Lost, attempt: u32) -> bool {
        self.lacks(link, message, lost.chunk, attempt)
    }
}

/// Messages of 2 MiB at most, 2^`messages_log` at a time.
fn attr(chunk_log: u32, messages_log: u32) -> QpAttr {
    QpAttr {
        chunk_log,
        in_flight_log: 21 + messages_log,
        messages_log,
        mtu: Mtu::B4096,
        rate: 400_000_000_000,
        rtt: Duration::from_millis(25),
        ..QpAttr::default()
    }
}

/// How far a run may be off, and the mean of all runs of a layer.
const RUN: f64 = 0.05;
const MEAN: f64 = 0.02;

/// `SDR_SEEDS=20` runs as many of each.
#[test]
fn runs_by_events_take_as_long_as_runs_by_packets() {
    let seeds = std::env::var("SDR_SEEDS").map_or(2, |seeds| seeds.parse().unwrap());
    let mut means: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let cells = [
        (12, 8, 1 << 20, 1e-3),
        (12, 8, 1 << 20, 1e-2),
        (16, 8, 4 << 20, 1e-3),
        (16, 8, 4 << 20, 1e-2),
        // Parts have to wait for the slots of earlier ones.
        (12, 3, 1 << 20, 1e-2),
    ];
    for (chunk_log, messages_log, bytes, drop) in cells {
        let attr = attr(chunk_log, messages_log);
        let shape = Shape::new(&attr).unwrap();
        for (name, scheme) in schemes(&attr, drop, bytes).unwrap() {
            for seed in 0..seeds {
                let losses = ByPlace { seed, drop };
                let packets =
                    packets::run(&attr, &scheme, &losses, bytes as usize / 8).unwrap().as_secs_f64();
                let mut hop = Hop::new(&attr, &shape, &scheme, bytes);
                let mut losses = OfChunks { losses, packets: shape.packets_per_chunk() };
                let events = events::run(&mut hop, &mut losses);
                let ratio = packets / events;
                let cell = format!("chunks of 2^{chunk_log}, {drop:.0e}, {name}, seed {seed}");
                println!("{cell}: {:.2} ms, {:.2} ms, {ratio:.4}", packets * 1e3, events * 1e3);
                assert!((ratio - 1.0).abs() < RUN, "{cell}: {ratio:.4}");
                let (by_packets, by_events) = means.entry(name).or_default();
                *by_packets += packets;
                *by_events += events;
            }
        }
    }
    for (name, (packets, events)) in means {
        let ratio = packets / events;
        println!("{name}: {ratio:.4} in the mean");
        assert!((ratio - 1.0).abs() < MEAN, "{name}: {ratio:.4}");
    }
}
