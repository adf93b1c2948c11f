//! A stream's packets become longer and shorter on the way: contents stay right, and what is new
//! takes the new length.

use std::time::Duration;

use crate::world::{MS, Path, Setup, US};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::stream::Scheme;

const SCHEMES: [Scheme; 5] = [
    Scheme::sr(),
    Scheme::Xor { k: 8, m: 3, depth: 2 },
    Scheme::Mds { k: 32, m: 8, depth: 1 },
    Scheme::Mds { k: 8, m: 3, depth: 4 },
    Scheme::Hybrid { k: 16, m: 6, depth: 1 },
];

/// Under load, 16 ms after it was told the sender builds packets of the new length, whatever the
/// scheme.
#[test]
fn packets_grow_and_shrink_within_blocks_of_when_they_were_told_to() {
    for scheme in SCHEMES {
        let path = Path::lossy(5 * MS, 0.01);
        let setup = Setup {
            forward: path,
            backward: path,
            max_packet: 1168,
            most_packet: 8940,
            max_backlog: 1 << 16,
            ..Setup::new(3, scheme)
        };
        let mut world = setup.build();
        // More than the link carries.
        world.load(6000, 4100..=4100, 25 * US);
        let mut lengths = Vec::new();
        for (at, packet) in [(30, 1168), (60, 1440), (90, 8940), (120, 1168)] {
            world.sender.set_max_packet(packet);
            world.run_until((at - 14) * MS);
            let sent = |stats: &reliability::stream::SenderStats| {
                (stats.bytes, stats.data_packets + stats.repairs + stats.parity_packets)
            };
            let (bytes, packets) = sent(world.sender.stats());
            world.run_until(at * MS);
            let (more_bytes, more_packets) = sent(world.sender.stats());
            lengths.push((more_bytes - bytes) / (more_packets - packets));
            assert!(
                lengths.last().unwrap() * 100 >= packet as u64 * 88,
                "{scheme:?}: {lengths:?} for {packet}"
            );
        }
        assert!(lengths[3] <= 1168, "{scheme:?}: {lengths:?}");
        world.run().all_delivered();
    }
}

#[test]
fn contents_are_right_whatever_the_lengths_and_schemes_on_the_way() {
    for seed in 0..120_u64 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0x6209);
        let mut path = || Path {
            reorder: (rng.random_range(0.0..0.2), US * rng.random_range(0..8000)),
            duplicate: rng.random_range(0.0..0.1),
            ..Path::lossy(US * rng.random_range(0..20_000), rng.random_range(0.0..0.2))
        };
        let (forward, backward) = (path(), path());
        let setup = Setup {
            forward,
            backward,
            rate: rng.random_range(50_000_000..2_000_000_000),
            max_packet: rng.random_range(300..2000),
            most_packet: 9000,
            window: rng.random_range(16..3000),
            decode_buffer: rng.random_range(50_000..1_000_000),
            ..Setup::new(seed, SCHEMES[rng.random_range(0..SCHEMES.len())])
        };
        let (every, switching) = (rng.random_range(500..20_000), rng.random_bool(0.5));
        let mut world = setup.build();
        world.hook = Some(Box::new(move |sender, now| {
            let turn = now.as_micros() as u64 / every;
            let mut rng = Pcg64Mcg::seed_from_u64(seed ^ turn << 20);
            sender.set_max_packet(rng.random_range(256..=9000));
            sender.set_window(rng.random_range(8..4000));
            if switching {
                sender.set_scheme(SCHEMES[turn as usize / 3 % SCHEMES.len()]);
            }
        }));
        world.load(300, 4..=rng.random_range(5..20_000), Duration::from_micros(rng.random_range(0..300)));
        world.run().all_delivered();
    }
}
