//! The observer's account of packet numbers, against what happened to them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::path::{Loss, MS, Path};
use crate::world::origin;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::estimator::{
    Activity, Arrival, Ecn, LaneId, ObserverConfig, PATH_PACKET, PathObserver, PathReport, WINDOW,
};
use reliability::trace::Entry;

const RTT: Duration = Duration::from_millis(20);

fn arrival(number: u64) -> Arrival {
    Arrival { lane: LaneId(0), number, bytes: 1000, ecn: Ecn::NotEct }
}

/// An observer, and the means to make it report.
struct Bench {
    now: Instant,
    observer: PathObserver,
}

impl Bench {
    fn new() -> Self {
        Self::with(ObserverConfig::new(RTT))
    }

    fn with(config: ObserverConfig) -> Self {
        let now = origin();
        Self { now, observer: PathObserver::new(config, now) }
    }

    fn arrive(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.observer.observe(&arrival(number), Activity::Traffic, self.now);
        }
    }

    /// The reports of so much time.
    fn wait(&mut self, time: Duration) -> Vec<(Instant, PathReport)> {
        let until = self.now + time;
        let mut reports = Vec::new();
        let mut out = [0; PATH_PACKET];
        while let Some(due) = self.observer.next_timeout().filter(|due| *due <= until) {
            self.now = due.max(self.now);
            let len = self.observer.poll_report(self.now, &mut out).unwrap();
            reports.push((self.now, PathReport::parse(&out[..len]).unwrap()));
        }
        self.now = until;
        reports
    }

    fn judged(&mut self) -> PathReport {
        self.wait(Duration::from_secs(5)).pop().unwrap().1
    }
}

/// Lost and runs by looking at every number.
fn count(arrived: &BTreeSet<u64>, from: u64, to: u64) -> (u64, u64) {
    let mut counts = (0, 0);
    let mut before = false;
    for number in from..to {
        let lost = !arrived.contains(&number);
        counts.0 += u64::from(lost);
        counts.1 += u64::from(lost && !before);
        before = lost;
    }
    counts
}

/// Loss, reordering far beyond any patience, and copies: in the end every number is accounted for,
/// as are the runs.
#[test]
fn every_number_is_accounted_for() {
    for seed in 0..300 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut bench = Bench::with(ObserverConfig { window: 1 << 14, ..ObserverConfig::new(RTT) });
        let first = rng.random_range(0..1_000_000);
        let (loss, late, most) =
            (rng.random_range(0.0..0.5), rng.random_range(0.0..0.5), rng.random_range(1..3000_u64));
        // When each copy comes, in packet times.
        let mut order = Vec::new();
        for index in 0..5000_u64 {
            while rng.random_bool(1.0 - loss) {
                let delay = if rng.random_bool(late) { rng.random_range(0..most) } else { 0 };
                order.push((index + delay, first + index));
                if rng.random_bool(0.95) {
                    break;
                }
            }
        }
        order.sort();
        let mut arrived = BTreeSet::new();
        let (mut copies, mut reordered, mut highest) = (0, 0, 0);
        let mut at = 0;
        for (time, number) in &order {
            bench.wait(Duration::from_micros(rng.random_range(0..200)) * (time - at) as u32);
            at = *time;
            copies += u64::from(!arrived.insert(*number));
            reordered += u64::from(*number < highest);
            highest = highest.max(*number);
            bench.arrive([*number]);
        }
        let report = bench.judged();
        let base = order[0].1;
        assert_eq!(report.horizon, highest + 1, "seed {seed}");
        assert_eq!(report.judged, highest + 1 - base, "seed {seed}");
        assert_eq!((report.lost, report.runs), count(&arrived, base, highest + 1), "seed {seed}");
        assert_eq!((report.arrived, report.duplicates), (arrived.len() as u64, copies), "seed {seed}");
        assert!(report.reordered <= reordered, "seed {seed}: a copy is not reordered");
        assert_eq!(report.bytes, 1000 * report.arrived);
    }
}

