use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::model::Message;

const SECOND: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
fn origin() -> Instant {
    Instant::now()
}

/// Returns a load where all that waits waits in the same stream.
fn crowd(waiting: f64, under_way: f64) -> Load {
    Load { waiting, same: waiting, under_way, between: 0.0 }
}

fn link(drop: f64) -> Link {
    Link::new(100_000_000_000, Duration::from_millis(25), drop, 4096)
}

fn around(drop: f64) -> Estimate {
    Estimate { link: link(drop), drop_low: drop / 2.0, drop_high: drop * 2.0 }
}

fn objective(allowed: Allowed) -> Objective {
    Objective { percentile: 99.9, max_overhead: 0.5, max_block: u8::MAX, allowed }
}

const IDLE: Load = Load { waiting: 0.0, same: 0.0, under_way: 0.0, between: 0.0 };

const NONE: Allowed = Allowed { sr: false, xor: false, mds: false, hybrid: false };
const SR_OR_MDS: Allowed = Allowed { sr: true, mds: true, ..NONE };

fn choice(allowed: Allowed, size: u64, estimate: &Estimate) -> Candidate {
    let mut selector = Selector::new(objective(allowed), Config::default());
    selector.evaluate(Bucket::of(size), &IDLE, estimate, origin()).chosen.candidate
}

#[test]
fn buckets_are_powers_of_four() {
    let buckets = [0, 1, 1024, 1025, 4096, 4097, 16 << 10, 64 << 30, u64::MAX].map(|size| Bucket::of(size).0);
    assert_eq!(buckets, [0, 0, 0, 1, 1, 2, 2, 13, 13]);
    for bucket in Bucket::all() {
        assert_eq!(Bucket::of(bucket.size()), bucket);
        assert!(bucket.0 == 13 || Bucket::of(bucket.size() + 1).0 == bucket.0 + 1);
    }
    let text: Vec<String> = Bucket::all().map(|bucket| bucket.to_string()).collect();
    assert_eq!(text[0], "messages up to 1 KiB");
    assert_eq!(text[3], "messages of 16 KiB to 64 KiB");
    assert_eq!(text[13], "messages above 16 GiB");
}

#[test]
fn small_messages_get_parity_and_large_ones_repeat() {
    assert_eq!(choice(Allowed::ALL, 1 << 20, &around(1e-9)), Candidate::Sr);
    assert_eq!(choice(SR_OR_MDS, 64 << 30, &around(1e-4)), Candidate::Sr);
    assert!(matches!(choice(SR_OR_MDS, 1 << 20, &around(1e-3)), Candidate::Mds(_)));
    // Parity for the end of a large message costs little.
    assert!(matches!(choice(Allowed::ALL, 16 << 30, &around(1e-3)), Candidate::Hybrid(_)));
}

#[test]
fn uncertainty_calls_for_more_parity() {
    let parity = |low, high| {
        let estimate = Estimate { link: link(1e-3), drop_low: low, drop_high: high };
        choice(Allowed { mds: true, ..NONE }, 16 << 20, &estimate).parity()
    };
    assert!(parity(1e-5, 5e-2) > parity(1e-3, 1e-3), "{} {}", parity(1e-5, 5e-2), parity(1e-3, 1e-3));
}

/// However well the loss rate is known: no choice stands at the edge of a step if there is another
/// one that does not and is hardly slower.
#[test]
fn nothing_is_chosen_that_a_little_more_loss_makes_much_slower() {
    let objective = Objective { percentile: 99.0, ..objective(Allowed::ALL) };
    let steady = [Candidate::mds(32, 8), Candidate::mds(8, 4), Candidate::hybrid(32, 8)];
    for (burst, size) in [(1.0, 64 << 10), (1.0, 1 << 20), (4.0, 64 << 10), (4.0, 1 << 20)] {
        for step in 0..40 {
            let drop = 1e-3 * 1.1_f64.powi(step);
            let link = Link { burst, ..link(drop) };
            let p99 = |candidate, drop| {
                let time =
                    completion(&link.with_drop(drop), &Timers::default(), candidate, Message::new(size));
                time.percentile_seconds(99.0)
            };
            let mut selector = Selector::new(objective, Config::default());
            let estimate = Estimate::exact(link);
            let chosen = selector.evaluate(Bucket::of(size), &IDLE, &estimate, origin()).chosen.candidate;
            let (now, then) = (p99(chosen, drop), p99(chosen, 1.2 * drop));
            if steady.iter().any(|other| p99(*other, 1.25 * drop) < 1.02 * now) {
                assert!(
                    then < 1.2 * now,
                    "{chosen}, {size} bytes at {drop} in runs of {burst}: {now} {then}"
                );
            }
        }
    }
}

