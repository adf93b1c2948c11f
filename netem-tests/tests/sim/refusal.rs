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

/// The same where flows go on after the crash and nothing is retained, with NICs that repeat after
/// `timeout`. What a requester was acknowledged in the midst of a message is nowhere then.
fn lost_with_a_process(site: usize, refuse: &str, retry_cnt: u8, timeout: Duration) -> Report {
    let writes = Work { ops: vec![Op::Write(4_000_000, None); 20], depth: 2, ..Work::default() };
    let mut scenario = clean(&[writes, Work::default()], PAUSE, 1);
    scenario.settings.policy = refusing(refuse);
    scenario.resume_for = Duration::from_secs(60);
    let qp = &mut scenario.connections[0].qp;
    *qp = QpConfig { timeout: Some(timeout), retry_cnt, ..*qp };
    let crash = Fault::Crash { site, down: Duration::from_millis(500), noticed: Duration::from_millis(20) };
    // A message takes longer than a round trip, so there is always a part that is acknowledged.
    // What comes before the session is lost, and comes again.
    let begun = PAUSE + timeout.max(Duration::from_secs(1));
    scenario.faults = vec![(begun + Duration::from_millis(300), crash)];
    let report = World::new(scenario).unwrap().run().unwrap();
    let [near, far] = &report.gateways;
    assert!(report.succeeded > 0 && report.failed > 0 && report.gave_up == 0, "{report:?}");
    assert!(report.reborn > 0 && near.restored == 0, "{report:?}");
    assert_eq!((near.restoring, near.unrestored), (0, 1), "{site} {refuse}");
    assert!(far.far.aborts > 0, "the target's program is told: {site} {refuse}");
    report
}

/// A program with another path goes on with that if its NIC gives up, and not after a NAK.
#[test]
fn what_a_process_took_along_ends_in_silence_for_thirty_seconds_at_most() {
    let report = lost_with_a_process(0, "", FOR_EVER, TIMEOUT);
    assert!(fatal_naks(&report) > 0);
    assert!((31..36).contains(&report.busy.as_secs()), "{:?}", report.busy);
    // For ten seconds it hears where its target stands, and its NIC takes that for an answer.
    let report = lost_with_a_process(0, "", 6, TIMEOUT);
    assert_eq!(fatal_naks(&report), 0);
    assert!(report.busy < Duration::from_secs(20), "{:?}", report.busy);
}

#[test]
fn what_a_process_took_along_is_refused_where_the_class_says_so() {
    for site in 0..2 {
        let report = lost_with_a_process(site, "nak", FOR_EVER, TIMEOUT);
        assert!(fatal_naks(&report) > 0, "{site}");
        assert!(report.busy < Duration::from_secs(20), "{site}: {:?}", report.busy);
    }
}

/// The ACK timeout of a patient program's NIC, as NCCL has it.
const SELDOM: Duration = Duration::from_secs(4);

/// A NIC that repeats seldom does not come often enough to show within 30 s that it will not go
/// back. Nobody waits for it any longer all the same.
#[test]
fn silence_ends_for_requesters_that_seldom_try() {
    for (site, refuse) in [(0, ""), (1, ""), (0, "nak"), (1, "nak")] {
        let report = lost_with_a_process(site, refuse, FOR_EVER, SELDOM);
        assert!(fatal_naks(&report) > 0, "{site} {refuse}");
        // Until the next session, until it comes back, 30 s, and three tries of which one waits.
        let most = PAUSE + Duration::from_secs(2) + SELDOM + Duration::from_secs(30) + 4 * SELDOM;
        assert!(report.busy < most, "{site} {refuse}: {:?}", report.busy);
    }
}
