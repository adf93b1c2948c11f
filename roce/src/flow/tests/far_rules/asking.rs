//! Requests of a flow to its target in turns, and the answers that it may get.

use super::*;
use crate::pairing::{Span, Word};
use crate::wire::Kind;

#[test]
fn what_is_asked_next_takes_the_psns_of_its_answer() {
    let mut bench = Bench::new();
    assert_eq!(bench.far.next_ask(bench.now), None);
    bench.message(100, 1);
    assert_eq!(bench.far.next_ask(bench.now), Some(Span::of(Psn::new(100), 1)));
    bench.sent();
    bench.request(Opcode::ReadRequest, 101, 1000);
    let read = Span::of(Psn::new(101), 4).of_kind(Kind::Read);
    assert_eq!(bench.far.next_ask(bench.now), Some(read));
    bench.sent();
    assert_eq!(bench.far.next_ask(bench.now), None);
}

/// Without an answer in its turn it sends the same in its next one, and the time counts as silence.
#[test]
fn what_was_asked_in_vain_is_asked_again() {
    let mut bench = Bench::new();
    bench.message(100, 3);
    assert_eq!(bench.sent_psns(), [100, 101, 102]);
    bench.now += Duration::from_millis(5);
    bench.far.take_back(bench.now);
    assert_eq!(bench.far.next_ask(bench.now), Some(Span::of(Psn::new(100), 1)));
    assert_eq!(bench.far.next_timeout(), None, "nothing is under way");
    bench.far.resume(bench.now);
    assert_eq!(bench.sent_psns(), [100, 101, 102]);
    bench.response(&acknowledge(102, 0x1f, 3));
    assert!(bench.far.is_answered());
}

#[test]
fn a_target_that_is_asked_in_vain_for_long_is_dead() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    let began = bench.now;
    while bench.far.failure().is_none() {
        bench.sent();
        bench.now += Duration::from_millis(20);
        bench.far.take_back(bench.now);
        bench.now += Duration::from_secs(1);
        bench.far.resume(bench.now);
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
    let dead_after = Bench::config().target_dead_after;
    assert!((dead_after..dead_after * 5 / 4).contains(&(bench.now - began)));
}

#[test]
fn two_timeouts_without_a_word_raise_doubt() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    let mut timeouts = 0;
    while !bench.far.is_unheard() {
        bench.wait(bench.far.next_timeout().unwrap() - bench.now);
        bench.sent();
        timeouts += 1;
    }
    assert_eq!(timeouts, 2);
    // It says that it is not ready: no progress, but it is there.
    bench.response(&acknowledge(100, 0x21, 0));
    assert!(!bench.far.is_unheard());
}

#[test]
fn what_a_flow_may_hear_is_what_it_has_sent() {
    let mut bench = Bench::new();
    bench.message(100, 4);
    bench.sent();
    bench.response(&acknowledge(101, 0x1f, 0));
    let at = |psn: u32| (bench.far.awaits(Psn::new(psn), Word::Ack), bench.far.may_hear_again(Psn::new(psn)));
    let heard = [99, 100, 101, 102, 103, 104].map(at);
    let (no, again, awaited) = ((false, false), (false, true), (true, true));
    assert_eq!(heard, [no, again, again, awaited, awaited, no]);
    assert!(!bench.far.awaits(Psn::new(102), Word::Read));
    bench.request(Opcode::ReadRequest, 104, 1000);
    bench.sent();
    let read = [103, 104, 107, 108].map(|psn| bench.far.awaits(Psn::new(psn), Word::Read));
    assert_eq!(read, [false, true, true, false]);
    assert!(!bench.far.awaits(Psn::new(104), Word::Atomic));
}

/// Its answers may have any of these PSNs, and are no other flow's for that.
#[test]
fn a_read_of_an_unknown_path_mtu_may_be_answered_by_as_many_packets_as_there_can_be() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 2305);
    bench.sent();
    let read = [99, 100, 101, 109, 110].map(|psn| bench.far.awaits(Psn::new(psn), Word::Read));
    assert_eq!(read, [false, true, true, true, false]);
}

/// However long a flow lives, what lies far back is not what it was sent a moment ago.
#[test]
fn what_was_sent_long_ago_is_not_heard_again() {
    let mut bench = Bench::new();
    let mut psn = 0;
    while psn < 5 << 19 {
        bench.request(Opcode::ReadRequest, psn, 256 << 16);
        bench.sent();
        for bytes in responses(psn, 0, 256 << 16, 1) {
            bench.response(&bytes);
            bench.sent();
        }
        psn += 1 << 16;
    }
    let una = Psn::new(psn);
    assert!(bench.far.is_answered());
    for (behind, again) in [(1, true), (1 << 20, true), (3 << 19, false), (0, false)] {
        assert_eq!(bench.far.may_hear_again(una - behind), again, "{behind:#x}");
    }
    assert!(!bench.far.may_hear_again(una + (1 << 22)));
}

/// Another connection's target, which stands there, would pass for this one's.
#[test]
fn what_a_target_had_beyond_all_that_was_sent_is_not_awaited_once_it_was_sent() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.far.ask_again(&parse(&acknowledge(101, 0x1f, 2)), bench.now);
    let awaits = |bench: &Bench| bench.far.awaits(Psn::new(101), Word::Ack);
    assert!(awaits(&bench), "it may say so again");
    bench.sent();
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    bench.message(101, 1);
    bench.sent();
    assert!(awaits(&bench), "it is asked");
    bench.relayed(&acknowledge(101, 0x1f, 2)).unwrap();
    assert!(!awaits(&bench), "it has answered");
}