/// As netem reorders: a quarter goes without the delay of half a round trip, ahead of the others.
#[test]
fn reordering_within_a_round_trip_is_no_loss_in_any_report() {
    for seed in 0..5 {
        let mut path = Path::new(seed, RTT, 20_000, Loss::Independent(0.0));
        path.hurry = 0.25;
        for _ in 0..200 {
            path.run(1000);
            let summary = path.estimate.summary(path.now);
            assert_eq!(
                (summary.drop.likely, path.observer.observed().lost),
                (0.0, 0),
                "seed {seed}: {summary:?}"
            );
        }
        let reordering = path.estimate.summary(path.now).reordering;
        assert!((0.7..0.8).contains(&reordering.share), "{reordering:?}");
        // 10 ms are 200 packets.
        assert!((190..=200).contains(&reordering.packets_max), "{reordering:?}");
        assert!((9 * MS..=10 * MS).contains(&reordering.time_max), "{reordering:?}");
        assert!(
            reordering.packets_p99 <= reordering.packets_max && reordering.time_p99 <= reordering.time_max
        );
        assert!(reordering.packets_p99 >= 150, "{reordering:?}");
    }
}

/// Late packets of 10,000: 30 come 3 ms late, and one 50 ms.
#[test]
fn the_wait_for_late_packets_is_as_long_as_most_of_them_take() {
    let mut bench = Bench::new();
    let us = Duration::from_micros;
    for first in (0..10_000).step_by(100) {
        let wait = match first / 100 {
            0..30 => 3 * MS,
            30 => 50 * MS,
            _ => Duration::ZERO,
        };
        if wait.is_zero() {
            bench.arrive(first..first + 100);
        } else {
            bench.arrive((first..first + 50).chain(first + 51..first + 60));
            bench.wait(wait);
            bench.arrive([first + 50].into_iter().chain(first + 60..first + 100));
        }
        bench.wait(us(10));
    }
    let wait = |share| bench.observer.lateness_beyond(share);
    assert_eq!(wait(0.004), Duration::ZERO, "fewer are late at all");
    for share in [0.002, 0.000_11] {
        assert!((3 * MS..=us(4500)).contains(&wait(share)), "{share}: {:?}", wait(share));
    }
    assert_eq!(wait(0.0), 50 * MS);
    // What was long ago no longer counts.
    for _ in 0..3 {
        bench.wait(Duration::from_secs(31));
        bench.arrive([1 << 20]);
    }
    assert_eq!(bench.observer.lateness_beyond(0.0), Duration::ZERO);
}

/// Jitter of three round trips: what is taken for lost at first is found again, and patience
/// learns.
#[test]
fn reordering_beyond_a_round_trip_is_learnt() {
    for seed in 0..5 {
        let mut path = Path::new(seed, RTT, 20_000, Loss::Independent(0.0));
        path.jitter = 3 * RTT;
        path.run(2_000);
        for _ in 0..100 {
            path.run(1000);
            assert_eq!(path.observer.observed().lost, 0, "seed {seed}");
        }
        let summary = path.estimate.summary(path.now);
        assert_eq!(summary.drop.likely, 0.0, "seed {seed}: {summary:?}");
    }
}

/// Loss is still found among much reordering.
#[test]
fn loss_is_told_from_reordering() {
    let mut path = Path::new(1, RTT, 20_000, Loss::Independent(0.01));
    (path.jitter, path.duplicate) = (2 * RTT, 0.02);
    path.run(200_000);
    path.rest(50 * RTT);
    let report = path.observer.observed();
    assert_eq!(report.lost, path.lost, "{report:?}");
    let summary = path.estimate.summary(path.now);
    assert!((summary.drop.likely / 0.01 - 1.0).abs() < 0.1, "{summary:?}");
    assert!((0.015..0.025).contains(&summary.duplicates), "{summary:?}");
}

