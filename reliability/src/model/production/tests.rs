use proptest::prelude::*;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::model::candidate::Block;

const CANDIDATES: [Candidate; 8] = [
    Candidate::Sr,
    Candidate::xor(32, 8),
    Candidate::Xor(Block { k: 10, m: 3, depth: 3 }),
    Candidate::mds(32, 8),
    Candidate::mds(32, 2),
    Candidate::mds(200, 20),
    Candidate::Mds(Block { k: 32, m: 8, depth: 4 }),
    Candidate::hybrid(32, 8),
];

fn link(rate: u64, rtt: u64, drop: f64, burst: f64) -> Link {
    Link { burst, overhead: 66, ..Link::new(rate, Duration::from_millis(rtt), drop, 1400) }
}

fn complete(link: &Link, candidate: Candidate, size: u64) -> Completion {
    completion(link, &Timers::default(), candidate, Message::new(size))
}

#[test]
fn without_loss_it_takes_the_wire_and_a_round_trip() {
    for (rate, rtt, size) in
        [(1_000_000_000, 20, 1), (1_000_000_000, 20, 10_000_000), (400_000_000_000, 25, 64 << 30)]
    {
        let link = link(rate, rtt, 0.0, 1.0);
        let lossless = link.wire_seconds(size) + link.rtt_seconds();
        for candidate in CANDIDATES {
            let time = complete(&link, candidate, size);
            // Only the last group's parity does not delay its own data.
            let parity = match candidate {
                Candidate::Sr | Candidate::Hybrid(_) => 0.0,
                _ => candidate.parity() * link.wire_seconds(size),
            };
            let mean = time.mean_seconds();
            assert!(mean >= lossless * (1.0 - 1e-9), "{candidate} {size}: {mean}");
            if candidate == Candidate::Sr || link.packets(size) == 1 {
                assert!(mean <= lossless * (1.0 + 1e-9), "{candidate} {size}: {mean}");
            } else if !matches!(candidate, Candidate::Hybrid(_)) {
                assert!(mean <= (lossless + parity) * (1.0 + 1e-6), "{candidate} {size}: {mean}");
            }
            assert_eq!(time.percentile(99.9999), time.least());
        }
    }
}

/// The mean of so many samples that it is known to 2 %, but no more than 5000, and how well it is
/// known (one deviation).
fn sampled(link: &Link, candidate: Candidate, message: Message, rng: &mut Pcg64Mcg) -> (f64, f64) {
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    loop {
        let time = sample(link, &Timers::default(), candidate, message, rng).as_secs_f64();
        sum += time;
        squares += time * time;
        count += 1.0;
        let mean = sum / count;
        let error = ((squares / count - mean * mean).max(0.0) / count).sqrt();
        if count >= 5000.0 || count >= 100.0 && error < 0.02 * mean {
            return (mean, error);
        }
    }
}

#[test]
fn the_closed_form_agrees_with_samples() {
    let seed = 0xc105ed;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for burst in [1.0, 4.0, 30.0] {
        for (rate, rtt) in [(1_000_000_000, 20), (10_000_000, 50), (100_000_000_000, 25), (1_000_000_000, 1)]
        {
            for drop in [1e-4, 1e-3, 1e-2, 0.1] {
                for size in [1000, 14_000, 200_000, 4_000_000] {
                    for candidate in CANDIDATES {
                        let link = link(rate, rtt, drop, burst);
                        assert_agrees(&link, candidate, Message::new(size), seed, &mut rng);
                    }
                }
            }
        }
    }
}

#[track_caller]
fn assert_agrees(link: &Link, candidate: Candidate, message: Message, seed: u64, rng: &mut Pcg64Mcg) {
    let (mean, error) = sampled(link, candidate, message, rng);
    let model = completion(link, &Timers::default(), candidate, message).mean_seconds();
    // Bursts that hit codes of different packets at once are treated roughly.
    let tolerance = if link.burst() == 1.0 { 0.05 } else { 0.12 };
    assert!(
        (model - mean).abs() <= tolerance * mean + 4.0 * error,
        "seed {seed:#x}, {candidate}, {message:?}, {link:?}: {model}, sampled {mean} +- {error}"
    );
}

