//! Requests that outlive the gateway's process, and those that do not.

use super::*;

/// A part of a SEND whose requester asks for an ACK.
fn asking(psn: u32) -> Vec<u8> {
    let mut bytes = request(Opcode::SendMiddle, psn, 256);
    Bth::set_ack_req(bytes.first_chunk_mut().unwrap(), true);
    bytes
}

fn hand(bench: &mut Bench, bytes: &[u8]) -> Verdict {
    bench.near.handle_request(&parse(bytes), bench.now)
}

/// A SEND at 100 that is answered, and four parts of one at 101.
fn amid() -> Bench {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    assert_eq!(bench.request(Opcode::SendFirst, 101, 256), FORWARD);
    for psn in 102..105 {
        assert_eq!(bench.request(Opcode::SendMiddle, psn, 256), FORWARD);
    }
    bench
}

#[test]
fn an_unretained_part_is_acknowledged_when_the_target_has_it() {
    let mut bench = amid();
    bench.near.note_unretained(Psn::new(103));
    let asks = asking(105);
    assert_eq!(hand(&mut bench, &asks), FORWARD);
    bench.near.note_unretained(Psn::new(105));
    assert_eq!(bench.said(), [(102, 0x1f)], "what is retained");
    bench.response(&acknowledge(103, 0x1f, 1));
    assert_eq!(bench.said(), [(103, 0x1f)], "104 lies between two that are not");
    bench.response(&acknowledge(105, 0x1f, 1));
    assert_eq!(bench.said(), [(105, 0x1f)]);
    let asks = asking(106);
    assert_eq!(hand(&mut bench, &asks), FORWARD);
    assert_eq!(bench.said(), [(106, 0x1f)], "and that is over");
}

#[test]
fn where_nothing_is_retained_the_target_alone_acknowledges() {
    let mut bench = amid();
    (101..105).for_each(|psn| bench.near.note_unretained(Psn::new(psn)));
    let asks = asking(105);
    assert_eq!(hand(&mut bench, &asks), FORWARD);
    bench.near.note_unretained(Psn::new(105));
    assert_eq!(bench.said(), []);
    bench.response(&acknowledge(102, 0x1f, 1));
    assert_eq!(bench.said(), [(102, 0x1f)]);
}

/// The process has died, and a new flow begins with what the requester sends next. What its target
/// lacks is handed in, and the requester never hears of a PSN before its own.
#[test]
fn what_the_target_lacks_is_taken_as_if_the_requester_had_gone_back() {
    let first = request(Opcode::SendMiddle, 110, 256);
    let mut bench = Bench::with(Bench::config());
    bench.near = Near::amid(Bench::config(), Arc::default(), &parse(&first), bench.now);
    bench.near.pair(R);
    assert_eq!(hand(&mut bench, &first), FORWARD);
    assert_eq!(bench.near.missing(), None);
    bench.response(&acknowledge(107, 0x60, 5));
    assert_eq!(bench.near.missing(), Some((Psn::new(107), Psn::new(110))));
    let now = bench.now;
    for psn in 107..110 {
        let part = request(Opcode::SendMiddle, psn, 256);
        assert!(bench.near.handle_retained(&parse(&part), now), "{psn}");
    }
    bench.near.note_all_retained(Psn::new(110));
    assert_eq!((bench.near.missing(), bench.said()), (None, vec![]), "the target has not spoken");
    bench.response(&acknowledge(107, 0x1f, 5));
    assert_eq!(bench.said(), [(110, 0x60)], "goes on at once");
    assert_eq!(bench.request(Opcode::SendLast, 110, 256), FORWARD);
    bench.response(&acknowledge(110, 0x1f, 6));
    assert_eq!(bench.said(), [(110, 0x1f)]);
}

/// A request that does not fit is not taken, and changes nothing.
#[test]
fn what_the_target_does_not_ask_for_is_not_taken() {
    let mut bench = amid();
    let now = bench.now;
    let part = request(Opcode::SendMiddle, 103, 256);
    assert!(!bench.near.handle_retained(&parse(&part), now), "it has come");
    let part = request(Opcode::SendMiddle, 107, 256);
    assert!(!bench.near.handle_retained(&parse(&part), now), "something is missing before it");
    bench.near.note_all_retained(Psn::new(107));
    assert_eq!(bench.near.expected(), Psn::new(105));
}
