//! READs and atomics without an answer, where the flow that carried them begins anew.

use super::*;

/// Has another flow take the place of the bench's, which begins with this request.
fn begin_anew(bench: &mut Bench, opcode: Opcode, psn: u32) {
    let bytes = request(opcode, psn, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(opcode, psn, 256), FORWARD);
}

/// A SEND at 100 that is answered, and a READ at 101 that is not.
fn reading() -> Bench {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), FORWARD);
    bench.wait(Duration::from_millis(10));
    bench
}

fn answer_read(bench: &mut Bench) {
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), Verdict::Replay);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 101, 256, 3))));
}

/// A gateway that knows nothing gets the second of two atomics first, so that its flow goes back.
/// The target runs both, and the answer to the second is lost with that. Then the requester goes
/// on, in a flow begun anew.
#[test]
fn an_atomic_that_a_flow_went_back_before_has_its_answer_first() {
    let mut bench = Bench::with(Bench::config());
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), FORWARD);
    assert_eq!(bench.request(Opcode::FetchAdd, 99, 0), FORWARD);
    assert!(!is_emitted(bench.response(&atomic_response(100, 8, 2))), "it is still to come again");
    assert!(is_emitted(bench.response(&atomic_response(99, 7, 2))));
    bench.wait(Duration::from_millis(10));
    assert!(bench.doubts(Opcode::SendOnly, 101));
    begin_anew(&mut bench, Opcode::SendOnly, 101);
    bench.response(&acknowledge(101, 0x1f, 3));
    assert_eq!(bench.said(), [], "its requester still waits for the atomic");
    bench.wait(Duration::from_millis(67));
    assert_eq!(bench.request(Opcode::FetchAdd, 100, 0), Verdict::Replay);
    assert!(is_emitted(bench.response(&atomic_response(100, 8, 3))));
    assert_eq!(bench.said(), [(101, 0x1f)]);
}

/// The LAN lost what was next twice, or the flow ended: another one takes its place.
#[test]
fn a_flow_in_place_of_another_waits_for_the_read_that_was_outstanding() {
    let ends: [fn(&mut Bench); 3] =
        [|_| {}, |bench| bench.near.fall_silent(bench.now), |bench| bench.near.fail(bench.now)];
    for (which, end) in ends.iter().enumerate() {
        let mut bench = reading();
        end(&mut bench);
        begin_anew(&mut bench, Opcode::SendOnly, 105);
        bench.response(&acknowledge(105, 0x1f, 6));
        bench.message(106, 1);
        bench.response(&acknowledge(106, 0x1f, 7));
        assert_eq!(bench.said(), [], "{which}");
        // The LAN loses the READ's packet of a retry.
        bench.wait(Duration::from_millis(67));
        bench.request(Opcode::SendOnly, 105, 256);
        bench.response(&acknowledge(106, 0x1f, 7));
        assert_eq!(bench.said(), [], "{which}");
        answer_read(&mut bench);
        assert_eq!(bench.said().first(), Some(&(106, 0x1f)), "{which}");
        bench.message(107, 1);
        bench.response(&acknowledge(107, 0x1f, 8));
        assert_eq!(bench.said(), [(107, 0x1f)], "{which}");
    }
}

/// Another READ is answered meanwhile, and another flow takes the place of that one, too.
#[test]
fn a_read_is_waited_for_however_often_its_flow_is_replaced() {
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::ReadRequest, 105);
    begin_anew(&mut bench, Opcode::SendOnly, 107);
    bench.response(&acknowledge(107, 0x1f, 8));
    answer_read(&mut bench);
    assert_eq!(bench.said(), [], "the one at 105 has no answer either");
    assert_eq!(bench.request(Opcode::ReadRequest, 105, 256), Verdict::Replay);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 105, 256, 8))));
    assert_eq!(bench.said(), [(107, 0x1f)]);
}

