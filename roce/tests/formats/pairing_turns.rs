//! Questions, windows and turns: what an answer proves, and who asks when.

use std::time::{Duration, Instant};

use roce::pairing::{Candidacy, Config, Event, Match, Pairings, Response, Rival, Span, Word};
use roce::wire::{Kind, Psn, Qpn};

use crate::pairing::{All, asks, connect_others, events, flow, hears, response, start};

pub(crate) fn opened(flows: &[u32], now: Instant) -> Pairings {
    let mut pairings = Pairings::new(Config::default(), now);
    for target_qpn in flows {
        assert_eq!(pairings.open(flow(*target_qpn), now), Ok(None));
    }
    pairings
}

pub(crate) fn paired(target_qpn: u32) -> Match {
    Match::Paired(flow(target_qpn))
}

/// The PSNs that flows which are gone had asked for.
const ASKED: Span = Span::of(Psn::new(0), 1);

/// Before any answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// The first message of each is on its way when the first answer comes. Nothing but the turn tells
/// whose it is.
#[test]
fn flows_with_like_psns_ask_one_at_a_time_from_the_beginning() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19, 0x1a], now);
    let turns = [0x18, 0x19, 0x1a].map(|qpn| asks(&mut pairings, &flow(qpn), 0, now));
    assert_eq!(turns, [true, false, false]);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))]);
    assert!(asks(&mut pairings, &flow(0x19), 0, now) && !asks(&mut pairings, &flow(0x1a), 0, now));
    // The first goes on meanwhile.
    assert!(asks(&mut pairings, &flow(0x18), 1, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 1), now), Match::Known(flow(0x18)));
    assert_eq!(hears(&mut pairings, &response(0x71, 0), now), paired(0x19));
}

#[test]
fn flows_with_distant_psns_ask_together() {
    let now = start();
    let flows: Vec<_> = (0..64).collect();
    let mut pairings = opened(&flows, now);
    for qpn in 0..64 {
        assert!(asks(&mut pairings, &flow(qpn), qpn << 18, now), "{qpn}");
    }
    // A target that stands elsewhere may name any PSN, so each is asked once more.
    for qpn in (1..64).rev() {
        let answer = response(0x100 + qpn, qpn << 18);
        assert_eq!(hears(&mut pairings, &answer, now), Match::Again(flow(qpn)));
        assert!(asks(&mut pairings, &flow(qpn), qpn << 18, now));
        assert_eq!(hears(&mut pairings, &answer, now), paired(qpn));
    }
    assert_eq!(hears(&mut pairings, &response(0x100, 0), now), paired(0), "nobody else asks");
}

/// No other flow can have been answered so, but neither was this one asked.
#[test]
fn what_nobody_was_asked_pairs_nobody() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    let answer = |psn, word| Response { word, ..response(0x70, psn) };
    for (psn, word) in [
        (4, Word::Ack),
        (6 + (1 << 16), Word::Ack),
        (6, Word::SequenceNak),
        (4, Word::NotReady),
        (5, Word::Read),
        (5, Word::Atomic),
        (0x80_0000, Word::Ack),
    ] {
        assert_eq!(hears(&mut pairings, &answer(psn, word), now), Match::Unknown, "{psn:#x} {word:?}");
    }
    assert_eq!(hears(&mut pairings, &answer(5, Word::NotReady), now), paired(0x18));
}

/// Somebody guesses PSNs, and one in 128 lies in the window of a question.
#[test]
fn an_answer_about_what_was_not_asked_counts_when_it_is_given_again() {
    let now = start();
    let mut pairings = opened(&[0x18], now);
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    // Guesses differ, and copies of one are no second answer.
    for (qpn, psn) in [(0x70, 9), (0x70, 9), (0x71, 9), (0x71, 10), (0x71, 10)] {
        assert_eq!(hears(&mut pairings, &response(qpn, psn), now), Match::Again(flow(0x18)));
    }
    assert_eq!(pairings.partner(&flow(0x18)), None);
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    assert_eq!(hears(&mut pairings, &response(0x71, 9), now), Match::Again(flow(0x18)));
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    assert_eq!(hears(&mut pairings, &response(0x71, 9), now), paired(0x18));
}

