//! Requests that may be of another life of their queue pair.

use super::*;

#[test]
fn what_comes_again_after_a_rest_is_for_the_target_to_judge() {
    let mut bench = rested();
    assert!(!bench.doubts(Opcode::SendOnly, 109), "its ACK is on its way");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)]);
    bench.wait(Duration::from_millis(1));
    for opcode in [Opcode::SendOnly, Opcode::SendLast, Opcode::ReadRequest, Opcode::FetchAdd] {
        assert!(
            bench.doubts(opcode, 109) && bench.doubts(opcode, 100) && bench.doubts(opcode, 5),
            "{opcode:?}"
        );
    }
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [], "not from memory");
    assert!(bench.doubts(Opcode::SendOnly, 112), "all before it may have been lost");
    assert!(bench.doubts(Opcode::SendLast, 110), "no message is open");
    assert!(!bench.doubts(Opcode::SendOnly, 110), "just as many as there were before?");
    bench.wait(Duration::from_secs(1));
    assert!(bench.doubts(Opcode::SendOnly, 110));
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
fn what_was_acknowledged_is_for_the_target_to_judge_while_another_request_is_outstanding() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(5));
    bench.message(110, 1);
    assert!(!bench.doubts(Opcode::SendOnly, 109), "something new came just now");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)]);
    bench.wait(Duration::from_millis(1));
    for opcode in [Opcode::SendOnly, Opcode::SendLast, Opcode::ReadRequest, Opcode::FetchAdd] {
        assert!(bench.doubts(opcode, 109) && bench.doubts(opcode, 100), "{opcode:?}");
    }
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [], "not from memory");
    assert!(!bench.doubts(Opcode::SendOnly, 110));
    assert_eq!(bench.request(Opcode::SendOnly, 110, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)], "what is outstanding may come again");
    assert!(!bench.doubts(Opcode::SendOnly, 109), "the requester may go on from where a new flow is not");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    bench.wait(Duration::from_millis(1));
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
    bench.wait(Duration::from_millis(1));
    assert!(bench.doubts(Opcode::SendOnly, 110));
}
