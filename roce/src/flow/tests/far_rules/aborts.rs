//! How a flow ends.

use super::*;

#[test]
fn a_fatal_nak_is_relayed_and_ends_the_flow() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    let nak = acknowledge(101, 0x62, 1);
    assert_eq!(bench.relayed(&nak).unwrap(), nak);
    assert!(matches!(bench.far.failure(), Some(Failure::Refused(_))));
    assert_eq!(bench.far.buffered_bytes(), 0);
    assert_eq!(bench.response(&nak), Verdict::Drop(Why::Dead));
}

#[test]
fn a_fatal_nak_after_a_lost_answer_stops_at_the_read() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.message(101, 1);
    bench.sent();
    assert_eq!(aeth(&bench.relayed(&acknowledge(101, 0x62, 1)).unwrap()), (100, 0x62));
}

#[test]
fn abort_poisons_the_psn_the_target_expects() {
    let mut bench = Bench::new();
    bench.message(100, 3);
    bench.sent();
    bench.far.abort(bench.now);
    assert_eq!(bench.far.buffered_bytes(), 0);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(parse(&sent[0]).bth.psn, Psn::new(100));
    // The target had one of them: it says so, as it does to any duplicate.
    assert_eq!(bench.response(&acknowledge(100, 0x1f, 0)), Verdict::Absorbed);
    let sent = bench.sent();
    let poison = parse(&sent[0]);
    assert_eq!((poison.bth.opcode, poison.bth.psn), (Opcode::WriteMiddle, Psn::new(101)));
    assert!(poison.payload.is_empty() && poison.bth.ack_req);
    // Should it take that for the middle of a WRITE, a SEND cannot follow.
    bench.response(&acknowledge(101, 0x1f, 0));
    let sent = bench.sent();
    assert_eq!(parse(&sent[0]).bth.opcode, Opcode::SendMiddle);
    assert_eq!(bench.response(&acknowledge(102, 0x61, 0)), Verdict::Absorbed);
    assert_eq!(bench.far.failure(), Some(Failure::Aborted));
}

/// Its numbers may have been used again since the flow came to rest.
#[test]
fn a_target_that_stands_elsewhere_is_left_alone() {
    for elsewhere in [acknowledge(3, 0x60, 0), acknowledge(200, 0x60, 0)] {
        let mut bench = Bench::new();
        bench.message(99, 1);
        bench.sent();
        bench.response(&acknowledge(99, 0x1f, 1));
        bench.message(100, 3);
        bench.sent();
        bench.far.abort(bench.now);
        assert_eq!(bench.sent().len(), 1);
        bench.response(&elsewhere);
        assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
        assert_eq!(bench.sent().len(), 0);
    }
}

/// The PSN that the target waits for was lost before the flow began, and its requester is gone.
#[test]
fn a_target_that_stands_before_a_flow_it_never_answered_is_told() {
    // A NAK, or silence: it has complained about the gap already.
    for complains in [true, false] {
        let mut bench = Bench::new();
        bench.message(100, 3);
        bench.sent();
        bench.far.abort(bench.now);
        let (mut poisons, mut found) = (Vec::new(), None);
        while !bench.far.is_dead() {
            for bytes in bench.sent() {
                match parse(&bytes).bth.psn.distance(Psn::new(92)) {
                    0 => {
                        poisons.push(bench.now);
                        bench.response(&acknowledge(92, 0x61, 0));
                    }
                    1.. if complains => {
                        found.get_or_insert(bench.now);
                        bench.response(&acknowledge(92, 0x60, 0));
                    }
                    1.. => {}
                    _ => {
                        found.get_or_insert(bench.now);
                        bench.response(&acknowledge(91, 0x1f, 0));
                    }
                }
            }
            bench.wait(Duration::from_millis(10));
        }
        assert_eq!(bench.far.failure(), Some(Failure::Aborted), "complains: {complains}");
        let (poison, found) = (poisons[0], found.unwrap());
        assert!(poison >= found + Duration::from_secs(1), "another incarnation's request may come");
    }
}

/// Nor may it stand so far away.
#[test]
fn a_target_far_from_a_flow_it_never_answered_is_left_alone() {
    for elsewhere in [acknowledge(0x70_0000, 0x60, 0), acknowledge(200, 0x60, 0)] {
        let mut bench = Bench::new();
        bench.message(100, 3);
        bench.sent();
        bench.far.abort(bench.now);
        assert_eq!(bench.sent().len(), 1);
        bench.response(&elsewhere);
        assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
    }
}

#[test]
fn abort_gives_up_on_a_silent_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.far.abort(bench.now);
    let mut tries = 0;
    while !bench.far.is_dead() {
        tries += bench.sent().len();
        bench.wait(Duration::from_secs(1));
    }
    assert_eq!(tries, 12);
    assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
}

