//! Gateways that die with all they knew, and whose flows outlive them.

use std::sync::Mutex;
use std::time::Duration;

use netem_tests::sim::{Atomics, Scenario};

use super::{are_seeds_named, play_all};

/// Contents are right, nothing runs twice, and every program comes to its end: the world checks
/// that. Where requesters have all that their targets have not, and nothing else goes wrong, no
/// operation fails.
#[test]
fn gateways_are_killed_and_flows_outlive_them() {
    #[derive(Debug, Default)]
    struct Seen {
        reborn: u64,
        outlived: u64,
        reborn_outlived: u64,
        succeeded: u64,
        failed: u64,
        atomics: Atomics,
        longest: Duration,
    }
    let seen = Mutex::new(Seen::default());
    let test = "gateways_are_killed_and_flows_outlive_them";
    play_all(test, 120, Scenario::draw_with_crashes, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.reborn += report.reborn;
        seen.succeeded += report.succeeded;
        seen.failed += report.failed;
        seen.atomics += report.atomics;
        if report.outlives {
            seen.outlived += 1;
            seen.reborn_outlived += report.reborn;
            let longest = report.times.iter().max().copied().unwrap_or_default();
            seen.longest = seen.longest.max(longest);
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let has_happened = [seen.outlived, seen.reborn_outlived, seen.atomics.repeated].iter().all(|n| *n > 0);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}

/// The same, with memory that outlives the process, or classes that acknowledge nothing early.
/// Where nothing else goes wrong, no operation fails, whatever its length.
#[test]
fn gateways_are_killed_in_the_midst_of_messages() {
    #[derive(Debug, Default)]
    struct Seen {
        reborn: u64,
        outlived: u64,
        reborn_outlived: u64,
        succeeded: u64,
        failed: u64,
        carried: u64,
        longest: Duration,
    }
    let seen = Mutex::new(Seen::default());
    let test = "gateways_are_killed_in_the_midst_of_messages";
    play_all(test, 150, Scenario::draw_with_retention, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.reborn += report.reborn;
        seen.succeeded += report.succeeded;
        seen.failed += report.failed;
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
    let has_happened = [seen.outlived, seen.reborn_outlived, seen.carried].iter().all(|n| *n > 0);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}