/// One target stands elsewhere than it is asked about, and says so each time. Its word lies near
/// the PSN of another flow, which asks at the same times and may have a dead target.
#[test]
fn what_another_target_may_have_said_each_time_pairs_no_flow() {
    for is_own in [false, true] {
        let mut now = start();
        let mut pairings = opened(&[0x18, 0x19], now);
        let psn = |qpn| if qpn == 0x18 { 0 } else { 5 << 20 };
        let answer = response(0x70, 9);
        for found in [Match::Again(flow(0x18)), Match::Ambiguous, Match::Ambiguous] {
            for qpn in [0x18, 0x19] {
                assert!(asks(&mut pairings, &flow(qpn), psn(qpn), now));
            }
            assert_eq!(hears(&mut pairings, &answer, now), found);
        }
        let mut next = |pairings: &mut Pairings| loop {
            now = pairings.next_timeout().unwrap();
            pairings.handle_timeout(now);
            let turns = events(pairings).into_iter().filter_map(|event| match event {
                Event::Turn(flow) => Some(flow),
                _ => None,
            });
            let asked: Vec<_> = turns
                .filter(|flow| asks(pairings, flow, psn(flow.target_qpn.get()), now))
                .map(|flow| flow.target_qpn.get())
                .collect();
            if !asked.is_empty() {
                return (asked, now);
            }
        };
        let (asked, at) = next(&mut pairings);
        assert_eq!(asked, [0x18], "nobody else asks meanwhile");
        if is_own {
            assert_eq!(hears(&mut pairings, &answer, at), paired(0x18));
            continue;
        }
        let (asked, at) = next(&mut pairings);
        assert_eq!(asked, [0x19], "it was in vain");
        assert_eq!(hears(&mut pairings, &answer, at), Match::Ambiguous);
    }
}

/// No target repeats it, and the requester knows where it stands.
#[test]
fn a_sequence_nak_before_what_was_asked_is_a_hint() {
    let now = start();
    let mut pairings = opened(&[0x18], now);
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    let nak = |psn| Response { word: Word::SequenceNak, ..response(0x70, psn) };
    for _ in 0..3 {
        assert_eq!(hears(&mut pairings, &nak(4), now), Match::Hint(flow(0x18)));
        assert!(asks(&mut pairings, &flow(0x18), 5, now));
    }
    assert_eq!(pairings.partner(&flow(0x18)), None);
    assert_eq!(hears(&mut pairings, &nak(5), now), paired(0x18));
}

/// The answer that is to be given again comes when the turn is nearly over.
#[test]
fn a_turn_lasts_until_an_answer_can_be_given_again_but_once_longer_only() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 5, now) && !asks(&mut pairings, &flow(0x19), 5, now));
    for longer in [true, false] {
        now += PATIENCE - Duration::from_millis(1);
        assert_eq!(hears(&mut pairings, &response(0x70, 9), now), Match::Again(flow(0x18)));
        assert!(asks(&mut pairings, &flow(0x18), 5, now), "{longer}");
        assert_eq!(hears(&mut pairings, &response(0x70, 10), now), Match::Again(flow(0x18)));
    }
    now += PATIENCE;
    pairings.handle_timeout(now);
    assert_eq!(events(&mut pairings), [Event::InVain(flow(0x18)), Event::Turn(flow(0x19))]);
}

/// A target of 0x18's answers late, in nobody's turn, since the turn is kept for that long.
#[test]
fn a_turn_lasts_as_long_as_its_answer_may_take() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now) && !asks(&mut pairings, &flow(0x19), 0, now));
    now += PATIENCE / 2;
    // What it sends again may be answered for as long.
    assert!(asks(&mut pairings, &flow(0x18), 1, now));
    now += PATIENCE * 3 / 4;
    pairings.handle_timeout(now);
    assert_eq!(events(&mut pairings), []);
    assert!(!asks(&mut pairings, &flow(0x18), 2, now), "but it sends nothing more");
    now += PATIENCE / 4;
    pairings.handle_timeout(now);
    assert_eq!(events(&mut pairings), [Event::InVain(flow(0x18)), Event::Turn(flow(0x19))]);
    assert!(asks(&mut pairings, &flow(0x19), 0, now) && !asks(&mut pairings, &flow(0x18), 0, now));
}