#[test]
fn abort_of_an_unknown_flow_finds_the_psn_out() {
    // Three answers a target may have to the first probes: a NAK, an ACK, silence ahead of a gap it
    // has complained about.
    for behaviour in 0..3 {
        let now = epoch();
        let hint = Psn::new(1000);
        let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, hint, now);
        let mut bench = Bench { far, now };
        let expected = if behaviour == 1 { 1010 } else { 990 };
        let mut tries = 0;
        while !bench.far.is_dead() {
            for bytes in bench.sent() {
                tries += 1;
                let psn = parse(&bytes).bth.psn;
                match psn.distance(Psn::new(expected)) {
                    0 => bench.response(&acknowledge(expected, 0x61, 0)),
                    1.. if behaviour == 2 => Verdict::Absorbed,
                    1.. => bench.response(&acknowledge(expected, 0x60, 0)),
                    _ => bench.response(&acknowledge(expected - 1, 0x1f, 0)),
                };
            }
            bench.wait(Duration::from_millis(100));
        }
        assert_eq!(bench.far.failure(), Some(Failure::Aborted), "behaviour {behaviour}");
        assert!(tries <= 4, "{tries}");
    }
}

/// Its queue pair may have been connected anew: then a request comes, and this is given up.
#[test]
fn abort_of_an_unknown_flow_asks_first_and_leaves_it_alone_for_a_while() {
    let now = epoch();
    let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, Psn::new(100_000), now);
    let mut bench = Bench { far, now };
    // No target takes the first packets for the next.
    let psns = bench.sent_psns();
    bench.wait(Duration::from_millis(10));
    assert_eq!([psns, bench.sent_psns()].concat(), [100_000 - 0x1_0000, 100_000 + 0x1_0000]);
    bench.response(&acknowledge(99_999, 0x1f, 0));
    bench.wait(Duration::from_millis(999));
    assert_eq!(bench.sent_psns(), []);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.sent_psns(), [100_000 - 0x1_0000], "is it still there?");
    bench.response(&acknowledge(99_999, 0x1f, 0));
    assert_eq!(bench.sent_psns(), [100_000]);
}

#[test]
fn an_abort_spares_another_life_of_the_queue_pair() {
    for psn in [0x70_0000, 0x0f_ffff] {
        let now = epoch();
        let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, Psn::new(1000), now);
        let mut bench = Bench { far, now };
        assert_eq!(bench.sent().len(), 1);
        bench.response(&acknowledge(psn, 0x60, 0));
        assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
        assert!(bench.sent().is_empty());
    }
}

#[test]
fn an_abort_before_any_request_is_over_at_once() {
    let mut bench = Bench::new();
    bench.far.abort(bench.now);
    assert_eq!(bench.far.failure(), Some(Failure::Aborted));
    assert!(bench.sent().is_empty());
}

/// A target that expects one PSN, and whose ACKs of duplicates name another: Soft-RoCE leaves READs
/// out, and names 0xFFFFFF if there was nothing else.
struct Target {
    expected: u32,
    names: u32,
    /// It has complained of the gap before.
    is_deaf: bool,
    /// Each so many packets to it or from it are lost.
    loses: u32,
    packets: u32,
}

impl Target {
    fn new(expected: u32, names: u32, is_deaf: bool) -> Target {
        Target { expected, names, is_deaf, loses: u32::MAX, packets: 0 }
    }

    fn is_lost(&mut self) -> bool {
        self.packets += 1;
        self.packets.is_multiple_of(self.loses)
    }

    fn answer(&mut self, psn: Psn) -> Option<Vec<u8>> {
        if self.is_lost() {
            return None;
        }
        let answer = match psn.distance(Psn::new(self.expected)) {
            0 => acknowledge(self.expected, 0x61, 0),
            1.. if std::mem::replace(&mut self.is_deaf, true) => return None,
            1.. => acknowledge(self.expected, 0x60, 0),
            _ => acknowledge(self.names, 0x1f, 0),
        };
        (!self.is_lost()).then_some(answer)
    }

    /// Answers until the flow is over. Returns how many packets came.
    fn serve(&mut self, bench: &mut Bench) -> usize {
        let mut count = 0;
        while !bench.far.is_dead() {
            for bytes in bench.sent() {
                count += 1;
                if let Some(answer) = self.answer(parse(&bytes).bth.psn) {
                    bench.response(&answer);
                }
            }
            bench.wait(Duration::from_millis(1));
        }
        count
    }
}

/// A flow with a READ of eight packets from PSN 100 on, that the target has answered up to there
/// (`is_heard`) or not at all.
fn reading(is_heard: bool) -> Bench {
    let mut bench = Bench::new();
    if is_heard {
        bench.message(99, 1);
        bench.sent();
        bench.response(&acknowledge(99, 0x1f, 1));
    }
    bench.request(Opcode::ReadRequest, 100, 8 * 256);
    bench.sent();
    bench.far.abort(bench.now);
    bench
}

