//! What comes again: known, answered again, never run again.

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
        assert_eq!(bench.near.classify(Psn::new(psn)), Standing::Duplicate { recent: false });
        assert_eq!(bench.said(), []);
    }
    assert_eq!(bench.near.classify(Psn::new(100)), Standing::Duplicate { recent: true });
    assert_eq!(bench.near.classify(Psn::new(101)), Standing::InOrder);
    assert_eq!(bench.near.classify(Psn::new(102)), Standing::Ahead);
}

#[test]
fn an_outstanding_request_may_come_again_and_no_other_in_its_place() {
    let mut bench = rested();
    bench.message(110, 3);
    assert_eq!(bench.request(Opcode::ReadRequest, 113, 1000), FORWARD);
    assert_eq!(bench.request(Opcode::FetchAdd, 117, 0), FORWARD);
    bench.ack(110);
    bench.said();
    bench.wait(Duration::from_secs(2));
    let same = [
        (Opcode::SendFirst, 110),
        (Opcode::SendMiddle, 111),
        (Opcode::SendLast, 112),
        (Opcode::FetchAdd, 117),
    ];
    for (opcode, psn) in same {
        assert!(!bench.doubts(opcode, psn), "{opcode:?} {psn}");
    }
    let read = |psn, length| request(Opcode::ReadRequest, psn, length);
    assert!(!bench.near.doubts(&parse(&read(113, 1000)), bench.now));
    assert!(!bench.near.doubts(&parse(&read(114, 744)), bench.now), "from its middle on");
    assert!(bench.near.doubts(&parse(&read(113, 1001)), bench.now));
    let others = [
        (Opcode::SendOnly, 110),
        (Opcode::SendOnly, 111),
        (Opcode::WriteMiddle, 113),
        (Opcode::CompareSwap, 117),
    ];
    for (opcode, psn) in others {
        assert!(bench.doubts(opcode, psn), "{opcode:?} {psn}");
    }
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

#[test]
fn atomics_run_once() {
    let mut bench = Bench::new();
    bench.request(Opcode::FetchAdd, 100, 0);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending));
    assert!(is_emitted(bench.response(&atomic_response(100, 0xabcd, 1))));
    bench.request(Opcode::Flush, 101, 0);
    bench.response(&read_response(Opcode::ReadResponseOnly, 101, 0, 2));
    bench.request(Opcode::FetchAdd, 100, 0);
    let again = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!(*again, *atomic_response(100, 0xabcd, 1));
    bench.request(Opcode::Flush, 101, 0);
    let again = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!(*again, *read_response(Opcode::ReadResponseOnly, 101, 0, 2));
    assert_eq!(bench.near.stats().results_replayed, 2);
}

#[test]
fn the_journal_is_bounded() {
    let mut bench = Bench::new();
    for at in 0..129 {
        bench.request(Opcode::FetchAdd, 100 + at, 0);
        bench.response(&atomic_response(100 + at, u64::from(at), 1));
    }
    assert_eq!(bench.request(Opcode::FetchAdd, 101, 0), Verdict::Drop(Why::Duplicate));
    // Beyond the bound the target is asked; it knows the PSN and runs nothing twice.
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Replay);
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Drop(Why::Pending));
    assert!(is_emitted(bench.response(&atomic_response(100, 0, 1))));
    assert!(!is_emitted(bench.response(&atomic_response(100, 0, 1))));
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
                        // Soft-RoCE sends what the memory held where a CompareSwap has its comparand.
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

/// As by the next life of its queue pair. What leaves the address out may be a repetition of whatever stands at its PSN.
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
                assert_eq!(doubts, !same, "{opcode:?}, {first:x} and {second:x}, {silent}");
            }
        }
    }
}
