//! The near half, rule by rule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{R, Rng, acknowledge, aeth, atomic_response, epoch, parse, read_response, request};
use crate::cm::Terms;
use crate::flow::near::{Deliver, Near, NearConfig, Standing, Verdict, Why};
use crate::wire::{BTH_LEN, Bth, Opcode, PathMtu, Psn, Qpn};

const FORWARD: Verdict = Verdict::Forward;

pub(super) fn terms(rnr_retry: u8) -> Terms {
    Terms { path_mtu: None, max_reads: 16, rnr_retry }
}

pub(super) struct Bench {
    pub(super) near: Near,
    pub(super) now: Instant,
}

impl Bench {
    /// Paired, with a path MTU of 256 and the first PSN known, so that nothing waits for the target's first word.
    pub(super) fn new() -> Bench {
        Bench::told(Bench::config())
    }

    /// The same with other settings.
    pub(super) fn told(config: NearConfig) -> Bench {
        let mut bench = Bench::with(config);
        bench.near.set_terms(&terms(6), Some(Psn::new(100)));
        bench
    }

    pub(super) fn config() -> NearConfig {
        NearConfig { mtu: Some(PathMtu::B256), ..NearConfig::default() }
    }

    pub(super) fn with(config: NearConfig) -> Bench {
        let now = epoch();
        let mut near = Near::new(config, Arc::default(), now);
        near.pair(R);
        Bench { near, now }
    }

    pub(super) fn request(&mut self, opcode: Opcode, psn: u32, length: u32) -> Verdict {
        let bytes = request(opcode, psn, length);
        self.near.handle_request(&parse(&bytes), self.now)
    }

    /// A message of SENDs; returns nothing but demands that all are forwarded.
    pub(super) fn message(&mut self, psn: u32, packets: u32) {
        for at in 0..packets {
            let opcode = match (at, packets - at) {
                (0, 1) => Opcode::SendOnly,
                (0, _) => Opcode::SendFirst,
                (_, 1) => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            assert_eq!(self.request(opcode, psn + at, 256), FORWARD);
        }
    }

    pub(super) fn doubts(&self, opcode: Opcode, psn: u32) -> bool {
        self.near.doubts(&parse(&request(opcode, psn, 256)), self.now)
    }

    pub(super) fn response(&mut self, bytes: &[u8]) -> Deliver {
        self.near.handle_response(&parse(bytes), self.now)
    }

    pub(super) fn ack(&mut self, psn: u32) {
        assert_eq!(self.response(&acknowledge(psn, 0x1f, 1)), Deliver::Absorbed);
    }

    /// All that is said to the requester: PSN and syndrome.
    pub(super) fn said(&mut self) -> Vec<(u32, u8)> {
        let mut said = Vec::new();
        while let Some(reply) = self.near.poll_transmit(self.now) {
            assert_eq!(parse(&reply).bth.dest_qp, R);
            said.push(aeth(&reply));
        }
        said
    }

    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.near.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.near.handle_timeout(self.now);
        }
        self.now = end;
    }
}

fn is_emitted(deliver: Deliver) -> bool {
    matches!(deliver, Deliver::Emit(_))
}

#[test]
fn a_flow_starts_with_the_start_of_a_message() {
    let mut bench = Bench::with(Bench::config());
    assert_eq!(bench.request(Opcode::SendMiddle, 5, 256), Verdict::Drop(Why::Orphan));
    assert!(!bench.near.is_started());
    assert_eq!(bench.request(Opcode::SendFirst, 7, 256), FORWARD);
    let ack = acknowledge(8, 0x1f, 0);
    let verdict = bench.near.handle_request(&parse(&ack), bench.now);
    assert_eq!(verdict, Verdict::Drop(Why::NotARequest));
    assert!(bench.near.expects(Psn::new(8)));
}

