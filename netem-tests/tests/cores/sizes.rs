//! How long packets may be.

use std::time::Duration;

use netem_tests::host::{Access, QpConfig, RemoteAddr, Status};
use roce::wire::{Opcode, PathMtu};
use splice::Settings;
use splice::record::Reason;

use crate::pair::{DELAY, FIRST, Pair, QPNS, arrival, settings};

const LENGTH: u32 = 200_000;

/// Host 0 writes to host 1 and reads from it; both must succeed.
fn transfer(pair: &mut Pair) {
    let local = pair.hosts[0].register(vec![1; LENGTH as usize], Access::LOCAL);
    let there = pair.hosts[1].register(vec![2; LENGTH as usize], Access::ALL);
    let remote = RemoteAddr { va: there.va, rkey: there.key };
    pair.hosts[0].post_write(QPNS[0], 1, local.slice(0, LENGTH), remote, None).unwrap();
    pair.hosts[0].post_read(QPNS[0], 2, local.slice(0, LENGTH), remote).unwrap();
    pair.run(Duration::from_secs(2));
    for wr_id in [1, 2] {
        let done = pair.hosts[0].poll_completion().unwrap();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
}

#[test]
fn no_wan_packet_is_longer_than_the_peer_takes() {
    // The smaller is agreed on, whichever gateway's it is.
    for own in [[8900, 1300], [1300, 8900]] {
        let mut pair = Pair::new(own.map(settings), QpConfig::default());
        transfer(&mut pair);
        assert!(pair.longest.iter().all(|len| (1172..=1300).contains(len)), "{:?} of {own:?}", pair.longest);
    }
}

#[test]
fn each_session_has_its_own_longest_packet() {
    let mut pair = Pair::new([8900, 8900].map(settings), QpConfig::default());
    for (first, agreed, longest) in [(0, 1200, 1200), (1 << 20, 4000, 4000), (2 << 20, 9500, 8900)] {
        let now = pair.now;
        for gateway in &mut pair.gateways {
            gateway.session_up(2 * DELAY, agreed, 1, &[], now);
        }
        pair.connect(first);
        pair.longest = [0; 2];
        transfer(&mut pair);
        // Packets are filled but for what would be too short a piece of a record.
        let filled = pair.longest.iter().all(|len| (longest / 4 * 3..=longest).contains(len));
        assert!(filled, "{:?} of {longest}", pair.longest);
    }
}

/// A pair whose hosts use a path MTU of 4096, and of which the gateway of `site` has a LAN
/// for 1500.
fn with_narrow_lan(site: usize) -> Pair {
    let settings =
        [0, 1].map(|at| Settings { lan_mtu: if at == site { 1500 } else { 4200 }, ..settings(8900) });
    Pair::new(settings, QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() })
}

/// The request of host 0 ended in an error at both hosts, and the narrow LAN saw no packet that it
/// does not carry.
fn assert_refused(pair: &mut Pair, site: usize, what: &str) {
    let done = pair.hosts[0].poll_completion().map(|done| done.status);
    assert_eq!(done, Some(Status::RemoteOperation), "{what}: the requester's program");
    assert!(!pair.hosts[1].is_ready(QPNS[1]), "{what}: the target's program is not told");
    assert!(pair.longest_lan[site] <= 1500, "{what}: {} bytes", pair.longest_lan[site]);
    let stats = pair.gateways[site].stats();
    assert!(stats.lan_too_long > 0, "{what}");
    assert_eq!(stats.failed[Reason::TooLong as usize], 1, "{what}");
}

#[test]
fn a_request_longer_than_the_targets_lan_carries_is_an_error_for_both_programs() {
    for earlier in [0, 3] {
        let mut pair = with_narrow_lan(1);
        let local = pair.hosts[0].register(vec![1; 9000], Access::LOCAL);
        let there = pair.hosts[1].register(vec![2; 9000], Access::ALL);
        let remote = RemoteAddr { va: there.va, rkey: there.key };
        // What fits passes, also when what does not follows at its heels.
        for wr_id in 0..earlier {
            pair.hosts[0].post_write(QPNS[0], wr_id, local.slice(0, 1400), remote, None).unwrap();
        }
        pair.hosts[0].post_write(QPNS[0], 9, local.slice(0, 9000), remote, None).unwrap();
        pair.run(Duration::from_secs(1));
        for wr_id in 0..earlier {
            let done = pair.hosts[0].poll_completion().unwrap();
            assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        }
        assert_refused(&mut pair, 1, &format!("after {earlier} that fit"));
    }
}

#[test]
fn a_response_longer_than_the_requesters_lan_carries_is_an_error_for_both_programs() {
    let mut pair = with_narrow_lan(0);
    let local = pair.hosts[0].register(vec![1; 9000], Access::LOCAL);
    let there = pair.hosts[1].register(vec![2; 9000], Access::ALL);
    let remote = RemoteAddr { va: there.va, rkey: there.key };
    pair.hosts[0].post_read(QPNS[0], 1, local.slice(0, 9000), remote).unwrap();
    pair.run(Duration::from_secs(1));
    assert_refused(&mut pair, 0, "the first READ");
}

#[test]
fn a_datagram_longer_than_the_lan_carries_is_dropped_and_counted() {
    let mut pair = with_narrow_lan(1);
    // IP, UDP, BTH and ICRC take 44 bytes.
    for len in [1456, 1460, 2000] {
        pair.request(Opcode::UcSendOnly, FIRST, len);
    }
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.heard(1), [(Opcode::UcSendOnly, FIRST, None)]);
    assert_eq!(pair.gateways[1].stats().lan_too_long, 2);
}

#[test]
fn what_waits_for_the_lan_when_its_mtu_becomes_less_is_dropped() {
    let mut pair = with_narrow_lan(0);
    pair.request(Opcode::UcSendOnly, FIRST, 1456);
    pair.request(Opcode::UcSendOnly, FIRST, 500);
    let mut buffer = vec![0; 8900];
    let [here, there] = &mut pair.gateways;
    while let Some(len) = here.poll_wan(pair.now, &mut buffer) {
        let arrival = arrival(there, pair.numbers[0], len);
        there.handle_wan(&buffer[..len], arrival, pair.now);
        pair.numbers[0] += 1;
    }
    pair.gateways[1].set_lan_mtu(1000);
    pair.run(Duration::from_millis(100));
    assert_eq!((pair.heard(1).len(), pair.gateways[1].stats().lan_too_long), (1, 1));
}
