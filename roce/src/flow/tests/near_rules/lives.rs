//! Requests that may be of another incarnation of their queue pair.

use super::*;

#[test]
fn what_comes_again_after_a_rest_is_for_the_target_to_judge() {
    let mut bench = rested();
    assert!(!bench.doubts(Opcode::SendOnly, 109), "its ACK is on its way");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [], "not from memory");
    bench.wait(Duration::from_millis(2));
    for opcode in [Opcode::SendOnly, Opcode::SendLast, Opcode::ReadRequest, Opcode::FetchAdd] {
        assert!(
            bench.doubts(opcode, 109) && bench.doubts(opcode, 100) && bench.doubts(opcode, 5),
            "{opcode:?}"
        );
    }
    assert!(bench.doubts(Opcode::SendOnly, 112), "all before it may have been lost");
    assert!(bench.doubts(Opcode::SendLast, 110), "no message is open");
    assert!(!bench.doubts(Opcode::SendOnly, 110), "it is carried in any case");
}

/// The first packets of a new incarnation may be lost, just as many as there were before.
#[test]
fn after_a_rest_nothing_is_said_before_the_target_has_spoken() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(2));
    bench.message(110, 40);
    assert_eq!(bench.said(), [], "an ACK inside the message would confirm what is before it");
    assert_eq!(bench.request(Opcode::SendOnly, 153, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [], "and so would a NAK");
    bench.message(150, 1);
    assert_eq!(bench.request(Opcode::SendMiddle, 112, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), []);
    bench.wait(Duration::from_millis(2));
    assert!(bench.doubts(Opcode::SendOnly, 100), "the requester goes back to where it began");
    bench.ack(110);
    assert_eq!(bench.said(), [(148, 0x1f)]);
}

#[test]
fn a_flow_begun_anew_knows_nothing() {
    let mut bench = rested();
    let bytes = request(Opcode::SendLast, 107, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendLast, 107, 256), FORWARD);
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(107);
    assert_eq!(bench.said(), [(107, 0x1f), (108, 0x60)]);
}

/// A LAN that loses much let two requests through that did not fit, both of the incarnation that
/// was outstanding.
#[test]
fn a_flow_begun_anew_follows_its_requester_into_the_midst_of_a_message() {
    let mut bench = rested();
    let bytes = request(Opcode::FetchAdd, 112, 0);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::FetchAdd, 112, 0), FORWARD);
    assert!(bench.doubts(Opcode::SendMiddle, 110), "the flow was nobody's");
}

/// As before, but the flow that those two replaced was itself begun anew, with the middle that its
/// requester was told to go on with, and its target had not spoken.
#[test]
fn a_requester_is_followed_into_a_message_although_its_flow_was_replaced_twice() {
    let mut bench = rested();
    for (opcode, psn) in [(Opcode::SendMiddle, 110), (Opcode::FetchAdd, 112)] {
        let bytes = request(opcode, psn, 0);
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(opcode, psn, 0), FORWARD);
        assert!(!bench.doubts(opcode, psn), "it is this flow's own");
    }
    assert!(bench.doubts(Opcode::SendMiddle, 110), "the flow was nobody's");
}

/// The target has had all of the message before the flow began; the requester heard that late, and
/// sends no more of it.
#[test]
fn an_ack_beyond_all_that_came_ends_the_message_at_hand() {
    let mut bench = rested();
    let bytes = request(Opcode::SendMiddle, 105, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendMiddle, 105, 256), FORWARD);
    bench.ack(109);
    assert_eq!(bench.said(), [(105, 0x1f)], "no more than it has sent here");
    assert!(bench.near.is_idle());
    bench.wait(Duration::from_millis(5));
    assert!(bench.doubts(Opcode::SendOnly, 110), "its next message is asked about at once");
    // Sent after the target spoke, and behind what was sent before.
    let mut bench = rested();
    let bytes = request(Opcode::SendLast, 105, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendLast, 105, 256), FORWARD);
    assert_eq!(bench.request(Opcode::FetchAdd, 106, 0), FORWARD);
    bench.ack(109);
    assert_eq!(bench.said(), [], "its answer is still to come, and acknowledges both");
    assert!(is_emitted(bench.response(&atomic_response(106, 7, 1))));
    assert!(bench.near.is_idle());
}

