//! READs answered again.

use super::*;

#[test]
fn a_replay_does_not_disturb_the_window() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.sent();
    for (at, opcode) in
        [(0, Opcode::ReadResponseFirst), (1, Opcode::ReadResponseMiddle), (2, Opcode::ReadResponseMiddle)]
    {
        bench.response(&read_response(opcode, 100 + at, 256, 0));
    }
    bench.response(&read_response(Opcode::ReadResponseLast, 103, 232, 1));
    bench.message(104, 1);
    assert_eq!(bench.sent_psns(), [104]);
    let mut again = request(Opcode::ReadRequest, 101, 744);
    again[18] = 0x11; // 0x1100
    bench.far.handle_replay(again.clone(), bench.now);
    assert_eq!(bench.sent(), std::slice::from_ref(&again));
    let first = read_response(Opcode::ReadResponseFirst, 101, 256, 1);
    assert_eq!(bench.relayed(&first).unwrap(), first, "the requester asked from here");
    bench.response(&acknowledge(104, 0x1f, 2));
    let last = read_response(Opcode::ReadResponseLast, 103, 232, 1);
    assert_eq!(bench.response(&last), Verdict::Drop(Why::Ahead));
    let sent = bench.sent();
    let rest = parse(&sent[0]);
    assert_eq!(rest.bth.psn, Psn::new(101));
    assert_eq!(rest.ext.reth().unwrap().virtual_address, 0x1100);
    assert_eq!(bench.response(&first), Verdict::Drop(Why::Duplicate));
    let second = read_response(Opcode::ReadResponseMiddle, 102, 256, 1);
    assert_eq!(bench.relayed(&second).unwrap(), second);
    assert_eq!(bench.relayed(&last).unwrap(), last);
    assert!(bench.far.is_idle());
    // Never answered before, so no replay.
    bench.far.handle_replay(request(Opcode::ReadRequest, 105, 10), bench.now);
    assert!(bench.far.is_idle());
}

#[test]
fn the_rest_of_a_read_may_begin_with_middle() {
    // Soft-RoCE goes on as if the responses before had just been sent; the requester is to see what
    // it asked for.
    let first = read_response(Opcode::ReadResponseFirst, 101, 256, 5);
    let only = read_response(Opcode::ReadResponseOnly, 103, 232, 6);
    let middle = |psn| read_response(Opcode::ReadResponseMiddle, psn, 256, 0);
    let last = read_response(Opcode::ReadResponseLast, 103, 232, 6);
    // A flow that began anew, and what is asked for again of one that is known.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.request(Opcode::ReadRequest, 101, 744);
    bench.message(104, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 5));
    assert_eq!(bench.relayed(&middle(101)).unwrap(), first);
    assert_eq!(bench.relayed(&middle(102)).unwrap(), middle(102));
    assert_eq!(bench.relayed(&last).unwrap(), last);
    bench.response(&acknowledge(104, 0x1f, 7));
    bench.far.handle_replay(request(Opcode::ReadRequest, 101, 744), bench.now);
    assert_eq!(bench.sent_psns(), [101]);
    let count = |mut packet: Vec<u8>, msn: u8| {
        packet[15] = msn;
        packet
    };
    assert_eq!(bench.relayed(&middle(101)).unwrap(), count(first, 7));
    assert_eq!(bench.relayed(&middle(102)).unwrap(), middle(102));
    assert_eq!(bench.relayed(&last).unwrap(), last);
    bench.far.handle_replay(request(Opcode::ReadRequest, 103, 232), bench.now);
    assert_eq!(bench.sent_psns(), [103]);
    assert_eq!(bench.relayed(&last).unwrap(), only);
    assert!(bench.far.is_idle());
}

/// Its requester may be in its next incarnation, and so may the target.
#[test]
fn a_replay_beside_nothing_else_is_sent_once() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    for _ in 0..3 {
        bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
        let mut tries = 0;
        for _ in 0..100 {
            tries += bench.sent().len();
            bench.wait(Duration::from_millis(100));
        }
        assert_eq!(tries, 1);
        assert!(bench.far.is_idle() && !bench.far.is_dead());
    }
}

#[test]
fn a_replay_beside_nothing_else_is_sent_soon_or_not_at_all() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.far.set_room(0);
    bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
    bench.wait(Duration::from_millis(100));
    bench.far.set_room(usize::MAX);
    assert_eq!(bench.sent_psns(), [0_u32; 0]);
    assert!(bench.far.is_idle());
}

