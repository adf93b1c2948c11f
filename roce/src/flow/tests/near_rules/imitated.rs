//! Requesters in whose names others send.

use super::*;

/// A request a little behind may be the requester's own, so what follows waits for its retry. That
/// happens once.
#[test]
fn a_requester_waits_for_a_stranger_a_little_behind_it_once() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    for (stranger, known, is_known) in [(104, 110, false), (103, 111, true), (105, 112, true)] {
        let bytes = request(Opcode::SendOnly, stranger, 64);
        assert!(bench.near.doubts(&parse(&bytes), bench.now));
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(Opcode::SendOnly, stranger, 64), FORWARD);
        let bytes = request(Opcode::SendOnly, known, 256);
        assert_eq!(bench.near.doubts(&parse(&bytes), bench.now), is_known, "{known}");
        if !is_known {
            bench.wait(Duration::from_millis(67));
            assert!(bench.near.doubts(&parse(&bytes), bench.now), "{known}");
        }
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        bench.message(known, 1);
        bench.ack(known);
        assert_eq!(bench.said(), [(known, 0x1f)]);
        bench.wait(Duration::from_secs(1));
    }
}

/// Its flow begins where it goes on. If that fails, no other one takes its place at each retry.
#[test]
fn a_requester_in_whose_name_others_send_is_refused_where_its_flow_fails() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    for first in [104, 110] {
        let bytes = request(Opcode::SendOnly, first, 64);
        if first == 110 {
            assert!(!bench.near.doubts(&parse(&bytes), bench.now));
            bench.wait(Duration::from_millis(67));
        }
        assert!(bench.near.doubts(&parse(&bytes), bench.now), "{first}");
        bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
        bench.near.pair(R);
        assert_eq!(bench.request(Opcode::SendOnly, first, 64), FORWARD);
    }
    bench.near.fail(bench.now);
    for _ in 0..3 {
        bench.wait(Duration::from_millis(67));
        assert!(!bench.doubts(Opcode::SendOnly, 110));
    }
}