/// A requester that was acknowledged past what its target has: it hears where to go on, and cannot.
#[test]
fn a_requester_that_its_targets_name_a_psn_in_vain_is_given_up() {
    let mut bench = rested();
    let mut refused = Vec::new();
    for round in 0.. {
        assert!(round < 1000, "it is never given up");
        bench.wait(Duration::from_millis(67));
        if bench.near.is_failed() {
            bench.request(Opcode::SendOnly, 112, 256);
            bench.wait(Duration::from_millis(5));
            refused.extend(bench.said().into_iter().filter(|&(_, syndrome)| syndrome == 0x63));
            if !refused.is_empty() {
                break;
            }
        } else if bench.doubts(Opcode::SendOnly, 112) {
            let bytes = request(Opcode::SendOnly, 112, 256);
            bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
            bench.near.pair(R);
            assert_eq!(bench.request(Opcode::SendOnly, 112, 256), FORWARD);
            bench.response(&acknowledge(110, 0x60, 9));
        } else {
            bench.request(Opcode::SendOnly, 112, 256);
        }
    }
    assert_eq!(refused, [(112, 0x63)]);
}

#[test]
fn where_the_target_itself_stands_is_asked_again_when_it_matters() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    let bytes = request(Opcode::SendOnly, 112, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendOnly, 112, 256), FORWARD);
    bench.response(&acknowledge(110, 0x60, 9));
    assert_eq!(bench.said(), [(110, 0x60)]);
    bench.wait(Duration::from_secs(2));
    assert!(bench.doubts(Opcode::SendOnly, 110), "it goes back, or it never was elsewhere");
    assert_eq!(bench.request(Opcode::SendOnly, 112, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [], "it may be of another incarnation");
}

#[test]
fn a_requester_in_the_same_life_goes_on_where_it_was() {
    let mut bench = rested();
    let bytes = request(Opcode::SendOnly, 107, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendOnly, 107, 256), FORWARD);
    // It had been held up on its way: the requester has heard all there was.
    assert!(!bench.doubts(Opcode::SendOnly, 110));
    bench.ack(107);
    bench.said();
    bench.wait(Duration::from_millis(2));
    assert!(bench.doubts(Opcode::SendOnly, 110));
}

/// 100 is done and 101 outstanding, whose incarnation has stopped.
fn interrupted() -> Bench {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.message(101, 1);
    bench.wait(Duration::from_millis(10));
    bench
}

/// A SEND at 100 and a READ at 101 that were outstanding together, just answered.
fn answered() -> Bench {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), FORWARD);
    bench.ack(100);
    bench.said();
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 101, 256, 2))));
    bench
}

/// The next incarnation begins while the last answers may be on their way: its first SEND is
/// dropped as one that has crossed its ACK, and the READ behind it is carried as one asked for
/// again.
#[test]
fn a_next_life_that_began_within_a_turn_is_found_out_at_its_first_retry() {
    let mut bench = answered();
    assert_eq!(bench.request(Opcode::FetchAdd, 102, 0), FORWARD);
    assert!(is_emitted(bench.response(&atomic_response(102, 7, 3))));
    assert!(!bench.doubts(Opcode::SendOnly, 100), "its ACK is on its way");
    assert_eq!(bench.request(Opcode::SendOnly, 100, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), Verdict::Replay);
    assert!(!bench.doubts(Opcode::SendOnly, 100), "a copy of it");
    bench.wait(Duration::from_millis(2));
    assert!(!bench.doubts(Opcode::ReadRequest, 101), "the target is being asked");
    assert!(!bench.doubts(Opcode::SendOnly, 102));
    assert!(bench.doubts(Opcode::SendOnly, 100), "the target, which waits for this, answers no other");
}