#[test]
fn local_completion_does_not_wait_for_the_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert_eq!(bench.said(), []);
    bench.near.set_local(true);
    bench.message(101, 2);
    assert_eq!(bench.said(), [], "100 is not done");
    bench.ack(100);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    bench.message(103, 1);
    assert_eq!(bench.said(), [(103, 0x1f)]);
    bench.request(Opcode::FetchAdd, 104, 0);
    bench.message(105, 1);
    assert_eq!(bench.said(), [], "the atomic is not answered");
    bench.response(&atomic_response(104, 4, 7));
    assert_eq!(bench.said(), [(105, 0x1f)]);
    bench.near.set_writable(false);
    bench.message(106, 1);
    assert_eq!(bench.said(), [], "no room behind it");
    bench.near.set_local(false);
    bench.near.set_writable(true);
    bench.message(107, 1);
    assert_eq!(bench.said(), [(106, 0x1f)], "107 is the target's to complete");
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(106, 0x1f)]);
    bench.near.fail(bench.now);
    assert_eq!(bench.said(), [(107, 0x63)], "not before what it was told");
}

/// It was due while there was no room, and nothing else would have asked for it.
#[test]
fn a_local_completion_held_back_comes_with_the_room() {
    let mut bench = Bench::new();
    bench.near.set_local(true);
    bench.request(Opcode::FetchAdd, 100, 0);
    bench.message(101, 1);
    bench.near.set_writable(false);
    bench.response(&atomic_response(100, 1, 7));
    assert_eq!(bench.said(), []);
    bench.near.set_writable(true);
    assert_eq!(bench.said(), [(101, 0x1f)]);
}

#[test]
fn messages_done_locally_are_counted() {
    let mut bench = Bench::new();
    bench.near.set_local(true);
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.message(101, 3);
    bench.message(104, 1);
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!((parse(&reply).bth.psn, parse(&reply).ext.aeth().unwrap().msn), (Psn::new(104), 3));
    bench.response(&acknowledge(103, 0x1f, 2));
    bench.message(105, 1);
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!((parse(&reply).bth.psn, parse(&reply).ext.aeth().unwrap().msn), (Psn::new(105), 4));
}

#[test]
fn completion_waits_for_the_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.said(), []);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(101);
    assert_eq!(bench.said(), [(101, 0x1f)]);
    assert!(bench.near.is_idle());
    assert_eq!(bench.near.outstanding_bytes(), 0);
}

#[test]
fn acknowledged_early_inside_the_oldest_message_only() {
    let mut bench = Bench::new();
    bench.message(100, 40);
    bench.message(140, 40);
    let said = bench.said();
    assert_eq!(said.last(), Some(&(138, 0x1f)), "all but the last packet: {said:?}");
    bench.ack(139);
    assert_eq!(bench.said(), [(178, 0x1f)], "the second message is the oldest now");
}

#[test]
fn back_pressure_withholds_early_acks() {
    let mut bench = Bench::new();
    bench.near.set_writable(false);
    bench.message(100, 40);
    assert_eq!(bench.said(), []);
    bench.near.set_writable(true);
    assert_eq!(bench.said(), [(138, 0x1f)]);

    let mut bench = Bench::told(NearConfig { mid_ack_limit: 20 * 268, ..Bench::config() });
    for at in 0..40 {
        let opcode = if at == 0 { Opcode::SendFirst } else { Opcode::SendMiddle };
        assert_eq!(bench.request(opcode, 100 + at, 256), FORWARD);
        let said = bench.said();
        assert!(at < 20 || said.is_empty());
    }
    bench.ack(120);
    assert_eq!(bench.said(), [(139, 0x1f)]);
}

#[test]
fn nothing_is_said_before_the_target_confirms_the_first_psn() {
    // The message at PSN 9 may have been lost: any ACK or NAK from 10 on would complete it.
    let mut bench = Bench::with(Bench::config());
    bench.message(10, 40);
    assert_eq!(bench.request(Opcode::SendOnly, 60, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(12);
    assert_eq!(bench.said(), [(48, 0x1f), (49, 0x60)]);
}

#[test]
fn no_ack_past_an_unanswered_read() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 600), FORWARD);
    bench.message(104, 40);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(120);
    assert_eq!(bench.said(), [], "the far side would not do that, but it changes nothing");
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 101, 256, 2))));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 102, 256, 2))));
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 103, 88, 2))));
    bench.ack(120);
    assert_eq!(bench.said(), [(142, 0x1f)]);
}

