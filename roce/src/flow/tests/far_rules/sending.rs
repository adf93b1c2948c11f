//! Packets to the target, and how often they go.

use super::*;

#[test]
fn requests_go_out_as_they_came_but_for_ack_req() {
    let mut bench = Bench::new();
    bench.message(100, 40);
    let sent = bench.sent();
    assert_eq!(sent.len(), 40);
    for (at, bytes) in sent.iter().enumerate() {
        let place = [Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast];
        let opcode = place[usize::from(at > 0) + usize::from(at == 39)];
        let mut expected = request(opcode, 100 + at as u32, 256);
        let asks = parse(bytes).bth.ack_req;
        assert_eq!(asks, at % 16 == 15 || at == 39, "{at}");
        Bth::set_ack_req(expected.first_chunk_mut().unwrap(), asks);
        assert_eq!(*bytes, expected);
    }
}

#[test]
fn the_window_limits_what_is_in_flight() {
    let mut bench = Bench::with(FarConfig { window_packets: 4, ..Bench::config() });
    bench.message(100, 10);
    let sent = bench.sent();
    assert_eq!(sent.len(), 4);
    assert!(parse(&sent[3]).bth.ack_req, "or the window would never open");
    bench.response(&acknowledge(101, 0x1f, 0));
    assert_eq!(bench.sent_psns(), [104, 105]);
    let mut bench = Bench::with(FarConfig { window_bytes: 600, ..Bench::config() });
    bench.message(100, 10);
    assert_eq!(bench.sent_psns(), [100, 101]);
}

#[test]
fn what_is_acknowledged_is_dropped() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    assert_eq!(bench.far.buffered_bytes(), 2 * 268);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 0));
    assert_eq!(bench.far.buffered_bytes(), 268);
    bench.response(&acknowledge(101, 0x1f, 1));
    assert_eq!(bench.far.buffered_bytes(), 0);
    assert!(bench.far.is_idle());
}

#[test]
fn progress_is_relayed_where_a_message_ends() {
    let mut bench = Bench::with(FarConfig { relay_every: 16, ..Bench::config() });
    bench.message(100, 1);
    bench.message(101, 40);
    bench.sent();
    assert!(bench.relayed(&acknowledge(100, 0x1f, 1)).is_some());
    assert_eq!(bench.response(&acknowledge(110, 0x1f, 1)), Verdict::Absorbed);
    assert!(bench.relayed(&acknowledge(120, 0x1f, 1)).is_some(), "sixteen and more");
    assert_eq!(bench.response(&acknowledge(120, 0x1f, 1)), Verdict::Drop(Why::Duplicate));
    let ack = acknowledge(140, 0x03, 2);
    assert_eq!(bench.relayed(&ack).unwrap(), ack);
    assert!(bench.far.is_idle());
}

/// No timer would relay it while the target is not ready.
#[test]
fn progress_before_an_rnr_nak_is_relayed_at_once() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 40);
    bench.sent();
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    assert_eq!(bench.response(&acknowledge(110, 0x1f, 1)), Verdict::Absorbed);
    let relayed = bench.relayed(&acknowledge(120, 0x21, 1)).unwrap();
    assert_eq!(aeth(&relayed), (119, 0x1f));
}

#[test]
fn progress_not_worth_a_record_is_relayed_late() {
    let mut bench = Bench::new();
    bench.message(99, 1);
    bench.message(100, 40);
    bench.sent();
    bench.response(&acknowledge(99, 0x1f, 1));
    assert_eq!(bench.response(&acknowledge(103, 0x1f, 1)), Verdict::Absorbed);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.own(), None);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.own(), Some((103, 0x1f)));
}

#[test]
fn an_ack_beyond_what_was_sent_counts_for_what_was() {
    // The target had it all before this gateway came to be.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    let beyond = acknowledge(150, 0x1f, 9);
    assert_eq!(bench.response(&beyond), Verdict::Absorbed);
    assert_eq!(bench.sent_psns(), [100], "it is asked again");
    let relayed = bench.relayed(&beyond).unwrap();
    assert_eq!(aeth(&relayed), (150, 0x1f), "the near half is to know that the message has its end");
    assert!(bench.far.is_idle());
    assert_eq!(bench.response(&acknowledge(0x40_0000, 0x1f, 9)), Verdict::Drop(Why::Unexpected));
}