#[test]
fn a_next_life_that_asks_for_something_else_is_known_at_once() {
    let mut bench = answered();
    assert!(bench.doubts(Opcode::WriteOnly, 100), "another request than that");
    assert!(bench.doubts(Opcode::FetchAdd, 101));
    assert!(!bench.doubts(Opcode::SendOnly, 103), "it may have overtaken one");
    assert!(bench.doubts(Opcode::SendOnly, 102 + (1 << 17)), "no requester has so much under way");
    assert!(!bench.doubts(Opcode::SendOnly, 100), "it may be the same");
}

/// The next incarnation goes past all that the one before had left outstanding. What it sends there
/// is accepted, since either may have sent it.
#[test]
fn what_was_accepted_in_doubt_does_not_end_the_doubt() {
    let mut bench = interrupted();
    for _ in 0..3 {
        for psn in [100, 101, 102] {
            bench.request(Opcode::WriteOnly, psn, 256);
        }
        assert_eq!(bench.said(), [], "its target has nothing");
        bench.wait(Duration::from_micros(100));
    }
    // What was outstanding before comes again.
    bench.request(Opcode::SendOnly, 101, 256);
    assert_eq!(bench.said(), [(100, 0x1f)]);
}

/// The target was asked for another request than it had answered at this PSN, and answered.
#[test]
fn an_answer_to_another_request_ends_what_is_outstanding() {
    for (opcode, is_over) in [(Opcode::SendOnly, false), (Opcode::WriteOnly, true)] {
        let mut bench = interrupted();
        assert_eq!(bench.request(opcode, 100, 256), Verdict::Replay);
        assert!(!bench.near.is_over());
        bench.ack(100);
        assert_eq!(bench.said(), [(100, 0x1f)]);
        assert_eq!(bench.near.is_over(), is_over, "{opcode:?}");
        assert_eq!(bench.doubts(Opcode::ReadRequest, 101), is_over);
    }
    // A stray one, and what the requester itself asks again: the answer is to the latter.
    let mut bench = interrupted();
    assert_eq!(bench.request(Opcode::WriteOnly, 100, 256), Verdict::Replay);
    bench.wait(Duration::from_millis(200));
    assert_eq!(bench.request(Opcode::SendOnly, 100, 256), Verdict::Replay);
    bench.ack(100);
    assert!(!bench.near.is_over());
}

/// Half of a long SEND was acknowledged in its midst when the requester was connected again. It
/// reads from the first PSN on, past where that SEND began.
#[test]
fn a_read_that_runs_into_what_is_outstanding_ends_it() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.message(101, 4);
    assert_eq!(bench.said(), [(103, 0x1f)], "in the midst of its message");
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 700), Verdict::Replay);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 100, 256, 1))));
    assert!(!bench.near.is_over(), "the requester would not send again what it was acknowledged");
    bench.response(&read_response(Opcode::ReadResponseMiddle, 101, 256, 1));
    assert!(bench.near.is_over(), "the target cannot run that SEND any more");
    assert!(bench.doubts(Opcode::ReadRequest, 101));
}

/// A READ of another incarnation is answered at the PSN of a SEND that is outstanding.
#[test]
fn data_that_answers_no_read_acknowledges_nothing_before_it() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.message(101, 1);
    bench.message(102, 1);
    let outstanding = bench.near.outstanding_bytes();
    bench.response(&read_response(Opcode::ReadResponseOnly, 102, 16, 2));
    assert_eq!(bench.near.outstanding_bytes(), outstanding);
    bench.wait(Duration::from_millis(10));
    bench.request(Opcode::SendOnly, 101, 256);
    assert_eq!(bench.said(), [(100, 0x1f)]);
}

/// Half of a long SEND was acknowledged in its midst. The requester begins anew far away from that,
/// and its target expects just what it sends.
#[test]
fn a_requester_that_is_where_its_target_stands_begins_anew() {
    for (named, psn, is_over) in [(1 << 20, 1 << 20, true), (1 << 20, 1 << 21, false), (200, 200, false)] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.message(101, 4);
        assert_eq!(bench.said(), [(103, 0x1f)]);
        bench.wait(Duration::from_millis(10));
        assert!(!bench.doubts(Opcode::WriteOnly, psn), "it will not send 101 again");
        bench.response(&acknowledge(named, 0x60, 0));
        assert_eq!(bench.doubts(Opcode::WriteOnly, psn), is_over, "{named} {psn}");
        assert!(!bench.doubts(Opcode::SendOnly, 105), "its next one");
    }
}