#[test]
fn among_others_the_closed_form_agrees_with_samples() {
    let seed = 0xa3065;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for (rate, burst) in [(1_000_000_000, 1.0), (1_000_000_000, 8.0), (10_000_000, 1.0), (10_000_000, 8.0)] {
        for drop in [1e-3, 1e-2, 0.1] {
            for size in [1000, 60_000, 1_000_000] {
                for (beside, behind) in
                    [(0, 4000), (0, 2_000_000), (7 * size, 2_000_000), (size, 100_000), (3 * size, 0)]
                {
                    let (link, message) =
                        (link(rate, 25, drop, burst), Message { beside, behind, ..Message::new(size) });
                    for candidate in CANDIDATES {
                        assert_agrees(&link, candidate, message, seed, &mut rng);
                    }
                }
            }
        }
    }
}

/// However short they are: what follows takes its own time, and what is between a message's packets
/// takes none of their losses off them.
#[test]
fn others_packets_are_as_long_as_they_are() {
    let link = Link { packet: 8900, ..link(1_000_000_000, 25, 2e-3, 1.0) };
    let time = |candidate, message| completion(&link, &Timers::default(), candidate, message);
    let alone = Message::new(1000);
    let followed = Message { behind: 9 << 20, ..alone };
    let late = |message, within: f64| 1.0 - time(Candidate::Sr, message).probability_seconds(within);
    let within = link.wire_seconds(1000) + link.rtt_seconds() * 1.01;
    assert!((late(followed, within) / 2e-3 - 1.0).abs() < 0.01);
    let beside = Message { beside: 63_000, ..followed };
    let after = link.wire_seconds(63_000);
    assert!((late(beside, within + after) / 2e-3 - 1.0).abs() < 0.01, "{}", late(beside, within + after));
    // A block of 128 is filled by 127 long ones, and its parity is as long as these.
    let p999 = time(Candidate::mds(128, 8), followed).percentile_seconds(99.9);
    let block = link.rtt_seconds() + 128.0 * link.wire_seconds(8900);
    assert!((block..block * 1.05).contains(&p999), "{p999} instead of {block}");
}

/// Where others follow, a loss at the end is noticed as any other, and a block filled with others'
/// packets is worth as much as one of one's own.
#[test]
fn what_follows_replaces_timeouts_and_fills_blocks() {
    let link = link(1_000_000_000, 25, 1e-2, 1.0);
    let p999 = |candidate, behind| {
        let message = Message { behind, ..Message::new(11_200) };
        completion(&link, &Timers::default(), candidate, message).percentile_seconds(99.9)
    };
    let rtt = link.rtt_seconds();
    assert!(p999(Candidate::Sr, 0) > 3.0 * rtt);
    assert!(p999(Candidate::Sr, 1_000_000) < 2.3 * rtt);
    let block = link.wire_seconds(64 * 1400) * (68.0 / 64.0);
    assert!(p999(Candidate::mds(64, 4), 1_000_000) < rtt + block + 1e-5);
    // So many others suffer the losses in its stead.
    let among = Message { beside: 63 << 20, behind: 1 << 24, ..Message::new(1 << 20) };
    let alone = Message { beside: 0, ..among };
    let wait = |message: Message| {
        let time = completion(&link, &Timers::default(), Candidate::Sr, message);
        time.percentile_seconds(50.0) - link.wire_seconds(message.size + message.beside) - rtt
    };
    assert!(wait(alone) > 0.6 * rtt, "{}", wait(alone));
    assert!(wait(among) < 0.012 * link.wire_seconds(64 << 20) + 1e-3, "but for the repairs: {}", wait(among));
}

/// But for `hybrid`: it adds parity as losses grow, and where it does it becomes a little faster.
#[test]
fn more_loss_is_never_faster() {
    let percents = [50.0, 99.0, 99.9999];
    for candidate in CANDIDATES.into_iter().filter(|candidate| !matches!(candidate, Candidate::Hybrid(_))) {
        for (burst, size) in [(1.0, 1), (1.0, 100_000), (1.0, 1 << 30), (8.0, 100_000), (8.0, 1 << 30)] {
            let mut before = [0.0; 4];
            for step in 0..=340 {
                let drop = 10.0_f64.powf(f64::from(step) / 40.0 - 9.0).min(0.3);
                let time = complete(&link(10_000_000_000, 25, drop, burst), candidate, size);
                let [a, b, c] = percents.map(|percent| time.percentile_seconds(percent));
                let now = [time.mean_seconds(), a, b, c];
                for (now, before) in now.iter().zip(before) {
                    assert!(
                        *now >= before * (1.0 - 1e-6),
                        "{candidate} {size} {burst} {drop}: {now} {before}"
                    );
                }
                before = now;
            }
        }
    }
}

