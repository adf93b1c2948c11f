//! Gateways that die with all they knew, and whose flows outlive them.

use std::sync::Mutex;
use std::time::Duration;

use netem_tests::sim::{Atomics, Scenario};

use super::{are_seeds_named, play_all};

/// Sums over all seeds.
#[derive(Debug, Default)]
struct Seen {
    reborn: u64,
    outlived: u64,
    reborn_outlived: u64,
    succeeded: u64,
    failed: u64,
    atomics: Atomics,
    carried: u64,
    longest: Duration,
}

/// Plays so many seeds, where flows outlived a process in some, and what `has_happened` says.
fn outlive(test: &str, seeds: u64, draw: fn(u64) -> Scenario, has_happened: impl Fn(&Seen) -> bool) {
    let seen = Mutex::new(Seen::default());
    play_all(test, seeds, draw, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.reborn += report.reborn;
        seen.succeeded += report.succeeded;
        seen.failed += report.failed;
        seen.atomics += report.atomics;
        seen.carried += report.retained_carried;
        if report.outlives {
            seen.outlived += 1;
            seen.reborn_outlived += report.reborn;
            let longest = report.times.iter().max().copied().unwrap_or_default();
            seen.longest = seen.longest.max(longest);
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let has_happened = seen.outlived > 0 && seen.reborn_outlived > 0 && has_happened(&seen);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}

/// Contents are right, nothing runs twice, and every program comes to its end: the world checks
/// that. Where requesters have all that their targets have not, and nothing else goes wrong, no
/// operation fails.
#[test]
fn gateways_are_killed_and_flows_outlive_them() {
    let test = "gateways_are_killed_and_flows_outlive_them";
    outlive(test, 120, Scenario::draw_with_crashes, |seen| seen.atomics.repeated > 0);
}

/// The same, with memory that outlives the process, or classes that acknowledge nothing early.
/// No operation fails where nothing else goes wrong, whatever its length.
#[test]
fn gateways_are_killed_in_the_midst_of_messages() {
    let test = "gateways_are_killed_in_the_midst_of_messages";
    outlive(test, 150, Scenario::draw_with_retention, |seen| seen.carried > 0);
}