/// Half of a long SEND was acknowledged in its midst, and its target is gone.
#[test]
fn a_next_life_far_away_ends_what_stands_still() {
    let interrupted = || {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.message(101, 4);
        assert_eq!(bench.said(), [(103, 0x1f)]);
        bench.wait(Duration::from_millis(10));
        bench
    };
    for (psn, is_next_life) in [(1 << 20, true), (200, false)] {
        let mut bench = interrupted();
        assert!(!bench.doubts(Opcode::SendOnly, psn));
        bench.wait(Duration::from_millis(5));
        assert!(!bench.doubts(Opcode::SendOnly, psn), "an answer may be on its way");
        bench.wait(Duration::from_secs(1));
        assert_eq!(bench.doubts(Opcode::SendOnly, psn), is_next_life, "{psn}");
    }
    // Another request than the one outstanding there is nobody's who waits for that.
    for (opcode, psn, is_next_life) in
        [(Opcode::FetchAdd, 103, true), (Opcode::SendOnly, 104, true), (Opcode::SendOnly, 99, false)]
    {
        let mut bench = interrupted();
        assert!(!bench.doubts(opcode, psn));
        bench.wait(Duration::from_secs(1));
        assert_eq!(bench.doubts(opcode, psn), is_next_life, "{opcode:?} {psn}");
    }
    // All that came of a message is answered.
    let before = 100_u32.wrapping_sub(1 << 20) & 0xff_ffff;
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 100, 256);
    bench.ack(100);
    bench.wait(Duration::from_millis(10));
    assert!(!bench.doubts(Opcode::SendOnly, before));
    bench.wait(Duration::from_secs(1));
    assert!(bench.doubts(Opcode::SendOnly, before));
    // What is outstanding is answered, or goes on.
    let mut bench = interrupted();
    assert!(!bench.doubts(Opcode::SendOnly, 1 << 20));
    bench.wait(Duration::from_secs(1));
    bench.ack(102);
    assert!(!bench.doubts(Opcode::SendOnly, 1 << 20));
    let mut bench = interrupted();
    assert!(!bench.doubts(Opcode::SendOnly, 1 << 20));
    bench.wait(Duration::from_secs(1));
    bench.message(105, 1);
    assert!(!bench.doubts(Opcode::SendOnly, 1 << 20));
}

/// A message was broken off, and both begin anew at the first PSN of before. The first packet is
/// asked about, and what goes on with it passes for what was answered.
#[test]
fn a_message_goes_on_whose_first_packet_a_target_of_the_next_life_answered() {
    let mut bench = Bench::new();
    bench.message(100, 4);
    bench.request(Opcode::SendFirst, 104, 256);
    for psn in 105..110 {
        bench.request(Opcode::SendMiddle, psn, 256);
    }
    bench.ack(109);
    bench.said();
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.request(Opcode::WriteFirst, 100, 256), Verdict::Replay);
    assert!(!bench.doubts(Opcode::WriteMiddle, 101), "the target has not spoken");
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    assert!(!bench.near.is_over(), "where the rest belongs nobody else knows");
    assert!(!bench.doubts(Opcode::WriteMiddle, 102), "the target does not stand there");
    assert!(bench.doubts(Opcode::WriteMiddle, 101));
}

/// As above, with a request of the incarnation before outstanding behind it: no half of that flow
/// may stay.
#[test]
fn a_message_goes_on_whose_first_packet_ended_the_flow_before() {
    let mut bench = interrupted();
    assert_eq!(bench.request(Opcode::WriteFirst, 100, 256), Verdict::Replay);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    assert!(bench.near.is_over());
    bench.near = bench.near.anew_amid(Bench::config(), bench.now).unwrap();
    bench.near.pair(R);
    assert!(!bench.doubts(Opcode::WriteMiddle, 101));
    assert_eq!(bench.request(Opcode::WriteMiddle, 101, 256), FORWARD);
    assert_eq!(bench.request(Opcode::WriteLast, 102, 256), FORWARD);
    assert_eq!(bench.said(), [], "the target has not spoken to this flow");
    bench.ack(102);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    // A message of one packet does not go on.
    let mut bench = interrupted();
    assert_eq!(bench.request(Opcode::WriteOnly, 100, 256), Verdict::Replay);
    bench.ack(100);
    assert!(bench.near.is_over() && bench.near.anew_amid(Bench::config(), bench.now).is_none());
}

