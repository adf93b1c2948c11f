//! How long packets may be.

use std::time::Duration;

use netem_tests::host::{Access, QpConfig, RemoteAddr, Status};

use crate::pair::{DELAY, Pair, QPNS, settings};

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
            gateway.session_up(2 * DELAY, agreed, &[], now);
        }
        pair.connect(first);
        pair.longest = [0; 2];
        transfer(&mut pair);
        // Packets are filled but for what would be too short a piece of a record.
        let filled = pair.longest.iter().all(|len| (longest / 4 * 3..=longest).contains(len));
        assert!(filled, "{:?} of {longest}", pair.longest);
    }
}