#[test]
fn a_backlog_goes_first() {
    let link = link(1_000_000_000, 20, 0.01, 1.0);
    for candidate in CANDIDATES {
        let alone = complete(&link, candidate, 100_000).mean_seconds();
        let message = Message { backlog: 12_500_000, ..Message::new(100_000) };
        let behind = completion(&link, &Timers::default(), candidate, message).mean_seconds();
        let least = alone + link.wire_seconds(12_500_000);
        let most = alone + link.wire_seconds(12_500_000) * (1.0 + candidate.parity()) * 1.1;
        assert!(behind >= least && behind <= most, "{candidate}: {behind} in {least} to {most}");
    }
}

#[test]
fn parity_pays_for_small_messages_and_hybrid_for_all() {
    let link = link(10_000_000_000, 25, 1e-3, 1.0);
    let p999 = |candidate, size| complete(&link, candidate, size).percentile_seconds(99.9);
    assert!(p999(Candidate::mds(32, 8), 1 << 20) * 1.8 < p999(Candidate::Sr, 1 << 20));
    assert!(p999(Candidate::mds(32, 8), 8 << 30) > 1.2 * p999(Candidate::Sr, 8 << 30));
    assert!(complete(&link, Candidate::hybrid(32, 8), 8 << 30).overhead() < 0.01);
    assert!(complete(&link, Candidate::mds(32, 8), 8 << 30).overhead() > 0.25);
}

prop_compose! {
    fn any_link()(
        rate in 3.0..12.0_f64, rtt in -6.0..0.5_f64, drop in -9.0..-0.523_f64, burst in 0.0..3.0_f64, packet in 1_usize..=9000, overhead in 0_usize..200,
    ) -> Link {
        Link {
            rate: 10.0_f64.powf(rate) as u64,
            rtt: Duration::from_secs_f64(10.0_f64.powf(rtt)),
            drop: 10.0_f64.powf(drop),
            burst: 10.0_f64.powf(burst),
            packet,
            overhead,
        }
    }
}

prop_compose! {
    fn any_candidate()(kind in 0..4, k: u8, m: u8, depth: u8) -> Candidate {
        let block = Block { k, m, depth };
        match kind {
            0 => Candidate::Sr,
            1 => Candidate::Xor(block),
            2 => Candidate::Mds(block),
            _ => Candidate::Hybrid(block),
        }
    }
}

proptest! {
    #[test]
    fn times_are_finite_and_percentiles_ascend(
        link in any_link(), candidate in any_candidate(), log_size in 0.0..36.0_f64, backlog in 0_u64..1 << 36,
        beside in 0_u64..1 << 36, behind in 0_u64..1 << 24,
    ) {
        let message = Message { size: log_size.exp2() as u64, backlog, beside, behind };
        let time = completion(&link, &Timers::default(), candidate, message);
        let least = time.floor;
        prop_assert!(least.is_finite() && least >= link.rtt_seconds());
        let mut before = least;
        for percent in [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999] {
            let at = time.percentile_seconds(percent);
            prop_assert!(at.is_finite() && at >= before, "{percent}: {at} after {before}");
            let probability = time.probability_seconds(at * (1.0 + 1e-12));
            prop_assert!(probability >= percent / 100.0 - 1e-9, "{percent}: {probability}");
            before = at;
        }
        let mean = time.mean_seconds();
        prop_assert!(mean.is_finite() && mean >= least * (1.0 - 1e-12));
        prop_assert!(mean <= time.percentile_seconds(99.999_999_9) * (1.0 + 1e-6) + 1e-3, "{mean}");
        prop_assert!(time.overhead().is_finite() && time.overhead() >= 0.0);
    }
}

/// One packet in a block that waits for more: a burst is over when its parity goes out. With the
/// parity behind it, three packets in a row are lost in 2.8 % of cases.
#[test]
fn a_burst_ends_while_a_short_block_waits() {
    let link = link(100_000_000_000, 25, 0.05, 4.0);
    let p99 = |flush| {
        let timers = Timers { flush, ..Timers::default() };
        completion(&link, &timers, Candidate::mds(4, 2), Message::new(1000)).percentile_seconds(99.0)
    };
    assert!(p99(Duration::ZERO) > 2.0 * link.rtt_seconds());
    let waited = p99(Duration::from_micros(200)) - link.rtt_seconds();
    assert!((200e-6..201e-6).contains(&waited), "{waited}");
}
