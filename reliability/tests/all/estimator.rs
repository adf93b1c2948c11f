//! The estimate of a path against what the path is, over many seeds, in virtual time.
//!
//! `LONGHAUL_ESTIMATOR_SEEDS=1000..1400 cargo test -p reliability --release --test all estimator`
//! plays others.

use std::ops::Range;
use std::time::Duration;

use crate::path::{Loss, MS, Path};
use crate::world::origin;
use reliability::estimator::{
    Activity, Arrival, Ecn, EstimateConfig, LaneId, ObserverConfig, PATH_PACKET, PathEstimate, PathObserver,
    PathReport, Summary,
};
use reliability::stream::Malformed;

const RTT: Duration = Duration::from_millis(20);

fn seeds(count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("LONGHAUL_ESTIMATOR_SEEDS") else { return 0..count };
    let bounds = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("LONGHAUL_ESTIMATOR_SEEDS is `from..to`, not {text}"))
}

/// Returns the estimate after so many packets, and a round trip or two for the last ones' report.
fn summary(seed: u64, loss: Loss, per_second: u32, packets: u64) -> Summary {
    let mut path = Path::new(seed, RTT, per_second, loss);
    path.run(packets);
    path.rest(10 * RTT);
    path.estimate.summary(path.now)
}

fn holds(range: &reliability::estimator::Range, truth: f64) -> bool {
    range.low <= truth && truth <= range.high * (1.0 + 1e-9)
}

/// Percentages of seeds.
#[derive(Debug)]
struct Score {
    drop_inside: f64,
    drop_near: f64,
    long_run_inside: f64,
    burst_inside: f64,
    burst_near: f64,
}

fn score(loss: Loss, per_second: u32, packets: u64, seeds: Range<u64>) -> Score {
    let mut counts = [0_u64; 5];
    let near = |likely: f64, truth: f64| (likely / truth - 1.0).abs() <= 0.25;
    for seed in seeds.clone() {
        let summary = summary(seed, loss, per_second, packets);
        let (drop, burst) = (loss.share(), loss.burst());
        let found = [
            holds(&summary.drop, drop),
            near(summary.drop.likely, drop),
            holds(&summary.drop_long_run, drop),
            summary.burst.is_none_or(|range| holds(&range, burst)),
            summary.burst.is_some_and(|range| near(range.likely, burst)),
        ];
        for (count, found) in counts.iter_mut().zip(found) {
            *count += u64::from(found);
        }
    }
    let [drop_inside, drop_near, long_run_inside, burst_inside, burst_near] =
        counts.map(|count| 100.0 * count as f64 / (seeds.end - seeds.start) as f64);
    let score = Score { drop_inside, drop_near, long_run_inside, burst_inside, burst_near };
    println!("{loss:?}, {packets} packets: {score:.1?}");
    score
}

/// After 200 losses, or 300 bursts: drop rate and mean burst within 25 % of the truth; and the
/// truth within bounds for 93 of 100 seeds.
#[test]
fn losses_and_bursts_are_known_after_some_hundreds_of_them() {
    let alone = [
        (1e-5, 1_000_000, 10),
        (1e-4, 100_000, 50),
        (1e-3, 10_000, 200),
        (1e-2, 10_000, 300),
        (0.1, 10_000, 300),
    ]
    .map(|(p, per_second, count)| (Loss::Independent(p), per_second, 200.0 / p, count));
    let bursts = [(1e-3, 3.0, 60), (1e-2, 8.0, 200), (1e-2, 30.0, 80), (0.1, 8.0, 300)]
        .map(|(p, length, count)| (Loss::bursts(p, length), 10_000, 300.0 * length / p, count));
    let (mut inside, mut total) = ([0.0; 3], 0.0);
    for (loss, per_second, packets, count) in alone.into_iter().chain(bursts) {
        let score = score(loss, per_second, packets as u64, seeds(count));
        assert!(score.drop_near >= 98.0 && score.burst_near >= 98.0, "{loss:?}: {score:?}");
        let found = [score.drop_inside, score.long_run_inside, score.burst_inside];
        assert!(found.iter().all(|share| *share >= 88.0), "{loss:?}: {score:?}");
        total += count as f64;
        inside.iter_mut().zip(found).for_each(|(inside, share)| *inside += share * count as f64);
    }
    let [drop, long_run, burst] = inside.map(|inside| inside / total);
    println!("the truth lies within bounds: drop {drop:.1} %, long run {long_run:.1} %, burst {burst:.1} %");
    assert!(drop >= 93.0 && long_run >= 93.0 && burst >= 93.0);
}

