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

#[test]
fn where_the_target_itself_stands_is_not_doubted() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    let bytes = request(Opcode::SendOnly, 112, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendOnly, 112, 256), FORWARD);
    bench.response(&acknowledge(110, 0x60, 9));
    assert_eq!(bench.said(), [(110, 0x60)]);
    bench.wait(Duration::from_secs(2));
    assert!(
        !bench.doubts(Opcode::SendOnly, 112),
        "it would only say so again, and the gap must be given up in the end"
    );
    assert!(bench.doubts(Opcode::SendOnly, 109));
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
