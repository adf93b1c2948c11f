use super::*;
use crate::estimator::Newest;

const MS: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(25);

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
fn origin() -> Instant {
    Instant::now()
}

/// Lanes with a peer that reports on each every five milliseconds, a round trip after what it
/// reports on was sent.
struct Bench {
    lanes: Lanes,
    start: Instant,
    now: Instant,
    rtts: Vec<Duration>,
    /// Packets lost of 100, by lane; 100: nothing arrives.
    lost: Vec<u64>,
    /// Per lane: the times of what was sent.
    sent: Vec<Vec<Instant>>,
    /// Per lane: packets sent by the step.
    took: Vec<u64>,
}

impl Bench {
    fn new(rtts: &[Duration]) -> Self {
        let start = origin();
        let count = rtts.len();
        Self {
            lanes: Lanes::new(count as u8, RTT, start),
            start,
            now: start,
            rtts: rtts.to_vec(),
            lost: vec![0; count],
            sent: vec![Vec::new(); count],
            took: vec![0; count],
        }
    }

    /// A hundred packets a millisecond for so long, and probes where they are wanted.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.took.fill(0);
        while self.now < end {
            self.now += MS;
            self.lanes.handle_timeout(self.now);
            for _ in 0..100 {
                let lane = self.lanes.choose(|_| true).unwrap();
                self.send(lane);
                self.took[usize::from(lane.0)] += 1;
            }
            for lane in 0..self.rtts.len() {
                let probes = self.lanes.probing(id(lane));
                let last = self.sent[lane].last().copied().unwrap_or(self.start);
                if probes.is_some_and(|spacing| last + spacing <= self.now) {
                    self.send(id(lane));
                }
                if (self.now - self.start).as_millis().is_multiple_of(5) {
                    self.report(lane);
                }
            }
        }
    }

    fn send(&mut self, lane: LaneId) {
        self.sent[usize::from(lane.0)].push(self.now);
        self.lanes.sent(lane, true, self.now);
    }

    fn report(&mut self, lane: usize) {
        if self.lost[lane] == 100 {
            return;
        }
        let rtt = self.rtts[lane];
        let next = self.sent[lane].partition_point(|at| *at + rtt <= self.now) as u64;
        let lost = next * self.lost[lane] / 100;
        let report = PathReport {
            lane: id(lane),
            horizon: next,
            judged: next,
            lost,
            arrived: next - lost,
            newest: Some(Newest { next, age: 0 }),
            ..PathReport::default()
        };
        self.lanes.handle_report(&report, rtt, self.now);
    }

    fn left(&self) -> Vec<Option<Cause>> {
        (0..self.rtts.len()).map(|lane| self.lanes.state(id(lane)).left).collect()
    }
}

#[test]
fn lanes_alike_share_evenly_in_runs() {
    let mut bench = Bench::new(&[RTT; 4]);
    bench.run(200 * MS);
    let [least, most] = [bench.took.iter().min(), bench.took.iter().max()].map(|took| *took.unwrap());
    assert!(most - least <= u64::from(RUN), "{:?}", bench.took);
    let runs: Vec<_> = (0..64)
        .map(|_| {
            let lane = bench.lanes.choose(|_| true).unwrap();
            bench.lanes.sent(lane, true, bench.now);
            lane
        })
        .collect();
    let changes = runs.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((3..=4).contains(&changes), "{runs:?}");
}

