//! Fatal NAKs and failed flows: where a requester is refused, and which one.

use super::*;

#[test]
fn a_fatal_nak_comes_after_the_acks_before_it() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.message(102, 1);
    bench.response(&acknowledge(101, 0x62, 1));
    assert_eq!(bench.said(), [(100, 0x1f), (101, 0x62)]);
    assert!(bench.near.is_failed());
    assert_eq!(bench.request(Opcode::SendOnly, 102, 256), Verdict::Drop(Why::Failed));
    assert_eq!(bench.said(), [], "rate-limited");
    bench.wait(Duration::from_millis(6));
    bench.request(Opcode::SendOnly, 101, 256);
    bench.request(Opcode::SendOnly, 102, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(101, 0x62)], "it was lost");
    bench.wait(Duration::from_millis(6));
    bench.request(Opcode::SendOnly, 103, 256);
    assert_eq!(bench.said(), [], "and 101, 102?");
    bench.wait(Duration::from_secs(60));
    assert!(bench.near.is_dead());
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Drop(Why::Dead));
    assert_eq!(bench.said(), []);
}

#[test]
fn a_fatal_nak_behind_an_early_ack_moves_up_to_it() {
    let mut bench = Bench::new();
    bench.message(100, 40);
    assert_eq!(bench.said(), [(138, 0x1f)]);
    bench.response(&acknowledge(100, 0x61, 0));
    assert_eq!(bench.said(), [(139, 0x61)]);
}

#[test]
fn fail_refuses_the_oldest_request_or_the_next() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(100, 0x63)]);

    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [], "there is nothing to refuse");
    assert_eq!(bench.request(Opcode::SendOnly, 100, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [], "it has crossed its ACK; 101 has not been sent");
    bench.request(Opcode::SendOnly, 101, 256);
    assert_eq!(bench.said(), [(101, 0x63)]);
    for (psn, why) in [(5000, Why::Stale), (0x80_0000, Why::Stale), (90, Why::Failed)] {
        bench.wait(Duration::from_millis(6));
        assert_eq!(bench.request(Opcode::SendOnly, psn, 256), Verdict::Drop(why));
        assert_eq!(bench.said(), [], "another life of the queue pair: {psn}");
    }
}

/// The requester's NIC gives up by itself, as it would without gateways. One that never does is
/// refused in the end.
#[test]
fn a_requester_of_a_silent_target_meets_silence_before_it_is_refused() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.wait(Duration::from_millis(200));
    bench.response(&acknowledge(100, 0x1f, 1));
    bench.response(&acknowledge(101, 0x7f, 0));
    assert_eq!(bench.said(), [(100, 0x1f)], "what the target did before is acknowledged");
    for _ in 0..290 {
        bench.wait(Duration::from_millis(100));
        assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Failed));
        assert_eq!(bench.said(), [], "neither refused nor kept waiting");
    }
    for _ in 0..11 {
        bench.wait(Duration::from_millis(100));
        bench.request(Opcode::SendOnly, 101, 256);
    }
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(101, 0x63)]);
    bench.wait(Duration::from_secs(60));
    assert!(bench.near.is_dead());
}

/// As by a session that ended because the peer fell silent. What was seen of the requester before
/// tells its retries from its next life.
#[test]
fn a_requester_that_is_cut_off_meets_silence_and_its_next_life_does_not() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    bench.message(102, 1);
    bench.ack(101);
    assert_eq!(bench.said(), [(101, 0x1f)]);
    bench.near.fall_silent(bench.now);
    // A READ that takes more PSNs than may be lost in a row, and what follows it.
    let later =
        [(Opcode::SendOnly, 103, 256), (Opcode::ReadRequest, 104, 1 << 20), (Opcode::SendOnly, 4200, 256)];
    for _ in 0..3 {
        bench.wait(Duration::from_secs(9));
        for (opcode, psn, length) in [(Opcode::SendOnly, 102, 256)].into_iter().chain(later) {
            assert!(!bench.doubts(opcode, psn), "{psn}");
            assert_eq!(bench.request(opcode, psn, length), Verdict::Drop(Why::Failed));
            assert_eq!(bench.said(), [], "neither refused nor kept waiting");
        }
        assert!(!bench.near.is_dead());
    }
    assert!(bench.doubts(Opcode::WriteOnly, 102), "another request with the PSN of one that is outstanding");
    assert!(!bench.doubts(Opcode::WriteMiddle, 102), "which begins nothing");
    assert!(bench.doubts(Opcode::SendOnly, 4201 + 1024), "beyond all that it can have sent");
    assert!(bench.doubts(Opcode::SendOnly, 100), "and before all that it has to send again");
    bench.wait(Duration::from_secs(3));
    bench.request(Opcode::SendOnly, 102, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(102, 0x63)], "it tries for ever");
}