/// Half of a long SEND was acknowledged in its midst. Its target, asked about what it had answered
/// before, has gone back before that. It can run no rest of that SEND.
#[test]
fn a_target_that_has_gone_back_ends_what_was_acknowledged_in_its_midst() {
    let bench = || {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.message(101, 1);
        bench.ack(101);
        bench.message(102, 4);
        assert_eq!(bench.said(), [(104, 0x1f)]);
        bench.wait(Duration::from_millis(10));
        bench
    };
    for (opcode, is_over) in [(Opcode::SendOnly, false), (Opcode::WriteOnly, true)] {
        let mut bench = bench();
        assert_eq!(bench.request(opcode, 100, 256), Verdict::Replay);
        bench.ack(100);
        assert_eq!(bench.near.is_over(), is_over, "{opcode:?}");
        assert!(bench.doubts(Opcode::ReadRequest, 101), "the target stands there");
    }
    let mut bench = bench();
    assert_eq!(bench.request(Opcode::WriteOnly, 100, 256), Verdict::Replay);
    bench.ack(101);
    assert!(!bench.near.is_over(), "it stands where it stood");
    assert!(!bench.doubts(Opcode::SendOnly, 101));
}

/// Its requester is asking for something else, and goes on behind that: no message goes on that has
/// ended.
#[test]
fn what_cannot_follow_is_not_carried_as_the_next() {
    let mut bench = interrupted();
    assert_eq!(bench.request(Opcode::WriteFirst, 100, 256), Verdict::Replay);
    assert_eq!(bench.request(Opcode::WriteMiddle, 101, 256), Verdict::Drop(Why::Duplicate));
    assert!(!bench.doubts(Opcode::WriteLast, 102), "it may be a stray one");
    assert_eq!(bench.request(Opcode::WriteLast, 102, 256), Verdict::Drop(Why::Orphan));
    // Of a requester that errs the target says so.
    let mut bench = interrupted();
    assert_eq!(bench.request(Opcode::WriteLast, 102, 256), FORWARD);
}

/// The packets of two long SENDs look alike. Those that the requester was acknowledged it does not
/// send again.
#[test]
fn what_was_acknowledged_in_its_midst_does_not_end_the_doubt() {
    for (again, psn, is_told) in [(Opcode::SendMiddle, 102, false), (Opcode::SendLast, 104, true)] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.message(101, 4);
        assert_eq!(bench.said(), [(103, 0x1f)]);
        bench.wait(Duration::from_millis(10));
        for _ in 0..2 {
            bench.request(Opcode::WriteOnly, 100, 256);
            bench.request(again, psn, 256);
            bench.said();
            bench.wait(Duration::from_secs(3));
        }
        assert_eq!(!bench.said().is_empty(), is_told, "{again:?}");
    }
}

/// The first packets of a new incarnation come while those of the one before have no answer yet.
#[test]
fn another_first_request_after_a_pause_is_for_the_target_to_judge() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert!(!bench.doubts(Opcode::WriteOnly, 100), "both may be under way");
    bench.wait(Duration::from_millis(10));
    assert!(!bench.doubts(Opcode::SendOnly, 100), "it comes again");
    assert!(bench.doubts(Opcode::WriteOnly, 100));
}

