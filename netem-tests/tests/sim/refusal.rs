//! Requesters whose flows a crash ends, and how they are refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Policy;
use netem_tests::host::QpConfig;
use netem_tests::sim::{Fault, Report, World};

use super::{clean, sends};

/// One class that refuses like this; empty: by default.
fn refusing(refuse: &str) -> Arc<Policy> {
    let key = if refuse.is_empty() { String::new() } else { format!("refuse = \"{refuse}\"") };
    let text = format!("[[class]]\nname = \"default\"\nscheme = \"sr\"\n{key}");
    Policy::parse(Path::new("policy.toml"), &text).unwrap().into()
}

/// Before the first request, so that there is a session.
const PAUSE: Duration = Duration::from_secs(1);

/// The gateway of a site crashes while both programs send. Their NICs wait so long for an answer,
/// eight times.
fn crashed(site: usize, refuse: &str, timeout: Duration) -> Report {
    let mut scenario = clean(&[sends(200, 100_000), sends(200, 100_000)], PAUSE, 1);
    scenario.settings.policy = refusing(refuse);
    let qp = &mut scenario.connections[0].qp;
    *qp = QpConfig { timeout: Some(timeout), ..*qp };
    let crash = Fault::Crash { site, down: Duration::from_millis(500), noticed: Duration::from_millis(20) };
    scenario.faults = vec![(PAUSE + Duration::from_millis(150), crash)];
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
        let report = crashed(site, "nak", Duration::from_millis(100));
        // Not the patience of anyone, but the next session tells.
        assert!(report.busy < Duration::from_secs(4) && fatal_naks(&report) > 0, "{:?}", report.busy);
    }
}

/// By default requesters meet silence, so that their NICs give up by themselves. Those that have
/// not done so after 30 s are refused.
#[test]
fn what_a_crash_interrupts_ends_in_silence_for_thirty_seconds_at_most() {
    for (site, refuse) in [(0, ""), (1, ""), (0, "silence"), (1, "silence")] {
        let report = crashed(site, refuse, Duration::from_millis(500));
        assert_eq!(fatal_naks(&report), 0, "{site} {refuse}");
        assert!(report.busy < Duration::from_secs(10), "{site} {refuse}: {:?}", report.busy);
        let report = crashed(site, refuse, Duration::from_secs(8));
        assert!(fatal_naks(&report) > 0, "{site} {refuse}");
        // The silence, and the three tries that a restarted gateway asks for.
        let busy = report.busy.as_secs();
        assert!((30..60).contains(&busy), "{site} {refuse}: {:?}", report.busy);
    }
}