/// It comes late, from the LAN, or from somebody else.
#[test]
fn an_ack_of_another_incarnation_beyond_what_was_sent_counts_for_nothing() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    for psn in [150, 149, 30_000] {
        assert_eq!(bench.response(&acknowledge(psn, 0x1f, 9)), Verdict::Absorbed);
        assert_eq!(bench.sent_psns(), [100, 101]);
    }
    assert_eq!(aeth(&bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap()), (100, 0x1f));
    assert!(!bench.far.is_idle());
}

/// As above, with a fatal NAK.
#[test]
fn a_refusal_of_what_was_not_sent_ends_nothing() {
    let mut bench = Bench::new();
    for psn in 100..103 {
        bench.message(psn, 1);
    }
    bench.sent();
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    for psn in [99, 100, 103, 5000] {
        assert_eq!(bench.response(&acknowledge(psn, 0x63, 1)), Verdict::Drop(Why::Unexpected), "{psn}");
    }
    assert_eq!(aeth(&bench.relayed(&acknowledge(102, 0x63, 2)).unwrap()).1, 0x63);
}

/// Its requester is likely to be there as well, and shows it.
#[test]
fn that_a_target_stands_far_away_is_for_the_requester_to_hear_of() {
    for (psn, is_far) in [(101 - (1 << 16), false), (100 - (1 << 16), true), (1 << 20, true)] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.sent();
        bench.response(&acknowledge(100, 0x1f, 1));
        bench.message(101, 2);
        bench.sent();
        let (psn, buffered) = (psn & 0xff_ffff, bench.far.buffered_bytes());
        let relayed = matches!(bench.response(&acknowledge(psn as u32, 0x60, 0)), Verdict::Relay(_));
        assert_eq!(relayed, is_far, "{psn}");
        assert_eq!(bench.far.buffered_bytes(), buffered, "nothing of that is answered");
    }
}

#[test]
fn a_sequence_nak_is_repaired_from_the_buffer() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.message(102, 1);
    bench.sent();
    let relayed = bench.relayed(&acknowledge(101, 0x60, 1)).unwrap();
    assert_eq!(aeth(&relayed), (100, 0x1f), "what it acknowledges, never the NAK");
    assert_eq!(bench.sent_psns(), [101, 102]);
    assert_eq!(bench.response(&acknowledge(101, 0x60, 1)), Verdict::Absorbed);
    assert_eq!(bench.response(&acknowledge(99, 0x60, 1)), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.response(&acknowledge(104, 0x60, 1)), Verdict::Drop(Why::Unexpected));
}

#[test]
fn silence_is_met_with_retries_and_then_the_end() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.sent_psns(), [100, 101]);
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.sent_psns(), [100, 101]);
    bench.wait(Duration::from_millis(19));
    assert_eq!(bench.sent_psns(), Vec::<u32>::new(), "backed off");
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.sent_psns(), [100], "one at a time by now");
    assert_eq!(bench.far.stats().timeouts, 2);
    for _ in 0..200 {
        bench.wait(Duration::from_millis(100));
        bench.sent();
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
    assert_eq!(bench.own(), Some(((1 << 24) + 100 - (1 << 17), 0x7f)), "nothing is confirmed");
    assert_eq!(bench.own(), None);
    assert_eq!(bench.far.next_timeout(), None);
    let more = request(Opcode::SendOnly, 102, 1);
    assert_eq!(bench.far.handle_request(more, bench.now), Err(Refused::Dead));
}

#[test]
fn a_target_that_spoke_before_fails_at_the_oldest_psn() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 1));
    for _ in 0..200 {
        bench.wait(Duration::from_millis(100));
        bench.sent();
    }
    let reply = bench.far.poll_response().unwrap();
    assert_eq!(aeth(&reply), (101, 0x7f));
    assert_eq!(parse(&reply).bth.dest_qp, R);
}

