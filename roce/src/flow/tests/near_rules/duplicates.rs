//! Duplicates: known, answered again, never run again.

use super::*;

#[test]
fn duplicates_are_acknowledged_again_and_never_forwarded() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.request(Opcode::SendOnly, 100, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [], "nothing is acknowledgeable yet");
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.request(Opcode::SendOnly, 100, 256);
    bench.request(Opcode::SendOnly, 101, 256);
    assert_eq!(bench.said(), [(100, 0x1f)], "once per batch, the last acknowledged");
}

#[test]
fn what_was_never_seen_is_never_acknowledged() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    for psn in [99, 50, 0, 0xff_ffff, 0x80_0065] {
        let verdict = bench.request(Opcode::SendOnly, psn, 256);
        assert_eq!(verdict, Verdict::Drop(Why::Stale), "{psn}");
        assert_eq!(bench.near.classify(Psn::new(psn)), PsnPosition::Duplicate { recent: false });
        assert_eq!(bench.said(), []);
    }
    assert_eq!(bench.near.classify(Psn::new(100)), PsnPosition::Duplicate { recent: true });
    assert_eq!(bench.near.classify(Psn::new(101)), PsnPosition::InOrder);
    assert_eq!(bench.near.classify(Psn::new(102)), PsnPosition::Ahead);
}

#[test]
fn an_outstanding_request_may_come_again_and_another_only_in_place_of_all() {
    let mut bench = rested();
    bench.message(110, 1);
    bench.message(111, 3);
    assert_eq!(bench.request(Opcode::ReadRequest, 114, 1000), FORWARD);
    assert_eq!(bench.request(Opcode::FetchAdd, 118, 0), FORWARD);
    bench.ack(110);
    bench.near.set_writable(false, bench.now);
    bench.said();
    bench.wait(Duration::from_secs(2));
    let same = [
        (Opcode::SendFirst, 111),
        (Opcode::SendMiddle, 112),
        (Opcode::SendLast, 113),
        (Opcode::FetchAdd, 118),
    ];
    for (opcode, psn) in same {
        assert!(!bench.doubts(opcode, psn), "{opcode:?} {psn}");
    }
    let read = |psn, length| request(Opcode::ReadRequest, psn, length);
    assert!(!bench.near.doubts(&parse(&read(114, 1000)), bench.now));
    assert!(!bench.near.doubts(&parse(&read(115, 744)), bench.now), "from its middle on");
    let others = [
        (Opcode::CompareSwap, 118),
        (Opcode::WriteMiddle, 114),
        (Opcode::SendOnly, 112),
        (Opcode::SendOnly, 111),
    ];
    for (opcode, psn) in others {
        assert!(bench.doubts_again(&request(opcode, psn, 256)), "{opcode:?} {psn}");
    }
    // Who repeats what is outstanding has not begun anew.
    bench.request(Opcode::SendFirst, 111, 256);
    assert!(bench.doubts_again(&read(114, 1001)));
}

/// Buffers are read when they are sent: polled flags change between retries.
#[test]
fn what_changed_is_carried_once_a_round_trip() {
    let mut bench = rested();
    bench.message(110, 2);
    let changed = |psn: u32, byte: u8| {
        let mut bytes = request(if psn == 110 { Opcode::SendFirst } else { Opcode::SendLast }, psn, 256);
        bytes[BTH_LEN..].fill(byte);
        bytes
    };
    for round in 1..4 {
        for retry in 0..4 {
            bench.wait(Duration::from_millis(10));
            for psn in [110, 111] {
                let bytes = changed(psn, 10 * round + retry);
                assert!(!bench.near.doubts(&parse(&bytes), bench.now));
                let verdict = bench.near.handle_request(&parse(&bytes), bench.now);
                let expected = if retry == 0 { Verdict::Replay } else { Verdict::Drop(Why::Duplicate) };
                assert_eq!(verdict, expected, "round {round}, retry {retry}, {psn}");
            }
        }
        bench.wait(Duration::from_millis(10));
    }
    assert_eq!(bench.near.stats().renewed, 6);
    bench.said();
    bench.ack(111);
    assert_eq!(bench.said(), [(111, 0x1f)]);
}

/// While others are outstanding: of a run the first is carried, and the requester hears the PSN
/// that the target names.
#[test]
fn what_was_acknowledged_is_asked_of_the_target_beside_the_live_flow() {
    let mut bench = rested();
    bench.message(110, 1);
    bench.message(111, 1);
    bench.ack(110);
    assert_eq!(bench.said(), [(110, 0x1f)]);
    assert_eq!(
        bench.request(Opcode::SendOnly, 110, 256),
        Verdict::Drop(Why::Duplicate),
        "it has crossed its ACK"
    );
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Replay);
    assert_eq!(bench.request(Opcode::SendOnly, 110, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [], "not from memory");
    bench.ack(110);
    assert_eq!(bench.said(), [(110, 0x1f)], "as the target says");
    assert_eq!(bench.request(Opcode::SendOnly, 108, 256), Verdict::Replay);
    bench.ack(109);
    assert_eq!(bench.said(), [(109, 0x1f)], "never a later one");
}

