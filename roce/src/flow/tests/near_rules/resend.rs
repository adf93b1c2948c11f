//! READ responses that are given once more from what the owner has kept.

use super::*;

fn resend(bench: &Bench, psn: u32, length: u32, skipped: u64) -> Option<(u32, u32)> {
    let mut bytes = request(Opcode::ReadRequest, psn, length);
    let va = 0x1000 + skipped;
    bytes[BTH_LEN..BTH_LEN + 8].copy_from_slice(&va.to_be_bytes());
    let resend = bench.near.resend(&parse(&bytes), bench.now)?;
    Some((resend.from.get(), resend.to.get()))
}

fn answer(bench: &mut Bench, opcode: Opcode, psn: u32, length: u32) {
    assert!(is_emitted(bench.response(&read_response(opcode, psn, length, 1))));
}

/// READs at 100 (four responses) and 104, of which the first two and all but the last have come.
fn reading() -> Bench {
    let mut bench = Bench::new();
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 1000), FORWARD);
    assert_eq!(bench.request(Opcode::ReadRequest, 104, 1000), FORWARD);
    answer(&mut bench, Opcode::ReadResponseFirst, 100, 256);
    answer(&mut bench, Opcode::ReadResponseMiddle, 101, 256);
    bench
}

#[test]
fn a_read_asked_again_is_answered_as_far_as_it_was_passed_on() {
    let mut bench = reading();
    assert_eq!(resend(&bench, 100, 1000, 0), Some((100, 102)));
    assert_eq!(resend(&bench, 101, 744, 256), Some((101, 102)), "from its middle on");
    assert_eq!(resend(&bench, 102, 488, 512), None, "its answer is still to come");
    answer(&mut bench, Opcode::ReadResponseMiddle, 102, 256);
    answer(&mut bench, Opcode::ReadResponseLast, 103, 232);
    assert_eq!(resend(&bench, 100, 1000, 0), Some((100, 104)), "while the next READ is outstanding");
    assert_eq!(resend(&bench, 102, 488, 512), Some((102, 104)));
}

#[test]
fn nothing_but_the_same_read_is_answered_from_memory() {
    let mut bench = reading();
    answer(&mut bench, Opcode::ReadResponseMiddle, 102, 256);
    answer(&mut bench, Opcode::ReadResponseLast, 103, 232);
    for (psn, length, skipped) in
        [(100, 999, 0), (100, 1000, 8), (101, 1000, 0), (101, 744, 0), (101, 256, 256), (99, 1256, 0)]
    {
        assert_eq!(resend(&bench, psn, length, skipped), None, "{psn} {length} {skipped}");
    }
    let mut other_key = request(Opcode::ReadRequest, 100, 1000);
    other_key[BTH_LEN + 11] ^= 1;
    assert_eq!(bench.near.resend(&parse(&other_key), bench.now), None);
}

/// Who had nothing outstanding may have been reset, and connected again at the same PSN.
#[test]
fn after_a_rest_nothing_is_answered_from_memory() {
    let mut bench = Bench::new();
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 256), FORWARD);
    let window = bench.near.window();
    answer(&mut bench, Opcode::ReadResponseOnly, 100, 256);
    assert_eq!(resend(&bench, 100, 256, 0), None, "at rest");
    bench.wait(Duration::from_millis(5));
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 256), Verdict::Replay);
    assert_ne!(bench.near.window(), window, "what was passed on before is given to nobody any more");
    let window = bench.near.window();
    assert_eq!(bench.request(Opcode::ReadRequest, 101, 256), FORWARD);
    assert_eq!(bench.near.window(), window, "the target has yet to answer the one before");
}

#[test]
fn what_the_target_is_asked_for_again_is_awaited() {
    let mut bench = reading();
    answer(&mut bench, Opcode::ReadResponseMiddle, 102, 256);
    answer(&mut bench, Opcode::ReadResponseLast, 103, 232);
    assert_eq!(bench.request(Opcode::ReadRequest, 100, 1000), Verdict::Replay);
    assert_eq!(resend(&bench, 100, 1000, 0), None);
    answer(&mut bench, Opcode::ReadResponseFirst, 104, 256);
    assert_eq!(resend(&bench, 104, 1000, 0), None, "the requester could not take it");
    answer(&mut bench, Opcode::ReadResponseFirst, 100, 256);
    answer(&mut bench, Opcode::ReadResponseMiddle, 101, 256);
    assert_eq!(resend(&bench, 100, 1000, 0), Some((100, 102)), "as far as it has come again");
}

#[test]
fn a_flow_that_may_be_of_another_life_is_given_nothing() {
    let mut bench = reading();
    let since = |bench: &Bench| {
        let read = request(Opcode::ReadRequest, 100, 1000);
        bench.near.resend(&parse(&read), bench.now).map(|resend| bench.now - resend.since)
    };
    assert_eq!(since(&bench), Some(Duration::from_millis(2)));
    bench.request(Opcode::SendOnly, 50, 256);
    bench.wait(Duration::from_micros(10));
    assert!(since(&bench) < Some(Duration::from_micros(10)), "nothing from before what does not fit");
    answer(&mut bench, Opcode::ReadResponseMiddle, 102, 256);
    assert_eq!(since(&bench), Some(Duration::from_millis(2)), "the target has answered");
    let mut failed = reading();
    failed.near.fail(failed.now);
    assert_eq!(resend(&failed, 100, 1000, 0), None);
    let mut local = reading();
    local.near.set_local(true);
    assert_eq!(resend(&local, 100, 1000, 0), None);
}

#[test]
fn the_first_response_given_again_begins_a_read() {
    let bench = reading();
    let pass = |opcode, psn, is_first| {
        let bytes = read_response(opcode, psn, 256, 1);
        let passed = bench.near.pass_again(&parse(&bytes), is_first);
        let out = passed.parts(&bytes).concat();
        let packet = parse(&out);
        assert_eq!((packet.bth.psn.get(), packet.payload), (psn, parse(&bytes).payload));
        packet.bth.opcode
    };
    use Opcode::{
        ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle,
        ReadResponseOnly as Only,
    };
    let again = [First, Middle, Last, Only].map(|opcode| [true, false].map(|first| pass(opcode, 7, first)));
    assert_eq!(again, [[First, Middle], [First, Middle], [Only, Last], [Only, Last]]);
}

#[test]
fn what_is_given_again_counts_and_is_kept_for_two_turns() {
    let mut bench = reading();
    let read = request(Opcode::ReadRequest, 100, 1000);
    let resend = bench.near.resend(&parse(&read), bench.now).unwrap();
    bench.near.note_resent(resend, bench.now);
    assert_eq!(bench.near.stats().resent, 2);
    assert_eq!(bench.near.resend_for(), Duration::from_millis(2), "before the turn is measured");
    let config = NearConfig { rtt: Duration::from_millis(16), ..Bench::config() };
    bench.near.adopt(&Arc::new(config));
    assert_eq!(bench.near.resend_for(), Duration::from_millis(1), "no more than a sixteenth");
}
