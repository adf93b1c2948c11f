//! The promises of every scheme to its records, whatever the link does. `SEED=n cargo test` runs
//! that seed only, `SEEDS=n` the first n.

use std::time::Duration;

use crate::world::{Loss, MS, Path, Setup, US, World};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::stream::Scheme;

/// The seed of the environment's `SEED`, or else the first `SEEDS`, or else the first `count`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|value| value.parse().unwrap());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

/// Runs a mixed load (a busy part, a pause, sparse records) over the link, for each seed; the link
/// is the same both ways.
fn each_seed(scheme: Scheme, path: Path, check: fn(&mut World, Scheme)) {
    for seed in seeds(3) {
        let setup = Setup { forward: path, backward: path, ..Setup::new(seed, scheme) };
        let mut world = setup.build();
        world.load(300, 8..=9000, 20 * US).load(50, 8..=300, 3 * MS).run();
        check(&mut world, scheme);
    }
}

/// Every record once; of `none`, at most once (the link itself asserts that) and something at
/// least.
fn delivered(world: &mut World, scheme: Scheme) {
    if scheme == Scheme::None {
        assert!(world.delivered() > 100, "only {}", world.delivered());
    } else {
        world.all_delivered();
    }
}

fn bursts() -> Path {
    let loss = Loss::Bursts { enter: 0.005, leave: 0.1, loss: 0.8 };
    Path { loss, ..Path::clean(5 * MS) }
}

fn chaos() -> Path {
    Path { reorder: (0.1, 4 * MS), duplicate: 0.05, ..Path::lossy(5 * MS, 0.05) }
}

macro_rules! suite {
    ($($name:ident: $scheme:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn clean_link() {
                each_seed($scheme, Path::clean(5 * MS), |world, _| {
                    world.all_delivered();
                    let (sent, got) = (world.sender.stats(), world.receiver.stats());
                    assert_eq!((sent.repairs, got.duplicates, got.decoded, got.abandoned), (0, 0, 0, 0));
                });
            }

            #[test]
            fn independent_loss() {
                each_seed($scheme, Path::lossy(5 * MS, 0.02), delivered);
            }

            #[test]
            fn heavy_loss() {
                each_seed($scheme, Path::lossy(5 * MS, 0.3), delivered);
            }

            #[test]
            fn bursty_loss() {
                each_seed($scheme, bursts(), delivered);
            }

            #[test]
            fn everything_at_once() {
                each_seed($scheme, chaos(), delivered);
            }

            #[test]
            fn reordering_within_the_tolerance_causes_no_repair() {
                let path = Path { reorder: (0.3, 900 * US), ..Path::clean(5 * MS) };
                each_seed($scheme, path, |world, _| {
                    world.all_delivered();
                    assert_eq!(world.sender.stats().repairs, 0);
                });
            }

            #[test]
            fn duplicates_are_counted_and_harmless() {
                let path = Path { duplicate: 0.2, ..Path::clean(5 * MS) };
                each_seed($scheme, path, |world, _| {
                    world.all_delivered();
                    assert_eq!(world.sender.stats().repairs, 0);
                    assert!(world.receiver.stats().duplicates > 100);
                });
            }

            #[test]
            fn a_short_path() {
                let path = Path { reorder: (0.05, 50 * US), ..Path::lossy(50 * US, 0.02) };
                each_seed($scheme, path, delivered);
            }

            #[test]
            fn a_window_much_too_small() {
                for seed in seeds(3) {
                    let path = Path::lossy(5 * MS, 0.02);
                    let mut world = Setup { forward: path, backward: path, window: 40, ..Setup::new(seed, $scheme) }.build();
                    world.load(300, 8..=5000, 20 * US).run();
                    delivered(&mut world, $scheme);
                }
            }

            #[test]
            fn large_packets_and_small_records() {
                for seed in seeds(3) {
                    let path = Path::lossy(5 * MS, 0.01);
                    let mut world = Setup { forward: path, backward: path, max_packet: 8900, ..Setup::new(seed, $scheme) }.build();
                    world.load(5000, 4..=80, Duration::ZERO).load(100, 60_000..=65_536, 10 * US).run();
                    delivered(&mut world, $scheme);
                    let packets = world.sender.stats().data_packets;
                    assert!(packets < 1000, "5000 short records share packets: {packets}");
                }
            }
        }
    )*};
}

