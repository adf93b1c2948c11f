//! The published model: its figures, and its closed forms against samples.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use reliability::link::Link;
use reliability::model::paper::figures::figures;
use reliability::model::paper::{Code, Ring, SR_NACK, SR_RTO, Transfer};

const SEED: u64 = 0x5d12;

fn transfer(drop: f64, size: u64) -> Transfer {
    let link = Link::new(400_000_000_000, Duration::from_millis(25), drop, 4096);
    Transfer { link, size, chunk: 4096 }
}

/// Mean and 90th percentile of `count` samples.
fn sampled(count: usize, mut sample: impl FnMut() -> Duration) -> (f64, f64) {
    let mut times: Vec<f64> = (0..count).map(|_| sample().as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    (times.iter().sum::<f64>() / count as f64, times[count * 9 / 10])
}

/// The distributions have steps: beside one, a percentile of samples is not known better than to
/// its neighbours.
fn assert_percentile(percentile: impl Fn(f64) -> Duration, sampled: f64, what: &str) {
    let around = [88.0, 92.0].map(|percent| percentile(percent).as_secs_f64());
    let within = 0.98 * around[0]..=1.02 * around[1];
    assert!(within.contains(&sampled), "seed {SEED:#x}, {what}: p90 {sampled}, expected in {within:?}");
}

fn assert_close(model: Duration, sampled: f64, tolerance: f64, what: &str) {
    let ratio = model.as_secs_f64() / sampled;
    assert!((ratio - 1.0).abs() <= tolerance, "seed {SEED:#x}, {what}: {model:?}, sampled {sampled}");
}

#[test]
fn every_published_figure_is_where_it_should_be() {
    for figure in figures(&mut Pcg64Mcg::seed_from_u64(SEED)) {
        assert!(!figure.reproduced.is_empty());
        for value in &figure.reproduced {
            assert!(value.holds(), "seed {SEED:#x}, {}: {value:?}", figure.what);
        }
    }
}

#[test]
fn closed_forms_agree_with_samples() {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    for drop in [1e-5, 1e-3, 1e-2, 0.05, 0.3] {
        for size in [1, 128 << 10, 4 << 20, 128 << 20] {
            let transfer = transfer(drop, size);
            for rto in [SR_RTO, SR_NACK] {
                let (mean, p90) = sampled(4000, || transfer.sample_sr(rto, &mut rng));
                let what = format!("SR {rto} RTT, {drop}, {size} bytes");
                assert_close(transfer.sr(rto).mean(), mean, 0.03, &what);
                assert_percentile(|percent| transfer.sr(rto).percentile(percent), p90, &what);
            }
            for code in [
                Code::Mds { k: 32, m: 8 },
                Code::Xor { k: 32, m: 8 },
                Code::Xor { k: 10, m: 3 },
                Code::Mds { k: 200, m: 20 },
            ] {
                let ec = transfer.ec(code, 0.5, SR_RTO);
                let (mean, p90) = sampled(4000, || ec.sample(&mut rng));
                let what = format!("{code:?}, {drop}, {size} bytes");
                assert_close(ec.mean(), mean, 0.04, &what);
                assert_percentile(|percent| ec.percentile(percent), p90, &what);
                assert!(
                    ec.probability(ec.percentile(90.0) + Duration::from_nanos(1)) >= 0.9 - 1e-9,
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn a_ring_agrees_with_samples_and_its_lower_bound() {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    for sites in [2, 3, 4, 8] {
        for (drop, size) in [(1e-5, 32 << 20), (1e-4, 256 << 10), (1e-3, 256 << 10), (1e-2, 32 << 20)] {
            let transfer = transfer(drop, size);
            let sr = transfer.sr(SR_RTO);
            let ring = Ring { sites, compute: Duration::from_millis(3) };
            let time = ring.time(|percent| sr.percentile(percent), |at| sr.probability(at));
            let (mean, p90) = sampled(4000, || ring.sample(&mut rng, |rng| transfer.sample_sr(SR_RTO, rng)));
            let what = format!("{sites} sites, {drop}, {size} bytes");
            assert_close(time.mean(), mean, 0.05, &what);
            assert_percentile(|percent| time.percentile(percent), p90, &what);
            assert!(time.mean() >= ring.bound(sr.mean()).mul_f64(0.999), "{what}");
        }
    }
}

#[test]
fn the_formulas_at_their_limits() {
    let lossless = transfer(0.0, 1 << 30);
    let expected = Duration::from_secs_f64(262_144.0 * 4096.0 * 8.0 / 400e9) + Duration::from_millis(25);
    assert_eq!(lossless.sr(SR_RTO).mean(), lossless.lossless());
    assert!(lossless.lossless().abs_diff(expected) < Duration::from_nanos(2));
    let ec = lossless.ec(Code::Mds { k: 32, m: 8 }, 1.0, SR_RTO);
    assert_eq!((ec.fallback(), ec.mean()), (0.0, ec.percentile(99.9999)));
    let injection = lossless.lossless() - Duration::from_millis(25);
    assert!(
        ec.mean().abs_diff(injection.mul_f64(1.25) + Duration::from_millis(25)) < Duration::from_nanos(2)
    );
    // One chunk: lost n times with probability p^n (1 - p), each for RTO + T.
    let single = transfer(0.25, 4096);
    let period = 0.075 + 4096.0 * 8.0 / 400e9;
    let mean = single.lossless().as_secs_f64() + period * 0.25 / 0.75;
    assert!((single.sr(SR_RTO).mean().as_secs_f64() - mean).abs() < 1e-9);
    // A chunk of 16 packets.
    let chunk = Transfer { chunk: 64 << 10, ..transfer(0.01, 1 << 20) };
    assert!((chunk.chunk_drop() - (1.0 - 0.99_f64.powi(16))).abs() < 1e-12);
    assert_eq!(chunk.chunks(), 16);
}
