//! A flow that has to start over.

use super::*;

#[test]
fn an_earlier_first_psn_is_reported_and_the_flow_starts_over() {
    let mut bench = Bench::new();
    bench.message(12, 1);
    bench.message(13, 1);
    bench.sent();
    let nak = acknowledge(10, 0x60, 0);
    assert_eq!(bench.relayed(&nak).unwrap(), nak);
    // It may be anybody's word until the requester goes back.
    bench.message(14, 1);
    assert_eq!(bench.sent_psns(), [14]);
    bench.message(10, 1);
    bench.message(11, 1);
    assert_eq!(bench.sent_psns(), [10, 11]);
    let wrong = request(Opcode::SendOnly, 14, 1);
    assert_eq!(bench.far.handle_request(wrong, bench.now), Err(Refused::OutOfOrder));
}

#[test]
fn the_near_side_starts_over_by_itself() {
    let mut bench = Bench::new();
    bench.message(12, 1);
    bench.sent();
    bench.message(10, 1);
    bench.message(11, 1);
    bench.message(12, 1);
    assert_eq!(bench.sent_psns(), [10, 11, 12]);
}

#[test]
fn a_misjudged_read_has_the_near_side_start_over() {
    for answered_before in [false, true] {
        let mut bench = Bench::with(FarConfig::default());
        bench.request(Opcode::ReadRequest, 100, 8192);
        bench.sent();
        let first = read_response(Opcode::ReadResponseFirst, 100, 1024, 0);
        if answered_before {
            assert!(bench.relayed(&first).is_some());
        }
        bench.message(116, 1); // 108 was lost.
        if !answered_before {
            bench.sent();
            assert!(bench.relayed(&first).is_some());
        }
        assert_eq!(bench.own(), Some((108, 0x60)));
        bench.message(117, 1);
        assert!(bench.sent().is_empty());
        bench.message(108, 1);
        assert_eq!(bench.sent_psns(), [108]);
    }
}

/// Somebody else sends in the target's name.
#[test]
fn words_about_what_was_not_sent_change_nothing() {
    let mut bench = Bench::new();
    bench.message(100_000, 1);
    bench.sent();
    for syndrome in [0x61, 0x62, 0x63] {
        assert_eq!(bench.relayed(&acknowledge(99_000, syndrome, 7)), None);
    }
    assert_eq!(bench.far.failure(), None);
    assert!(bench.relayed(&acknowledge(100_000, 0x03, 1)).is_some());
    // Nor are its credits the target's.
    assert_eq!(bench.relayed(&acknowledge(5_000_000, 0x0a, 7)), None);
    assert!(bench.far.is_news(&parse(&acknowledge(100_000, 0x05, 1))));
}

#[test]
fn what_was_sent_goes_on_whatever_others_say_of_the_first_psn() {
    let mut bench = Bench::new();
    bench.message(12_000, 2);
    bench.sent();
    let nak = acknowledge(10_000, 0x60, 0);
    assert_eq!(bench.relayed(&nak).unwrap(), nak, "the requester knows");
    let ack = acknowledge(12_001, 0x1f, 2);
    assert_eq!(bench.relayed(&ack).unwrap(), ack);
    assert!(bench.far.is_idle());
}

/// The requester goes back before a message of which the target may have the beginning. Should
/// nothing more come, that target's program must hear of it.
#[test]
fn a_flow_that_starts_over_is_left_inside_the_message_that_its_target_may_have() {
    let amid = || {
        let mut bench = Bench::new();
        bench.request(Opcode::SendFirst, 12, 256);
        bench.request(Opcode::SendMiddle, 13, 256);
        bench.sent();
        bench.message(10, 1);
        bench.sent();
        assert!(bench.far.is_inside());
        bench
    };
    // The target repeats its last ACK: it has what was sent, or more than that.
    for (named, is_inside) in [(13, true), (14, false)] {
        let mut bench = amid();
        for _ in 0..2 {
            bench.relayed(&acknowledge(named, 0x1f, 1));
        }
        assert!(bench.far.is_answered());
        assert_eq!(bench.far.is_inside(), is_inside, "{named}");
    }
    // It has nothing of the message: it expects an earlier PSN.
    let mut bench = amid();
    bench.relayed(&acknowledge(10, 0x1f, 1));
    assert!(!bench.far.is_inside());
    bench.message(11, 1);
    bench.message(12, 1);
    assert!(!bench.far.is_inside());
    // The requester sends it again, and its end.
    let mut bench = amid();
    bench.message(11, 1);
    bench.request(Opcode::SendFirst, 12, 256);
    bench.request(Opcode::SendMiddle, 13, 256);
    assert!(bench.far.is_inside());
    bench.request(Opcode::SendLast, 14, 256);
    assert!(!bench.far.is_inside());
}

/// The target had said that it expects the earlier PSN.
#[test]
fn a_flow_that_starts_over_where_its_target_said_is_left_inside_nothing() {
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 12, 256);
    bench.sent();
    assert!(bench.relayed(&acknowledge(10, 0x60, 0)).is_some());
    bench.message(10, 1);
    assert!(!bench.far.is_inside());
}

/// The same for a flow that takes the place of another one.
#[test]
fn a_flow_in_place_of_another_is_left_inside_the_message_that_its_target_may_have() {
    let anew = || {
        let mut bench = Bench::new();
        bench.message(11, 1);
        bench.request(Opcode::SendFirst, 12, 256);
        bench.sent();
        bench.far = bench.far.anew(Bench::config(), bench.now);
        bench.message(11, 1);
        bench.sent();
        assert!(bench.far.is_inside());
        bench
    };
    let mut bench = anew();
    bench.relayed(&acknowledge(11, 0x1f, 1));
    assert!(!bench.far.is_inside(), "it expects the beginning");
    let mut bench = anew();
    bench.message(12, 1);
    assert!(!bench.far.is_inside(), "another message came in its place");
}

/// A message that had come whole may have reached the target in part: its last word tells.
#[test]
fn a_flow_in_place_of_another_is_left_inside_a_whole_message_that_its_target_may_have_in_part() {
    let anew = |is_sent: bool| {
        let mut bench = Bench::new();
        bench.message(11, 3);
        bench.message(14, 1);
        if is_sent {
            bench.sent();
        }
        bench.far = bench.far.anew(Bench::config(), bench.now);
        bench.message(10, 1);
        bench.sent();
        bench
    };
    // It expects 12 or 13: the message goes on.
    for (named, is_inside) in [(11, true), (12, true), (13, false)] {
        let mut bench = anew(true);
        assert!(bench.far.is_inside(), "it has not spoken");
        for _ in 0..2 {
            bench.relayed(&acknowledge(named, 0x1f, 1));
        }
        assert_eq!(bench.far.is_inside(), is_inside, "{named}");
    }
    // The new flow's message ends there, and so does the target's.
    let mut bench = anew(true);
    bench.message(11, 1);
    bench.sent();
    bench.relayed(&acknowledge(11, 0x1f, 2));
    assert!(!bench.far.is_inside());
    // A word that was under way is not its last.
    let mut bench = anew(true);
    bench.relayed(&acknowledge(10, 0x1f, 1));
    assert!(!bench.far.is_inside());
    for _ in 0..2 {
        bench.relayed(&acknowledge(12, 0x1f, 1));
    }
    assert!(bench.far.is_inside());
    // Nothing of it had been sent.
    assert!(!anew(false).far.is_inside());
}