#[test]
fn a_sequence_nak_never_acknowledges_what_the_target_has_not() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.request(Opcode::SendOnly, 103, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [(100, 0x60)], "102 is missing, but 100 is unacknowledged");
    assert_eq!(bench.request(Opcode::SendOnly, 104, 10), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [], "one NAK, then silence");
    bench.wait(Duration::from_millis(11));
    bench.request(Opcode::SendOnly, 105, 10);
    assert_eq!(bench.said(), [(100, 0x60)], "it may have been lost");
    bench.ack(101);
    bench.message(102, 1);
    assert_eq!(bench.said(), [(101, 0x1f)]);
    bench.request(Opcode::SendOnly, 104, 10);
    assert_eq!(bench.said(), [(102, 0x60)], "armed again");
}

#[test]
fn a_requester_that_cannot_go_back_is_refused_where_it_stands() {
    // An earlier flow acknowledged up to 104 inside a message, and lost it: the target expects 102.
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 100, 256);
    bench.request(Opcode::SendMiddle, 101, 256);
    let mut naks = Vec::new();
    while !bench.near.is_failed() {
        for psn in [105, 104, 105, 106] {
            bench.request(Opcode::SendMiddle, psn, 256);
        }
        naks.extend(bench.said());
        bench.wait(Duration::from_millis(67));
    }
    naks.retain(|&(_, syndrome)| syndrome != 0x1f);
    assert!(naks.iter().all(|&nak| nak == (102, 0x60)), "{naks:?}");
    assert!(naks.len() >= 16);
    let mut refused = Vec::new();
    for _ in 0..3 {
        bench.request(Opcode::SendMiddle, 104, 256);
        bench.request(Opcode::SendMiddle, 105, 256);
        bench.wait(Duration::from_millis(5));
        refused.extend(bench.said());
    }
    assert_eq!(refused, [(104, 0x63)]);
}

#[test]
fn inside_a_message_the_nak_carries_the_expected_psn() {
    let mut bench = Bench::new();
    bench.request(Opcode::SendFirst, 100, 256);
    bench.request(Opcode::SendMiddle, 101, 256);
    bench.request(Opcode::SendMiddle, 103, 256);
    assert_eq!(bench.said(), [(102, 0x60)]);
}

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

/// Ten messages from 100 on, done.
fn rested() -> Bench {
    let mut bench = Bench::new();
    for psn in 100..110 {
        bench.message(psn, 1);
        bench.ack(psn);
        bench.said();
    }
    bench
}

#[test]
fn what_comes_again_after_a_rest_is_for_the_target_to_judge() {
    let mut bench = rested();
    assert!(!bench.doubts(Opcode::SendOnly, 109), "its ACK is on its way");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)]);
    bench.wait(Duration::from_millis(1));
    for opcode in [Opcode::SendOnly, Opcode::SendLast, Opcode::ReadRequest, Opcode::FetchAdd] {
        assert!(
            bench.doubts(opcode, 109) && bench.doubts(opcode, 100) && bench.doubts(opcode, 5),
            "{opcode:?}"
        );
    }
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [], "not from memory");
    assert!(bench.doubts(Opcode::SendOnly, 112), "all before it may have been lost");
    assert!(bench.doubts(Opcode::SendLast, 110), "no message is open");
    assert!(!bench.doubts(Opcode::SendOnly, 110), "just as many as there were before?");
    bench.wait(Duration::from_secs(1));
    assert!(bench.doubts(Opcode::SendOnly, 110));
}

#[test]
fn a_flow_begun_anew_knows_nothing() {
    let mut bench = rested();
    let bytes = request(Opcode::SendLast, 107, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendLast, 107, 256), FORWARD);
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(107);
    assert_eq!(bench.said(), [(107, 0x1f), (108, 0x60)]);
}

