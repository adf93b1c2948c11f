//! Exit statuses by which scripts learn what is wrong while there is a session.

use super::chaos::{ip, run_in_name_spaces, start_on_interfaces};
use super::*;

const SITES: [Site; 2] = [Site::A, Site::B];

/// Asks the gateway by `status` and by `healthy`, both of which end with this exit status, and
/// returns what they show.
fn asked(pair: &Pair, site: Site, status: i32) -> [String; 2] {
    let admin = pair.testbed.admin(site).to_string();
    ["status", "healthy"].map(|command| longhaul_that_ends_with(status, &[command, "--admin", &admin]))
}

/// Returns whether the session is up, and the ways of the data path to the peer and from it; `None`
/// while nothing shows it.
fn metrics(pair: &Pair, site: Site) -> [Option<u64>; 3] {
    let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
    ["longhaul_session_up{", "direction=\"to_peer\"} ", "direction=\"from_peer\"} "].map(|series| {
        let is_meant = |line: &&str| {
            let name = line.split('{').next().unwrap();
            ["longhaul_session_up", "longhaul_data_path_up"].contains(&name) && line.contains(series)
        };
        metrics.lines().find(is_meant).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
    })
}

/// A firewall lets the control connection pass, and data not, both ways or one.
#[test]
fn a_way_that_carries_no_data_has_an_exit_status() {
    let mut pair = Pair::start_otherwise(1, |plan| plan.link = "delay 2ms".parse().unwrap());
    for blocked in [[true, true], [true, false], [false, true]] {
        pair.testbed.block_bulk_from(blocked);
        pair.wait_for("the session is not blocked", Status::is_blocked);
        for (site, [to_peer, from_peer]) in SITES.into_iter().zip([blocked, [blocked[1], blocked[0]]]) {
            let [status, healthy] = asked(&pair, site, 4);
            assert!(
                status.contains("session  blocked for ") && status.contains("no data crosses"),
                "{status}"
            );
            assert!(
                healthy.starts_with("not healthy: session with ") && healthy.contains("blocked"),
                "{healthy}"
            );
            let [session, to, from] = metrics(&pair, site);
            let told = format!("{blocked:?}, {site:?}: {session:?}, {to:?}, {from:?}");
            assert_eq!(session, Some(0), "{told}");
            // Whoever hears nothing does not learn whether he is heard.
            assert!(to != Some(u64::from(to_peer)) && from != Some(u64::from(from_peer)), "{told}");
            assert!(to == Some(0) || from == Some(0), "{told}");
        }
        pair.testbed.block_bulk_from([false; 2]);
        pair.wait_for("the session is not up", Status::is_up);
        for site in SITES {
            wait_until("nothing crosses", &|| metrics(&pair, site) == [Some(1); 3]);
            asked(&pair, site, 0);
            assert_eq!(pair.status(site).session.established, 1, "control was never cut");
        }
    }
    pair.complete_transfer(20);
    pair.testbed.stop().unwrap();
}

#[test]
fn a_lan_that_is_down_has_an_exit_status() {
    run_in_name_spaces("statuses::without_a_lan", 0);
}

/// Older kernels rename no interface that is up.
fn rename(from: &str, to: &str) {
    ip(&format!("link set {from} down"));
    ip(&format!("link set {from} name {to}"));
    ip(&format!("link set {to} up"));
}

#[test]
#[ignore = "run by the others, in a name space"]
fn without_a_lan() {
    let (mut pair, _hosts) = start_on_interfaces(2, |_| {});
    SITES.iter().for_each(|site| drop(asked(&pair, *site, 0)));
    ip("link set g0 down");
    wait_until("nobody says so", &|| {
        pair.status(Site::A).surroundings.lan.why.as_deref() == Some("g0 is down")
    });
    let [status, healthy] = asked(&pair, Site::A, 5);
    assert!(status.contains("session  up for ") && status.contains(": g0 is down"), "{status}");
    assert!(healthy.starts_with("not healthy: hosts cannot use the LAN: "), "{healthy}");
    assert_eq!(pair.counted(Site::A, "longhaul_lan_up", |_| true), 0);
    wait_until("the link is not as it was", &|| metrics(&pair, Site::A) == [Some(1); 3]);
    // The other site's hosts learn it by what they do not get: there it is no fault.
    asked(&pair, Site::B, 0);
    ip("link set g0 up");
    wait_until("the LAN is not back", &|| pair.status(Site::A).is_up());
    asked(&pair, Site::A, 0);
    pair.complete_transfer(20);
    rename("g0", "x0");
    let gone = Some("there is no interface g0");
    wait_until("the name is not missed", &|| pair.status(Site::A).surroundings.lan.why.as_deref() == gone);
    asked(&pair, Site::A, 5);
    rename("x0", "g0");
    wait_until("the LAN is not back", &|| pair.status(Site::A).is_up());
    asked(&pair, Site::A, 0);
    pair.complete_transfer(20);
    pair.testbed.stop().unwrap();
}