/// As by a session that ended at once. What lies so far ahead is no retry, and nothing else would
/// answer it.
#[test]
fn a_next_life_that_begins_far_beyond_what_is_refused_is_for_the_target_to_judge() {
    let mut bench = rested();
    bench.near.fail(bench.now);
    bench.wait(Duration::from_secs(1));
    let later = [(Opcode::SendOnly, 110, 256), (Opcode::ReadRequest, 111, 1 << 20)];
    for (opcode, psn, length) in later {
        assert!(!bench.doubts(opcode, psn));
        bench.request(opcode, psn, length);
    }
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.said(), [(110, 0x63)]);
    bench.wait(Duration::from_secs(1));
    let next = 111 + (1 << 20) / 256;
    assert!(!bench.doubts(Opcode::SendOnly, next + 1023), "packets before it may have been lost");
    assert!(bench.doubts(Opcode::SendOnly, next + 1024));
    assert!(!bench.doubts(Opcode::SendMiddle, next + 1024), "which begins nothing");
}

/// Before all that came may also lie what was lost of the requester's first packets: the target,
/// which has executed nothing then, says which it is.
#[test]
fn a_next_life_that_begins_before_a_cut_off_one_that_was_never_answered_meets_no_silence() {
    let mut bench = Bench::with(Bench::config());
    bench.message(100, 2);
    bench.near.fall_silent(bench.now);
    bench.wait(Duration::from_secs(2));
    assert!(!bench.doubts(Opcode::SendFirst, 100), "again");
    assert!(bench.doubts(Opcode::SendOnly, 99));
    assert!(bench.doubts(Opcode::SendOnly, 0));
    assert!(!bench.doubts(Opcode::SendMiddle, 99), "which begins nothing");
}

/// While the path MTU is unknown, a READ may consume more PSNs than can be compared: what follows
/// it is the requester's still.
#[test]
fn what_follows_the_longest_read_on_a_flow_that_fell_silent_is_no_other_life() {
    let mut bench = Bench::with(NearConfig::default());
    bench.message(100, 1);
    bench.near.fall_silent(bench.now);
    bench.wait(Duration::from_secs(2));
    bench.request(Opcode::SendOnly, 100, 256);
    bench.request(Opcode::ReadRequest, 101, 1 << 31);
    for mtu in [1024, 4096] {
        assert!(!bench.doubts(Opcode::SendOnly, 101 + (1 << 31) / mtu), "{mtu}");
    }
    assert!(bench.doubts(Opcode::SendOnly, 101 + (1 << 22) + 1024));
}

/// Its ACK timeout may be longer than a flow that failed is kept.
#[test]
fn a_requester_that_seldom_tries_meets_the_same_silence() {
    let mut bench = Bench::with(NearConfig { linger: Duration::from_secs(10), ..Bench::config() });
    bench.message(100, 1);
    bench.near.fall_silent(bench.now);
    bench.wait(Duration::from_secs(17));
    assert!(!bench.near.is_dead());
    assert_eq!(bench.request(Opcode::SendOnly, 100, 256), Verdict::Drop(Why::Failed));
    bench.wait(Duration::from_secs(14));
    assert!(bench.near.is_dead());
}

#[test]
fn a_failed_flow_refuses_a_read_at_its_own_psn() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.message(101, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(101, 0x63)]);
    for _ in 0..2 {
        bench.wait(Duration::from_millis(67));
        bench.request(Opcode::ReadRequest, 100, 10);
        bench.request(Opcode::SendOnly, 101, 256);
        assert_eq!(bench.said(), []);
        bench.wait(Duration::from_millis(5));
        assert_eq!(bench.said(), [(100, 0x63)]);
    }
}

