//! Records per second and GB/s from `push` through the sender, a lossless or lossy path and the
//! receiver to delivery, on one core.
//!
//! `cargo bench -p reliability`. Both ends run in turn on this thread, so the figure is what a
//! gateway pays for sending and receiving together, without seal and sockets. Virtual time: 1 ms
//! round trip at the pace of the loop.
//!
//! It drives a stream below `transport::Connection`, whose schedule and pacer are not measured.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark measures time, and may fail"
)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};

const RECORD: usize = 4096;
/// Packets per turn of the loop, and turns that a packet is on its way.
const BATCH: usize = 32;
const TURNS: usize = 16;

fn main() {
    println!(
        "{:<26}{:>8}{:>8}{:>12}{:>10}{:>10}",
        "scheme", "packet", "loss", "records/s", "GB/s", "ns/packet"
    );
    let schemes = [
        ("none", Scheme::None),
        ("sr", Scheme::sr()),
        ("xor(32,8)", Scheme::xor(32, 8)),
        ("mds(32,8)", Scheme::mds(32, 8)),
        ("mds(32,4)", Scheme::mds(32, 4)),
        ("mds(32,8) depth 4", Scheme::Mds { k: 32, m: 8, depth: 4 }),
    ];
    // `cargo bench -p reliability -- mds` runs the schemes whose names contain it.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let chosen = |name: &str| filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
    for packet in [1448, 4200, 8900] {
        for (name, scheme) in schemes.into_iter().filter(|(name, _)| chosen(name)) {
            for loss in [0.0, 0.01] {
                let best =
                    (0..3).map(|_| run(scheme, packet, loss)).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                let (records, per_packet) = best;
                let bytes = records * RECORD as f64 / 1e9;
                println!("{name:<26}{packet:>8}{loss:>8}{records:>12.0}{bytes:>10.2}{per_packet:>10.0}");
            }
        }
    }
}

/// Records per second, and nanoseconds per packet put on the path.
fn run(scheme: Scheme, max_packet: usize, loss: f64) -> (f64, f64) {
    let origin = Instant::now();
    let mut now = origin;
    let rtt_hint = Duration::from_millis(1);
    let (of_sender, of_receiver) =
        (SenderConfig::new(StreamId(1), max_packet), ReceiverConfig::new(StreamId(1), max_packet));
    let mut sender = Sender::new(SenderConfig { scheme, rtt_hint, max_backlog: 256 << 10, ..of_sender }, now);
    let mut receiver = Receiver::new(ReceiverConfig { rtt_hint, ..of_receiver }, now);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let record = vec![0x5a; RECORD];
    // The path: buffers of packets, reused, so that the benchmark itself does not allocate.
    let mut path: VecDeque<Vec<(usize, Vec<u8>)>> = VecDeque::new();
    let mut report = vec![0; max_packet];
    let mut delivered = 0_u64;
    let mut packets = 0_u64;
    let mut warm = None;
    loop {
        now += Duration::from_micros(30);
        let mut batch = if path.len() > TURNS {
            path.pop_front().unwrap()
        } else {
            vec![(0, vec![0; max_packet]); BATCH]
        };
        for (len, packet) in &mut batch {
            if *len > 0 && (loss == 0.0 || !rng.random_bool(loss)) {
                receiver
                    .handle_packet(&packet[..*len], now, &mut |record| {
                        delivered += record.len() as u64;
                    })
                    .unwrap();
            }
            *len = 0;
        }
        receiver.handle_timeout(now);
        while let Some(len) = receiver.poll_report(now, &mut report) {
            sender.handle_report(&report[..len], now).unwrap();
        }
        sender.handle_timeout(now);
        for (len, packet) in &mut batch {
            while sender.push(&[&record[..32], &record[32..]], now).is_ok() {}
            let Some(transmit) = sender.poll_transmit(now, packet) else {
                break;
            };
            *len = transmit.len;
            packets += 1;
        }
        path.push_back(batch);
        let records = delivered / RECORD as u64;
        if warm.is_none() && records > 20_000 {
            warm = Some((Instant::now(), records, packets));
        }
        if let Some((start, before, sent)) = warm
            && start.elapsed() > Duration::from_millis(150)
        {
            let seconds = start.elapsed().as_secs_f64();
            return ((records - before) as f64 / seconds, seconds * 1e9 / (packets - sent) as f64);
        }
    }
}
