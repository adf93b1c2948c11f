//! Answers that the target of another flow may have given, which asks at the same time.

use roce::pairing::{Candidacy, Event, Match, Pairings, Response, Span, Word};
use roce::wire::{Kind, Psn};

use crate::pairing::{All, asks, events, flow, hears, response, start};
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

/// Somebody sends in a requester's name, and its flow begins anew in that one's place, far behind.
/// Who guesses a PSN that lies between hits nothing that was asked about.
#[test]
fn what_lies_between_two_questions_of_a_flow_was_not_asked() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    let atomic = Span::of(Psn::new(40_926), 1).of_kind(Kind::Atomic);
    assert!(pairings.may_send(&flow(0x19), &atomic, now));
    assert!(asks(&mut pairings, &flow(0x19), 8724, now));
    let mut flows = All { claim: Candidacy::None, rival: None };
    let mut hears = |pairings: &mut Pairings, psn, word| {
        let answer = Response { word, ..response(0x70, psn) };
        let found = pairings.handle_response(&answer, &mut flows, now);
        assert!(asks(pairings, &flow(0x19), 8724, now));
        found
    };
    for (psn, word, found) in [
        (28_012, Word::Ack, Match::Again(flow(0x19))),
        (9029, Word::Atomic, Match::Known(flow(0x18))),
        (9029, Word::Refusal, Match::Known(flow(0x18))),
        (20_000, Word::SequenceNak, Match::Hint(flow(0x19))),
        (9030, Word::Ack, Match::Again(flow(0x19))),
        (40_926, Word::Atomic, Match::Again(flow(0x19))),
        (40_926, Word::Atomic, paired(0x19)),
    ] {
        assert_eq!(hears(&mut pairings, psn, word), found, "{psn} {word:?}");
    }
    assert_eq!(events(&mut pairings), [Event::Unpaired(flow(0x18))]);
}

/// A flow is gone, and somebody who sends in its requester's name has another one of its name begin
/// elsewhere. Its target says where it stands, to its requester, each time that it is asked.
#[test]
fn an_answer_to_the_last_requester_of_a_flow_that_is_gone_may_still_be_its_targets() {
    for (requester_qpn, found) in [(0x70, Match::Ambiguous), (0x71, paired(0x19))] {
        let now = start();
        let mut pairings = opened(&[0x18], now);
        assert!(asks(&mut pairings, &flow(0x18), 0, now));
        assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
        pairings.forget(&flow(0x18), None, now);
        for target_qpn in [0x18, 0x19] {
            assert_eq!(pairings.open(flow(target_qpn), now), Ok(None));
        }
        for found in [Match::Again(flow(0x19)), found] {
            assert!(asks(&mut pairings, &flow(0x18), 0x40_0000, now));
            assert!(asks(&mut pairings, &flow(0x19), 0, now));
            assert_eq!(hears(&mut pairings, &response(requester_qpn, 0), now), found, "{requester_qpn:#x}");
        }
    }
}