/// The gateway gives the flow up, and its target answers all the same.
#[test]
fn the_question_of_a_flow_that_is_gone_keeps_its_window() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now) && !asks(&mut pairings, &flow(0x19), 0, now));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    // Opened anew, it does not answer for the one before either.
    assert_eq!(pairings.open(flow(0x18), now), Ok(None));
    assert!(!asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), Match::Unknown);
    assert_eq!(events(&mut pairings), []);
    now += PATIENCE;
    pairings.handle_timeout(now);
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))]);
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x71, 0), now), paired(0x19));
}

/// The same of one that was paired: a copy of its last answer may be on its way.
#[test]
fn an_answer_to_a_flow_that_is_gone_is_nobody_elses() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    now += Duration::from_millis(4);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    now += PATIENCE - Duration::from_millis(1);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), Match::Unknown);
    // After a while the number may belong to another connection.
    now += Duration::from_millis(1);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x19));
}

/// X.0x70 and Y.0x18 are a pair, and then X.0x70 and Y.0x19, of which nobody tells, with the same
/// PSNs.
#[test]
fn a_requesters_queue_pair_that_changes_its_partner_is_known_by_the_answer() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    let hears = |pairings: &mut Pairings, claim| {
        let mut flows = All { claim, rival: None };
        pairings.handle_response(&response(0x70, 0), &mut flows, now)
    };
    // The one before awaits it, or may hear it once more.
    assert_eq!(hears(&mut pairings, Candidacy::Good), Match::Known(flow(0x18)));
    // One packet's word does not end the one before.
    for _ in 0..3 {
        assert_eq!(hears(&mut pairings, Candidacy::None), Match::Again(flow(0x19)));
    }
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    assert_eq!(hears(&mut pairings, Candidacy::None), paired(0x19));
    assert_eq!(events(&mut pairings), [Event::Unpaired(flow(0x18))]);
    assert_eq!((pairings.flows(), pairings.waiting()), (2, 1));
    pairings.forget(&flow(0x18), None, now);
    assert_eq!((pairings.flows(), pairings.waiting()), (1, 0));
}

/// X.0x70 was taken for 0x18's partner, and is 0x19's.
#[test]
fn a_flow_that_loses_its_requester_asks_for_its_own() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    let mut flows = All { claim: Candidacy::None, rival: None };
    for found in [Match::Again(flow(0x19)), paired(0x19)] {
        assert!(asks(&mut pairings, &flow(0x19), 0, now));
        assert_eq!(pairings.handle_response(&response(0x70, 0), &mut flows, now), found);
    }
    assert_eq!(events(&mut pairings), [Event::Unpaired(flow(0x18))]);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x71, 0), now), paired(0x18));
    assert_eq!((pairings.flows(), pairings.waiting()), (2, 0));
}

/// X.0x70 and Y.0x18 were a pair, and 0x18 has fallen silent with requests under way. Then X.0x70
/// and Y.0x19 are one, with the same PSNs.
#[test]
fn a_flow_in_doubt_asks_anew_and_confirms_nothing() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert!(asks(&mut pairings, &flow(0x19), 1, now));
    let mut flows = All { claim: Candidacy::Doubtful, rival: None };
    let answer = response(0x70, 1);
    assert_eq!(pairings.handle_response(&answer, &mut flows, now), Match::Ambiguous);
    assert_eq!(events(&mut pairings), [Event::Doubted(flow(0x18))]);
    assert!(!asks(&mut pairings, &flow(0x18), 1, now), "in its turn");
    // What is asked again is answered again, and now it tells.
    now += PATIENCE / 2;
    assert_eq!(pairings.handle_response(&answer, &mut flows, now), paired(0x19));
    assert_eq!(events(&mut pairings), [Event::Unpaired(flow(0x18)), Event::Turn(flow(0x18))]);
    assert_eq!((pairings.flows(), pairings.waiting()), (2, 1));
    pairings.forget(&flow(0x18), None, now);
    assert_eq!((pairings.flows(), pairings.waiting()), (1, 0));
}

