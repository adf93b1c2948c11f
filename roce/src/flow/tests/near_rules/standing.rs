//! Where a flow stands, and how it is put right.

use super::*;

#[test]
fn the_far_side_reports_an_earlier_first_psn() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12, 1);
    bench.message(13, 1);
    bench.response(&acknowledge(10, 0x60, 0));
    assert_eq!(bench.said(), [(10, 0x60)]);
    // The requester has not heard yet. It alone knows whether it has sent what is named.
    assert_eq!(bench.request(Opcode::SendOnly, 12, 256), Verdict::Drop(Why::Duplicate));
    assert!(bench.near.expects(Psn::new(14)));
    bench.message(10, 1);
    bench.message(11, 1);
    bench.message(12, 1);
    bench.ack(12);
    assert_eq!(bench.said(), [(12, 0x1f)]);
    // A second report of that kind can only be stale.
    bench.message(13, 1);
    bench.response(&acknowledge(11, 0x60, 0));
    assert!(bench.near.expects(Psn::new(14)));
}

#[test]
fn the_requester_itself_goes_back_before_its_first_packet() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12, 1);
    assert_eq!(bench.request(Opcode::SendMiddle, 11, 256), Verdict::Drop(Why::Orphan));
    bench.wait(Duration::from_millis(2));
    // Somebody else may have sent it.
    for psn in [10, 9000, 10] {
        assert_eq!(
            bench.request(Opcode::SendOnly, psn, 256),
            Verdict::Drop(if psn == 10 { Why::Orphan } else { Why::Ahead })
        );
    }
    bench.wait(Duration::from_millis(67));
    assert_eq!(bench.request(Opcode::SendOnly, 10, 256), FORWARD);
    assert!(bench.near.expects(Psn::new(11)));
    bench.response(&acknowledge(10, 0x60, 0));
    assert!(bench.near.expects(Psn::new(11)), "the far side follows by itself");
    bench.ack(10);
    assert_eq!(bench.request(Opcode::SendOnly, 9, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [(10, 0x1f)]);
}

/// The target has named what it lacks once, and its word was lost. A requester that repeats goes
/// back to the same PSN each time, here in the midst of a message.
#[test]
fn the_requester_goes_back_in_the_midst_of_a_message() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12, 1);
    // By two ways, of which one is slower.
    for verdict in [Verdict::Drop(Why::Orphan), FORWARD] {
        bench.wait(Duration::from_millis(67));
        assert_eq!(bench.request(Opcode::SendMiddle, 10, 256), Verdict::Drop(Why::Orphan));
        assert_eq!(bench.request(Opcode::SendMiddle, 9, 256), verdict);
    }
    assert_eq!(bench.said(), []);
    assert_eq!(bench.request(Opcode::SendLast, 10, 256), FORWARD);
    bench.ack(10);
    assert_eq!(bench.said(), [(10, 0x1f)]);
}

/// Somebody sends in the requester's name, before where that goes back to.
#[test]
fn what_comes_once_does_not_keep_the_requester_from_going_back() {
    let mut bench = Bench::with(Bench::config());
    bench.message(16_089, 1);
    for (psn, verdict) in [
        (0, Verdict::Drop(Why::Orphan)),
        (8, Verdict::Drop(Why::Orphan)),
        ((1 << 24) - 14_604, Verdict::Drop(Why::Orphan)),
        (0, Verdict::Drop(Why::Orphan)),
        (8, Verdict::Drop(Why::Orphan)),
        (0, FORWARD),
    ] {
        // What is sent together goes on, to the last of these.
        if psn != 8 {
            bench.wait(Duration::from_millis(67));
        }
        assert_eq!(bench.request(Opcode::SendOnly, psn, 256), verdict, "{psn}");
    }
    assert!(bench.near.expects(Psn::new(1)));
}

/// A LAN that shuffles what is sent together.
#[test]
fn what_came_together_begins_with_its_first() {
    let mut bench = Bench::with(Bench::config());
    bench.message(15, 1);
    assert_eq!(bench.request(Opcode::SendOnly, 10, 256), FORWARD);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.request(Opcode::SendOnly, 8, 256), FORWARD);
    bench.message(9, 1);
    bench.ack(9);
    assert_eq!(bench.said(), [(9, 0x1f)]);
}

#[test]
fn what_comes_right_before_the_first_packet_was_overtaken() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12, 1);
    assert_eq!(bench.request(Opcode::SendOnly, 11, 256), FORWARD);
    assert!(bench.near.expects(Psn::new(12)));
}

/// Somebody else says it in the target's name: the requester ignores a PSN that it has not sent.
#[test]
fn a_wrong_word_about_the_first_psn_moves_nothing() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12_000, 3);
    bench.response(&acknowledge(9_000, 0x60, 0));
    assert_eq!(bench.said(), [(9_000, 0x60)]);
    bench.message(12_003, 1);
    bench.ack(12_003);
    assert_eq!(bench.said(), [(12_003, 0x1f)]);
}

#[test]
fn a_misjudged_read_is_taken_back() {
    let mut bench = Bench::told(NearConfig::default());
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 8192), FORWARD);
    assert_eq!(bench.request(Opcode::SendMiddle, 116, 10), Verdict::Drop(Why::Ahead));
    // At 1024 bytes the next is 108, which was lost; 116 looks like 512 bytes.
    assert_eq!(bench.request(Opcode::SendOnly, 116, 10), FORWARD);
    assert_eq!(bench.near.mtu(), Some(512));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 100, 1024, 0))));
    bench.response(&acknowledge(108, 0x60, 0));
    assert_eq!(bench.said().last(), Some(&(101, 0x60)));
    assert_eq!(bench.near.mtu(), Some(1024));
    assert!(bench.near.expects(Psn::new(108)));
    for at in 1..7 {
        let opcode = Opcode::ReadResponseMiddle;
        assert!(is_emitted(bench.response(&read_response(opcode, 100 + at, 1024, 0))));
    }
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 107, 1024, 1))));
    bench.message(108, 1);
    bench.ack(108);
    assert_eq!(bench.said(), [(108, 0x1f)]);
    assert!(bench.near.is_idle());
}

#[test]
fn broken_sequences_do_not_upset_the_account() {
    let mut bench = Bench::new();
    for (at, opcode) in [
        Opcode::SendMiddle,
        Opcode::SendFirst,
        Opcode::SendFirst,
        Opcode::WriteLast,
        Opcode::SendLast,
        Opcode::WriteFirst,
        Opcode::ReadRequest,
        Opcode::SendMiddle,
        Opcode::FetchAdd,
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(bench.request(opcode, 100 + at as u32, 100), FORWARD, "{opcode:?}");
    }
    bench.said();
    bench.response(&acknowledge(100, 0x61, 0));
    assert!(bench.near.is_failed());
    assert_eq!(bench.near.outstanding_bytes(), 0);
}
