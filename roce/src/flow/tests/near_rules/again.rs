//! Requests asked for again, whose answers decide what the requester may hear.

use super::*;

/// A READ at 100 that is answered, and a SEND at 101 that is outstanding.
fn read_and_send() -> Bench {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1))));
    bench.message(101, 1);
    bench.wait(Duration::from_millis(10));
    bench
}

/// The next incarnation begins with the same READ, and its target is slow. However late anybody
/// looks, an ACK past that READ would complete what nobody has.
#[test]
fn no_time_lets_an_ack_past_a_read_that_is_asked_for_again() {
    for look in [1, 5_000, 60_000] {
        let mut bench = read_and_send();
        assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
        bench.ack(101);
        assert_eq!(bench.said(), [], "it would be asked for once more");
        bench.wait(Duration::from_millis(look));
        bench.near.handle_timeout(bench.now);
        assert_eq!(bench.said(), [], "after {look} ms");
        assert!(bench.near.is_idle() || look == 1, "nobody is waited for");
        // The target's answer shows where both are.
        bench.wait(Duration::from_secs(60));
        assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
        assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1))));
        assert_eq!(bench.said(), [(101, 0x1f)], "after {look} ms");
    }
}

/// It had the READ's answer all along, which has crossed its question.
#[test]
fn a_requester_that_asks_for_no_read_any_more_hears_of_what_it_sends_again() {
    let mut bench = read_and_send();
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    bench.wait(Duration::from_secs(60));
    bench.ack(101);
    assert_eq!(bench.said(), []);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Replay);
    bench.ack(101);
    assert_eq!(bench.said().first(), Some(&(101, 0x1f)));
    bench.message(102, 1);
    bench.ack(102);
    assert_eq!(bench.said(), [(102, 0x1f)], "and of all that follows");
}

/// The target's next incarnation refuses what it was asked again. It has nothing beyond.
#[test]
fn a_refusal_of_what_was_asked_again_names_no_later_psn() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Replay);
    bench.message(110, 1);
    bench.response(&acknowledge(103, 0x61, 0));
    assert_eq!(bench.said(), [(103, 0x61)]);
}

/// A retry has both, and the target answers what follows the READ only after that was given up.
/// That retry did not begin beyond it.
#[test]
fn an_answer_to_the_retry_that_asked_for_the_read_lets_no_ack_past_it() {
    let mut bench = read_and_send();
    bench.ack(101);
    bench.said();
    bench.message(102, 1);
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    bench.ack(102);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Replay);
    assert_eq!(bench.said(), []);
    bench.wait(Duration::from_secs(60));
    bench.ack(102);
    assert_eq!(bench.said(), [], "it is late");
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Replay);
    bench.ack(102);
    assert_eq!(bench.said().first(), Some(&(102, 0x1f)));
}

/// The ACK past the READ has the PSN that the target named, though more of the next message came.
#[test]
fn an_ack_past_a_read_names_no_later_psn_than_the_target() {
    let mut bench = read_and_send();
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    for at in 0..16 {
        let opcode = if at == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
        assert_eq!(bench.request(opcode, 102 + at, 256), FORWARD);
    }
    bench.ack(101);
    bench.wait(Duration::from_secs(61));
    assert_eq!(bench.said(), []);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Replay);
    bench.ack(101);
    assert_eq!(bench.said().first(), Some(&(101, 0x1f)));
}