/// X.0x70 and Y.0x18 were a pair. By now Y.0x18 has X.0x71 for its partner, whose requests go on
/// where the former's ended, so that its flow is not known to be another one. What it answers must
/// pair nobody else.
#[test]
fn while_a_flow_awaits_the_same_psn_an_answer_tells_nothing() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert!(asks(&mut pairings, &flow(0x19), 1, now));
    let answer = response(0x71, 1);
    let mut flows = All { claim: Candidacy::Good, rival: Some(Rival::Here) };
    assert_eq!(pairings.handle_response(&answer, &mut flows, now), Match::Ambiguous);
    // The flow asks anew, in its turn, and the answer tells.
    pairings.ask_anew(&flow(0x18));
    assert!(!asks(&mut pairings, &flow(0x18), 1, now));
    pairings.forget(&flow(0x19), None, now);
    let later = now + PATIENCE;
    pairings.handle_timeout(later);
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x18))]);
    assert!(asks(&mut pairings, &flow(0x18), 1, later));
    assert_eq!(hears(&mut pairings, &answer, later), paired(0x18));
    assert_eq!(pairings.partner(&flow(0x18)), Some(Qpn::new(0x71)));
    assert_eq!((pairings.flows(), events(&mut pairings)), (1, vec![]));
}

/// A request of another flow runs again, far from what is asked, and its target is silent. Most
/// answers are not its, and nobody waits for it. But its target may stand anywhere by now.
#[test]
fn while_a_request_runs_again_elsewhere_an_answer_is_to_be_given_twice() {
    let now = start();
    let mut pairings = opened(&[0x19], now);
    let mut flows = All { claim: Candidacy::None, rival: Some(Rival::Elsewhere) };
    for found in [Match::Again(flow(0x19)), paired(0x19)] {
        assert!(asks(&mut pairings, &flow(0x19), 1, now));
        assert_eq!(pairings.handle_response(&response(0x71, 1), &mut flows, now), found);
    }
}

/// An answer near by proves nothing then, however often it is given: the other target gives it each
/// time.
#[test]
fn while_a_request_runs_again_elsewhere_what_lies_near_by_proves_nothing() {
    let now = start();
    let mut pairings = opened(&[0x19], now);
    let mut hear = |rival| {
        assert!(asks(&mut pairings, &flow(0x19), 1, now));
        let mut flows = All { claim: Candidacy::None, rival };
        pairings.handle_response(&response(0x71, 30_000), &mut flows, now)
    };
    for _ in 0..4 {
        let found = hear(Some(Rival::Elsewhere));
        assert!(matches!(found, Match::Again(_) | Match::Ambiguous), "{found:?}");
    }
    assert_eq!(hear(None), paired(0x19));
}

/// A slow host's target is answered in its second turn, to what it was asked in its first. The
/// answer to the second comes later, and tells how slow the host is.
#[test]
fn the_answer_to_the_last_asking_tells_how_slow_a_host_is() {
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    now += PATIENCE;
    let hosts = flow(0x19).hosts();
    let patience = pairings.patience(hosts, now);
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    for _ in 0..2 {
        now += patience;
        pairings.handle_timeout(now);
    }
    assert!(asks(&mut pairings, &flow(0x19), 0, now));
    now += patience / 2;
    assert_eq!(hears(&mut pairings, &response(0x71, 0), now), paired(0x19));
    assert_eq!(pairings.patience(hosts, now), patience);
    now += patience * 2;
    assert_eq!(hears(&mut pairings, &response(0x71, 0), now), Match::Known(flow(0x19)));
    assert_eq!(pairings.patience(hosts, now), patience * 5);
}

