//! Answers of a target that is in another incarnation than the requests.

use super::*;

const ELSEWHERE: Verdict = Verdict::Drop(Why::Unexpected);

/// Soft-RoCE acknowledges a duplicate by what it had, and keeps that over a reset.
#[test]
fn a_target_that_has_completed_nothing_acknowledges_no_message() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    bench.message(102, 1);
    bench.sent();
    for named in [101, 102, 110] {
        for _ in 0..2 {
            assert_eq!(bench.response(&acknowledge(named, 0x1f, 0)), ELSEWHERE, "{named}");
            assert!(bench.far.is_of_another_incarnation(&parse(&acknowledge(named, 0x1f, 0))));
        }
    }
    assert_eq!(bench.response(&acknowledge(102, 0x1f, 1)), ELSEWHERE, "two messages, and it counted one");
    assert!(bench.far.has_heard_nothing());
    // A part of a message counts for nothing.
    assert_eq!(bench.relayed(&acknowledge(100, 0x1f, 0)).unwrap(), acknowledge(100, 0x1f, 0));
    assert_eq!(bench.relayed(&acknowledge(102, 0x1f, 2)).unwrap(), acknowledge(102, 0x1f, 2));
}

#[test]
fn what_a_gateway_forgot_counts_at_its_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    for count in [0xff_ffff, 0x80_0000, 7] {
        assert!(!bench.far.is_of_another_incarnation(&parse(&acknowledge(100, 0x1f, count))), "{count:#x}");
    }
    bench.response(&acknowledge(110, 0x1f, 7));
    assert_eq!(bench.relayed(&acknowledge(110, 0x1f, 7)).unwrap(), acknowledge(110, 0x1f, 7));
}

#[test]
fn a_target_that_was_not_ready_has_completed_a_message_when_it_acknowledges_that() {
    for count in [0, 5] {
        let mut bench = Bench::new();
        if count > 0 {
            bench.message(98, 2);
            bench.sent();
            bench.response(&acknowledge(99, 0x1f, count));
        }
        bench.message(100, 1);
        bench.sent();
        bench.response(&acknowledge(100, 0x20, count));
        bench.wait(Duration::from_secs(1));
        bench.sent();
        for named in [100, 120] {
            assert_eq!(bench.response(&acknowledge(named, 0x1f, count)), ELSEWHERE, "{named} {count}");
        }
        let done = acknowledge(100, 0x1f, count + 1);
        assert_eq!(bench.relayed(&done).unwrap(), done);
    }
}

#[test]
fn a_count_that_went_back_is_another_incarnations() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 0xff_ffff));
    bench.message(101, 1);
    bench.sent();
    assert_eq!(bench.response(&acknowledge(101, 0x1f, 0xff_fffe)), ELSEWHERE);
    let wrapped = acknowledge(101, 0x1f, 0);
    assert_eq!(bench.relayed(&wrapped).unwrap(), wrapped);
    // After a rest its requester may have begun anew with it, at the very next PSN.
    bench.far.note_rest();
    bench.message(102, 1);
    bench.sent();
    bench.response(&acknowledge(102, 0x1f, 1));
    bench.message(103, 1);
    bench.sent();
    assert_eq!(bench.response(&acknowledge(103, 0x1f, 0)), ELSEWHERE);
    let anew = acknowledge(103, 0x1f, 2);
    assert_eq!(bench.relayed(&anew).unwrap(), anew);
}

/// 2^24 messages one by one.
#[test]
fn a_count_wraps_after_a_rest() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 0xff_fffe));
    for (psn, count) in [(101, 0xff_ffff), (102, 0), (103, 1)] {
        bench.far.note_rest();
        bench.message(psn, 1);
        bench.sent();
        let done = acknowledge(psn, 0x1f, count);
        assert_eq!(bench.relayed(&done).unwrap(), done);
    }
}

/// Somebody may send it in the target's name.
#[test]
fn a_count_without_progress_proves_nothing() {
    for odd in
        [acknowledge(100, 0x1f, 0x40_0000), acknowledge(100, 0x01, 0x40_0000), acknowledge(101, 0x60, 9)]
    {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.sent();
        bench.response(&acknowledge(100, 0x1f, 1));
        bench.message(101, 1);
        bench.sent();
        bench.response(&odd);
        bench.wait(Duration::from_secs(1));
        bench.sent();
        let done = acknowledge(101, 0x1f, 2);
        assert_eq!(bench.relayed(&done).unwrap(), done);
    }
}