/// Its ACK timeout may be seconds, and the gateway about to stop.
#[test]
fn a_requester_that_missed_ack_and_nak_is_refused_at_its_first_retry() {
    for lost in [100, 105, 109] {
        let mut bench = Bench::new();
        bench.message(100, 10);
        bench.ack(109);
        bench.message(110, 10);
        bench.near.fail(bench.now);
        assert_eq!(bench.said(), [(109, 0x1f), (110, 0x63)]);
        // Under way when it was refused; that was lost together with what came before.
        bench.wait(Duration::from_millis(2));
        bench.request(Opcode::SendOnly, 120, 256);
        bench.wait(Duration::from_millis(500));
        for psn in lost..120 {
            bench.request(Opcode::SendMiddle, psn, 256);
        }
        assert_eq!(bench.said(), []);
        bench.wait(Duration::from_millis(5));
        assert_eq!(bench.said(), [(lost, 0x63)]);
    }
}

#[test]
fn a_next_life_that_goes_on_after_what_was_overtaken_is_not_refused() {
    let mut bench = rested();
    bench.message(110, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(110, 0x63)]);
    bench.wait(Duration::from_secs(1));
    // No other flow can be begun.
    bench.request(Opcode::SendLast, 101, 256);
    bench.request(Opcode::SendFirst, 100, 256);
    bench.wait(Duration::from_millis(14));
    bench.request(Opcode::ReadRequest, 102, 256);
    bench.wait(Duration::from_millis(14));
    assert_eq!(bench.said(), []);
}

/// That a flow at rest fails is no news to its requester, and its memory no fresher for it.
#[test]
fn a_next_life_that_begins_as_its_flow_fails_is_not_acknowledged_from_memory() {
    for pause in [0, 1, 20].map(Duration::from_millis) {
        let mut bench = rested();
        bench.wait(Duration::from_secs(1));
        bench.near.fail(bench.now);
        bench.wait(pause);
        assert!(bench.doubts(Opcode::SendOnly, 100), "{pause:?}");
        // No other flow can be begun.
        for psn in 100..105 {
            bench.request(Opcode::SendOnly, psn, 256);
        }
        assert_eq!(bench.said(), [], "{pause:?}");
        bench.wait(Duration::from_millis(10));
        assert_eq!(bench.said(), [(100, 0x63)], "{pause:?}");
        // That NAK is lost, and what comes now is still of the next life.
        for psn in 105..108 {
            bench.request(Opcode::SendOnly, psn, 256);
        }
        assert_eq!(bench.said(), [], "{pause:?}");
        bench.wait(Duration::from_millis(10));
        bench.request(Opcode::SendOnly, 108, 256);
        bench.wait(Duration::from_millis(10));
        assert_eq!(bench.said(), [], "{pause:?}");
        bench.request(Opcode::SendOnly, 100, 256);
        bench.wait(Duration::from_millis(5));
        assert_eq!(bench.said(), [(100, 0x63)], "{pause:?}");
    }
}

#[test]
fn a_requester_whose_retries_lack_their_first_packet_is_refused_in_the_end() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(100, 0x63)]);
    bench.wait(Duration::from_millis(500));
    bench.request(Opcode::SendOnly, 101, 256);
    bench.wait(Duration::from_millis(1));
    bench.request(Opcode::SendOnly, 100, 256);
    bench.wait(Duration::from_millis(499));
    assert_eq!(bench.said(), [], "another life, and its first overtaken on the LAN?");
    bench.request(Opcode::SendOnly, 100, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(100, 0x63)]);
}

#[test]
fn a_next_life_whose_first_requests_come_late_is_not_refused() {
    let mut bench = rested();
    bench.message(110, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(110, 0x63)]);
    bench.wait(Duration::from_secs(1));
    for psn in [110, 111] {
        assert!(!bench.doubts(Opcode::SendOnly, psn));
        bench.request(Opcode::SendOnly, psn, 256);
        assert!(bench.doubts(Opcode::SendOnly, 107), "its first, overtaken on the LAN");
    }
    bench.request(Opcode::SendMiddle, 108, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), []);
    assert!(bench.doubts(Opcode::SendOnly, 107));
}

#[test]
fn a_next_life_that_begins_before_all_that_was_seen_is_not_refused_past_its_first() {
    let mut bench = rested();
    bench.message(110, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(110, 0x63)]);
    bench.wait(Duration::from_secs(1));
    // No other flow can be begun.
    for psn in [99, 100, 110] {
        assert!(bench.doubts(Opcode::SendOnly, 99));
        bench.request(Opcode::SendOnly, psn, 256);
        bench.wait(Duration::from_millis(10));
    }
    assert_eq!(bench.said(), []);
}