/// A question in vain, whose flow is answered in its next turn: the host is no slower for the time
/// between. An answer that comes late, before it is asked again, counts in full.
#[test]
fn only_late_answers_make_a_host_slow() {
    for is_late in [false, true] {
        let mut now = start();
        let mut pairings = opened(&[0x18, 0x19], now);
        assert!(asks(&mut pairings, &flow(0x18), 0, now));
        assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
        now += PATIENCE;
        let patience = pairings.patience(flow(0x19).hosts(), now);
        assert_eq!(patience, Duration::from_millis(20));
        assert!(asks(&mut pairings, &flow(0x19), 0, now));
        now += patience;
        pairings.handle_timeout(now);
        let said = events(&mut pairings);
        assert_eq!(said.last(), Some(&Event::InVain(flow(0x19))));
        if !is_late {
            now += patience;
            pairings.handle_timeout(now);
            assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))], "it rests as long as a turn");
            assert!(asks(&mut pairings, &flow(0x19), 0, now));
        } else {
            now += patience / 2;
        }
        assert_eq!(hears(&mut pairings, &response(0x71, 0), now), paired(0x19));
        let expected = if is_late { 3 * patience } else { patience };
        assert_eq!(pairings.patience(flow(0x19).hosts(), now), expected, "late: {is_late}");
    }
}

/// Knowledge of the numbers from before says nothing of a flow opened anew.
#[test]
fn a_flow_opened_again_asks_again() {
    let mut now = start();
    let mut pairings = opened(&[0x18], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    now += PATIENCE;
    pairings.handle_timeout(now);
    for requester in [0x70, 0x71] {
        assert_eq!(pairings.open(flow(0x18), now), Ok(None));
        assert!(asks(&mut pairings, &flow(0x18), 0, now));
        assert_eq!(hears(&mut pairings, &response(requester, 0), now), paired(0x18));
        pairings.forget(&flow(0x18), None, now);
    }
}

/// Both had answers by CM, one way; the other's question is out when CM tells its partner.
#[test]
fn cm_ends_a_turn() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now) && !asks(&mut pairings, &flow(0x19), 0, now));
    connect_others(&mut pairings, 0x70, 0x18, now);
    let told = [Event::Turn(flow(0x19)), Event::Paired(flow(0x18), Qpn::new(0x70))];
    assert_eq!(events(&mut pairings), told);
}

#[test]
fn who_has_nothing_to_ask_passes_its_turn_on() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19, 0x1a], now);
    let turns = [0x18, 0x19, 0x1a].map(|qpn| asks(&mut pairings, &flow(qpn), 0, now));
    assert_eq!(turns, [true, false, false]);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))]);
    pairings.pass(&flow(0x19), now);
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x1a))]);
    // It asks when it has something to ask.
    assert!(!asks(&mut pairings, &flow(0x19), 0, now) && asks(&mut pairings, &flow(0x1a), 0, now));
}

/// A READ's answers take as many PSNs as its data takes packets.
#[test]
fn a_read_keeps_all_psns_of_its_answer() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    let read = Span::of(Psn::new(0), 1 << 20).of_kind(Kind::Read);
    assert!(pairings.may_send(&flow(0x18), &read, now));
    assert!(!asks(&mut pairings, &flow(0x19), 1 << 20, now));
    let answer = Response { word: Word::Read, ..response(0x70, 77) };
    assert_eq!(hears(&mut pairings, &answer, now), paired(0x18));
}

/// Runs the clock to the next event, with requests of those who may.
struct Bench {
    pairings: Pairings,
    now: Instant,
    /// Turns that were used.
    turns: u32,
    asking: Vec<u32>,
}

impl Bench {
    /// `flows` begin, all at PSN 0.
    fn new(flows: &[u32]) -> Bench {
        let now = start();
        let mut bench = Bench { pairings: opened(flows, now), now, turns: 0, asking: Vec::new() };
        flows.iter().for_each(|qpn| bench.ask(*qpn));
        bench
    }

    fn open(&mut self, qpn: u32) {
        assert_eq!(self.pairings.open(flow(qpn), self.now), Ok(None));
        self.ask(qpn);
    }

    fn ask(&mut self, qpn: u32) {
        if asks(&mut self.pairings, &flow(qpn), 0, self.now) {
            self.turns += 1;
            self.asking.push(qpn);
        }
    }

