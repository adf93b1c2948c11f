//! Answers that the target of another flow may have given, which asks at the same time.

use roce::pairing::Match;

use crate::pairing::{asks, flow, hears, response, start};
use crate::pairing_turns::{opened, paired};

/// A flow that had a requester asks anew, where its target does not stand. That says the same each
/// time, to its requester, and by chance at the very PSN that another flow asks about: programs
/// begin at 0.
#[test]
fn an_answer_to_the_requester_of_a_flow_that_asks_meanwhile_is_no_other_flows() {
    for (requester_qpn, found) in [(0x70, Match::Ambiguous), (0x71, paired(0x19))] {
        let now = start();
        let mut pairings = opened(&[0x18], now);
        assert!(asks(&mut pairings, &flow(0x18), 0, now));
        assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
        pairings.ask_anew(&flow(0x18));
        assert_eq!(pairings.open(flow(0x19), now), Ok(None));
        let answer = response(requester_qpn, 3);
        for found in [Match::Again(flow(0x19)), found] {
            assert!(asks(&mut pairings, &flow(0x18), 0x40_0000, now));
            assert!(asks(&mut pairings, &flow(0x19), 3, now));
            assert_eq!(hears(&mut pairings, &answer, now), found, "{requester_qpn:#x}");
        }
    }
}
