//! ACKs to the requester: which, and when.

use super::*;

#[test]
fn a_flow_starts_with_the_start_of_a_message() {
    let mut bench = Bench::with(Bench::config());
    assert_eq!(bench.request(Opcode::SendMiddle, 5, 256), Verdict::Drop(Why::Orphan));
    assert!(!bench.near.is_started());
    assert_eq!(bench.request(Opcode::SendFirst, 7, 256), FORWARD);
    let ack = acknowledge(8, 0x1f, 0);
    let verdict = bench.near.handle_request(&parse(&ack), bench.now);
    assert_eq!(verdict, Verdict::Drop(Why::NotARequest));
    assert!(bench.near.expects(Psn::new(8)));
}

#[test]
fn local_completion_does_not_wait_for_the_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert_eq!(bench.said(), []);
    bench.near.set_local(true);
    bench.message(101, 2);
    assert_eq!(bench.said(), [], "100 is not done");
    bench.ack(100);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    bench.message(103, 1);
    assert_eq!(bench.said(), [(103, 0x1f)]);
    bench.request(Opcode::FetchAdd, 104, 0);
    bench.message(105, 1);
    assert_eq!(bench.said(), [], "the atomic is not answered");
    bench.response(&atomic_response(104, 4, 7));
    assert_eq!(bench.said(), [(105, 0x1f)]);
    bench.near.set_writable(false, bench.now);
    bench.message(106, 1);
    assert_eq!(bench.said(), [], "no room behind it");
    bench.near.set_local(false);
    bench.near.set_writable(true, bench.now);
    bench.message(107, 1);
    assert_eq!(bench.said(), [(106, 0x1f)], "107 is the target's to complete");
    assert_eq!(bench.request(Opcode::SendOnly, 107, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(106, 0x1f)]);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(107, 0x63)], "not before what it was told");
}

#[test]
fn an_ack_may_overtake_what_it_says_as_well() {
    let mut bench = Bench::with(Bench::config());
    let may_overtake = |bench: &Bench, psn| bench.near.may_overtake(&parse(&acknowledge(psn, 0x1f, 1)));
    bench.message(100, 2);
    assert!(!may_overtake(&bench, 101), "the target may mean other packets by these numbers");
    bench.ack(100);
    assert!(may_overtake(&bench, 101));
    bench.message(102, 1);
    bench.request(Opcode::ReadRequest, 103, 16);
    bench.message(104, 1);
    assert!(may_overtake(&bench, 102));
    assert!(!may_overtake(&bench, 104), "the READ is not answered");
    assert!(!may_overtake(&bench, 105), "not sent");
    assert!(!bench.near.may_overtake(&parse(&acknowledge(102, 0x60, 1))), "a NAK");
    assert!(!bench.near.may_overtake(&parse(&acknowledge(102, 0x20, 1))), "RNR");
    bench.ack(102);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    assert!(!may_overtake(&bench, 101), "behind");
    bench.response(&read_response(Opcode::ReadResponseOnly, 103, 16, 4));
    assert!(may_overtake(&bench, 104));
    assert_eq!(bench.request(Opcode::ReadRequest, 103, 16), Verdict::Replay);
    assert!(!may_overtake(&bench, 104), "the READ is answered anew");
    bench.ack(101);
    assert_eq!(bench.said(), [], "news to nobody");
}

/// It was due while there was no room, and nothing else would have asked for it.
#[test]
fn a_local_completion_held_back_comes_with_the_room() {
    let mut bench = Bench::new();
    bench.near.set_local(true);
    bench.request(Opcode::FetchAdd, 100, 0);
    bench.message(101, 1);
    bench.near.set_writable(false, bench.now);
    bench.response(&atomic_response(100, 1, 7));
    assert_eq!(bench.said(), []);
    bench.near.set_writable(true, bench.now);
    assert_eq!(bench.said(), [(101, 0x1f)]);
}

#[test]
fn messages_done_locally_are_counted() {
    let mut bench = Bench::new();
    bench.near.set_local(true);
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.message(101, 3);
    bench.message(104, 1);
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!((parse(&reply).bth.psn, parse(&reply).ext.aeth().unwrap().msn), (Psn::new(104), 3));
    bench.response(&acknowledge(103, 0x1f, 2));
    bench.message(105, 1);
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!((parse(&reply).bth.psn, parse(&reply).ext.aeth().unwrap().msn), (Psn::new(105), 4));
}

#[test]
fn completion_waits_for_the_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.said(), []);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(101);
    assert_eq!(bench.said(), [(101, 0x1f)]);
    assert!(bench.near.is_idle());
    assert_eq!(bench.near.outstanding_bytes(), 0);
}