/// From no loss at all to a few: bounds hold where there is hardly anything to go by.
#[test]
fn bounds_hold_with_few_samples_and_many_zeros() {
    for expected in [0.3, 1.0, 3.0, 10.0] {
        for p in [1e-4, 1e-2] {
            let score = score(Loss::Independent(p), 10_000, (expected / p) as u64, seeds(400));
            assert!(score.drop_inside >= 95.0 && score.burst_inside >= 93.0, "{p}, {expected}: {score:?}");
        }
        // Bursts one has never seen are hard to know of.
        let score = score(Loss::bursts(1e-2, 5.0), 10_000, (expected * 5.0 / 1e-2) as u64, seeds(400));
        assert!(score.drop_inside >= 85.0, "{expected}: {score:?}");
    }
}

#[test]
fn a_million_packets_without_loss_bound_it_at_one_in_ninety_thousand() {
    let summary = summary(1, Loss::Independent(0.0), 100_000, 1_000_000);
    assert_eq!((summary.drop.low, summary.drop.likely, summary.burst), (0.0, 0.0, None));
    assert!((1.0e-5..1.2e-5).contains(&summary.drop.high), "{summary:?}");
    assert_eq!(summary.changes, 0);
}

/// Losses that come in clusters of runs, which no Gilbert chain describes: the scatter between
/// reports widens the bounds.
#[test]
fn clusters_of_losses_widen_the_bounds() {
    // Half of 20 packets; a third of 330 packets, 33 ms.
    for (loss, least) in [
        (Loss::Bursts { enter: 1e-3, leave: 0.05, loss: 0.5 }, 93.0),
        (Loss::Bursts { enter: 1e-4, leave: 3e-3, loss: 0.3 }, 88.0),
    ] {
        let score = score(loss, 10_000, 1_000_000, seeds(30));
        assert!(score.long_run_inside >= least, "{loss:?}: {score:?}");
    }
}

/// A steady path is not found to have changed: at most once in an hour of reports (180 000).
#[test]
fn false_alarms_are_rare() {
    let mut changes = 0;
    for (seed, loss) in seeds(8).zip(
        [
            Loss::Independent(1e-4),
            Loss::Independent(1e-2),
            Loss::Independent(0.1),
            Loss::bursts(1e-2, 8.0),
            Loss::bursts(1e-3, 3.0),
        ]
        .into_iter()
        .cycle(),
    ) {
        // Ten minutes of a report each 20 ms.
        changes += summary(seed, loss, 10_000, 6_000_000).changes;
    }
    assert!(changes <= 1, "{changes} changes in 80 minutes");
}

/// How long a change takes to be known: 5 runs of losses and 60 ms for a rate a hundred times
/// higher, and so on as `PathEstimate` says.
#[test]
fn changes_are_found_as_soon_as_stated() {
    for (before, after, median, most) in [
        (1e-4, 1e-2, 5.0, 12.0),
        (1e-4, 1e-3, 16.0, 32.0),
        (1e-3, 2e-3, 130.0, 280.0),
        (1e-2, 1e-4, 19.0, 22.0),
        (2e-3, 1e-3, 180.0, 400.0),
        (0.0, 1e-2, 4.0, 7.0),
        (1e-2, 0.0, 19.0, 22.0),
    ] {
        for per_second in [1000, 10_000] {
            let mut runs: Vec<f64> = seeds(21)
                .map(|seed| {
                    let mut path = Path::new(seed, RTT, per_second, Loss::Independent(before));
                    path.run(200_000);
                    let changes = path.estimate.summary(path.now).changes;
                    path.set_loss(Loss::Independent(after));
                    let begin = path.now;
                    while path.estimate.summary(path.now).changes == changes {
                        path.run(u64::from(per_second) / 1000);
                    }
                    // At the higher rate, and less the way of the packets and of the reports.
                    let time = (path.now - begin).saturating_sub(3 * RTT);
                    time.as_secs_f64() * f64::from(per_second) * f64::max(before, after)
                })
                .collect();
            runs.sort_by(f64::total_cmp);
            let found = (runs[runs.len() / 2], runs[runs.len() - 1]);
            println!("{before} -> {after} at {per_second}/s: {found:.1?} runs of losses");
            assert!(
                found.0 <= median && found.1 <= most,
                "{before} -> {after} at {per_second}/s: {found:.1?}"
            );
        }
    }
}