#[test]
fn a_failed_flow_acknowledges_nothing_of_the_next_life() {
    let mut bench = Bench::new();
    for psn in 100..110 {
        bench.message(psn, 1);
        bench.ack(psn);
    }
    bench.message(110, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(109, 0x1f), (110, 0x63)]);
    assert!(!bench.doubts(Opcode::SendOnly, 110), "under way when it was refused");
    bench.wait(Duration::from_secs(1));
    assert!(bench.doubts(Opcode::SendOnly, 100));
    assert!(!bench.doubts(Opcode::SendOnly, 110), "its NAK was lost");
    bench.request(Opcode::SendOnly, 110, 256);
    assert_eq!(bench.said(), [], "it would acknowledge what comes late");
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(110, 0x63)]);
    bench.wait(Duration::from_secs(1));
    assert!(bench.doubts(Opcode::SendOnly, 110), "who was refused sends nothing more in this life");
    assert!(!bench.doubts(Opcode::SendLast, 110), "nor does it begin so");
    // No other flow can be begun: it learns no more than that its first request is refused.
    for psn in [101, 100].into_iter().chain(102..115) {
        bench.request(Opcode::SendOnly, psn, 256);
    }
    bench.wait(Duration::from_millis(67));
    assert_eq!(bench.said(), [], "what else was overtaken?");
    for psn in 100..115 {
        bench.request(Opcode::SendOnly, psn, 256);
    }
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(100, 0x63)]);
}

#[test]
fn a_next_life_is_not_refused_where_the_last_one_kept_coming_back_to() {
    let mut bench = Bench::with(Bench::config());
    bench.message(10, 1);
    bench.near.fail(bench.now);
    for _ in 0..3 {
        bench.wait(Duration::from_millis(67));
        bench.request(Opcode::SendOnly, 10, 256);
    }
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(10, 0x63)]);
    bench.wait(Duration::from_secs(1));
    bench.request(Opcode::SendOnly, 12, 256);
    bench.request(Opcode::SendOnly, 10, 256);
    assert_eq!(bench.said(), [], "not before what is overtaken on the LAN");
    assert!(bench.doubts(Opcode::SendOnly, 7));
    bench.request(Opcode::SendOnly, 7, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), []);
}

#[test]
fn a_flow_whose_target_never_spoke_refuses_what_the_requester_keeps_coming_back_to() {
    let mut bench = Bench::with(Bench::config());
    bench.message(10, 1);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [], "the message at 9 may have been lost");
    for round in 0..3 {
        bench.wait(Duration::from_millis(67));
        assert_eq!(bench.said(), [], "round {round}");
        bench.request(Opcode::SendOnly, 9, 256);
        bench.request(Opcode::SendOnly, 10, 256);
    }
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(9, 0x63)]);
}

/// The LAN copies what comes ahead of the first request of a retry, again and again.
#[test]
fn copies_are_no_retries_of_a_requester_that_is_to_be_refused() {
    let mut bench = Bench::with(Bench::config());
    bench.message(8, 1);
    bench.near.fail(bench.now);
    for retry in 0..3 {
        bench.wait(Duration::from_millis(67));
        for psn in [10, 10, 10, 10, 9] {
            bench.request(Opcode::SendOnly, psn, 256);
        }
        assert_eq!(bench.said(), []);
        bench.wait(Duration::from_millis(5));
        let refused = if retry < 2 { vec![] } else { vec![(9, 0x63)] };
        assert_eq!(bench.said(), refused, "the lowest of each, which was right behind");
    }
}

/// The far half's flow began beyond what this one went back to, so it knows nothing of where the
/// target stands.
#[test]
fn a_silent_target_confirms_nothing() {
    let mut bench = Bench::with(Bench::config());
    bench.message(15, 1);
    bench.wait(Duration::from_millis(2));
    assert_eq!(bench.request(Opcode::SendOnly, 10, 256), Verdict::Drop(Why::Orphan));
    bench.wait(Duration::from_millis(67));
    bench.message(10, 6);
    bench.response(&acknowledge(14, 0x7f, 0));
    assert_eq!(bench.said(), []);
    bench.wait(NearConfig::default().silence);
    for _ in 0..3 {
        assert_eq!(bench.said(), []);
        bench.wait(Duration::from_millis(67));
        bench.request(Opcode::SendOnly, 10, 256);
    }
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(10, 0x63)]);
}
