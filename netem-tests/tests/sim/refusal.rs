//! Requesters whose flows a crash ends, and how they are refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Policy;
use netem_tests::host::QpConfig;
use netem_tests::sim::{Fault, Op, Report, Work, World};

use super::clean;

/// One class that refuses like this; empty: by default.
fn refusing(refuse: &str) -> Arc<Policy> {
    let key = if refuse.is_empty() { String::new() } else { format!("refuse = \"{refuse}\"") };
    let text = format!("[[class]]\nname = \"default\"\nscheme = \"sr\"\n{key}");
    Policy::parse(Path::new("policy.toml"), &text).unwrap().into()
}

/// The NICs' ACK timeout.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Before the first request. That may still be lost, and then comes again.
const PAUSE: Duration = Duration::from_secs(1);

/// The gateway of a site crashes while the program at site 0 writes. One that writes in both
/// directions would end as soon as its own queue pair is put in error.
fn crashed(site: usize, refuse: &str, retry_cnt: u8) -> Report {
    let writes = Work { ops: vec![Op::Write(100_000, None); 200], depth: 8, ..Work::default() };
    let mut scenario = clean(&[writes, Work::default()], PAUSE, 1);
    scenario.settings.policy = refusing(refuse);
    let qp = &mut scenario.connections[0].qp;
    *qp = QpConfig { timeout: Some(TIMEOUT), retry_cnt, ..*qp };
    let crash = Fault::Crash { site, down: Duration::from_millis(500), noticed: Duration::from_millis(20) };
    scenario.faults = vec![(PAUSE + TIMEOUT + Duration::from_millis(300), crash)];
    let report = World::new(scenario).unwrap().run().unwrap();
    assert!(report.succeeded > 0 && report.failed > 0 && report.gave_up == 0, "{report:?}");
    report
}

fn fatal_naks(report: &Report) -> u64 {
    report.gateways.iter().map(|gateway| gateway.near.fatal_naks).sum()
}

#[test]
fn what_a_crash_interrupts_ends_in_an_error() {
    for site in 0..2 {
        let report = crashed(site, "nak", FOR_EVER);
        // Not the patience of anyone, but the next session tells.
        assert!(report.busy < Duration::from_secs(5) && fatal_naks(&report) > 0, "{:?}", report.busy);
    }
}

/// A NIC with this many retries goes on trying, as Soft-RoCE does.
const FOR_EVER: u8 = 7;

/// By default requesters meet silence, so that their NICs give up by themselves. Those that have
/// not done so after 30 s are refused.
#[test]
fn what_a_crash_interrupts_ends_in_silence_for_thirty_seconds_at_most() {
    for (site, refuse) in [(0, ""), (1, ""), (0, "silence"), (1, "silence")] {
        let report = crashed(site, refuse, 6);
        assert_eq!(fatal_naks(&report), 0, "{site} {refuse}");
        assert!(report.busy < Duration::from_secs(10), "{site} {refuse}: {:?}", report.busy);
        let report = crashed(site, refuse, FOR_EVER);
        assert!(fatal_naks(&report) > 0, "{site} {refuse}");
        // Two seconds until the crash, one until the next session, and three tries.
        let busy = report.busy.as_secs();
        assert!((31..36).contains(&busy), "{site} {refuse}: {:?}", report.busy);
    }
}