/// Once reordering has ceased, patience returns to a round trip.
#[test]
fn patience_forgets() {
    let mut bench = Bench::new();
    let lost_after = |bench: &mut Bench, next: &mut u64| {
        bench.arrive([*next, *next + 2]);
        let lost = bench.observer.observed().lost;
        let begin = bench.now;
        loop {
            *next += 3;
            bench.arrive([*next]);
            bench.wait(5 * MS);
            if bench.observer.observed().lost > lost {
                return bench.now - begin;
            }
            *next -= 2;
        }
    };
    let mut next = 0;
    let first = lost_after(&mut bench, &mut next);
    assert!((RTT..3 * RTT).contains(&first), "{first:?}");
    // Late by 100 ms.
    bench.arrive([next + 10, next + 12]);
    bench.wait(100 * MS);
    bench.arrive([next + 11]);
    next += 20;
    let patient = lost_after(&mut bench, &mut next);
    assert!((200 * MS..250 * MS).contains(&patient), "{patient:?}");
    for _ in 0..70 {
        next += 1;
        bench.arrive([next]);
        bench.wait(Duration::from_secs(1));
    }
    next += 10;
    let again = lost_after(&mut bench, &mut next);
    assert!((RTT..3 * RTT).contains(&again), "{again:?}");
}

#[test]
fn what_was_sent_before_the_first_arrival_is_no_loss() {
    let mut bench = Bench::new();
    bench.arrive([1000, 1001, 999, 1003]);
    let report = bench.judged();
    assert_eq!((report.judged, report.lost, report.arrived, report.reordered), (4, 1, 4, 1));
}

#[test]
fn an_outage_is_one_run() {
    let mut bench = Bench::new();
    bench.arrive(0..10);
    bench.wait(10 * RTT);
    // Far more than the window holds.
    let outage = 5 * WINDOW + 77;
    bench.arrive(10 + outage..20 + outage);
    let report = bench.judged();
    assert_eq!((report.lost, report.runs, report.jumps), (outage, 1, 0));
    assert_eq!(u64::from(report.longest), outage);
    let mut entries = Vec::new();
    bench.observer.drain_runs(&mut |entry| entries.push(entry));
    let Entry::Run(run) = entries[0] else { panic!("{entries:?}") };
    assert_eq!((run.arrived, run.lost), (10, outage));
}

/// A peer that counts as it likes: nothing overflows, nothing is lost by it, and counting goes on.
#[test]
fn leaps_of_a_hostile_or_restarted_peer_are_no_loss() {
    let mut bench = Bench::new();
    bench.arrive(0..100);
    bench.arrive((1 << 40)..(1 << 40) + 100);
    let end = u64::MAX - 200;
    bench.arrive(end..end + 100);
    bench.arrive([end + 150, u64::MAX - 1, u64::MAX]);
    bench.arrive(0..100);
    let report = bench.judged();
    assert_eq!((report.jumps, report.arrived), (2, 302));
    // The last number is none, and the old ones cannot be told from copies.
    assert_eq!(report.duplicates, 101);
    assert_eq!((report.lost, report.runs), (50 + 48, 2));
    assert_eq!(report.judged, 100 + 100 + 200);
    assert_eq!(report.horizon, u64::MAX);
    let mut breaks = 0;
    bench.observer.drain_runs(&mut |entry| breaks += u64::from(entry == Entry::Break));
    assert_eq!(breaks, 2);
}

/// A number is judged at the latest when the window has passed it, whatever the patience.
#[test]
fn the_window_bounds_patience() {
    let mut bench =
        Bench::with(ObserverConfig { window: 1024, ..ObserverConfig::new(Duration::from_secs(1)) });
    bench.arrive((0..2000).filter(|number| number % 10 != 3));
    let report = bench.observer.observed();
    assert_eq!((report.horizon, report.lost), (976, 98));
    // What is older than the window cannot be told from a copy.
    bench.arrive([3, 973, 983]);
    let report = bench.judged();
    assert_eq!((report.duplicates, report.reordered, report.lost), (2, 1, 199));
}