#[test]
fn bursts_are_interleaved() {
    let bursty = Estimate { link: Link { burst: 20.0, ..link(1e-3) }, ..around(1e-3) };
    let depth = |estimate| choice(Allowed { mds: true, ..NONE }, 64 << 20, &estimate).block().unwrap().depth;
    assert_eq!(depth(around(1e-3)), 1);
    assert!(depth(bursty) > 1);
}

#[test]
fn the_overhead_is_kept() {
    for max_overhead in [0.0, 0.07, 0.125, 1.0] {
        let objective = Objective { max_overhead, ..objective(Allowed::ALL) };
        for bucket in Bucket::all() {
            for drop in [1e-5, 1e-3, 0.1] {
                let mut selector = Selector::new(objective, Config::default());
                let decision = selector.evaluate(bucket, &IDLE, &around(drop), origin());
                let named = std::iter::once(&decision.chosen).chain(&decision.runners_up);
                assert!(named.clone().all(|one| one.candidate.parity() <= max_overhead), "{decision}");
                assert!(named.count() <= 4);
            }
        }
    }
}

#[test]
fn a_changed_link_is_answered_at_the_third_evaluation() {
    let start = origin();
    let mut selector = Selector::new(objective(SR_OR_MDS), Config::default());
    let bucket = Bucket::of(1 << 20);
    let mut at = start;
    let mut step = |drop: f64| {
        at += SECOND;
        let decision = selector.evaluate(bucket, &IDLE, &around(drop), at);
        (decision.chosen.candidate.name(), decision.reason)
    };
    for _ in 0..10 {
        assert_eq!(step(1e-8), ("sr", Reason::First));
    }
    let names = [1e-2; 4].map(|drop| step(drop).0);
    assert_eq!(names, ["sr", "sr", "mds", "mds"]);
    assert!(matches!(step(1e-2).1, Reason::Faster { was: Candidate::Sr, gain } if gain > 0.5));
    // Two bad evaluations are not enough, and the count starts anew.
    for drop in [1e-8, 1e-8, 1e-2, 1e-8, 1e-8, 1e-2] {
        assert_eq!(step(drop).0, "mds");
    }
    // Parity that serves nothing is given up more slowly.
    let names: Vec<&str> = (0..14).map(|_| step(1e-8).0).collect();
    assert!(names[..11].iter().all(|name| *name == "mds"), "{names:?}");
    assert_eq!(names[12], "sr", "{names:?}");
}

#[test]
fn changes_keep_their_distance_in_time() {
    let seed = 0x5e1ec7;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let config = Config { persist: 1, gain: 0.0, dwell: 10 * SECOND, ..Config::default() };
    let mut selector = Selector::new(objective(Allowed::ALL), config);
    let (start, bucket) = (origin(), Bucket::of(1 << 20));
    let mut changes = Vec::new();
    for step in 0..2000 {
        let now = start + SECOND / 2 * step;
        let drop = 10.0_f64.powf(rng.random_range(-8.0..-1.0));
        let at = selector.evaluate(bucket, &IDLE, &around(drop), now).at;
        if changes.last() != Some(&at) {
            assert_eq!(at, now);
            changes.push(at);
        }
    }
    assert!(changes.len() > 20, "seed {seed:#x}: {}", changes.len());
    // The first choice alone may be corrected sooner.
    assert!(changes[1] - changes[0] >= 2 * SECOND, "seed {seed:#x}");
    for pair in changes[1..].windows(2) {
        assert!(pair[1] - pair[0] >= 10 * SECOND, "seed {seed:#x}");
    }
}

/// The loss rate at which a selector that has decided nothing changes from one kind to the other.
fn break_even(size: u64) -> f64 {
    let (mut low, mut high) = (1e-9_f64, 1e-2_f64);
    while high / low > 1.001 {
        let middle = (low * high).sqrt();
        let bound =
            if choice(SR_OR_MDS, size, &around(middle)) == Candidate::Sr { &mut low } else { &mut high };
        *bound = middle;
    }
    low
}