/// The SEND that waits is of the incarnation that asks again.
#[test]
fn a_replay_beside_what_waits_for_the_target_is_sent_again_and_given_up() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.message(101, 1);
    bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
    let mut tries = 0;
    for _ in 0..100 {
        tries += bench.sent_psns().iter().filter(|psn| **psn == 100).count();
        bench.wait(Duration::from_millis(50));
    }
    assert_eq!(tries, 5);
    bench.response(&acknowledge(101, 0x1f, 2));
    assert!(bench.far.is_idle() && !bench.far.is_dead());
}

#[test]
fn a_target_that_answers_but_not_a_replay_is_not_silent() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    for second in 0..30 {
        bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
        for _ in 0..20 {
            bench.sent();
            bench.wait(Duration::from_millis(50));
            bench.response(&acknowledge(100, 0x1f, 1));
        }
        assert!(!bench.far.is_dead(), "after {second} s");
    }
}

/// It had acknowledged that. So it is in its next incarnation, and the near half is told.
#[test]
fn a_target_that_expects_less_than_is_run_again_is_heard() {
    let mut bench = Bench::new();
    bench.message(100, 4);
    bench.sent();
    bench.response(&acknowledge(103, 0x1f, 1));
    let nak = acknowledge(100, 0x60, 0);
    assert_eq!(bench.response(&nak), Verdict::Drop(Why::Duplicate), "it was asked nothing");
    bench.far.handle_replay(request(Opcode::SendLast, 103, 256), bench.now);
    assert_eq!(bench.sent_psns(), [103]);
    assert_eq!(bench.relayed(&nak), Some(nak));
}

/// The target's next incarnation refuses a request that the one before had answered. A NAK
/// acknowledges all before its PSN, so what lies beyond is not its word.
#[test]
fn a_refused_replay_is_named_where_the_target_refuses_it() {
    let mut bench = Bench::new();
    for psn in 100..108 {
        bench.message(psn, 1);
    }
    bench.sent();
    bench.response(&acknowledge(107, 0x1f, 8));
    bench.far.handle_replay(request(Opcode::SendOnly, 101, 256), bench.now);
    assert_eq!(bench.sent_psns(), [101]);
    // Somebody guesses: beyond, a target refuses what it was not sent.
    for psn in [100, 102, 107, 108, 0x75_0000] {
        assert_eq!(bench.response(&acknowledge(psn, 0x61, 1)), Verdict::Drop(Why::Unexpected), "{psn}");
    }
    assert_eq!(aeth(&bench.relayed(&acknowledge(101, 0x61, 1)).unwrap()), (101, 0x61));
}

/// A request that runs again, and a response to another requester: what it may be an answer to.
#[test]
fn a_request_that_runs_again_may_be_answered_from_anywhere() {
    use crate::pairing::{Rival, Word};
    const FAR: u32 = 200 + (1 << 16);
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    assert_eq!(bench.far.rivals(Psn::new(100), Word::Ack), Some(Rival::Here), "it was asked about");
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    assert_eq!(bench.far.rivals(Psn::new(100), Word::Ack), None);
    bench.far.handle_replay(request(Opcode::SendOnly, 100, 8), bench.now);
    assert_eq!(bench.far.rivals(Psn::new(100), Word::Ack), None, "it is not sent yet");
    bench.sent();
    for word in [Word::Ack, Word::SequenceNak, Word::NotReady, Word::Refusal] {
        assert_eq!(bench.far.rivals(Psn::new(99), word), Some(Rival::Here), "{word:?}");
        assert_eq!(bench.far.rivals(Psn::new(FAR), word), Some(Rival::Elsewhere), "{word:?}");
    }
    assert_eq!(bench.far.rivals(Psn::new(100), Word::Read), None, "a SEND is answered without data");
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    assert_eq!(bench.far.rivals(Psn::new(100), Word::Ack), None);
}

/// Meanwhile no answer is its own.
#[test]
fn a_request_that_was_put_off_is_out_when_it_is_tried_again() {
    let mut bench = Bench::new();
    assert!(!bench.far.has_out());
    bench.message(100, 1);
    bench.sent();
    assert!(bench.far.has_out() && !bench.far.is_put_off());
    bench.response(&acknowledge(100, 0x20 | 1, 0));
    assert!(!bench.far.has_out() && bench.far.is_put_off());
    bench.wait(Duration::from_secs(1));
    bench.sent();
    assert!(bench.far.has_out());
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    assert!(!bench.far.has_out() && !bench.far.is_put_off());
}