#[test]
fn a_read_asked_again() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 1000), Verdict::Drop(Why::Pending));
    bench.response(&read_response(Opcode::ReadResponseFirst, 100, 256, 0));
    bench.response(&read_response(Opcode::ReadResponseMiddle, 101, 256, 0));
    // In mid-range, where answers are under way: the next one begins anew for the requester.
    assert_eq!(bench.request(Opcode::ReadRequest, 102, 488), Verdict::Drop(Why::Pending));
    let middle = read_response(Opcode::ReadResponseMiddle, 102, 256, 0);
    let Deliver::Emit(passed) = bench.response(&middle) else {
        panic!("not passed on");
    };
    let out = passed.parts(&middle).concat();
    let again = parse(&out);
    assert_eq!(again.bth.opcode, Opcode::ReadResponseFirst);
    assert_eq!(again.payload, parse(&middle).payload);
    bench.response(&read_response(Opcode::ReadResponseLast, 103, 232, 1));
    // Answered: it runs again, one at a time for the same range.
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 744), Verdict::Replay);
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 744), Verdict::Drop(Why::Pending));
    assert!(!bench.near.is_idle());
    assert!(!is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 102, 256, 1))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 101, 256, 1))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 102, 256, 1))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 103, 232, 1))));
    assert!(bench.near.is_idle());
    // Beyond what was seen it is no duplicate of ours.
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 5000), Verdict::Drop(Why::Stale));
}

#[test]
fn a_replay_without_progress_is_forgotten() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    while let Some(at) = bench.near.next_timeout() {
        assert!(at > bench.now);
        bench.now = at;
        bench.near.handle_timeout(at);
    }
    assert!(bench.near.is_idle());
    assert_eq!(bench.near.stats().replays_expired, 1);
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
}

/// Busy NICs answer later than any round trip.
#[test]
fn a_replay_of_a_slow_target_is_waited_for_in_the_end() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.wait(Duration::from_millis(5));
    let answer = read_response(Opcode::ReadResponseOnly, 100, 10, 1);
    let takes = Bench::config().rtt * 7;
    let tries = (0..8).position(|_| {
        assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
        bench.wait(takes);
        let is_heard = is_emitted(bench.response(&answer));
        bench.wait(takes);
        is_heard
    });
    assert_eq!(tries, Some(4));
    assert_eq!(bench.near.stats().replays_expired, 4);
    // Answered, it is waited for as long as at first.
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    bench.wait(Bench::config().rtt * 3);
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
}

/// Nothing else waits for the target, and the far half asks it once: who comes again soon comes
/// through.
#[test]
fn a_replay_beside_nothing_else_is_waited_for_two_round_trips() {
    let mut bench = Bench::new();
    bench.request(Opcode::FetchAdd, 100, 0);
    bench.response(&atomic_response(100, 7, 1));
    bench.wait(Duration::from_millis(5));
    let rtt = Bench::config().rtt;
    for round in 0..3 {
        assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Replay, "{round}");
        bench.wait(2 * rtt - Duration::from_millis(1));
        assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending), "{round}");
        bench.wait(Duration::from_millis(1));
    }
    bench.request(Opcode::FetchAdd, 101, 0);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Replay);
    bench.wait(2 * rtt);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending), "others wait");
}

/// It may be the last thing that its queue pair does before it is reset, and what is carried
/// then reaches a target in its next incarnation.
#[test]
fn a_repeat_of_all_that_was_told_last_has_crossed_its_answer() {
    let whole = [(Opcode::ReadRequest, 500), (Opcode::FetchAdd, 0), (Opcode::Flush, 0)];
    for (opcode, length) in whole {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.said();
        assert_eq!(bench.request(opcode, 101, length), FORWARD);
        let answers = match opcode {
            Opcode::ReadRequest => vec![
                read_response(Opcode::ReadResponseFirst, 101, 256, 2),
                read_response(Opcode::ReadResponseLast, 102, 244, 2),
            ],
            Opcode::Flush => vec![read_response(Opcode::ReadResponseOnly, 101, 0, 2)],
            _ => vec![atomic_response(101, 7, 2)],
        };
        for answer in &answers {
            assert!(is_emitted(bench.response(answer)));
        }
        assert_eq!(bench.request(opcode, 101, length), Verdict::Drop(Why::Duplicate), "{opcode:?}");
        if opcode == Opcode::ReadRequest {
            let rest = bench.request(Opcode::ReadRequest, 102, 244);
            assert_eq!(rest, Verdict::Replay, "its requester lacks something");
            assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 102, 244, 2))));
        }
        bench.wait(Duration::from_millis(5));
        assert_eq!(bench.request(opcode, 101, length), Verdict::Replay, "{opcode:?}");
    }
}

