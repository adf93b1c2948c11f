//! RNR, rule by rule: whose turn it is to try again, and until when.

use std::time::Duration;

use super::near_rules::terms;
use super::{acknowledge, far_rules, near_rules};
use crate::flow::far::{self, FarConfig};
use crate::flow::near::{NearConfig, Verdict, Why};
use crate::wire::{Opcode, Psn, RnrTimer, Syndrome};

/// Timer code 18: 5.12 ms.
const RNR: u8 = 0x20 | 18;
const TIMER: Duration = Duration::from_micros(5120);

fn far(local_time: Duration) -> far_rules::Bench {
    far_rules::Bench::with(FarConfig { rnr_local_time: local_time, ..far_rules::Bench::config() })
}

#[test]
fn the_far_side_tries_first_then_leaves_it_to_the_requester() {
    let mut bench = far(Duration::ZERO);
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    // It acknowledges what is before it.
    let rnr = acknowledge(101, RNR, 1);
    assert_eq!(super::aeth(&bench.relayed(&rnr).unwrap()), (100, 0x1f));
    bench.wait(Duration::from_millis(5));
    assert!(bench.sent().is_empty());
    bench.wait(Duration::from_micros(120));
    assert_eq!(bench.sent_psns(), [101]);
    assert_eq!(bench.response(&rnr), far::Verdict::Absorbed, "the second is its own affair, too");
    bench.wait(TIMER);
    assert_eq!(bench.sent_psns(), [101]);
    for _ in 0..20 {
        assert_eq!(bench.relayed(&rnr).unwrap(), rnr, "each counts for the requester");
        assert!(bench.far.awaits_retry());
        bench.wait(Duration::from_secs(3600));
        assert!(bench.sent().is_empty(), "it may have given up");
        bench.far.retry();
        assert_eq!(bench.sent_psns(), [101]);
    }
    assert_eq!(super::aeth(&bench.relayed(&acknowledge(101, 0x1f, 2)).unwrap()), (101, 0x1f));
    assert!(bench.far.is_idle());
}

#[test]
fn what_does_not_last_is_not_shown() {
    let mut bench = far(Duration::from_millis(100));
    bench.message(100, 1);
    bench.sent();
    let rnr = acknowledge(100, RNR, 0);
    for _ in 0..20 {
        assert_eq!(bench.response(&rnr), far::Verdict::Absorbed);
        bench.wait(TIMER);
        assert_eq!(bench.sent_psns(), [100]);
    }
    assert_eq!(bench.relayed(&rnr).unwrap(), rnr);
    assert!(bench.far.awaits_retry());
}

/// Nobody but the requester knows whether it still wants what is outstanding.
#[test]
fn what_is_left_to_the_requester_is_shown_at_once() {
    let mut bench = far(Duration::from_millis(100));
    bench.message(100, 1);
    bench.sent();
    let rnr = acknowledge(100, RNR, 0);
    bench.far.leave_to_requester(true);
    for _ in 0..5 {
        assert_eq!(bench.relayed(&rnr).unwrap(), rnr);
        bench.wait(Duration::from_secs(60));
        assert!(bench.far.awaits_retry() && bench.sent().is_empty() && bench.own().is_none());
        bench.far.retry();
        assert_eq!(bench.sent_psns(), [100]);
    }
    bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap();
    // Another request came since.
    bench.far.leave_to_requester(false);
    bench.message(101, 1);
    bench.sent();
    assert_eq!(bench.response(&acknowledge(101, RNR, 1)), far::Verdict::Absorbed);
    bench.wait(TIMER);
    assert_eq!(bench.sent_psns(), [101]);
}

