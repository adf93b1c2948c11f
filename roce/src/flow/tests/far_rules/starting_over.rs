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
    assert_eq!(bench.far.buffered_bytes(), 0);
    bench.message(14, 1); // Sent before the report arrived.
    assert!(bench.sent().is_empty());
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