/// Losses of one burst of this mean length (geometric) that are exceeded with this chance.
fn burst_exceeded(mean: f64, chance: f64) -> f64 {
    chance.ln() / (1.0 - 1.0 / mean).ln()
}

/// 0.01 %, then 2 %, then as much in bursts of 8, then 0.01 %: a second after each change (20 000
/// packets) the estimate is about the new one, and once 150 losses have been seen (200 bursts) it
/// is near the truth. Nothing in the losses tells whether the last burst was the old link's or the
/// new one's first, so all of it may be counted to the new one: a second later its length decides
/// what is left of the old rate.
#[test]
fn a_changing_link_is_tracked() {
    const PER_SECOND: u32 = 20_000;
    const BURST: f64 = 8.0;
    // Of the new link's own losses, 2 expected, more than 8 come with a chance of 2e-4.
    let left = |chance| (burst_exceeded(BURST, chance) + 8.0) / f64::from(PER_SECOND);
    let mut inside = (0.0, 0.0);
    let (mut forgotten, mut total) = (0.0, 0.0);
    for seed in seeds(20) {
        let mut path = Path::new(seed, RTT, PER_SECOND, Loss::Independent(1e-4));
        let mut stage = |loss: Loss, early: u64, late: u64| {
            path.set_loss(loss);
            path.run(early * u64::from(PER_SECOND));
            let first = path.estimate.summary(path.now);
            path.run((late - early) * u64::from(PER_SECOND));
            let last = path.estimate.summary(path.now);
            for summary in [&first, &last] {
                inside.0 += f64::from(u8::from(holds(&summary.drop, loss.share())));
                inside.1 += 1.0;
            }
            let near = last.drop.likely / loss.share();
            assert!((0.7..=1.3).contains(&near), "seed {seed}, {loss:?}: {last:?}");
            first
        };
        stage(Loss::Independent(1e-4), 1, 75);
        let first = stage(Loss::Independent(0.02), 1, 2);
        assert!((0.015..0.025).contains(&first.drop.likely), "seed {seed}: {first:?}");
        let first = stage(Loss::bursts(0.02, BURST), 1, 4);
        assert!(first.burst.is_some_and(|burst| burst.likely > 4.0), "seed {seed}: {first:?}");
        let first = stage(Loss::Independent(1e-4), 1, 75);
        assert!(first.drop.likely < left(1e-4), "seed {seed}: {first:?}");
        forgotten += f64::from(u8::from(first.drop.likely < left(0.1)));
        total += 1.0;
    }
    println!("the truth lies within bounds in {:.1} % of {} cases", 100.0 * inside.0 / inside.1, inside.1);
    assert!(inside.0 >= 0.9 * inside.1);
    assert!(forgotten >= 0.9 * total, "{forgotten} of {total}");
}

/// The share lost over everything is still known when the path has changed since.
#[test]
fn the_long_run_remembers_what_came_and_went() {
    let mut path = Path::new(3, RTT, 10_000, Loss::Independent(1e-3));
    for _ in 0..10 {
        path.set_loss(Loss::Independent(1e-3));
        path.run(90_000);
        path.set_loss(Loss::Independent(0.05));
        path.run(10_000);
    }
    path.set_loss(Loss::Independent(1e-3));
    path.run(90_000);
    let summary = path.estimate.summary(path.now);
    let truth = (990_000.0 * 1e-3 + 100_000.0 * 0.05) / 1_090_000.0;
    assert!(summary.changes >= 10, "{summary:?}");
    assert!((summary.drop_long_run.likely / truth - 1.0).abs() < 0.1, "{summary:?}");
    assert!(holds(&summary.drop_long_run, truth) && holds(&summary.drop, 1e-3), "{summary:?}");
}