    /// All targets that are alive answer after this time, or the clock goes on to the next timer.
    fn step(&mut self, after: Duration, is_alive: impl Fn(u32) -> bool) {
        let answered: Vec<_> = self.asking.drain(..).filter(|qpn| is_alive(*qpn)).collect();
        if answered.is_empty() {
            self.now = self.pairings.next_timeout().unwrap();
            self.pairings.handle_timeout(self.now);
        } else {
            self.now += after;
        }
        for qpn in answered {
            let found = hears(&mut self.pairings, &response(0x1000 + qpn, 0), self.now);
            assert_eq!(found, paired(qpn));
        }
        while let Some(event) = self.pairings.poll_event() {
            if let Event::Turn(flow) = event {
                self.ask(flow.target_qpn.get());
            }
        }
    }

    fn is_paired(&self, qpn: u32) -> bool {
        self.pairings.partner(&flow(qpn)).is_some()
    }
}

/// 64 dead targets beside healthy ones of the same two hosts, all at PSN 0.
#[test]
fn dead_neighbours_cost_a_few_turns() {
    let dead: Vec<u32> = (0..64).collect();
    let mut bench = Bench::new(&dead);
    let answer = Duration::from_micros(100);
    let is_alive = |qpn: u32| qpn >= 64;
    // They have been at it for a while.
    while bench.now < start() + Duration::from_secs(5) && bench.turns < 500 {
        bench.step(answer, is_alive);
    }
    for healthy in 64..96 {
        let (turns, began) = (bench.turns, bench.now);
        bench.open(healthy);
        while !bench.is_paired(healthy) {
            bench.step(answer, is_alive);
        }
        let (turns, took) = (bench.turns - turns, bench.now - began);
        assert!(turns <= 2 && took <= PATIENCE * 3, "{healthy}: {turns} turns, {took:?}");
    }
    // And many that come at once, behind as many dead ones that have had no turn either.
    let mut bench = Bench::new(&dead);
    (64..128).for_each(|qpn| bench.open(qpn));
    while !(64..128).all(|qpn| bench.is_paired(qpn)) {
        bench.step(answer, is_alive);
    }
    assert!(bench.turns <= 64 + 64 + 128 / 16 + 1, "{} turns", bench.turns);
}

/// A dead target is asked ever more rarely, but once a second at least, so that it is found when it
/// comes back.
#[test]
fn a_dead_target_is_asked_ever_more_rarely() {
    let mut bench = Bench::new(&[1]);
    let mut asked = vec![bench.now];
    while asked.len() < 20 {
        let turns = bench.turns;
        bench.step(Duration::ZERO, |_| false);
        if bench.turns > turns {
            asked.push(bench.now);
        }
    }
    let pauses: Vec<_> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!((pauses[0], pauses[18]), (PATIENCE * 2, Duration::from_secs(1) + PATIENCE));
    bench.step(Duration::ZERO, |_| true);
    while !bench.is_paired(1) {
        bench.step(Duration::ZERO, |_| true);
    }
}

/// A target that takes longer than a turn from the beginning is heard all the same while nobody
/// else wants to ask, and waited for from then on.
#[test]
fn a_slow_host_is_waited_for_once_it_is_known() {
    let mut now = start();
    let mut pairings = opened(&[0x18], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    now += PATIENCE * 2;
    pairings.handle_timeout(now);
    assert_eq!(events(&mut pairings), [Event::InVain(flow(0x18))]);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert_eq!(pairings.patience(response(0, 0).hosts, now), PATIENCE * 4);
}

/// Flows that begin at the same PSN are paired one after the other, in an answer's time each.
#[test]
fn many_flows_connect_in_linear_time() {
    let answer = Duration::from_micros(10);
    for count in [1, 10, 100, 1000] {
        let flows: Vec<u32> = (0..count).collect();
        let mut bench = Bench::new(&flows);
        let began = bench.now;
        while !flows.iter().all(|qpn| bench.is_paired(*qpn)) {
            bench.step(answer, |_| true);
        }
        assert_eq!((bench.turns, bench.now - began), (count, answer * count));
    }
}

/// The answer to the one before could not be told from its own.
#[test]
fn a_flow_named_like_one_that_is_gone_waits_until_that_is_answered_no_more() {
    let now = start();
    let mut pairings = opened(&[0x18], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    assert_eq!(pairings.open(flow(0x18), now), Ok(None));
    assert!(!asks(&mut pairings, &flow(0x18), 0, now));
    let later = now + PATIENCE;
    assert_eq!(pairings.next_timeout(), Some(later));
    pairings.handle_timeout(later);
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x18))]);
    assert!(asks(&mut pairings, &flow(0x18), 0, later));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), later), paired(0x18));
}