#[test]
fn acknowledged_early_inside_the_oldest_message_only() {
    let mut bench = Bench::new();
    bench.message(100, 40);
    bench.message(140, 40);
    let said = bench.said();
    assert_eq!(said.last(), Some(&(138, 0x1f)), "all but the last packet: {said:?}");
    bench.ack(139);
    assert_eq!(bench.said(), [(178, 0x1f)], "the second message is the oldest now");
}

#[test]
fn back_pressure_withholds_early_acks() {
    let mut bench = Bench::new();
    bench.near.set_writable(false, bench.now);
    bench.message(100, 40);
    assert_eq!(bench.said(), []);
    bench.near.set_writable(true, bench.now);
    assert_eq!(bench.said(), [(138, 0x1f)]);

    let mut bench = Bench::told(NearConfig { mid_ack_limit: 20 * 268, ..Bench::config() });
    for at in 0..40 {
        let opcode = if at == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
        assert_eq!(bench.request(opcode, 100 + at, 256), FORWARD);
        let said = bench.said();
        assert!(at < 20 || said.is_empty());
    }
    bench.ack(120);
    assert_eq!(bench.said(), [(139, 0x1f)]);
}

#[test]
fn nothing_is_said_before_the_target_confirms_the_first_psn() {
    // The message at PSN 9 may have been lost: any ACK or NAK from 10 on would complete it.
    let mut bench = Bench::with(Bench::config());
    bench.message(10, 40);
    assert_eq!(bench.request(Opcode::SendOnly, 60, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(12);
    assert_eq!(bench.said(), [(48, 0x1f), (49, 0x60)]);
}

#[test]
fn no_ack_past_an_unanswered_read() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 600), FORWARD);
    bench.message(104, 40);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(120);
    assert_eq!(bench.said(), [], "the far side would not do that, but it changes nothing");
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 101, 256, 2))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 102, 256, 2))));
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 103, 88, 2))));
    bench.ack(120);
    assert_eq!(bench.said(), [(142, 0x1f)]);
}

#[test]
fn a_sequence_nak_never_acknowledges_what_the_target_has_not() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.request(Opcode::SendOnly, 103, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [(100, 0x60)], "102 is missing, but 100 is unacknowledged");
    assert_eq!(bench.request(Opcode::SendOnly, 104, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [], "one NAK, then silence");
    bench.wait(Duration::from_millis(11));
    bench.request(Opcode::SendOnly, 105, 10);
    assert_eq!(bench.said(), [(100, 0x60)], "it may have been lost");
    bench.ack(101);
    bench.message(102, 1);
    assert_eq!(bench.said(), [(101, 0x1f)]);
    bench.request(Opcode::SendOnly, 104, 10);
    assert_eq!(bench.said(), [(102, 0x60)], "armed again");
}

#[test]
fn a_requester_that_cannot_go_back_is_refused_where_it_stands() {
    // An earlier flow acknowledged up to 104 inside a message, and lost it: the target expects 102.
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 100, 256);
    bench.request(Opcode::SendMiddle, 101, 256);
    let mut naks = Vec::new();
    while !bench.near.is_failed() {
        for psn in [105, 104, 105, 106] {
            bench.request(Opcode::SendMiddle, psn, 256);
        }
        naks.extend(bench.said());
        bench.wait(Duration::from_millis(67));
    }
    naks.retain(|&(_, syndrome)| syndrome != 0x1f);
    assert!(naks.iter().all(|&nak| nak == (102, 0x60)), "{naks:?}");
    assert!(naks.len() >= 16);
    let mut refused = Vec::new();
    for _ in 0..3 {
        bench.request(Opcode::SendMiddle, 104, 256);
        bench.request(Opcode::SendMiddle, 105, 256);
        bench.wait(Duration::from_millis(5));
        refused.extend(bench.said());
    }
    assert_eq!(refused, [(104, 0x63)]);
}

/// All that it has sent waits for its target, and somebody else sends in its name.
#[test]
fn a_requester_is_not_given_up_for_what_others_send_in_its_name() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    let mut strange = Rng(3);
    for _ in 0..1000 {
        let psn = 102 + strange.below(1 << 16) as u32;
        bench.request(Opcode::SendOnly, psn, 64);
        bench.wait(Duration::from_millis(67));
    }
    assert!(!bench.near.is_failed());
}

#[test]
fn inside_a_message_the_nak_carries_the_expected_psn() {
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 100, 256);
    bench.request(Opcode::SendMiddle, 101, 256);
    bench.request(Opcode::SendMiddle, 103, 256);
    assert_eq!(bench.said(), [(102, 0x60)]);
}

#[test]
fn the_last_ack_is_repeated_while_the_target_owes_one() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.message(101, 1);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.wait(Duration::from_millis(20));
    assert_eq!(bench.said(), [(LONG_PAST + 100, 0x1f)], "it confirms nothing, whoever hears it");
    bench.ack(101);
    bench.said();
    // The rest of this message is lost, and only the requester's timer can find that out.
    assert_eq!(bench.request(Opcode::SendFirst, 102, 256), FORWARD);
    bench.ack(102);
    bench.said();
    bench.wait(Duration::from_millis(200));
    assert_eq!(bench.said(), []);
}