#[test]
fn where_the_target_itself_stands_is_not_doubted() {
    let mut bench = rested();
    bench.wait(Duration::from_secs(1));
    let bytes = request(Opcode::SendOnly, 112, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendOnly, 112, 256), FORWARD);
    bench.response(&acknowledge(110, 0x60, 9));
    assert_eq!(bench.said(), [(110, 0x60)]);
    bench.wait(Duration::from_secs(2));
    assert!(
        !bench.doubts(Opcode::SendOnly, 112),
        "it would only say so again, and the gap must be given up in the end"
    );
    assert!(bench.doubts(Opcode::SendOnly, 109));
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
fn what_was_acknowledged_is_for_the_target_to_judge_while_another_request_is_outstanding() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(5));
    bench.message(110, 1);
    assert!(!bench.doubts(Opcode::SendOnly, 109), "something new came just now");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)]);
    bench.wait(Duration::from_millis(1));
    for opcode in [Opcode::SendOnly, Opcode::SendLast, Opcode::ReadRequest, Opcode::FetchAdd] {
        assert!(bench.doubts(opcode, 109) && bench.doubts(opcode, 100), "{opcode:?}");
    }
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [], "not from memory");
    assert!(!bench.doubts(Opcode::SendOnly, 110));
    assert_eq!(bench.request(Opcode::SendOnly, 110, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(109, 0x1f)], "what is outstanding may come again");
    assert!(!bench.doubts(Opcode::SendOnly, 109), "the requester may go on from where a new flow is not");
    assert_eq!(bench.request(Opcode::SendOnly, 109, 256), Verdict::Drop(Why::Stale));
    bench.wait(Duration::from_millis(1));
    assert!(bench.doubts(Opcode::SendOnly, 109));
}

#[test]
fn a_requester_in_the_same_life_goes_on_where_it_was() {
    let mut bench = rested();
    let bytes = request(Opcode::SendOnly, 107, 256);
    bench.near = bench.near.anew(Bench::config(), &parse(&bytes), bench.now);
    bench.near.pair(R);
    assert_eq!(bench.request(Opcode::SendOnly, 107, 256), FORWARD);
    // It had been held up on its way: the requester has heard all there was.
    assert!(!bench.doubts(Opcode::SendOnly, 110));
    bench.ack(107);
    bench.said();
    bench.wait(Duration::from_millis(1));
    assert!(bench.doubts(Opcode::SendOnly, 110));
}

#[test]
fn the_last_ack_is_repeated_while_the_target_owes_one() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.message(101, 1);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.wait(Duration::from_millis(20));
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(101);
    bench.said();
    // The rest of this message is lost, and only the requester's timer can find that out.
    assert_eq!(bench.request(Opcode::SendFirst, 102, 256), FORWARD);
    bench.ack(102);
    bench.said();
    bench.wait(Duration::from_millis(200));
    assert_eq!(bench.said(), []);
}

#[test]
fn an_answered_psn_is_not_acknowledged_by_a_plain_ack() {
    // A requester takes an ACK with a READ's PSN for its completion without data, and Soft-RoCE stumbles over an earlier one in the
    // midst of a READ.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.request(Opcode::ReadRequest, 101, 300);
    bench.said();
    bench.request(Opcode::SendOnly, 100, 256);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseFirst, 101, 256, 2))));
    assert_eq!(bench.said(), []);
    bench.request(Opcode::SendOnly, 100, 256);
    bench.wait(Duration::from_millis(200));
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseLast, 102, 44, 2))));
    bench.request(Opcode::SendOnly, 100, 256);
    assert_eq!(bench.said(), []);
    bench.message(103, 1);
    bench.ack(103);
    bench.said();
    // What follows a READ that runs again waits for that.
    assert_eq!(bench.request(Opcode::ReadRequest, 102, 44), Verdict::Replay);
    bench.request(Opcode::SendOnly, 103, 256);
    assert_eq!(bench.said(), []);
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseOnly, 102, 44, 2))));
    assert_eq!(bench.said(), [(103, 0x1f)]);
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
    assert_eq!(bench.said(), [(100, 0x1f)], "its ACK was lost; 101 has not been sent");
    bench.request(Opcode::SendOnly, 101, 256);
    assert_eq!(bench.said(), [(101, 0x63)]);
    for (psn, why) in [(5000, Why::Stale), (0x80_0000, Why::Stale), (90, Why::Failed)] {
        bench.wait(Duration::from_millis(6));
        assert_eq!(bench.request(Opcode::SendOnly, psn, 256), Verdict::Drop(why));
        assert_eq!(bench.said(), [], "another life of the queue pair: {psn}");
    }
}