/// The choices, one after the other, in 300 evaluations around the loss rate at which two schemes
/// are equally good. The estimates are a third off, most of the time, and know that they may be off
/// by a factor of two.
fn choices(config: Config, size: u64, seed: u64) -> Vec<Candidate> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let bucket = Bucket::of(size);
    let even = break_even(size);
    let mut selector = Selector::new(objective(SR_OR_MDS), config);
    let start = origin();
    let mut choices = Vec::new();
    for step in 0..300 {
        let noise: f64 = (0..12).map(|_| rng.random_range(-0.5..0.5)).sum();
        let estimate = around(even * (0.3 * noise).exp());
        choices.push(selector.evaluate(bucket, &IDLE, &estimate, start + SECOND * step).chosen.candidate);
    }
    choices.dedup();
    choices
}

/// 64 messages of 64 KiB over 1 Gbit/s, 1 % of their packets lost: parity spares a message round
/// trips, but the others have to wait for it.
#[test]
fn parity_that_others_wait_for_is_priced() {
    let link = Link::new(1_000_000_000, Duration::from_millis(25), 1e-2, 9000);
    let bucket = Bucket::of(64 << 10);
    let chosen = |load: Load| {
        let mut selector = Selector::new(objective(Allowed::ALL), Config::default());
        selector.evaluate(bucket, &load, &Estimate::exact(link), origin()).clone()
    };
    let alone = chosen(IDLE);
    let outstanding = 4e6;
    let amid = chosen(crowd(outstanding - 3e6, 3e6));
    assert!(amid.chosen.overhead < alone.chosen.overhead / 2.0, "{alone}\n{amid}");
    assert!(amid.chosen.times()[1] > alone.chosen.times()[1], "{alone}\n{amid}");
    let crowded = chosen(crowd(400e6, 3e6));
    assert!(crowded.chosen.overhead < 0.02, "{crowded}");
    assert!(
        crowded.to_string().contains("\n  load      381 MiB wait and 2.86 MiB are under way"),
        "{crowded}"
    );
}

/// 64 messages of 1 MiB that take turns: of a message's losses only those in its last round trip
/// delay it, so parity is worth less than it costs. Messages that leave one after the other have
/// them all there.
#[test]
fn among_others_that_take_turns_parity_is_worth_less() {
    let link = Link::new(1_000_000_000, Duration::from_millis(25), 1e-2, 9000);
    let chosen = |turns: f64| {
        let mut selector = Selector::new(objective(Allowed::ALL), Config::default());
        let load = Load { between: turns, ..crowd(60e6, 3e6) };
        selector.evaluate(Bucket::of(1 << 20), &load, &Estimate::exact(link), origin()).clone()
    };
    let (rows, turns) = (chosen(0.0), chosen(63.0));
    assert!(turns.chosen.overhead < 0.02 && rows.chosen.overhead > turns.chosen.overhead, "{rows}\n{turns}");
    let total = link.wire_seconds(64 << 20);
    for decision in [&rows, &turns] {
        let seconds = decision.chosen.times()[1].as_secs_f64();
        assert!((total..total * 1.12).contains(&seconds), "{decision}");
    }
    assert!(turns.to_string().contains("63.0 B of others' leave between for each B of its own"), "{turns}");
}

/// Losses end: going without parity then saves less than a tenth of the time, but packets as well.
#[test]
fn what_saves_time_and_packets_need_not_save_a_tenth_of_either() {
    let link = Link::new(200_000_000, Duration::from_millis(25), 0.0, 9000);
    let load = crowd(2.8e6, 0.6e6);
    let mut selector = Selector::new(objective(Allowed { mds: true, sr: true, ..NONE }), Config::default());
    let start = origin();
    let mut look = |drop, seconds: f64| {
        let estimate = Estimate { link: link.with_drop(drop), drop_low: drop / 2.0, drop_high: 2.0 * drop };
        let now = start + Duration::from_secs_f64(seconds);
        selector.evaluate(Bucket::of(64 << 10), &load, &estimate, now).clone()
    };
    let first = look(2e-3, 0.0);
    assert!(matches!(first.chosen.candidate, Candidate::Mds(_)), "{first}");
    let seen: Vec<_> = (1..=4).map(|step| look(1e-6, f64::from(step) * 0.5)).collect();
    let last = seen.last().unwrap();
    let Reason::Faster { gain, .. } = last.reason else { panic!("{last}") };
    assert!(gain < 0.1 / 1.1 && last.chosen.candidate == Candidate::Sr, "{last}");
}