/// The target has been waited for by then, so the requester need not wait any longer.
#[test]
fn what_is_left_to_the_requester_meanwhile_is_shown_when_the_wait_is_over() {
    for patient in [false, true] {
        let mut bench = far(Duration::from_millis(100));
        bench.far.set_terms(&terms(if patient { 7 } else { 6 }));
        bench.message(100, 1);
        bench.message(101, 1);
        bench.sent();
        bench.relayed(&acknowledge(101, RNR, 1)).unwrap();
        bench.far.leave_to_requester(true);
        bench.wait(TIMER / 2);
        assert!(bench.own().is_none() && bench.sent().is_empty());
        bench.wait(TIMER);
        if patient {
            assert_eq!((bench.own(), bench.sent_psns()), (None, vec![101]));
            continue;
        }
        let reply = bench.far.poll_response().unwrap();
        let reply = super::parse(reply.as_ref());
        assert_eq!(reply.bth.psn.get(), 101);
        let said = reply.ext.aeth().unwrap();
        assert_eq!(
            (said.syndrome, said.msn),
            (Syndrome::Rnr { timer: RnrTimer::new(1) }, 1),
            "the count of messages as it was told"
        );
        bench.wait(Duration::from_secs(60));
        assert!(bench.own().is_none() && bench.sent().is_empty());
        bench.far.retry();
        assert_eq!(bench.sent_psns(), [101]);
    }
}

/// The requester that is to try again has begun anew instead, and asks for what was answered. Its
/// target's next incarnation is ready for that.
#[test]
fn what_was_answered_is_asked_again_while_the_target_is_not_ready() {
    let mut bench = far(Duration::ZERO);
    bench.message(100, 1);
    bench.sent();
    bench.relayed(&acknowledge(100, 0x1f, 1));
    bench.message(101, 1);
    bench.sent();
    let rnr = acknowledge(101, RNR, 1);
    while !bench.far.awaits_retry() {
        bench.response(&rnr);
        bench.wait(TIMER);
        bench.sent();
    }
    bench.far.handle_replay(super::request(Opcode::SendOnly, 100, 8), bench.now);
    assert_eq!(bench.sent_psns(), [100]);
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.sent_psns(), [100], "its answer was lost");
    assert_eq!(super::aeth(&bench.relayed(&acknowledge(100, 0x1f, 1)).unwrap()), (100, 0x1f));
    assert!(bench.far.awaits_retry());
}

/// A requester with rnr_retry 7 is told, so that it does not take its target for dead, and the
/// target is tried all the same.
#[test]
fn who_retries_without_end_is_not_waited_for() {
    let mut bench = far(Duration::ZERO);
    bench.far.set_terms(&terms(7));
    bench.message(100, 1);
    bench.sent();
    let rnr = acknowledge(100, RNR, 0);
    let mut shown = 0;
    for tries in 0..20 {
        shown += u32::from(bench.relayed(&rnr).is_some());
        if tries == 10 {
            bench.far.retry();
        }
        bench.wait(TIMER);
        assert_eq!(bench.sent_psns(), [100]);
    }
    assert_eq!(shown, 2, "once, and once more when it had tried again");
}

#[test]
fn reads_under_way_are_as_many_as_the_target_holds() {
    let mut bench = far_rules::Bench::new();
    bench.far.set_terms(&crate::cm::Terms { max_reads: 2, ..terms(7) });
    for at in 0..4 {
        bench.request(Opcode::ReadRequest, 100 + at, 16);
    }
    assert_eq!(bench.sent_psns(), [100, 101]);
}

#[test]
fn rnr_is_passed_on_at_the_first_psn_that_is_not_acknowledged() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.response(&acknowledge(101, RNR, 1));
    assert_eq!(bench.said(), [(100, 0x1f), (101, RNR)]);
    bench.wait(TIMER);
    assert_eq!(bench.request(Opcode::SendOnly, 101, 256), Verdict::Drop(Why::Duplicate));
    bench.ack(101);
    assert_eq!(bench.said().last(), Some(&(101, 0x1f)));

    bench.message(102, 40);
    assert_eq!(bench.said(), [(140, 0x1f)]);
    // The requester is past it, and waits all the same: as often as the target says so, and where
    // it would count, it gives up in the end.
    for _ in 0..3 {
        bench.response(&acknowledge(102, RNR, 2));
        assert_eq!(bench.said(), [(141, RNR)]);
        bench.wait(TIMER);
        assert_eq!(bench.request(Opcode::SendLast, 141, 256), Verdict::Drop(Why::Duplicate));
        assert_eq!(bench.said(), [(140, 0x1f)]);
        assert!(bench.near.wants_retry());
        bench.near.note_retried();
    }
    bench.ack(141);
    assert_eq!(bench.said(), [(141, 0x1f)]);
}