#[test]
fn what_never_left_is_no_loss() {
    let mut path = Path::new(5, RTT, 10_000, Loss::Independent(0.01));
    for _ in 0..200 {
        path.run(997);
        // The socket drops a batch of 13.
        let first = path.estimate.numbers();
        (0..13).for_each(|_| path.estimate.sent(1400));
        path.estimate.unsent(first..first + 13);
    }
    path.rest(10 * RTT);
    let summary = path.estimate.summary(path.now);
    assert!((0.008..0.012).contains(&summary.drop.likely), "{summary:?}");
    assert!(summary.burst.unwrap().likely < 1.1, "{summary:?}");
    assert_eq!((summary.unsent, summary.changes), (200 * 13, 0));
    let lost = path.lost as f64;
    assert!((summary.packets - 200.0 * 997.0).abs() < 3.0, "{summary:?}");
    assert!((summary.drop.likely * summary.packets - lost).abs() < 3.0, "{lost} lost, {summary:?}");
}

/// The peer's socket overflows now and then, for 30 packets, and once for `others` that were not
/// this path's.
fn overflowing(others: u64) -> Summary {
    let mut path = Path::new(15, RTT, 10_000, Loss::Independent(0.01));
    for round in 0..200 {
        path.run(997);
        path.set_loss(Loss::Independent(1.0));
        path.run(30);
        path.set_loss(Loss::Independent(0.01));
        path.observer.observe_overrun(if round == 0 { 30 + others } else { 30 });
    }
    path.rest(10 * RTT);
    path.estimate.summary(path.now)
}

#[test]
fn what_the_peers_machine_dropped_is_no_loss() {
    let summary = overflowing(0);
    assert_eq!((summary.overrun, summary.changes), (6000, 0), "{summary:?}");
    assert!((0.008..0.012).contains(&summary.drop.likely), "{summary:?}");
    assert!(summary.burst.unwrap().likely < 1.3, "{summary:?}");
    assert!((summary.packets - 200.0 * 997.0).abs() < 100.0, "{summary:?}");
}

/// Losses are hidden for eight reports, and not after.
#[test]
fn what_it_dropped_of_others_hides_few_losses() {
    let summary = overflowing(1000);
    assert_eq!(summary.overrun, 7000);
    assert!((0.008..0.012).contains(&summary.drop.likely), "{summary:?}");
    assert!((0.008..0.012).contains(&summary.drop_long_run.likely), "{summary:?}");
}

/// Losses while a queue stands are congestive, and others are not.
#[test]
fn losses_with_an_inflated_round_trip_are_congestive() {
    let mut path = Path::new(6, RTT, 10_000, Loss::Independent(0.01));
    path.run(100_000);
    assert_eq!(path.estimate.summary(path.now).congestive, 0.0);
    path.set_loss(Loss::Independent(0.1));
    path.queue = 3 * MS;
    path.run(100_000);
    let summary = path.estimate.summary(path.now);
    assert!(summary.congestive > 0.95, "{summary:?}");
    assert_eq!(summary.rtt.minimum, RTT);
    assert!(summary.rtt.smoothed > RTT + 5 * MS, "{summary:?}");
}

#[test]
fn marks_of_congestion_are_counted_and_make_losses_congestive() {
    let mut path = Path::new(7, RTT, 10_000, Loss::Independent(0.01));
    path.ecn = Ecn::Ect;
    path.run(50_000);
    assert_eq!(path.estimate.summary(path.now).ce, 0.0);
    path.ecn = Ecn::Ce;
    path.run(50_000);
    path.rest(10 * RTT);
    let summary = path.estimate.summary(path.now);
    assert!((0.49..0.51).contains(&summary.ce), "{summary:?}");
    assert!((0.4..0.6).contains(&summary.congestive), "{summary:?}");
}