#[test]
fn a_dead_lane_is_left_within_its_round_trips_and_returns_when_it_is_good() {
    let mut bench = Bench::new(&[RTT; 4]);
    bench.run(200 * MS);
    bench.lost[2] = 100;
    // Reports come every five milliseconds.
    bench.run(RTT.mul_f64(SUSPECT_AFTER) + 10 * MS);
    bench.run(RTT / 2);
    assert_eq!(bench.took[2], 0, "suspect: only probes");
    assert_eq!(bench.left(), [None; 4]);
    bench.run(RTT);
    assert_eq!(bench.left(), [None, None, Some(Cause::Silent), None]);
    bench.run(RTT * 40);
    assert_eq!((bench.took[2], bench.lanes.state(LaneId(2)).leaves), (0, 1), "and stays so");
    bench.lost[2] = 0;
    bench.run(RTT * 12);
    assert_eq!(bench.took[2], 0, "not at its first sign of life");
    bench.run(RTT * 12);
    assert_eq!(bench.left(), [None; 4]);
    bench.run(RTT * 4);
    assert!(bench.took[2] > 0);
}

#[test]
fn a_lane_that_flaps_is_left_for_longer_each_time() {
    let mut bench = Bench::new(&[RTT; 2]);
    bench.run(200 * MS);
    let mut times = Vec::new();
    for _ in 0..3 {
        bench.lost[1] = 100;
        while bench.left()[1].is_none() {
            bench.run(MS);
        }
        bench.lost[1] = 0;
        let since = bench.now;
        while bench.left()[1].is_some() {
            bench.run(MS);
        }
        times.push(bench.now - since);
    }
    assert!(times[1] > times[0] * 3 / 2 && times[2] > times[1] * 3 / 2, "{times:?}");
}

#[test]
fn a_lossy_lane_is_weighted_down_and_a_very_lossy_one_left() {
    let mut bench = Bench::new(&[RTT; 3]);
    bench.lost = vec![0, 2, 20];
    bench.run(RTT * 20);
    assert_eq!(bench.left(), [None, None, Some(Cause::Lossy)]);
    bench.run(RTT * 20);
    assert!(bench.took[1] < bench.took[0] / 2 && bench.took[1] > 0, "{:?}", bench.took);
}

#[test]
fn losses_that_all_have_are_no_reason() {
    let mut bench = Bench::new(&[RTT; 3]);
    bench.lost = vec![20; 3];
    bench.run(RTT * 40);
    assert_eq!(bench.left(), [None; 3]);
}

#[test]
fn a_slow_lane_is_left_and_a_little_skew_is_none() {
    let mut bench = Bench::new(&[RTT, RTT + 2 * MS, RTT * 2 + 10 * MS]);
    bench.run(RTT * 10);
    assert_eq!(bench.left(), [None; 3], "it may pass");
    bench.run(RTT * 40);
    assert_eq!(bench.left(), [None, None, Some(Cause::Slow)]);
    bench.run(RTT * 20);
    assert!(bench.took[1] * 10 > bench.took[0] * 9, "{:?}", bench.took);
}

#[test]
fn a_bad_lane_is_used_where_the_others_are_dead() {
    let mut bench = Bench::new(&[RTT, RTT * 3]);
    bench.run(RTT * 60);
    assert_eq!(bench.left(), [None, Some(Cause::Slow)]);
    bench.lost[0] = 100;
    bench.run(RTT * 20);
    assert_eq!(bench.left(), [Some(Cause::Silent), Some(Cause::Slow)]);
    bench.run(RTT);
    assert!(bench.took[0] == 0 && bench.took[1] > 0, "{:?}", bench.took);
}

#[test]
fn where_none_is_any_good_all_are_used() {
    let mut bench = Bench::new(&[RTT; 2]);
    bench.run(200 * MS);
    bench.lost = vec![100; 2];
    bench.run(RTT * 20);
    assert!(bench.took.iter().all(|took| *took > 0), "{:?}", bench.took);
    assert_eq!(bench.left(), [None; 2], "a link that is cut is no fault of one lane");
}

#[test]
fn one_that_may_not_send_lets_others_go_first() {
    let mut lanes = Lanes::new(2, RTT, origin());
    assert_eq!(lanes.choose(|lane| lane.0 == 1), Some(LaneId(1)));
    assert_eq!(lanes.choose(|lane| lane.0 == 0), Some(LaneId(0)));
    assert_eq!(lanes.choose(|_| false), None);
}

