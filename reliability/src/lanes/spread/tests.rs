use std::time::{Duration, Instant};

use super::super::Lanes;
use super::*;
use crate::estimator::LaneId;

const RTT: Duration = Duration::from_millis(25);
const STREAM: StreamId = StreamId(3);

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
fn origin() -> Instant {
    Instant::now()
}

fn lanes(count: u8) -> Lanes {
    Lanes::new(count, RTT, origin())
}

/// The lanes of a full group's packets: block, whether it is a parity, lane.
fn group(lanes: &mut Lanes, number: u64, (k, m, depth): (u8, u8, u8)) -> Vec<(u8, bool, usize)> {
    let rows = (0..k).map(|row| (row, false)).chain((0..m).map(|row| (row, true)));
    let places = rows.flat_map(|row| (0..depth).map(move |block| (block, row)));
    places
        .map(|(block, (row, is_parity))| {
            let place = InBlock { group: number, row, is_parity, k, m, depth, spare: m };
            let lane = lanes.choose_in_block(STREAM, &place, |_| true).unwrap();
            lanes.sent(lane, true, origin());
            (block, is_parity, usize::from(lane.0))
        })
        .collect()
}

/// The most packets that any lane has of any block.
fn most(sent: &[(u8, bool, usize)]) -> usize {
    let mut counts = [[0; 64]; 64];
    for (block, _, lane) in sent {
        counts[usize::from(*block)][*lane] += 1;
    }
    counts.into_iter().flatten().max().unwrap()
}

fn share_lanes(sent: &[(u8, bool, usize)]) -> bool {
    let carries = |lane, parity| sent.iter().any(|sent| (sent.1, sent.2) == (parity, lane));
    (0..64).any(|lane| carries(lane, false) && carries(lane, true))
}

#[test]
fn the_death_of_a_lane_leaves_every_block_enough() {
    for count in 5..=MOST_LANES {
        let mut lanes = lanes(count);
        for number in 0..5 {
            for shape in [(32, 8, 1), (32, 8, 4), (32, 8, 16), (32, 8, 64), (8, 2, 1), (10, 10, 3), (4, 1, 2)]
            {
                let sent = group(&mut lanes, 1000 * number, shape);
                let (_, parities, _) = shape;
                assert!(most(&sent) <= usize::from(parities), "{count} {shape:?}: {}", most(&sent));
                assert!(!share_lanes(&sent), "{count} {shape:?}");
                // Another shape is another group.
                lanes.spread.streams.clear();
            }
        }
    }
}

#[test]
fn four_lanes_lose_as_little_as_they_can() {
    let mut lanes = lanes(4);
    let sent = group(&mut lanes, 0, (32, 8, 1));
    assert!(most(&sent) <= 11 && !share_lanes(&sent), "{sent:?}");
    assert!(most(&group(&mut lanes, 100, (24, 8, 1))) <= 8, "as many as a block of 32 can lose");
}

#[test]
fn where_more_lanes_are_some_of_the_parities_are_left_for_other_losses() {
    assert_eq!([8, 10, 16, 64].map(|count| most(&group(&mut lanes(count), 0, (32, 8, 1)))), [6, 4, 4, 4]);
}

#[test]
fn lanes_alike_carry_alike() {
    for count in [2, 3, 4, 5, 7, 64] {
        let mut lanes = lanes(count);
        let mut took = vec![0_i64; usize::from(count)];
        for number in 0..400 {
            for (_, _, lane) in group(&mut lanes, number * 32, (32, 8, 1)) {
                took[lane] += 1;
            }
        }
        let even = 400 * 40 / i64::from(count);
        assert!(took.iter().all(|took| (took - even).abs() <= 80), "{took:?}");
    }
}