/// The requester's NIC gives up by itself, as it would without gateways. One that never does is refused in the end.
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

/// As by a session that ended because the peer fell silent. What was seen of the requester before tells its retries from its next life.
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

/// Before all that came may also lie what was lost of the requester's first packets: the target, which has executed nothing then, says which it is.
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

/// While the path MTU is unknown, a READ may consume more PSNs than can be compared: what follows it is the requester's still.
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
        assert_eq!(bench.said(), [], "round {round}");
        bench.request(Opcode::SendOnly, 9, 256);
        bench.request(Opcode::SendOnly, 10, 256);
    }
    assert_eq!(bench.said(), [(9, 0x63)]);
}

#[test]
fn the_far_side_reports_an_earlier_first_psn() {
    let mut bench = Bench::with(Bench::config());
    bench.message(12, 1);
    bench.message(13, 1);
    bench.response(&acknowledge(10, 0x60, 0));
    assert_eq!(bench.said(), [(10, 0x60)]);
    assert_eq!(bench.near.outstanding_bytes(), 0);
    assert_eq!(bench.request(Opcode::SendOnly, 12, 256), Verdict::Drop(Why::Ahead));
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
    assert_eq!(bench.request(Opcode::SendOnly, 10, 256), FORWARD);
    assert!(bench.near.expects(Psn::new(11)));
    bench.response(&acknowledge(10, 0x60, 0));
    assert!(bench.near.expects(Psn::new(11)), "the far side follows by itself");
    bench.ack(10);
    assert_eq!(bench.request(Opcode::SendOnly, 9, 256), Verdict::Drop(Why::Stale));
    assert_eq!(bench.said(), [(10, 0x1f)]);
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
fn a_full_flow_drops_and_has_the_requester_resume() {
    let mut bench = Bench::told(NearConfig { hard_limit: 4 * 268, ..Bench::config() });
    for at in 0..4 {
        bench.message(100 + at, 1);
    }
    assert_eq!(bench.request(Opcode::SendOnly, 104, 256), Verdict::Drop(Why::Full));
    assert_eq!(bench.request(Opcode::SendOnly, 105, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(101);
    assert_eq!(bench.said(), [(101, 0x1f), (102, 0x60)]);
    bench.message(104, 1);
    assert!(bench.near.outstanding_bytes() <= 4 * 268);
}

/// What is outstanding stays below a quarter of the PSNs, and who has to wait for that is not asked again and again meanwhile.
#[test]
fn a_read_that_does_not_fit_is_asked_for_when_it_does() {
    const HALF: u32 = 1 << 21;
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    assert_eq!(bench.request(Opcode::ReadRequest, 101, HALF * 256), Verdict::Forward);
    let second = (Opcode::ReadRequest, 101 + HALF, (HALF + 10) * 256);
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Drop(Why::Full));
    for psn in 101..110 {
        let opcode = if psn == 101 { Opcode::ReadResponseFirst } else { Opcode::ReadResponseMiddle };
        assert!(is_emitted(bench.response(&read_response(opcode, psn, 256, 2))));
        assert_eq!(bench.said(), [], "{psn}");
    }
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Drop(Why::Full));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 110, 256, 2))));
    assert_eq!(bench.said().len(), 1);
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Forward);
}

/// With the MTU known, a READ takes what it takes.
#[test]
fn long_reads_fit_by_the_mtu() {
    let mut bench = Bench::with(NearConfig { mtu: Some(PathMtu::B4096), ..Bench::config() });
    let length = 1 << 30;
    for at in 0..15 {
        let psn = 100 + at * (length / 4096);
        assert_eq!(bench.request(Opcode::ReadRequest, psn, length), Verdict::Forward, "{at}");
    }
}

#[test]
fn nothing_is_sent_before_pairing() {
    let mut bench = Bench::new();
    bench.near = Near::new(Bench::config(), Arc::default(), bench.now);
    bench.near.set_terms(&terms(6), Some(Psn::new(100)));
    bench.message(100, 1);
    bench.ack(100);
    assert!(bench.near.poll_transmit(bench.now).is_none());
    bench.near.pair(R);
    assert_eq!(bench.said(), [(100, 0x1f)]);
}

