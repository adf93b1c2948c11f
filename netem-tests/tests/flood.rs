//! One host floods, another does what it always does: the class is shared, the link is short.
//!
//! `LONGHAUL_SEED=n` plays another seed's losses.

#![expect(clippy::unwrap_used, reason = "test code, also where no function is a test")]

use std::time::Duration;

use netem_tests::flood::FloodKind;
use netem_tests::sim::{Neighbour, Neighbours};

const TIMES: [f64; 3] = [1.04, 2.0, 10.0];
/// The least share of the link that the flood leaves its neighbour.
const LEAST_GOODPUT: f64 = 0.45;
/// How much longer its messages take than beside an honest host.
const MOST_P99: f64 = 2.5;

fn plan(wan: &str) -> Neighbours {
    let seed = std::env::var("LONGHAUL_SEED").map_or(1, |seed| seed.parse().unwrap());
    Neighbours { seed, ..Neighbours::new(200_000_000, wan.parse().unwrap()) }
}

/// Plays each kind at each rate over this link, prints the table, and returns what did not hold.
fn table(plan: Neighbours) -> Vec<String> {
    let beside = Neighbours { honest: 2, ..plan }.play().unwrap();
    println!("LONGHAUL_SEED={}, {:?}", plan.seed, plan.wan);
    println!("beside an honest host: goodput {:.2}, p99 {:?}", beside.goodput, beside.p99);
    println!(
        "| the other floods with | times the link's rate | goodput, of the link | p99, ratio | failed | wrong |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    assert!(beside.goodput >= LEAST_GOODPUT && beside.failed == 0 && beside.wrong == 0, "{beside:?}");
    let mut failed = Vec::new();
    for kind in FloodKind::ALL {
        for times in TIMES {
            let outcome = Neighbours { flood: Some((kind, times)), ..plan }.play().unwrap();
            let Neighbour { goodput, p99, failed: errors, wrong, .. } = outcome;
            let ratio = p99.as_secs_f64() / beside.p99.as_secs_f64();
            println!("| {} | {times} | {goodput:.2} | {ratio:.2} | {errors} | {wrong} |", kind.label());
            if goodput < LEAST_GOODPUT || ratio > MOST_P99 || errors > 0 || wrong > 0 {
                failed.push(format!("{kind:?} at {times}: {outcome:?}"));
            }
        }
    }
    failed
}

#[test]
fn a_host_that_floods_has_its_share_and_no_more() {
    let failed = table(plan("delay 5ms"));
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_host_that_floods_by_ipv6_has_its_share_and_no_more() {
    let failed = table(Neighbours { ipv6: true, ..plan("delay 5ms") });
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_host_that_floods_a_link_with_losses_has_its_share_and_no_more() {
    let failed = table(plan("delay 5ms loss 0.5%"));
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Hosts that send at once.
const HOSTS: usize = 64;
/// The least of Jain's index of fairness (DEC-TR-301), 1 if all have the same, and 1 / [`HOSTS`] if
/// one has all.
const LEAST_INDEX: f64 = 0.95;

fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    sum * sum / (shares.len() as f64 * squares)
}

/// All hosts of a site send to one of the other, by one class: thirteen times as much as the link
/// takes in a round trip.
fn incast(total_buffer: Option<usize>) {
    let wan = plan("delay 5ms loss 0.1%");
    let time = Duration::from_secs(1);
    let limits = (total_buffer.unwrap_or(wan.limits.0), wan.limits.1);
    let plan = Neighbours { rate: 1_000_000_000, honest: HOSTS, incast: true, time, limits, ..wan };
    let all = plan.play_all().unwrap();
    let shares: Vec<_> = all.iter().map(|neighbour| neighbour.goodput).collect();
    let (sum, index) = (shares.iter().sum::<f64>(), jain(&shares));
    let least = shares.iter().copied().fold(f64::MAX, f64::min) * HOSTS as f64 / sum;
    let worst = all.iter().map(|neighbour| neighbour.p99).max().unwrap();
    println!("| goodput, of the link | Jain's index | least, of an even share | p99, worst |");
    println!("|--:|--:|--:|--:|");
    println!("| {sum:.2} | {index:.3} | {least:.2} | {worst:?} |");
    assert_eq!(all.len(), HOSTS);
    assert!(all.iter().all(|neighbour| neighbour.failed == 0 && neighbour.wrong == 0), "{all:?}");
    assert!(sum >= 0.9 && index >= LEAST_INDEX && least >= 0.5, "{shares:?}");
}

#[test]
fn hosts_that_send_to_one_at_once_have_the_same() {
    incast(None);
}

/// A half of what the hosts have outstanding, and half of that is one target's.
#[test]
fn hosts_that_send_to_one_at_once_have_room_in_turn() {
    incast(Some(8 << 20));
}

/// A host sends in ever other names, of which nobody is there. They have half of the link together:
/// the other half is left to those that were answered.
#[test]
fn names_that_a_host_invents_have_half_of_the_link_at_most() {
    const KINDS: [FloodKind; 4] =
        [FloodKind::Ud, FloodKind::Cm, FloodKind::RcAbsentQueuePairs, FloodKind::RcAbsentHost];
    /// Names, by their bits, and times the link's rate.
    const LOADS: [(u8, f64); 5] = [(16, 0.5), (4, 2.0), (10, 2.0), (16, 2.0), (16, 10.0)];
    let plan = plan("delay 5ms");
    let beside = Neighbours { honest: 2, ..plan }.play().unwrap();
    println!("beside an honest host: goodput {:.2}, p99 {:?}", beside.goodput, beside.p99);
    println!("| the other sends | names | times the link's rate | goodput | p99 | longest stall | failed |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut broken = Vec::new();
    for kind in KINDS {
        for (names, times) in LOADS {
            let it = Neighbours { flood: Some((kind, times)), names, ..plan }.play().unwrap();
            let Neighbour { goodput, p99, stall, failed, wrong, .. } = it;
            let count = 1_u32 << names;
            println!(
                "| {} | {count} | {times} | {goodput:.3} | {p99:?} | {stall:?} | {failed} |",
                kind.label()
            );
            let is_slow = p99.as_secs_f64() > MOST_P99 * beside.p99.as_secs_f64();
            // Each name's management has a share of what goes before all else.
            let least = if kind == FloodKind::Cm { 0.4 } else { LEAST_GOODPUT };
            if goodput < least || is_slow || failed > 0 || wrong > 0 {
                broken.push(format!("{kind:?} in {count} names at {times}: {it:?}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