/// Its atomic ran beside what the one before had left behind.
#[test]
fn what_an_atomic_of_a_next_life_left_standing_refuses_nothing_of_a_further_one() {
    let mut bench = interrupted();
    let bytes = request(Opcode::FetchAdd, 100, 8);
    assert!(!bench.near.doubts(&parse(&bytes), bench.now));
    assert_eq!(bench.near.handle_request(&parse(&bytes), bench.now), Verdict::Replay);
    assert!(is_emitted(bench.response(&atomic_response(100, 7, 1))));
    bench.wait(Duration::from_millis(10));
    // The LAN delays the first packets of a further one.
    for (opcode, psn) in [(Opcode::SendMiddle, 105), (Opcode::SendMiddle, 106)] {
        bench.request(opcode, psn, 256);
        assert_eq!(bench.said(), [], "it would confirm what nobody has: {psn}");
    }
    assert!(bench.doubts(Opcode::SendFirst, 100), "it came before, and nothing outstanding has come since");
}

#[test]
fn after_a_request_that_does_not_fit_nothing_is_said_until_what_is_outstanding_comes_again() {
    let mut bench = interrupted();
    for psn in [102, 103] {
        bench.message(psn, 1);
    }
    assert_eq!(bench.request(Opcode::SendFirst, 100, 256), Verdict::Replay);
    bench.request(Opcode::SendLast, 101, 256);
    bench.request(Opcode::SendOnly, 110, 256);
    bench.wait(Duration::from_millis(50));
    assert_eq!(bench.said(), [], "neither the last ACK again nor where to go on");
    bench.message(104, 1);
    bench.request(Opcode::SendOnly, 110, 256);
    assert_eq!(bench.said(), [], "what comes next may be the next life's");
    bench.request(Opcode::SendOnly, 101, 256);
    bench.request(Opcode::SendOnly, 110, 256);
    assert_eq!(bench.said(), [(101, 0x60), (100, 0x1f)]);
}

/// The target judges each request that may be of another incarnation, one at a time. Its requester
/// goes on meanwhile.
#[test]
fn a_requester_that_never_was_elsewhere_goes_on() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    for (stranger, known) in [(5_000_000, 110), (9_000_000, 111), (12_000_000, 112)] {
        let bytes = request(Opcode::SendOnly, stranger, 64);
        assert!(bench.near.doubts(&parse(&bytes), bench.now));
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(Opcode::SendOnly, stranger, 64), FORWARD);
        assert!(!bench.doubts(Opcode::SendOnly, known + 7), "nobody was there");
        let bytes = request(Opcode::SendOnly, known, 256);
        assert!(bench.near.doubts(&parse(&bytes), bench.now), "{known}");
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        bench.message(known, 1);
        bench.ack(known);
        assert_eq!(bench.said(), [(known, 0x1f)]);
        bench.wait(Duration::from_secs(1));
    }
}

/// Somebody's request came before the first of a connection, and others come all the time.
#[test]
fn what_comes_again_is_found_among_what_does_not() {
    let mut bench = Bench::with(Bench::config());
    bench.message(500_000, 1);
    let mut strange = Rng(7);
    let mut elsewhere = || 600_000 + strange.below(7_000_000) as u32;
    assert!(!bench.doubts(Opcode::SendOnly, 300_000));
    for _ in 0..250 {
        bench.wait(Duration::from_millis(1));
        assert!(!bench.doubts(Opcode::SendOnly, elsewhere()));
    }
    assert!(bench.doubts(Opcode::SendOnly, 300_000));
    assert!(!bench.doubts(Opcode::SendOnly, 299_000));
}

/// The LAN loses the ACK of its last messages, and somebody else sends before it tries again.
#[test]
fn a_requester_that_never_was_elsewhere_is_answered_what_it_repeats() {
    for (stranger, first) in [(5_000_000, true), (5_000_000, false), (9_000_000, true), (9_000_000, false)] {
        let mut bench = rested();
        bench.wait(Duration::from_secs(1));
        let bytes = request(Opcode::SendOnly, stranger, 64);
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(Opcode::SendOnly, stranger, 64), FORWARD);
        let again = if first { 109 } else { 107 };
        let bytes = request(Opcode::SendLast, again, 256);
        assert_eq!(bench.near.doubts(&parse(&bytes), bench.now), first);
        bench.wait(Duration::from_millis(67));
        assert!(bench.near.doubts(&parse(&bytes), bench.now));
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(Opcode::SendLast, again, 256), FORWARD);
        assert!(!bench.doubts(Opcode::SendOnly, again + 1), "it goes on");
    }
}