/// It sends the parity that the highest loss rate calls for, whatever is lost.
#[test]
fn hybrid_is_priced_with_the_parity_that_it_sends() {
    let link = Link::new(1_000_000_000, Duration::from_millis(25), 0.0, 9000);
    let estimate = Estimate { link, drop_low: 0.0, drop_high: 1e-3 };
    let mut selector = Selector::new(objective(Allowed { hybrid: true, ..NONE }), Config::default());
    let decision = selector.evaluate(Bucket::of(64 << 10), &IDLE, &estimate, origin());
    assert!(decision.chosen.overhead > 0.1, "{decision}");
}

/// A choice made while it was in force is made again, though another scheme has changed what waits
/// and what is under way.
#[test]
fn the_load_that_a_choice_brings_about_does_not_call_for_another() {
    let link = Link::new(1_000_000_000, Duration::from_millis(25), 1e-2, 9000);
    let (bucket, estimate) = (Bucket::of(64 << 10), Estimate::exact(link));
    let mut selector = Selector::new(objective(Allowed::ALL), Config { persist: 1, ..Config::default() });
    let start = origin();
    let mut overhead = 0.0;
    let chosen: Vec<Candidate> = (0..20)
        .map(|step| {
            let under_way = 125e6 * 0.025 / (1.0 + overhead);
            let load = crowd(6e6 - under_way, under_way);
            let decision = selector.evaluate(bucket, &load, &estimate, start + 10 * SECOND * step);
            overhead = decision.chosen.overhead;
            decision.chosen.candidate
        })
        .collect();
    assert!(chosen.windows(2).skip(1).all(|pair| pair[0] == pair[1]), "{chosen:?}");
}

#[test]
fn nearly_equal_schemes_are_not_swapped_to_and_fro() {
    let patient = Config { dwell: SECOND, ..Config::default() };
    let restless = Config { gain: 0.0, persist: 1, dwell: Duration::ZERO, ..patient };
    for size in [16 << 10, 1 << 20, 256 << 20] {
        for seed in 0..4 {
            let seen = choices(patient, size, seed);
            assert!(seen.len() <= 2, "seed {seed}, {size} bytes: {seen:?}");
            let without = choices(restless, size, seed).len();
            assert!(without > 5, "seed {seed}, {size} bytes: the noise is to matter, {without} choices");
        }
    }
}

#[test]
fn selective_repeat_where_nothing_allowed_fits_stays_until_something_does() {
    let start = origin();
    let little = Objective { max_overhead: 0.0625, ..objective(Allowed { mds: true, ..NONE }) };
    let mut selector = Selector::new(little, Config::default());
    let bucket = Bucket::of(1);
    let mut look = |load: &Load, seconds| {
        selector.evaluate(bucket, load, &around(1e-2), start + seconds * SECOND).clone()
    };
    let first = look(&IDLE, 0);
    assert_eq!((first.chosen.candidate, &first.reason), (Candidate::Sr, &Reason::First));
    for seconds in 1..20 {
        assert_eq!(look(&IDLE, seconds), first, "nothing has changed");
    }
    let busy = crowd(1e6, 0.0);
    let then = look(&busy, 20);
    assert!(matches!(then.chosen.candidate, Candidate::Mds(_)), "{then}");
    assert_eq!(then.reason, Reason::Forbidden { was: Candidate::Sr });
    assert_eq!(look(&IDLE, 21), then, "what is allowed may stay");
    assert_eq!(selector.decision(Bucket::of(1 << 20)), None);
}

#[test]
fn a_decision_says_why() {
    let mut selector = Selector::new(objective(SR_OR_MDS), Config::default());
    let text = selector.evaluate(Bucket::of(1 << 20), &IDLE, &around(1e-3), origin()).to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with("messages of 256 KiB to 1 MiB: mds("), "{text}");
    assert!(lines[1].starts_with("  expected  99.9 % within 25."), "{text}");
    assert!(lines[2].starts_with("  else      sr "), "{text}");
    assert_eq!(
        lines[3],
        "  link      100 Gbit/s, RTT 25.0 ms, loss 0.10 % (0.050 % to 0.20 %) in runs of 1.0, packets of 4096 B"
    );
    assert_eq!(lines[4], "  because   it is the first choice");
}
