//! Bit 7 of the AETH syndrome is reserved: a NIC may send anything there, which means nothing.

use super::{acknowledge, atomic_response, far_rules, near_rules, parse, read_response};
use crate::flow::far::{Verdict, Why};
use crate::flow::near::Deliver;
use crate::wire::Opcode;

/// The packet with the reserved bit set.
fn with_reserved(mut response: Vec<u8>) -> Vec<u8> {
    assert!(parse(&response).ext.aeth().is_some());
    response[12] |= 0x80;
    response
}

#[test]
fn acks_and_naks_say_the_same_with_it() {
    let mut bench = far_rules::Bench::new();
    (100..105).for_each(|psn| bench.message(psn, 1));
    bench.sent();
    // An ACK, with and without credits.
    for (psn, syndrome) in [(100, 0x1f), (101, 0x05)] {
        let plain = acknowledge(psn, syndrome, psn - 99);
        assert_eq!(bench.relayed(&with_reserved(plain.clone())), Some(plain));
    }
    // A target not ready is tried again by this gateway.
    assert_eq!(bench.response(&with_reserved(acknowledge(102, 0x2c, 2))), Verdict::Absorbed);
    // Something is missing: sent again here.
    assert_eq!(bench.response(&with_reserved(acknowledge(102, 0x60, 2))), Verdict::Absorbed);
    assert!(bench.far.failure().is_none());
    // An error that is the requester's.
    let refused = acknowledge(102, 0x62, 2);
    assert_eq!(bench.relayed(&with_reserved(refused.clone())), Some(refused));
    assert!(bench.far.is_dead());
}

#[test]
fn what_gateways_alone_say_is_not_taken_from_a_target_by_it() {
    let mut bench = far_rules::Bench::new();
    bench.message(100, 1);
    bench.sent();
    let silent = with_reserved(acknowledge(100, 0x7f, 0));
    assert_eq!(bench.response(&silent), Verdict::Drop(Why::Unexpected));
    assert!(bench.far.failure().is_none());
}

#[test]
fn data_is_relayed_without_it() {
    let mut bench = far_rules::Bench::new();
    bench.request(Opcode::ReadRequest, 100, 100);
    bench.request(Opcode::FetchAdd, 101, 0);
    bench.sent();
    let answers = [read_response(Opcode::ReadResponseOnly, 100, 100, 1), atomic_response(101, 7, 2)];
    for plain in answers {
        assert_eq!(bench.relayed(&with_reserved(plain.clone())), Some(plain));
    }
}

/// A peer of an older version relays it.
#[test]
fn data_reaches_the_requester_without_it() {
    let mut bench = near_rules::Bench::new();
    bench.request(Opcode::ReadRequest, 100, 100);
    bench.request(Opcode::FetchAdd, 101, 0);
    let answers = [read_response(Opcode::ReadResponseOnly, 100, 100, 1), atomic_response(101, 7, 2)];
    for plain in answers {
        let reserved = with_reserved(plain.clone());
        let Deliver::Emit(passed) = bench.response(&reserved) else { panic!("not passed on") };
        assert_eq!(passed.parts(&reserved).concat(), plain);
    }
    bench.message(102, 1);
    assert_eq!(bench.response(&with_reserved(acknowledge(102, 0x1f, 3))), Deliver::Absorbed);
    assert_eq!(bench.said(), [(102, 0x1f)]);
}