const NOTHING: u32 = 0xff_ffff;

#[test]
fn a_target_whose_acks_leave_reads_out_is_found() {
    for names in [NOTHING, 99, 103] {
        for (is_deaf, most) in [(false, 4), (true, 12)] {
            let mut bench = reading(true);
            let count = Target::new(108, names, is_deaf).serve(&mut bench);
            assert_eq!(bench.far.failure(), Some(Failure::Aborted), "{names} {is_deaf}");
            assert!(count <= most, "{names} {is_deaf}: {count}");
        }
    }
}

#[test]
fn a_target_whose_acks_leave_reads_out_is_found_before_a_flow_it_never_answered() {
    for (expected, names) in [(92, NOTHING), (92, 80), (108, NOTHING), (100, 99), (0xff_ff00, 0xff_fe00)] {
        for is_deaf in [false, true] {
            let mut bench = reading(false);
            let start = bench.now;
            let count = Target::new(expected, names, is_deaf).serve(&mut bench);
            assert_eq!(bench.far.failure(), Some(Failure::Aborted), "{expected} {names} {is_deaf}");
            assert!(count <= 40, "{expected} {names} {is_deaf}: {count}");
            let is_before = Psn::new(expected).is_before(Psn::new(100));
            let waited = bench.now >= start + Duration::from_secs(1);
            assert!(waited || !is_before, "another incarnation's request may come");
        }
    }
}

#[test]
fn abort_of_an_unknown_flow_finds_a_target_whose_acks_leave_reads_out() {
    for names in [NOTHING, 500, 1200] {
        for is_deaf in [false, true] {
            for loses in [u32::MAX, 7] {
                let now = epoch();
                let hint = Psn::new(1000);
                let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, hint, now);
                let mut bench = Bench { far, now };
                let count = Target { loses, ..Target::new(990, names, is_deaf) }.serve(&mut bench);
                assert_eq!(bench.far.failure(), Some(Failure::Aborted), "{names} {is_deaf} {loses}");
                assert!(count <= 80, "{names} {is_deaf} {loses}: {count}");
                assert!(bench.now >= now + Duration::from_secs(1), "{names} {is_deaf} {loses}");
            }
        }
    }
}

/// Whatever its ACKs name, a target that stands elsewhere is in another incarnation.
#[test]
fn a_search_spares_another_life_of_the_queue_pair() {
    for names in [NOTHING, 99, 103, 1000] {
        for is_deaf in [false, true] {
            for elsewhere in [81, 112, 0x70_0000] {
                let mut bench = reading(true);
                let count = Target::new(elsewhere, names, is_deaf).serve(&mut bench);
                assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered), "{elsewhere} {names}");
                assert!(count <= 40, "{elsewhere} {names} {is_deaf}: {count}");
            }
            let now = epoch();
            let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, Psn::new(1000), now);
            let mut bench = Bench { far, now };
            let count = Target::new(0x70_0000, names, is_deaf).serve(&mut bench);
            assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered), "{names}");
            assert!(count <= 160, "{names} {is_deaf}: {count}");
        }
    }
}

/// It may have more than the flow has sent since it went back.
#[test]
fn a_target_is_found_where_a_flow_has_been() {
    for names in [NOTHING, 99, 109] {
        let mut bench = Bench::new();
        bench.request(Opcode::ReadRequest, 100, 8);
        bench.message(101, 9);
        bench.sent();
        bench.far = bench.far.anew(Bench::config(), bench.now);
        bench.request(Opcode::ReadRequest, 100, 8);
        bench.sent();
        bench.response(&read_response(Opcode::ReadResponseOnly, 100, 8, 9));
        bench.far.abort(bench.now);
        let count = Target::new(110, names, false).serve(&mut bench);
        assert_eq!(bench.far.failure(), Some(Failure::Aborted), "{names}");
        assert!(count <= 6, "{names}: {count}");
    }
}

/// Its gateway was restarted, and the flow has not come to where its target is. While that names
/// the count of messages with which it answered this flow, it is in the same incarnation.
#[test]
fn a_target_ahead_of_all_that_was_sent_is_found_by_its_count() {
    for (msn, is_found) in [(7, true), (8, false)] {
        let mut bench = Bench::new();
        bench.message(100, 1);
        bench.sent();
        bench.relayed(&acknowledge(100, 0x1f, 7)).unwrap();
        bench.message(101, 1);
        bench.far.abort(bench.now);
        assert_eq!(bench.sent_psns(), [101]);
        bench.response(&acknowledge(109, 0x1f, msn));
        assert_eq!(bench.sent_psns() == [110], is_found, "count {msn}");
    }
}