/// The target's count of messages tells: it has answered none before those of this flow.
#[test]
fn a_target_whose_incarnation_began_with_the_flow_has_no_read_before_it() {
    // A requester of which no target ever spoke may have had 2^24 messages answered.
    for (is_known, msn, is_told) in [(true, 1, true), (true, 3, false), (false, 1, false)] {
        let mut bench = reading();
        if !is_known {
            bench = Bench::with(Bench::config());
            assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), FORWARD);
        }
        begin_anew(&mut bench, Opcode::SendOnly, 110);
        bench.response(&acknowledge(110, 0x1f, msn));
        let told: &[(u32, u8)] = if is_told { &[(110, 0x1f)] } else { &[] };
        assert_eq!(bench.said(), told, "{is_known} {msn}");
    }
    // As the answer to a READ says.
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::FetchAdd, 110);
    assert!(is_emitted(bench.response(&atomic_response(110, 7, 1))));
    bench.message(111, 1);
    bench.response(&acknowledge(111, 0x1f, 2));
    assert_eq!(bench.said(), [(111, 0x1f)]);
}

/// The flow goes back to the READ, or before it, and has it again.
#[test]
fn a_read_that_comes_again_in_order_is_the_flows_own() {
    for first in [100, 101] {
        let mut bench = reading();
        begin_anew(&mut bench, Opcode::SendOnly, 102);
        if first == 100 {
            begin_anew(&mut bench, Opcode::SendOnly, 100);
        }
        assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), FORWARD);
        assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 101, 256, 2))));
        bench.message(102, 1);
        bench.response(&acknowledge(102, 0x1f, 3));
        assert_eq!(bench.said(), [(102, 0x1f)]);
    }
    // The next incarnation has something else there.
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::SendOnly, 101);
    bench.response(&acknowledge(101, 0x1f, 2));
    assert_eq!(bench.said(), [(101, 0x1f)]);
}

/// Far away no requester is that waits for it.
#[test]
fn a_flow_far_away_waits_for_no_read() {
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::SendOnly, 102 + (1 << 16));
    bench.response(&acknowledge(102 + (1 << 16), 0x1f, 6));
    assert_eq!(bench.said(), [(102 + (1 << 16), 0x1f)]);
}

/// A flow that fails tells its requester no more than one that does not.
#[test]
fn a_flow_that_fails_acknowledges_nothing_past_a_read_that_is_asked_for_again() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1))));
    bench.message(101, 1);
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 10), Verdict::Replay);
    bench.ack(101);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [], "not that 101 is done");
    bench.wait(Duration::from_millis(67));
    bench.request(Opcode::SendOnly, 102, 256);
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.said(), [(102, 0x63)]);
}

/// It never comes back to the READ. Perhaps its retry had crossed the answer, or somebody else had
/// sent the READ. It has to go on, and hears what its target says.
#[test]
fn a_requester_that_never_goes_back_hears_what_its_target_answers() {
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::SendOnly, 105);
    bench.message(106, 1);
    bench.response(&acknowledge(106, 0x1f, 7));
    assert_eq!(bench.said(), []);
    for told in [None, Some((106, 0x1f))] {
        bench.wait(Duration::from_millis(67));
        assert_eq!(bench.request(Opcode::SendOnly, 105, 256), Verdict::Replay);
        // The same retry goes on, be it slowly.
        bench.wait(Duration::from_secs(1));
        assert_eq!(bench.request(Opcode::SendOnly, 106, 256), Verdict::Replay);
        assert_eq!(bench.said(), []);
        bench.response(&acknowledge(106, 0x1f, 7));
        assert_eq!(bench.said().first().copied(), told);
    }
    bench.message(107, 1);
    bench.response(&acknowledge(107, 0x1f, 8));
    assert_eq!(bench.said(), [(107, 0x1f)], "and of all that follows");
}

/// It asks for the READ, so it waits for that. The target does not answer, and the LAN loses the
/// beginning of a retry again.
#[test]
fn a_requester_that_asks_for_what_is_owed_waits_for_that() {
    let mut bench = reading();
    begin_anew(&mut bench, Opcode::SendOnly, 105);
    bench.response(&acknowledge(105, 0x1f, 6));
    for is_read_lost in [true, false, true] {
        bench.wait(Duration::from_secs(60));
        if !is_read_lost {
            assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), Verdict::Replay);
        }
        assert_eq!(bench.request(Opcode::SendOnly, 105, 256), Verdict::Replay);
        bench.response(&acknowledge(105, 0x1f, 6));
        assert_eq!(bench.said(), []);
    }
    answer_read(&mut bench);
    assert_eq!(bench.said(), [(105, 0x1f)]);
}