/// The requester cannot be told to send again what it has not sent. So the far side tries on.
#[test]
fn rnr_is_not_passed_on_to_who_has_nothing_outstanding() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    for (psn, opcode) in (101..).zip([Opcode::SendFirst].into_iter().chain([Opcode::SendMiddle; 31])) {
        assert_eq!(bench.request(opcode, psn, 256), Verdict::Forward);
    }
    assert_eq!(bench.said().last(), Some(&(132, 0x1f)));
    bench.response(&acknowledge(101, RNR, 1));
    assert_eq!(bench.said(), []);
    assert!(bench.near.wants_retry());
    bench.near.note_retried();
    assert!(!bench.near.wants_retry());
    bench.request(Opcode::SendMiddle, 133, 256);
    bench.response(&acknowledge(101, RNR, 1));
    assert_eq!(bench.said(), [(133, RNR)]);
    assert!(!bench.near.wants_retry());
}

#[test]
fn what_comes_again_before_its_time_has_not_heard() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.response(&acknowledge(100, RNR, 0));
    assert_eq!(bench.said(), [(100, RNR)]);
    bench.wait(Duration::from_millis(1));
    bench.request(Opcode::SendOnly, 101, 256);
    assert!(!bench.said().contains(&(100, RNR)), "that was under way");
    bench.request(Opcode::SendOnly, 100, 256);
    assert!(bench.said().contains(&(100, RNR)));
    assert!(!bench.near.wants_retry());
    bench.wait(TIMER);
    // The first of the retry may be lost on the LAN.
    bench.request(Opcode::SendOnly, 101, 256);
    assert!(bench.near.wants_retry());
}

/// If RNR was lost on the LAN, the requester's own timer has to find that out; if it has given up,
/// there is nobody to keep.
/// The requester may be in its next incarnation, and the target would run what the one before sent.
#[test]
fn another_request_at_the_psn_of_the_refused_one_is_no_retry() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    bench.message(101, 1);
    bench.response(&acknowledge(101, RNR, 1));
    assert_eq!(bench.said(), [(101, RNR)]);
    bench.wait(TIMER);
    bench.request(Opcode::WriteOnly, 101, 256);
    assert!(!bench.near.wants_retry());
    bench.request(Opcode::SendOnly, 101, 256);
    assert!(bench.near.wants_retry());
}

/// The requester begins anew, near by. What the target was not ready for before is the former
/// incarnation's, and an RNR NAK at its PSN would confirm what the target has not got.
#[test]
fn the_end_of_a_wait_does_not_show_that_the_requester_is_the_same() {
    // Timer codes: the far half's word that the wait is over, and the target's own, which may be as
    // old for a round trip.
    let (over, own, told) = (0x20 | 1, 0x20 | 2, vec![(101, 0x20 | 2)]);
    let rtt = near_rules::Bench::config().rtt;
    for (syndrome, after, said) in
        [(over, rtt, vec![]), (own, rtt / 2, vec![]), (own, rtt + Duration::from_millis(1), told)]
    {
        let mut bench = near_rules::Bench::new();
        bench.message(100, 1);
        bench.ack(100);
        bench.said();
        bench.message(101, 1);
        bench.wait(Duration::from_secs(1));
        bench.request(Opcode::WriteFirst, 100, 256);
        bench.request(Opcode::WriteMiddle, 101, 256);
        bench.wait(after);
        bench.response(&acknowledge(101, syndrome, 1));
        assert_eq!(bench.said(), said, "{syndrome:#x} after {after:?}");
    }
}