suite! {
    none: Scheme::None;
    sr: Scheme::sr();
    xor: Scheme::xor(32, 8);
    xor_interleaved: Scheme::Xor { k: 8, m: 2, depth: 4 };
    mds: Scheme::mds(32, 8);
    mds_small: Scheme::mds(4, 2);
    mds_interleaved: Scheme::Mds { k: 16, m: 4, depth: 6 };
    mds_one_parity: Scheme::mds(20, 1);
    hybrid: Scheme::hybrid(32, 8);
    hybrid_small: Scheme::hybrid(3, 1);
    hybrid_interleaved: Scheme::Hybrid { k: 16, m: 4, depth: 6 };
}

/// Paths, schemes and sizes drawn at random.
#[test]
fn anything_at_random() {
    for seed in seeds(12) {
        println!("seed {seed}");
        random_world(seed);
    }
}

fn random_world(seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut path = || Path {
        delay: US * rng.random_range(20..30_000),
        loss: if rng.random_bool(0.5) {
            Loss::Independent(rng.random_range(0.0..0.4))
        } else {
            Loss::Bursts {
                enter: rng.random_range(0.0..0.05),
                leave: rng.random_range(0.02..1.0),
                loss: rng.random_range(0.1..1.0),
            }
        },
        reorder: (rng.random_range(0.0..0.5), US * rng.random_range(0..20_000)),
        duplicate: rng.random_range(0.0..0.2),
    };
    let (forward, backward) = (path(), path());
    let (k, m, depth) = (rng.random_range(1..40), rng.random_range(1..10), rng.random_range(1..8));
    let schemes = [
        Scheme::sr(),
        Scheme::Xor { k, m: m.min(k), depth },
        Scheme::Mds { k, m, depth },
        Scheme::Sr { alpha: 0.0 },
        Scheme::Hybrid { k, m, depth },
    ];
    let scheme = schemes[rng.random_range(0..schemes.len())];
    let setup = Setup {
        forward,
        backward,
        rate: rng.random_range(10_000_000..2_000_000_000),
        max_packet: rng.random_range(300..9000),
        window: rng.random_range(4..3000),
        flush: US * rng.random_range(0..3000),
        reorder_time: US * rng.random_range(0..4000),
        receiver_window: rng.random_bool(0.3).then(|| rng.random_range(4..2000)),
        decode_buffer: rng.random_range(0..1_000_000),
        rtt_hint: US * rng.random_range(10..200_000),
        ..Setup::new(seed, scheme)
    };
    let switching = rng.random_bool(0.3);
    let mut world = setup.build();
    if switching {
        world.hook = Some(Box::new(move |sender, now| {
            let turn = now.as_micros() / 7777;
            sender.set_scheme(schemes[turn as usize % schemes.len()]);
            sender.set_drop([f64::NAN, 0.0, 1e-4, 0.02, 0.3][turn as usize % 5]);
            sender.set_burst((turn % 40) as f64);
            sender.expect(u64::from(turn % 3 == 0) * 1_000_000);
        }));
    }
    let gap = US * rng.random_range(0..500);
    world.load(200, 4..=rng.random_range(5..20_000), gap).run().all_delivered();
}

/// The sender hears of it as soon as parity has restored the last that was missing: whether the
/// receiver had just answered, or the packet that asks for an answer is lost.
#[test]
fn what_parity_has_restored_is_acknowledged_at_once() {
    // The packets are numbered 1, 3, 5, ...; after one that is lost, by one less.
    const FIFTH_DATA: fn(&[u8], u64) -> bool = |_, order| order == 9;
    const LAST_DATA_AND_LAST_PARITY: fn(&[u8], u64) -> bool = |_, order| order == 63 || order == 78;
    for (lost, parities) in [(FIFTH_DATA, 8), (LAST_DATA_AND_LAST_PARITY, 7)] {
        let path = Path::clean(50 * MS);
        let setup = Setup {
            forward: path,
            backward: path,
            rate: 1_000_000_000,
            rtt_hint: 100 * MS,
            ..Setup::new(1, Scheme::mds(32, 8))
        };
        let mut world = setup.build();
        world.drop_forward(lost);
        world.load(32, 1360..=1360, Duration::ZERO).run_until(100 * MS + 600 * US).all_delivered();
        let got = world.receiver.stats();
        assert_eq!((got.decoded, got.parity_packets), (1, parities));
        assert!(world.sender.is_idle(), "{} bytes unacknowledged", world.sender.in_flight());
    }
}
