//! Sites with different numbers of data-plane threads.

use std::collections::BTreeSet;

use gateway::steering::thread_of;
use testbed::hostio::Limit;
use testbed::{Site, host_ip};

use super::{Pair, complete, is_empty};

/// Rule: `docs/protocol.md#rule-thread-pairs`.
#[test]
fn sites_may_have_different_numbers_of_threads() {
    const TRANSFERS: u8 = 12;
    const PAIRS: u8 = 6;
    for threads in [[2, 3], [1, 2]] {
        let pairs = if threads == [2, 3] { PAIRS } else { 2 };
        let mut pair = Pair::start_otherwise(TRANSFERS, |plan| {
            (plan.threads, plan.link) = (threads, "delay 2ms loss 0.5%".parse().unwrap());
        });
        let pair_of = |index| thread_of(host_ip(Site::A, index), host_ip(Site::B, index), pairs);
        let used: BTreeSet<_> = (1..=TRANSFERS).map(pair_of).collect();
        assert!(used.len() > usize::from(pairs) / 2, "hosts of many pairs: {used:?}");
        let transfers: Vec<_> = (0..TRANSFERS).map(|_| pair.transfer(Limit::Messages(100))).collect();
        for (client, server) in transfers {
            let server = complete((client, server), 100);
            assert!(server.messages > 0, "{server}");
        }
        for site in [Site::A, Site::B] {
            let status = pair.status(site);
            let numbers: Vec<usize> = status.lanes.iter().map(|lane| lane.lane).collect();
            assert_eq!(numbers, (0..usize::from(pairs)).collect::<Vec<_>>(), "{status:?}");
            let flows = 3 * u64::from(TRANSFERS);
            assert_eq!((status.flows.opened, status.flows.failed), (flows, 0), "{status:?}");
        }
        pair.wait_for("something is left", is_empty);
        pair.testbed.stop().unwrap();
    }
}