/// Another request than the one outstanding at its PSN is no retry of it.
#[test]
fn another_request_at_an_outstanding_psn_has_the_target_left_alone() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    bench.message(102, 1);
    assert!(!bench.near.is_contradicted());
    assert_eq!(bench.request(Opcode::FetchAdd, 102, 0), Verdict::Drop(Why::Pending));
    assert!(bench.near.is_contradicted());
    // The next incarnation may well begin as this one did.
    assert_eq!(bench.request(Opcode::SendFirst, 100, 256), Verdict::Drop(Why::Duplicate));
    assert!(bench.near.is_contradicted());
    assert_eq!(bench.said(), [], "nothing is told meanwhile");
    assert_eq!(bench.request(Opcode::SendOnly, 102, 256), Verdict::Drop(Why::Duplicate));
    assert!(!bench.near.is_contradicted(), "its requester is there");
    // The target's answer shows as much.
    bench.request(Opcode::FetchAdd, 102, 0);
    assert!(bench.near.is_contradicted());
    bench.wait(Duration::from_millis(1));
    bench.ack(101);
    assert!(!bench.near.is_contradicted());
}

/// It comes again together with what agrees.
#[test]
fn what_contradicts_twice_opens_a_flow() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    for twice in [false, true] {
        assert!(!bench.doubts(Opcode::SendFirst, 100));
        bench.request(Opcode::SendFirst, 100, 256);
        let last = request(Opcode::SendLast, 101, 8);
        assert_eq!(bench.near.doubts(&parse(&last), bench.now), twice, "it is shorter than before");
        bench.request(Opcode::SendLast, 101, 8);
        bench.wait(Duration::from_millis(67));
    }
}

/// The target has a part of the message, and the requester was told so.
#[test]
fn another_message_in_place_of_one_half_done_is_for_the_target_to_judge() {
    for is_another in [false, true] {
        let mut bench = Bench::new();
        for at in 0..16 {
            let opcode = if at == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
            assert_eq!(bench.request(opcode, 100 + at, 256), FORWARD);
        }
        bench.ack(115);
        assert_eq!(bench.said(), [(115, 0x1f)]);
        bench.wait(Duration::from_millis(67));
        assert!(!bench.doubts(Opcode::WriteFirst, 100));
        assert_eq!(bench.request(Opcode::WriteFirst, 100, 256), Verdict::Replay);
        for psn in 101..116 {
            assert_eq!(bench.request(Opcode::WriteMiddle, psn, 256), Verdict::Drop(Why::Duplicate));
        }
        assert_eq!(bench.said(), [], "the ACK of the message before is none of this one");
        assert_eq!(bench.request(Opcode::WriteLast, 116, 256), Verdict::Drop(Why::Orphan));
        if is_another {
            bench.ack(100);
            assert_eq!(bench.said(), [(100, 0x1f)], "as the target has said");
            assert!(bench.doubts(Opcode::WriteMiddle, 101), "the target's next incarnation expects it");
            assert!(!bench.doubts(Opcode::WriteMiddle, 102));
        } else {
            bench.ack(115);
            assert_eq!(bench.said(), [(115, 0x1f)], "the target has it");
            assert_eq!(bench.request(Opcode::SendLast, 116, 256), FORWARD);
        }
    }
}

/// The requester was acknowledged in the midst of a message, and began anew. Its target expects the
/// first request of the next incarnation, as it says when it is asked about the second.
#[test]
fn a_target_that_expects_less_than_it_had_is_in_the_next_incarnation() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    for at in 0..16 {
        let opcode = if at == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
        assert_eq!(bench.request(opcode, 101 + at, 256), FORWARD);
    }
    bench.said();
    bench.wait(Duration::from_secs(1));
    assert!(!bench.doubts(Opcode::ReadRequest, 99), "it may be somebody's");
    assert_eq!(bench.request(Opcode::WriteOnly, 100, 256), Verdict::Replay);
    bench.response(&acknowledge(99, 0x60, 0));
    assert_eq!(bench.said(), []);
    assert!(bench.doubts(Opcode::ReadRequest, 99), "both are there");
}