#[test]
fn the_timeout_follows_the_round_trip() {
    let mut bench = Bench::new();
    for at in 0..20 {
        bench.message(100 + at, 1);
        bench.sent();
        bench.wait(Duration::from_micros(8000));
        bench.response(&acknowledge(100 + at, 0x1f, at + 1));
    }
    assert_eq!(bench.far.rtt(), Some(Duration::from_micros(8000)));
    bench.message(120, 1);
    bench.sent();
    let wait = bench.far.next_timeout().unwrap() - bench.now;
    assert!(wait >= Duration::from_millis(8) && wait < Duration::from_millis(20), "{wait:?}");
}

#[test]
fn a_busy_target_is_measured_and_then_waited_for() {
    let mut bench = Bench::new();
    for at in 0..20 {
        bench.message(100 + at, 1);
        bench.sent();
        bench.wait(Duration::from_millis(1));
        bench.response(&acknowledge(100 + at, 0x1f, at + 1));
    }
    let mut asked = 0;
    for psn in 120..140 {
        bench.request(Opcode::ReadRequest, psn, 256);
        for _ in 0..30 {
            asked += bench.sent().len();
            bench.wait(Duration::from_millis(1));
        }
        bench.response(&read_response(Opcode::ReadResponseOnly, psn, 256, psn - 100));
    }
    // Each more often than that would keep the target busy with what it has answered.
    assert!((20..26).contains(&asked), "{asked} times for 20 READs");
}

#[test]
fn what_the_owner_drops_is_not_the_targets_silence() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
        bench.far.handle_dropped(bench.now);
    }
    assert!(!bench.far.is_dead());
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
}

/// The target has said that it expects an earlier request, and says nothing more until that comes.
/// While the requester's gateway is cut off it cannot, and the target is not taken for dead.
#[test]
fn a_target_that_waits_for_who_is_cut_off_is_not_silent() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    // It expects 97.
    bench.response(&acknowledge(97, 0x60, 0));
    bench.far.set_cut_off(true, bench.now);
    for _ in 0..100 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
    }
    assert_eq!(bench.far.failure(), None);
    bench.far.set_cut_off(false, bench.now);
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
}

/// One that has said nothing is dead as ever.
#[test]
fn a_silent_target_is_dead_whoever_is_cut_off() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.far.set_cut_off(true, bench.now);
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
}

#[test]
fn no_room_is_kept_for_a_silent_target() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.sent();
    assert_eq!(bench.far.awaited(), 1000);
    bench.wait(Duration::from_millis(12));
    assert_eq!((bench.sent().len(), bench.far.awaited()), (1, 1000));
    bench.wait(Duration::from_millis(25));
    assert_eq!((bench.sent().len(), bench.far.awaited()), (1, 0));
}

#[test]
fn a_target_without_a_receive_is_asked_with_one_packet() {
    let mut bench = Bench::new();
    for psn in 100..110 {
        bench.message(psn, 1);
    }
    assert_eq!(bench.sent().len(), 10);
    bench.response(&acknowledge(103, 0x20 | 1, 3));
    bench.wait(Duration::from_micros(10));
    assert_eq!(bench.sent_psns(), [103]);
    bench.response(&acknowledge(103, 0x1f, 4));
    assert_eq!(bench.sent_psns(), [104, 105, 106, 107, 108, 109]);
}

/// Its requester may be in the next incarnation, and so may the target.
#[test]
fn a_suspended_flow_sends_nothing_that_is_outstanding() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 1));
    bench.message(101, 2);
    assert_eq!(bench.sent_psns(), [101, 102]);
    bench.far.suspend(true);
    bench.wait(Duration::from_secs(5));
    assert_eq!(bench.sent_psns(), []);
    bench.far.handle_replay(request(Opcode::SendOnly, 100, 256), bench.now);
    assert_eq!(bench.sent_psns(), [100], "it was answered before");
    bench.wait(Duration::from_secs(5));
    assert_eq!(bench.sent_psns(), [], "and goes out once");
    assert_eq!(bench.far.failure(), None, "the target was asked nothing");
    bench.far.suspend(false);
    assert_eq!(bench.sent_psns()[0], 101);
    bench.response(&acknowledge(102, 0x1f, 3));
    assert!(bench.far.is_idle());
}