#[test]
fn an_answered_psn_is_not_acknowledged_by_a_plain_ack() {
    // A requester takes an ACK with a READ's PSN for its completion without data, and Soft-RoCE
    // stumbles over an earlier one in the midst of a READ.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.request(Opcode::ReadRequest, 101, 300);
    bench.said();
    bench.request(Opcode::SendOnly, 100, 256);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 101, 256, 2))));
    assert_eq!(bench.said(), []);
    bench.request(Opcode::SendOnly, 100, 256);
    bench.wait(Duration::from_millis(200));
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 102, 44, 2))));
    bench.request(Opcode::SendOnly, 100, 256);
    assert_eq!(bench.said(), []);
    bench.message(103, 1);
    bench.ack(103);
    bench.said();
    // What follows a READ that runs again waits for that.
    assert_eq!(bench.request(Opcode::ReadRequest, 102, 44), Verdict::Replay);
    bench.request(Opcode::SendOnly, 103, 256);
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 102, 44, 2))));
    assert_eq!(bench.said(), [], "not from memory");
}

#[test]
fn nothing_is_sent_before_pairing() {
    let mut bench = Bench::new();
    bench.near = Near::new(Bench::config(), Arc::default(), bench.now);
    bench.near.set_terms(&terms(6), Some(Psn::new(100)));
    bench.message(100, 1);
    bench.ack(100);
    assert!(bench.near.poll_transmit(bench.now).is_none());
    bench.near.pair(R);
    assert_eq!(bench.said(), [(100, 0x1f)]);
}

/// Its requester would only ask for it once more (`rxe_comp.c`, `check_psn`).
#[test]
fn an_ack_does_not_go_past_what_is_run_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 200), FORWARD);
    let answer = read_response(Opcode::ReadResponseOnly, 100, 200, 1);
    assert!(is_emitted(bench.response(&answer)));
    bench.message(101, 1);
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 200), Verdict::Replay);
    bench.ack(101);
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&answer)));
    assert_eq!(bench.said(), [(101, 0x1f)]);
}

/// Its first packet found no room, and the PSN that connection management told lies far from 0.
#[test]
fn nothing_is_said_before_the_first_request() {
    let mut bench = Bench::with(Bench::config());
    bench.near.set_terms(&terms(6), Some(Psn::new(0xff_fff0)));
    bench.near.set_writable(false, bench.now);
    bench.near.set_writable(true, bench.now);
    assert_eq!(bench.said(), []);
    bench.message(0xff_fff0, 2);
    bench.ack(0xff_fff1);
    assert_eq!(bench.said(), [(0xff_fff1, 0x1f)]);
}

#[test]
fn credits_and_msn_are_the_targets() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x05, 0x1234));
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!(*reply, *acknowledge(100, 0x05, 0x1234));
}

/// One of thousands: what keeps it waiting may come later, unless its timer turns out to be a short
/// one.
#[test]
fn a_requester_is_kept_waiting_more_rarely_where_it_does_not_mind() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.message(101, 1);
    assert_eq!(waits(&mut bench, false), [20, 20, 20], "nobody put it off");
    assert_eq!(waits(&mut bench, true), [1280, 1280, 1280], "and no later than that");
    bench.wait(Duration::from_millis(100));
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(100, 0x1f)]);
    assert_eq!(waits(&mut bench, true), [20, 20, 20], "it did mind");
}

/// News makes everything as it was; and who was told to go back shows nothing by it.
#[test]
fn a_requester_that_is_told_something_new_is_not_put_off_any_more() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.message(101, 1);
    assert_eq!(waits(&mut bench, true).last(), Some(&1280));
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [(101, 0x60)]);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Duplicate));
    bench.said();
    assert_eq!(waits(&mut bench, true).last(), Some(&1280));
    bench.message(102, 2);
    bench.ack(101);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    assert_eq!(waits(&mut bench, false), [20, 20, 20]);
}

/// After how many milliseconds each of the next three words comes, if they are put off whenever
/// they may.
fn waits(bench: &mut Bench, put_off: bool) -> Vec<u128> {
    let mut waits = Vec::new();
    let mut spoke = bench.now;
    while waits.len() < 3 {
        bench.now = bench.near.next_timeout().unwrap().max(bench.now);
        if put_off && bench.near.may_put_off(bench.now) {
            bench.near.put_off();
        }
        bench.near.handle_timeout(bench.now);
        if !bench.said().is_empty() {
            waits.push((bench.now - spoke).as_millis());
            spoke = bench.now;
        }
    }
    waits
}
