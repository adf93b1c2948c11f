//! Requests asked for again, whose answers decide what the requester may hear.

use super::*;

/// The target's next incarnation refuses what it was asked again. It has nothing beyond.
#[test]
fn a_refusal_of_what_was_asked_again_names_no_later_psn() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.request(Opcode::SendOnly, 103, 256), Verdict::Replay);
    bench.message(110, 1);
    bench.response(&acknowledge(103, 0x61, 0));
    assert_eq!(bench.said(), [(103, 0x61)]);
}