#[test]
fn credits_and_msn_are_the_targets() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x05, 0x1234));
    let reply = bench.near.poll_transmit(bench.now).unwrap();
    assert_eq!(*reply, *acknowledge(100, 0x05, 0x1234));
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

#[test]
fn an_idle_flow_is_small_and_gives_memory_back() {
    assert!(size_of::<Near>() <= 1024, "{}", size_of::<Near>());
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    let mut timers = 0;
    while let Some(at) = bench.near.next_timeout() {
        bench.near.handle_timeout(at);
        timers += 1;
    }
    assert_eq!(timers, 1);
}

#[test]
fn nothing_panics_on_nonsense() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut bench =
            Bench::with(NearConfig { hard_limit: 10_000, max_messages: 8, ..NearConfig::default() });
        if seed % 2 == 0 {
            bench.near.set_terms(&terms(6 + (seed % 4 / 2) as u8), Some(Psn::new(0xff_fff0)));
        }
        for _ in 0..300 {
            let opcode = rng.pick(Opcode::ALL);
            let psn = match rng.below(4) {
                0 => rng.next() as u32,
                _ => 0xff_fff0u32.wrapping_add(rng.below(64) as u32),
            };
            let mut bth = Bth::new(opcode, Qpn::new(1), Psn::new(psn));
            bth.ack_req = rng.chance(500);
            let mut bytes = vec![0; 12 + opcode.layout().len()];
            bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            let mut head = [0; 12];
            bth.emit(&mut head);
            bytes[..12].copy_from_slice(&head);
            if opcode.has_payload() {
                let length = rng.pick(&[8, 16, 256, 1024]);
                bytes.resize(bytes.len() + length, 0);
            }
            let Ok(packet) = crate::wire::Packet::parse(&bytes) else {
                continue;
            };
            if rng.chance(500) {
                bench.near.handle_request(&packet, bench.now);
            } else {
                bench.near.handle_response(&packet, bench.now);
            }
            bench.wait(Duration::from_micros(rng.below(100_000)));
            if rng.chance(300) {
                while bench.near.poll_transmit(bench.now).is_some() {}
            }
        }
    }
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

/// One of thousands: what keeps it waiting may come later, unless its timer turns out to be a short one.
#[test]
fn a_requester_is_kept_waiting_more_rarely_where_it_does_not_mind() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.message(101, 1);
    assert_eq!(waits(&mut bench, false), [20, 20, 20], "nobody put it off");
    assert_eq!(waits(&mut bench, true), [1280, 1280, 1280], "and no later than that");
    bench.wait(Duration::from_millis(100));
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.said(), [(100, 0x1f)]);
    assert_eq!(waits(&mut bench, true), [20, 20, 20], "it did mind");
}

/// News makes everything as it was; and who was told to go back shows nothing by it.
#[test]
fn a_requester_that_is_told_something_new_is_not_put_off_any_more() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.message(101, 1);
    assert_eq!(waits(&mut bench, true).last(), Some(&1280));
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), [(101, 0x60)]);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Duplicate));
    bench.said();
    assert_eq!(waits(&mut bench, true).last(), Some(&1280));
    bench.message(102, 2);
    bench.ack(101);
    assert_eq!(bench.said(), [(102, 0x1f)]);
    assert_eq!(waits(&mut bench, false), [20, 20, 20]);
}

/// After how many milliseconds each of the next three words comes, if they are put off whenever they may.
fn waits(bench: &mut Bench, put_off: bool) -> Vec<u128> {
    let mut waits = Vec::new();
    let mut spoke = bench.now;
    while waits.len() < 3 {
        bench.now = bench.near.next_timeout().unwrap().max(bench.now);
        if put_off && bench.near.may_put_off(bench.now) {
            bench.near.put_off();
        }
        bench.near.handle_timeout(bench.now);
        if !bench.said().is_empty() {
            waits.push((bench.now - spoke).as_millis());
            spoke = bench.now;
        }
    }
    waits
}