#[test]
fn a_link_that_was_cut_is_no_fault_of_the_lane_that_is_heard_of_last() {
    let mut bench = Bench::new(&[RTT; 2]);
    bench.run(200 * MS);
    bench.lost = vec![100; 2];
    bench.run(RTT * 20);
    bench.lost[0] = 0;
    bench.run(RTT * 2);
    bench.lost[1] = 0;
    bench.run(10 * MS);
    assert_eq!(bench.left(), [None; 2]);
    bench.run(RTT);
    assert!(bench.took[1] * 5 > bench.took[0] * 2, "{:?}", bench.took);
}

#[test]
fn a_run_ends_where_there_is_nothing_more_to_send() {
    let now = origin();
    let mut lanes = Lanes::new(3, RTT, now);
    let taken: Vec<_> = (0..9)
        .map(|_| {
            let lane = lanes.choose(|_| true).unwrap();
            lanes.sent(lane, true, now);
            lanes.end_run();
            lane.0
        })
        .collect();
    assert_eq!(taken, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// Whoever sends two kinds of packets in turn has both come to all lanes.
#[test]
fn every_nth_packet_of_its_own_comes_to_all_lanes() {
    for lanes in 1..=8_u16 {
        for every in 1..=8 {
            let mut spread = Lanes::new(lanes as u8, RTT, origin());
            let mut took = vec![0_u32; usize::from(lanes)];
            for turn in 0..every * 400 {
                let lane = spread.rotate(|_| true);
                if turn % every == 0 {
                    took[usize::from(lane.0)] += 1;
                }
            }
            let even = 400 / u32::from(lanes);
            assert!(
                took.iter().all(|took| (even - even / 4..=even + even / 4).contains(took)),
                "{every}: {took:?}"
            );
        }
    }
}

#[test]
fn packets_of_its_own_leave_out_lanes_that_may_not_unless_none_may() {
    let mut lanes = Lanes::new(3, RTT, origin());
    let mut took = |may: &dyn Fn(LaneId) -> bool| {
        let mut took: Vec<_> = (0..300).map(|_| lanes.rotate(may).0).collect();
        took.sort_unstable();
        took.dedup();
        took
    };
    assert_eq!(took(&|lane| lane.0 != 1), [0, 2]);
    assert_eq!(took(&|_| false), [0, 1, 2]);
}

#[test]
fn a_lane_that_had_no_turn_has_no_claim_to_what_went_elsewhere() {
    let now = origin();
    let mut lanes = Lanes::new(2, RTT, now);
    for _ in 0..1000 {
        assert_eq!(lanes.choose(|lane| lane.0 == 0), Some(LaneId(0)));
        lanes.sent(LaneId(0), true, now);
    }
    let taken = (0..64).map(|_| {
        let lane = lanes.choose(|_| true).unwrap();
        lanes.sent(lane, true, now);
        u32::from(lane.0)
    });
    assert!((16..=48).contains(&taken.sum::<u32>()));
}

/// One pass over the lanes says of each what looking at all others would.
#[test]
fn what_was_heard_of_others_is_the_latest_of_theirs() {
    let start = origin();
    let at = |ms: u64| (ms > 0).then(|| start + Duration::from_millis(ms));
    let mut lanes = Lanes::new(3, Duration::from_millis(25), start);
    for times in (0..4_u64.pow(3)).map(|n| [n % 4, n / 4 % 4, n / 16]) {
        for (lane, ms) in lanes.lanes.iter_mut().zip(times) {
            lane.health.heard = at(ms);
        }
        for index in 0..3 {
            let others = (0..3).filter(|other| *other != index).filter_map(|other| at(times[other]));
            assert_eq!(lanes.heard().of_others(index), others.max(), "{times:?} but {index}");
        }
    }
}
