//! A path that drops what is ECN-capable, as some do.
//!
//! Runs in a network name space of its own, where nftables drop such packets of both WANs:
//! ```text
//! gateway a 10.9.0.1 = nftables, emulator = 10.9.0.2 gateway b
//! ```

use std::process::Command;

use super::*;

/// The name of [`inside`], for the test program that runs it.
const INSIDE: &str = "ecn::inside";
const PATH: &str = r#"
set -e
ip link set lo up
ip addr add 10.9.0.1/32 dev lo
ip addr add 10.9.0.2/32 dev lo
nft add table ip path
nft add chain ip path input '{ type filter hook input priority 0; }'
nft add rule ip path input ip saddr 10.9.0.0/24 ip ecn != not-ect counter drop
exec "$0" --exact "$1" --ignored --nocapture
"#;
/// Values of `longhaul_lane_ecn_state` of a lane that marks none, for now or for good.
const UNMARKED: [&str; 2] = [" 3", " 4"];

#[test]
fn a_session_and_its_lanes_go_on_where_ecn_capable_packets_are_dropped() {
    let status = Command::new("unshare")
        .args(["--net", "sh", "-c", PATH])
        .arg(std::env::current_exe().unwrap())
        .arg(INSIDE)
        .status()
        .expect("unshare of util-linux");
    assert!(status.success(), "network name spaces need root, and nft is nftables'; otherwise see above");
}

/// Returns how many packets the path has dropped.
fn dropped() -> u64 {
    let shown = Command::new("nft").args(["list", "chain", "ip", "path", "input"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let count = shown.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
    count.unwrap_or_else(|| panic!("{shown}")).parse().unwrap()
}

#[test]
#[ignore = "run by the other one, in a name space"]
fn inside() {
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.wan = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
        (plan.congestion, plan.lanes) = ("adaptive", 2);
    });
    for _ in 0..2 {
        pair.complete_transfer(60);
    }
    assert!(dropped() > 0, "no packet was ECN-capable");
    for site in [Site::A, Site::B] {
        for lane in ["lane=\"0\"", "lane=\"1\""] {
            wait_until("a lane goes on with marks", &|| {
                let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
                let state = |line: &&str| line.starts_with("longhaul_lane_ecn_state{") && line.contains(lane);
                let line = metrics.lines().find(state).unwrap_or_default();
                UNMARKED.iter().any(|value| line.ends_with(value))
            });
        }
        let flows = pair.status(site).flows;
        assert_eq!((flows.opened, flows.failed), (6, 0), "{flows:?}");
    }
    pair.testbed.stop().unwrap();
}
