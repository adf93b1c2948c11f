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