/// No result is kept: the target knows the PSN, and runs nothing twice.
#[test]
fn atomics_that_come_again_are_asked_of_the_target() {
    let mut bench = Bench::new();
    bench.request(Opcode::FetchAdd, 100, 0);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending));
    assert!(is_emitted(bench.response(&atomic_response(100, 0xabcd, 1))));
    bench.request(Opcode::Flush, 101, 0);
    bench.response(&read_response(Opcode::ReadResponseOnly, 101, 0, 2));
    bench.message(102, 1);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Replay);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending));
    assert_eq!(bench.request(Opcode::Flush, 101, 0), Verdict::Replay);
    assert_eq!(bench.said(), [], "not from memory");
    assert!(is_emitted(bench.response(&atomic_response(100, 0xabcd, 2))));
    assert!(!is_emitted(bench.response(&atomic_response(100, 0xabcd, 2))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 101, 0, 2))));
}

#[test]
fn a_lone_request_that_comes_again_before_a_round_trip_is_over_is_waited_for() {
    for opcode in [
        Opcode::FetchAdd,
        Opcode::CompareSwap,
        Opcode::AtomicWrite,
        Opcode::Flush,
        Opcode::ReadRequest,
        Opcode::SendOnly,
        Opcode::WriteOnly,
    ] {
        for lives in [0, 1] {
            let mut bench = Bench::with(Bench::config());
            for life in 0..=lives {
                let bytes = request(opcode, 9, 0);
                if life > 0 {
                    bench.near.fail(bench.now);
                    bench.wait(Duration::from_secs(20));
                    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
                    bench.near.pair(R);
                }
                assert_eq!(bench.request(opcode, 9, 0), FORWARD, "{opcode:?}");
                for again in 0..10 {
                    bench.wait(Duration::from_millis(67));
                    let mut bytes = request(opcode, 9, 0);
                    match opcode {
                        // Soft-RoCE sends what the memory held where a CompareSwap has its
                        // comparand.
                        Opcode::FetchAdd => bytes[BTH_LEN + 20..BTH_LEN + 28].fill(again),
                        // And no address, where a FLUSH has it as well.
                        Opcode::AtomicWrite => bytes[BTH_LEN..BTH_LEN + 8].fill(0),
                        Opcode::Flush => bytes[BTH_LEN + 4..BTH_LEN + 12].fill(0),
                        _ => {}
                    }
                    assert!(!bench.near.doubts(&parse(&bytes), bench.now), "{opcode:?}, life {life}");
                    let verdict = bench.near.handle_request(&parse(&bytes), bench.now);
                    assert!(matches!(verdict, Verdict::Drop(Why::Pending | Why::Duplicate)), "{verdict:?}");
                }
            }
        }
    }
}

/// As by the next incarnation of its queue pair. What leaves the address out may be a repetition of
/// whatever stands at its PSN.
#[test]
fn a_lone_request_to_another_address_is_another() {
    for (opcode, at) in [(Opcode::AtomicWrite, BTH_LEN), (Opcode::Flush, BTH_LEN + 4)] {
        let to = |address: u64| {
            let mut bytes = request(opcode, 100, 0);
            bytes[at..at + 8].copy_from_slice(&address.to_be_bytes());
            bytes
        };
        for silent in [false, true] {
            for (first, second, same) in [
                (0x1000, 0x1000, true),
                (0x1000, 0, true),
                (0, 0x1000, true),
                (0, 0, true),
                (0x1000, 0x1008, false),
                (u64::MAX, 1 << 63, false),
            ] {
                let mut bench = Bench::new();
                assert_eq!(bench.near.handle_request(&parse(&to(first)), bench.now), FORWARD);
                if silent {
                    bench.near.fall_silent(bench.now);
                }
                bench.wait(Duration::from_millis(67));
                let doubts = bench.near.doubts(&parse(&to(second)), bench.now);
                assert!(silent || !doubts, "one packet proves nothing");
                bench.wait(Duration::from_millis(67));
                let doubts = bench.near.doubts(&parse(&to(second)), bench.now);
                assert_eq!(doubts, !same, "{opcode:?}, {first:x} and {second:x}, {silent}");
            }
        }
    }
}
