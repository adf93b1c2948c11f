//! How a gateway stands, by status, page and terminal.

use rustls_pki_types::UnixTime;

use super::*;
use crate::lan::usable::{Family, Fault};
use crate::telemetry::Validity;

/// Text, JSON and metric have one judgement.
#[test]
fn a_lan_that_hosts_cannot_use_shows_everywhere() {
    let start = Instant::now();
    let (admin, telemetry) = admin(start);
    telemetry.session(SessionState::Up, None, start);
    telemetry.name_lan("eth1");
    let plane = telemetry.plane();
    let judged = |lan_up, fault| {
        plane.store(&Snapshot { lan_up, ..Snapshot::default() });
        telemetry.set_lan_fault(fault);
        telemetry.judge_lan(start);
        let status = admin.status(start + Duration::from_secs(3));
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["lan"]["interface"], "eth1");
        assert_eq!(json["lan"]["state"] == "down", !status.is_up());
        let metrics = admin.metrics(start);
        assert!(metrics.contains("longhaul_lan_up{"), "{metrics}");
        assert_eq!(
            metrics.contains("longhaul_lan_up{site=\"a\",peer=\"b\"} 0"),
            !status.is_up(),
            "{metrics}"
        );
        (status.is_up(), status.to_string())
    };
    let (is_up, shown) = judged(2, None);
    assert!(is_up && !shown.contains("\nlan "), "{shown}");
    for (lan_up, fault, told) in [
        (1, None, "lan      down for 3.0 s: eth1 is gone, down, or without a carrier\n"),
        (1, Some(Fault::Down), "lan      down for 3.0 s: eth1 is down\n"),
        (2, Some(Fault::NoAddress(Family::V4)), "lan      down for 3.0 s: eth1 has no IPv4 address, "),
    ] {
        let (is_up, shown) = judged(lan_up, fault);
        assert!(!is_up && shown.contains(told), "{shown}");
    }
}

/// The figures of before say nothing of a link that nothing crosses.
#[test]
fn a_blocked_session_shows_since_when_and_no_figures_of_before() {
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    for has_address in [true, false] {
        let (admin, telemetry) = admin(start);
        telemetry.session(SessionState::Up, None, start);
        let mut snapshot = Snapshot::default();
        counted(&mut snapshot);
        let plane = telemetry.plane();
        for second in 0..60 {
            snapshot.wan_sent_packets += 4;
            snapshot.wan_opened[0] += if second <= 40 { 4 } else { 0 };
            snapshot.path_age_micros = if second <= 40 { 20_000 } else { (second - 40) * 1_000_000 };
            plane.store(&snapshot);
            admin.tick(at(second));
            let why = (second > 50 && !has_address).then(|| "no way from 10.9.0.1".to_owned());
            telemetry.judge_wan(why, at(second));
            if has_address || second <= 41 {
                telemetry.judge_data_path(at(second));
            }
            if second == 20 {
                let status = admin.status(at(20));
                assert!(status.is_up() && status.path.is_some() && status.lanes[0].drop.is_some());
            }
        }
        let status = admin.status(at(60));
        let since = if has_address { 20 } else { 9 };
        assert!(status.is_blocked() && !status.is_up(), "{status}");
        assert_eq!(status.session.since.round() as u64, since);
        assert_eq!((status.session.rtt, &status.path, status.lanes[0].drop), (None, &None, None));
        assert_eq!((status.rates.wan_received_bits, status.rates.decoded), (None, None));
        assert!(status.rates.wan_sent_bits.is_some());
        let shown = status.to_string();
        let first = format!("session  blocked for {since}.0 s, ");
        assert!(shown.contains(&first) && !shown.contains(" drop ") && !shown.contains("in use"), "{shown}");
        assert_eq!(shown.contains("is UDP port 14792 open"), has_address, "{shown}");
        assert_eq!(shown.contains("wan      down for 9.0 s: no way from"), !has_address, "{shown}");
        let metrics = admin.metrics(at(60));
        assert!(metrics.contains("longhaul_session_up{site=\"a\",peer=\"b\"} 0"), "{metrics}");
        assert!(!metrics.contains("\nlonghaul_path_drop_ratio{"), "{metrics}");
    }
}

/// A rate of 0 would say that the link is there, and at rest.
#[test]
fn without_a_session_there_are_no_figures_of_the_link() {
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    let (admin, telemetry) = admin(start);
    telemetry.session(SessionState::Up, None, start);
    let mut snapshot = Snapshot::default();
    counted(&mut snapshot);
    let plane = telemetry.plane();
    for second in 0..3 {
        snapshot.wan_sent_bytes += 1000;
        snapshot.lan_received_bytes += 1000;
        plane.store(&snapshot);
        admin.tick(at(second));
    }
    let shown = |second| {
        let status = admin.status(at(second));
        let rates = serde_json::to_value(status.rates).unwrap();
        let of_link = rates.as_object().unwrap().keys().filter(|key| !key.starts_with("lan_")).count();
        let is_known = [status.path.is_some(), status.session.rtt.is_some(), status.lanes[0].drop.is_some()];
        (of_link, is_known, rates["lan_received_bits"].as_f64().unwrap() > 0.0)
    };
    assert_eq!(shown(3), (6, [true; 3], true));
    telemetry.session(SessionState::Connecting, Some("silence".to_owned()), at(3));
    assert_eq!(shown(3), (0, [false; 3], true));
}

#[test]
fn status_says_when_certificates_expire() {
    let start = Instant::now();
    let (admin, telemetry) = admin(start);
    assert!(!admin.status(start).to_string().contains("certs"));
    let at = |seconds| Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    telemetry.set_expiry(Validity::Own, at(86_400));
    telemetry.set_expiry(Validity::Peer, at(100 * 365 * 86_400));
    let status = admin.status(start);
    let told = "certs    own EXPIRED 1970-01-02T00:00:00Z; peer expires 2069-12-07T00:00:00Z\n";
    assert!(status.to_string().contains(told), "{status}");
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["certificates"][0]["is_expired"], true, "{json}");
    assert_eq!(json["certificates"][1]["is_due"], false, "{json}");
}