#[test]
fn a_target_that_asks_for_the_shortest_wait_is_not_taken_for_the_end_of_one() {
    let mut bench = far(Duration::ZERO);
    bench.message(100, 1);
    bench.sent();
    bench.far.leave_to_requester(true);
    let [asked, relayed] = [1, 2].map(|timer| acknowledge(100, 0x20 | timer, 0));
    assert_eq!(bench.relayed(&asked).unwrap(), relayed);
}

#[test]
fn who_is_to_try_again_is_not_kept_waiting() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.message(101, 1);
    bench.said();
    bench.wait(Duration::from_millis(50));
    assert_eq!(bench.said(), [(near_rules::LONG_PAST + 100, 0x1f)], "an ACK that keeps it waiting");
    bench.response(&acknowledge(101, RNR, 1));
    assert_eq!(bench.said(), [(101, RNR)]);
    assert!(bench.near.is_to_try_again());
    bench.wait(Duration::from_secs(10));
    assert_eq!(bench.said(), []);
    bench.request(Opcode::SendOnly, 101, 256);
    assert!(!bench.near.is_to_try_again());
    bench.said();
    bench.wait(Duration::from_millis(50));
    assert_eq!(bench.said(), [(near_rules::LONG_PAST + 100, 0x1f)]);
}

#[test]
fn without_room_a_patient_requester_is_told_so() {
    for (rnr_retry, said) in [(7, vec![(101, 0x20 | 20)]), (6, vec![])] {
        let mut bench = near_rules::Bench::with(near_rules::Bench::config());
        bench.near.set_terms(&terms(rnr_retry), Some(Psn::new(100)));
        bench.message(100, 1);
        let next = super::request(Opcode::SendOnly, 101, 256);
        assert!(
            !bench.near.pause(&super::parse(&next), bench.now),
            "it waits for 100, and can be kept waiting"
        );
        bench.ack(100);
        bench.said();
        bench.near.pause(&super::parse(&next), bench.now);
        assert_eq!(bench.said(), said, "{rnr_retry}");
        bench.message(101, 1);
        bench.ack(101);
        assert_eq!(bench.said(), [(101, 0x1f)]);
    }
}

/// The same where the flow's own buffer is full: what is done for the requester, and not for the
/// target.
#[test]
fn a_full_flow_has_a_patient_requester_wait() {
    let config = NearConfig { hard_limit: 4 * 268, ..near_rules::Bench::config() };
    let mut bench = near_rules::Bench::with(config);
    bench.near.set_terms(&terms(7), Some(Psn::new(100)));
    bench.near.set_local(true);
    bench.message(100, 1);
    bench.ack(100);
    for at in 101..105 {
        bench.message(at, 1);
    }
    assert_eq!(bench.said(), [(104, 0x1f)]);
    assert_eq!(bench.request(Opcode::SendOnly, 105, 256), Verdict::Drop(Why::Full));
    assert_eq!(bench.said(), [(105, 0x20 | 20)]);
    bench.ack(104);
    assert_eq!(bench.said(), [], "it comes by itself");
    bench.message(105, 1);
    assert_eq!(bench.said(), [(105, 0x1f)]);
}

/// A retry that runs past what found no room ends with the start of a message, which fits nothing
/// here. It began with what is outstanding.
#[test]
fn rnr_reaches_a_requester_whose_retry_runs_ahead_of_what_has_come() {
    let config = NearConfig { hard_limit: 600, ..near_rules::Bench::config() };
    let mut bench = near_rules::Bench::told(config);
    let retry = |bench: &mut near_rules::Bench| {
        let message = [Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendMiddle, Opcode::SendLast];
        for (psn, opcode) in (100..).zip(message.into_iter().chain([Opcode::SendOnly])) {
            assert!(!bench.doubts(opcode, psn));
            bench.request(opcode, psn, 256);
        }
        bench.said().into_iter().any(|(_, syndrome)| syndrome == RNR)
    };
    assert!(!retry(&mut bench));
    bench.response(&acknowledge(100, RNR, 0));
    assert!(retry(&mut bench));
    bench.wait(TIMER);
    retry(&mut bench);
    assert!(bench.near.wants_retry());
}