#[test]
fn large_packets_may_be_lost_more_often() {
    let mut path = Path::new(8, RTT, 10_000, Loss::Independent(0.0));
    for round in 0..40_000 {
        let (bytes, loss) = if round % 2 == 0 { (200, 0.001) } else { (8900, 0.02) };
        path.bytes = bytes;
        path.set_loss(Loss::Independent(loss));
        path.run(5);
    }
    path.rest(10 * RTT);
    let [small, ethernet, _, large] = path.estimate.summary(path.now).drop_by_size;
    assert!(holds(&small, 0.001) && (small.likely / 0.001 - 1.0).abs() < 0.4, "{small:?}");
    assert!(holds(&large, 0.02) && (large.likely / 0.02 - 1.0).abs() < 0.2, "{large:?}");
    assert_eq!((ethernet.likely, ethernet.high), (0.0, 1.0), "none were sent");
}

#[test]
fn delivered_bandwidth_and_its_peak() {
    let mut path = Path::new(9, RTT, 10_000, Loss::Independent(0.1));
    path.run(50_000);
    // 10000 packets of 1400 bytes, a tenth lost.
    let busy = path.estimate.summary(path.now);
    assert!((busy.delivered / 100.8e6 - 1.0).abs() < 0.05, "{busy:?}");
    path.spacing *= 10;
    path.run(5_000);
    let slow = path.estimate.summary(path.now);
    assert!((slow.delivered / 10.08e6 - 1.0).abs() < 0.1, "{slow:?}");
    assert!((slow.delivered_peak / 100.8e6 - 1.0).abs() < 0.1, "{slow:?}");
}

/// Reports are cumulative: lost, doubled and overtaken ones make no difference in the end.
#[test]
fn reports_may_be_lost_doubled_or_overtaken() {
    let now = origin();
    let mut observer = PathObserver::new(ObserverConfig::new(RTT), now);
    let [mut all, mut some] = [(); 2].map(|()| PathEstimate::new(EstimateConfig::new(RTT), now));
    let mut reports = Vec::new();
    let mut out = [0; PATH_PACKET];
    let mut now = now;
    for number in 0..100_000_u64 {
        now += MS / 10;
        all.sent(1000);
        some.sent(1000);
        if number % 97 > 1 {
            let arrival = Arrival { lane: LaneId(0), number, bytes: 1000, ecn: Ecn::NotEct };
            observer.observe(&arrival, Activity::Traffic, now);
        }
        if let Some(len) = observer.poll_report(now, &mut out) {
            let report = PathReport::parse(&out[..len]).unwrap();
            all.handle_report(&report, now).unwrap();
            reports.push(report);
            if reports.len() % 3 == 0 {
                // The newest first, then the three before, then the newest again.
                for report in reports.iter().rev().take(4).chain(reports.last()) {
                    some.handle_report(report, now).unwrap();
                }
            }
        }
    }
    let last = reports.last().unwrap();
    some.handle_report(last, now).unwrap();
    let [all, some] = [all.summary(now), some.summary(now)];
    assert_eq!((all.packets, all.drop.likely, all.burst), (some.packets, some.drop.likely, some.burst));
    assert!((all.drop.likely - 2.0 / 97.0).abs() < 1e-4, "{all:?}");
    assert_eq!(all.changes, 0, "regular losses are no change");
}

#[test]
fn impossible_reports_change_nothing() {
    let mut path = Path::new(11, RTT, 10_000, Loss::Independent(0.01));
    path.run(10_000);
    let report = path.observer.observed();
    let before = format!("{:?}", path.estimate);
    for bad in [
        PathReport { number: report.number + 1, lane: LaneId(1), ..report },
        PathReport { number: report.number + 1, horizon: path.estimate.numbers() + 1, ..report },
    ] {
        assert_eq!(path.estimate.handle_report(&bad, path.now), Err(Malformed::Path));
        assert_eq!(format!("{:?}", path.estimate), before);
    }
}

#[test]
fn the_age_says_how_stale_it_is() {
    let mut path = Path::new(10, RTT, 10_000, Loss::Independent(0.01));
    assert_eq!(path.estimate.summary(path.now).age, None);
    path.run(10_000);
    assert!(path.estimate.summary(path.now).age.unwrap() <= RTT + MS);
    path.rest(Duration::from_secs(5));
    let age = path.estimate.summary(path.now).age.unwrap();
    assert!((4 * 1000 * MS..5000 * MS).contains(&age), "{age:?}");
}