/// Packets leave in runs, each of which is one system call.
#[test]
fn a_block_is_no_more_than_a_run_for_each_of_five_lanes() {
    let sent = group(&mut lanes(5), 0, (32, 8, 1));
    assert_eq!(sent.windows(2).filter(|pair| pair[0].2 != pair[1].2).count(), 4);
    let mut deep = lanes(5);
    let sent = group(&mut deep, 0, (32, 8, 8));
    assert!(sent.chunk_by(|a, b| a.2 == b.2).all(|run| run.len() >= 16));
}

#[test]
fn a_lane_of_a_smaller_part_keeps_to_it_and_one_a_little_worse_makes_no_difference() {
    let mut spread = lanes(5);
    spread.lanes[2].weight = 0.25;
    let mut took = [0; 5];
    for number in 0..100 {
        for (_, _, lane) in group(&mut spread, number * 32, (32, 8, 1)) {
            took[lane] += 1;
        }
    }
    // A part of 0.25 in 4.25, and a quarter more at most.
    assert!((150..=300).contains(&took[2]), "{took:?}");
    assert!((0..5).filter(|lane| *lane != 2).all(|lane| (850..=1050).contains(&took[lane])), "{took:?}");

    let mut spread = lanes(5);
    spread.lanes[2].weight = 0.85;
    assert!((0..100).all(|number| most(&group(&mut spread, number * 32, (32, 8, 1))) <= 8));
}

#[test]
fn a_lane_that_dies_within_a_block_takes_no_more_of_it() {
    let mut lanes = lanes(5);
    let place = |row| InBlock { group: 0, row, is_parity: false, k: 32, m: 8, depth: 1, spare: 8 };
    let mut choose = |row, dead: u16| {
        let lane = lanes.choose_in_block(STREAM, &place(row), |lane| lane.0 != dead).unwrap();
        lanes.sent(lane, true, origin());
        lane.0
    };
    let before: Vec<_> = (0..4).map(|row| choose(row, 9)).collect();
    assert_eq!(before, [0; 4]);
    let after: Vec<_> = (4..32).map(|row| choose(row, 0)).collect();
    assert!(!after.contains(&0));
    assert_eq!(lanes.choose_in_block(STREAM, &place(31), |_| false), None);
}

/// It has as many parities as it would if it ended there.
#[test]
fn a_block_that_may_end_early_gives_no_lane_more_than_it_can_lose() {
    for count in 5..=12 {
        let mut lanes = lanes(count);
        let mut taken = vec![0_u8; usize::from(count)];
        for (row, spare) in [2, 2, 3, 3, 4, 4, 4, 4, 5, 5].into_iter().enumerate() {
            let place = InBlock { group: 0, row: row as u8, is_parity: false, k: 32, m: 8, depth: 1, spare };
            let LaneId(lane) = lanes.choose_in_block(STREAM, &place, |_| true).unwrap();
            lanes.sent(LaneId(lane), true, origin());
            taken[usize::from(lane)] += 1;
            assert!(taken.iter().all(|taken| *taken <= spare), "{count}: {taken:?} after {row}");
        }
    }
}

#[test]
fn streams_spread_by_themselves_and_what_has_no_block_takes_turns() {
    let mut lanes = lanes(5);
    let mut counts = [[0_u8; 5]; 2];
    let mut others = [0; 5];
    for row in 0..32 {
        for stream in [0, 1] {
            let place = InBlock { group: 0, row, is_parity: false, k: 32, m: 8, depth: 1, spare: 8 };
            let lane = lanes.choose_in_block(StreamId(stream), &place, |_| true).unwrap();
            lanes.sent(lane, true, origin());
            counts[usize::from(stream)][usize::from(lane.0)] += 1;
        }
        let lane = lanes.choose(|_| true).unwrap();
        lanes.sent(lane, true, origin());
        others[usize::from(lane.0)] += 1;
    }
    assert!(counts.iter().flatten().all(|count| *count <= 8), "{counts:?}");
    assert!(others.iter().filter(|count| **count > 0).count() > 1, "{others:?}");
}
