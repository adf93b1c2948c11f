//! Gateways whose processes stand still for a while.

use std::sync::Mutex;

use netem_tests::sim::Scenario;

use super::{are_seeds_named, play_all};

/// Nobody was heard while nobody listened: contents are right, and where nothing else goes wrong no
/// operation fails.
#[test]
fn gateways_stand_still_and_no_flow_ends() {
    #[derive(Debug, Default)]
    struct Seen {
        benign: u64,
        resumed: u64,
        succeeded: u64,
        failed: u64,
    }
    let seen = Mutex::new(Seen::default());
    play_all("gateways_stand_still_and_no_flow_ends", 40, Scenario::draw_with_pauses, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.benign += u64::from(report.benign);
        seen.resumed += report.resumed;
        seen.succeeded += report.succeeded;
        seen.failed += report.failed;
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let has_happened = [seen.benign, seen.resumed, seen.succeeded].iter().all(|n| *n > 0);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}