/// It cannot be the answer to the one before, which asked about others.
#[test]
fn a_requester_of_a_flow_that_is_gone_is_answered_about_distant_psns() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    assert!(asks(&mut pairings, &flow(0x19), 0x80_0000, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), Match::Unknown);
    assert_eq!(hears(&mut pairings, &response(0x70, 0x80_0000), now), paired(0x19));
}

/// The target is there, and its answer could be told from the earlier flow's only later.
#[test]
fn a_turn_answered_to_a_requester_of_a_flow_that_is_gone_is_not_in_vain() {
    let now = start();
    let mut pairings = opened(&[0x18, 0x19, 0x1a], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert!(asks(&mut pairings, &flow(0x19), 0, now) && !asks(&mut pairings, &flow(0x1a), 0, now));
    pairings.forget(&flow(0x18), Some((ASKED, now)), now);
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), Match::Unknown);
    assert!(!asks(&mut pairings, &flow(0x19), 0, now), "no answer would tell more by now");
    events(&mut pairings);
    // Its own answer may still come, so nobody else asks before that.
    let over = now + PATIENCE;
    pairings.handle_timeout(over - Duration::from_millis(1));
    assert_eq!(events(&mut pairings), []);
    pairings.handle_timeout(over);
    assert_eq!(events(&mut pairings), [Event::InVain(flow(0x19)), Event::Turn(flow(0x1a))]);
    pairings.handle_timeout(over);
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))], "it rests no longer");
    assert!(asks(&mut pairings, &flow(0x1a), 0, over) && !asks(&mut pairings, &flow(0x19), 0, over));
    assert_eq!(hears(&mut pairings, &response(0x71, 0), over), paired(0x1a));
    assert!(asks(&mut pairings, &flow(0x19), 0, over));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), over), paired(0x19));
}

/// The host's answers take a millisecond, and the LAN loses the next question. Nobody else asks
/// meanwhile, and the turn is no longer for that than by a fourth.
#[test]
fn a_question_without_an_answer_is_repeated_in_its_turn() {
    let milli = Duration::from_millis(1);
    let mut now = start();
    let mut pairings = opened(&[0x18, 0x19, 0x1a], now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert!(!asks(&mut pairings, &flow(0x19), 0, now) && !asks(&mut pairings, &flow(0x1a), 0, now));
    assert!(pairings.next_timeout().unwrap() >= now + PATIENCE, "it has answered nobody yet");
    now += milli;
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), paired(0x18));
    assert_eq!(events(&mut pairings), [Event::Turn(flow(0x19))]);
    let began = now;
    let (mut repeats, mut asked) = (Vec::new(), true);
    while now < began + 2 * PATIENCE {
        if asked {
            assert!(asks(&mut pairings, &flow(0x19), 0, now));
            assert!(!asks(&mut pairings, &flow(0x1a), 0, now));
        }
        now = pairings.next_timeout().unwrap();
        pairings.handle_timeout(now);
        asked = match events(&mut pairings)[..] {
            [Event::Repeat(again)] if again == flow(0x19) => true,
            [] => false,
            [Event::InVain(vain), Event::Turn(next)] if (vain, next) == (flow(0x19), flow(0x1a)) => break,
            ref others => panic!("{others:?}"),
        };
        if asked {
            repeats.push((now - began).as_millis());
        }
    }
    assert_eq!(repeats, [2, 6]);
    assert_eq!(now - began, PATIENCE + 6 * milli);
}