/// A flow that goes back keeps what was asked for again and given up, or is still asked for.
#[test]
fn an_atomic_that_is_asked_for_again_is_waited_for_in_the_next_flow() {
    for is_given_up in [false, true] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.said();
        assert_eq!(bench.request(Opcode::FetchAdd, 101, 0), FORWARD);
        assert!(is_emitted(bench.response(&atomic_response(101, 7, 2))));
        bench.wait(Duration::from_millis(10));
        bench.message(102, 1);
        assert_eq!(bench.request(Opcode::FetchAdd, 101, 0), Verdict::Replay);
        bench.wait(Duration::from_secs(if is_given_up { 60 } else { 0 }));
        begin_anew(&mut bench, Opcode::SendOnly, 103);
        bench.response(&acknowledge(103, 0x1f, 4));
        assert_eq!(bench.said(), [], "given up: {is_given_up}");
        bench.wait(Duration::from_millis(67));
        assert_eq!(bench.request(Opcode::FetchAdd, 101, 0), Verdict::Replay);
        assert!(is_emitted(bench.response(&atomic_response(101, 7, 4))));
        assert_eq!(bench.said(), [(103, 0x1f)], "given up: {is_given_up}");
    }
}

/// The path MTU was thought to be larger, so that the READ's end is not where it seemed.
#[test]
fn a_read_is_answered_though_its_end_was_misjudged() {
    let mut bench = Bench::with(NearConfig { mtu: Some(PathMtu::B4096), ..NearConfig::default() });
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 600), FORWARD);
    assert_eq!(bench.request(Opcode::SendOnly, 100, 10), FORWARD);
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 600), FORWARD);
    bench.response(&acknowledge(100, 0x1f, 1));
    bench.said();
    for (opcode, psn, length) in [
        (Opcode::ReadResponseFirst, 101, 256),
        (Opcode::ReadResponseMiddle, 102, 256),
        (Opcode::ReadResponseLast, 103, 88),
    ] {
        assert!(is_emitted(bench.response(&read_response(opcode, psn, length, 2))));
    }
    bench.message(104, 1);
    bench.response(&acknowledge(104, 0x1f, 3));
    assert_eq!(bench.said(), [(104, 0x1f)]);
}

/// The flow answers another atomic, which lies before the one that is asked for again.
#[test]
fn an_answer_before_an_atomic_that_is_asked_for_again_is_none_to_that() {
    let mut bench = Bench::new();
    for psn in 100..103 {
        assert_eq!(bench.request(Opcode::FetchAdd, psn, 0), FORWARD);
        assert!(is_emitted(bench.response(&atomic_response(psn, 7, psn - 99))));
    }
    bench.wait(Duration::from_millis(10));
    begin_anew(&mut bench, Opcode::FetchAdd, 102);
    assert_eq!(bench.request(Opcode::FetchAdd, 101, 0), FORWARD, "the flow begins earlier");
    assert!(is_emitted(bench.response(&atomic_response(101, 7, 3))));
    begin_anew(&mut bench, Opcode::SendOnly, 103);
    bench.response(&acknowledge(103, 0x1f, 4));
    assert_eq!(bench.said(), [], "its requester may wait for the one at 102");
}

/// The target has answered another request where one of the flow stood: nobody waits for the READ
/// that came after that.
#[test]
fn what_an_incarnation_that_is_over_had_outstanding_is_owed_to_nobody() {
    for (opcode, is_over) in [(Opcode::SendOnly, false), (Opcode::WriteOnly, true)] {
        let mut bench = reading();
        assert_eq!(bench.request(opcode, 100, 256), Verdict::Replay);
        bench.ack(100);
        bench.said();
        assert_eq!(bench.near.is_over(), is_over, "{opcode:?}");
        begin_anew(&mut bench, Opcode::SendOnly, 102);
        bench.response(&acknowledge(102, 0x1f, 6));
        let told: &[(u32, u8)] = if is_over { &[(102, 0x1f)] } else { &[] };
        assert_eq!(bench.said(), told, "{opcode:?}");
    }
}