/// About one report a round trip within 10 ms and 1 s while packets come, then three more, ever
/// more rarely.
#[test]
fn reports_follow_traffic_and_cease() {
    for (rtt, interval) in [(0, 10), (20, 20), (300, 300), (5000, 1000)] {
        let (rtt, interval) = (rtt * MS, interval * MS);
        let mut bench = Bench::with(ObserverConfig::new(rtt));
        assert_eq!(bench.observer.next_timeout(), None);
        let mut reports = Vec::new();
        let begin = bench.now;
        for number in 0..5000 {
            bench.arrive([number]);
            reports.extend(bench.wait(2 * MS));
        }
        let expected = 1 + Duration::from_secs(10).as_millis() / interval.as_millis();
        assert!((reports.len() as u128).abs_diff(expected) <= 1, "{rtt:?}: {} reports", reports.len());
        assert_eq!(reports[0].0, begin, "the first one at once");
        let gaps: Vec<Duration> = reports.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.iter().all(|gap| (interval..interval + 3 * MS).contains(gap)), "{rtt:?}: {gaps:?}");
        let last = bench.wait(Duration::from_secs(60));
        assert!((3..=5).contains(&last.len()), "{rtt:?}: {last:?}");
        assert!(last.windows(2).all(|pair| pair[1].0 - pair[0].0 <= Duration::from_secs(1)));
        assert_eq!(last.last().unwrap().1.judged, 5000);
        assert_eq!(bench.observer.next_timeout(), None);
    }
}

#[test]
fn probes_are_reported_once_and_reports_never() {
    let mut bench = Bench::new();
    bench.observer.observe(&arrival(0), Activity::Silent, bench.now);
    assert_eq!(bench.observer.next_timeout(), None);
    bench.observer.observe(&arrival(1), Activity::Probe, bench.now);
    bench.observer.observe_stamp(77);
    let reports = bench.wait(Duration::from_secs(60));
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].1.echo.map(|echo| (echo.sent_at, echo.held)), Some((77, 0)));
}

/// The time stamp echoed is the newest, by the sender's clock, which wraps; and none that is too
/// old.
#[test]
fn the_newest_stamp_is_echoed() {
    let mut bench = Bench::new();
    let echo = |bench: &mut Bench, number, stamp: Option<u32>| {
        bench.observer.observe(&arrival(number), Activity::Probe, bench.now);
        stamp.into_iter().for_each(|stamp| bench.observer.observe_stamp(stamp));
        bench.wait(RTT)[0].1.echo.map(|echo| (echo.sent_at, echo.held))
    };
    assert_eq!(echo(&mut bench, 0, None), None);
    assert_eq!(echo(&mut bench, 1, Some(u32::MAX - 5)), Some((u32::MAX - 5, 0)));
    assert_eq!(echo(&mut bench, 2, Some(u32::MAX - 9)), Some((u32::MAX - 5, 20_000)));
    assert_eq!(echo(&mut bench, 3, Some(10)), Some((10, 0)));
    bench.wait(Duration::from_secs(61));
    assert_eq!(echo(&mut bench, 4, None), None);
    assert_eq!(echo(&mut bench, 5, Some(5)), Some((5, 0)));
}

#[test]
fn ecn_bits_are_counted() {
    let mut bench = Bench::new();
    for (number, ecn) in [Ecn::NotEct, Ecn::Ect, Ecn::Ce, Ecn::Ce, Ecn::Ect].into_iter().enumerate() {
        let arrival = Arrival { ecn, ..arrival(number as u64) };
        bench.observer.observe(&arrival, Activity::Traffic, bench.now);
        // A copy counts for nothing but a copy.
        bench.observer.observe(&arrival, Activity::Traffic, bench.now);
    }
    bench.observer.observe_copy();
    let report = bench.judged();
    assert_eq!((report.ect, report.ce, report.duplicates), (4, 2, 6));
}

proptest! {
    /// Whatever numbers come: nothing panics, every report is a possible one, and its counts add
    /// up.
    #[test]
    fn any_numbers(
        window in 0..5000_u64,
        steps in prop::collection::vec((any::<u64>(), 0..5_u8, 0..100_000_u32), 1..400),
    ) {
        let mut bench = Bench::with(ObserverConfig { window, ..ObserverConfig::new(RTT) });
        let mut number: u64 = 0;
        for (random, kind, micros) in steps {
            number = match kind {
                0 => random,
                1 => number.saturating_add(random % 100),
                2 => number.saturating_sub(random % 100),
                3 => number.saturating_add(random % 10_000),
                _ => number.saturating_add(1),
            };
            bench.arrive([number]);
            for (_, report) in bench.wait(Duration::from_micros(u64::from(micros))) {
                prop_assert!(report.arrived >= report.judged - report.lost);
            }
        }
        let report = bench.judged();
        prop_assert!(report.runs <= report.lost);
        bench.observer.drain_runs(&mut |_| {});
    }
}
