//! A message whose beginning was carried, where the requests begin earlier again.

use super::*;

/// Has another flow take the place of the bench's, which begins with a SEND at this PSN.
fn begin_anew(bench: &mut Bench, psn: u32) {
    let bytes = request(Opcode::SendOnly, psn, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    bench.message(psn, 1);
}

/// The target has counted 5 messages, and the beginning of another one at 101 is under way. Then
/// the requester, which has lost an answer, begins at 100 in a flow anew.
fn begun_earlier() -> Bench {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x1f, 5));
    bench.said();
    assert_eq!(bench.request(Opcode::SendFirst, 101, 256), FORWARD);
    assert!(!bench.near.may_be_amid(), "the ring tells");
    begin_anew(&mut bench, 100);
    assert!(bench.near.may_be_amid());
    bench
}

/// Nothing more comes: somebody has to tell the target's program.
#[test]
fn a_flow_in_place_of_one_that_was_amid_a_message_knows_of_that() {
    let mut bench = begun_earlier();
    bench.response(&acknowledge(100, 0x1f, 5));
    bench.said();
    assert!(bench.near.is_idle() && bench.near.may_be_amid());
    // Neither does it forget where another one takes its place in turn.
    begin_anew(&mut bench, 99);
    assert!(bench.near.may_be_amid());
    // What begins beyond is of another incarnation.
    begin_anew(&mut bench, 102);
    assert!(!bench.near.may_be_amid());
}

#[test]
fn a_requester_that_comes_to_where_it_was_is_amid_nothing_else() {
    let mut bench = begun_earlier();
    bench.response(&acknowledge(100, 0x1f, 5));
    assert_eq!(bench.request(Opcode::SendFirst, 101, 256), FORWARD);
    assert!(!bench.near.may_be_amid());
}

/// A message came whole, and its target may have got only a part of it. One packet is no message
/// that anybody could be amid.
#[test]
fn a_flow_in_place_of_one_with_a_whole_message_unanswered_knows_of_that() {
    for (packets, may_be_amid) in [(1, false), (3, true)] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.response(&acknowledge(100, 0x1f, 5));
        bench.said();
        bench.message(101, packets);
        begin_anew(&mut bench, 100);
        assert_eq!(bench.near.may_be_amid(), may_be_amid);
        // How many messages the target has counted proves nothing.
        bench.response(&acknowledge(100, 0x1f, 1));
        assert_eq!(bench.near.may_be_amid(), may_be_amid);
    }
}

/// A gateway that knows nothing gets the beginning of a second message first.
#[test]
fn a_flow_that_goes_back_before_a_message_knows_that_it_carried_its_beginning() {
    let mut bench = Bench::with(Bench::config());
    assert_eq!(bench.request(Opcode::SendFirst, 101, 256), FORWARD);
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x1f, 7));
    bench.said();
    assert!(bench.near.is_idle() && bench.near.may_be_amid());
}
