//! Packets that cannot be handed on: both programs learn of it.

use std::sync::Arc;
use std::time::Duration;

use super::{R, T, acknowledge, aeth, epoch, parse, read_response, request};
use crate::flow::far::{Failure, Far, FarConfig, MAX_PACKET, Refused, Verdict};
use crate::flow::near::{Deliver, Near, NearConfig};
use crate::wire::{Opcode, PathMtu, Qpn};

fn far() -> Far<Vec<u8>> {
    Far::new(FarConfig::default(), Arc::default(), epoch())
}

/// The next packet to the target: opcode and PSN.
fn sent(far: &mut Far<Vec<u8>>) -> Option<(Opcode, u32)> {
    let mut out = [0; MAX_PACKET];
    let len = far.poll_transmit(epoch(), &mut out)?;
    let packet = parse(&out[..len]);
    assert_eq!(packet.bth.dest_qp, T);
    Some((packet.bth.opcode, packet.bth.psn.get()))
}

/// The record that tells the requester: its queue pair, PSN and syndrome.
fn told(far: &mut Far<Vec<u8>>) -> Option<(Qpn, (u32, u8))> {
    far.poll_response().map(|reply| (parse(&reply).bth.dest_qp, aeth(&reply)))
}

#[test]
fn a_first_request_refused_is_told_when_the_target_has_named_the_requester() {
    let now = epoch();
    let mut far = far();
    let unfit = request(Opcode::SendFirst, 100, 4096);
    far.refuse(&parse(&unfit), now);
    assert!(far.is_ending() && !far.is_dead() && told(&mut far).is_none());
    assert_eq!(far.handle_request(unfit, now), Err(Refused::Dead));
    assert_eq!(sent(&mut far), Some((Opcode::SendMiddle, 100)));
    assert_eq!(far.handle_response(&parse(&acknowledge(100, 0x61, 0)), now), Verdict::Absorbed);
    assert_eq!(told(&mut far), Some((R, (100, 0x63))));
    assert_eq!(far.failure(), Some(Failure::Aborted));
}

#[test]
fn the_refusal_stands_where_the_target_does() {
    // What comes before is done first, and the target may know of more than that.
    let now = epoch();
    let mut far = far();
    for psn in [100, 101] {
        far.handle_request(request(Opcode::SendOnly, psn, 10), now).unwrap();
        assert_eq!(sent(&mut far), Some((Opcode::SendOnly, psn)));
    }
    far.refuse(&parse(&request(Opcode::SendFirst, 102, 4096)), now);
    far.handle_response(&parse(&acknowledge(100, 0x1f, 1)), now);
    assert_eq!(sent(&mut far), None);
    far.handle_response(&parse(&acknowledge(101, 0x1f, 2)), now);
    assert_eq!(sent(&mut far), Some((Opcode::SendMiddle, 102)));
    far.handle_response(&parse(&acknowledge(104, 0x60, 2)), now);
    assert_eq!(sent(&mut far), Some((Opcode::SendMiddle, 104)));
    assert_eq!(told(&mut far), None);
    far.handle_response(&parse(&acknowledge(104, 0x61, 2)), now);
    assert_eq!(told(&mut far), Some((R, (104, 0x63))));
}

#[test]
fn a_target_that_does_not_answer_is_no_reason_to_keep_the_requester_waiting() {
    let mut now = epoch();
    let mut far = far();
    far.refuse(&parse(&request(Opcode::SendFirst, 100, 4096)), now);
    while !far.is_dead() {
        sent(&mut far);
        now = far.next_timeout().unwrap();
        far.handle_timeout(now);
    }
    // It confirms nothing, since nothing is known of the target.
    assert_eq!(told(&mut far), Some((Qpn::new(0), ((1 << 24) + 100 - (1 << 17), 0x63))));
    assert_eq!(far.failure(), Some(Failure::AbortUnanswered));
}

#[test]
fn an_abort_alone_tells_the_requester_nothing() {
    let now = epoch();
    let mut far = far();
    far.handle_request(request(Opcode::SendOnly, 100, 10), now).unwrap();
    sent(&mut far);
    far.abort(now);
    sent(&mut far);
    far.handle_response(&parse(&acknowledge(100, 0x61, 0)), now);
    assert_eq!((told(&mut far), far.failure()), (None, Some(Failure::Aborted)));
}

#[test]
fn a_response_that_does_not_fit_fails_the_flow_where_it_stands() {
    let now = epoch();
    let config = NearConfig { mtu: Some(PathMtu::B256), ..NearConfig::default() };
    let mut near = Near::new(config, Arc::default(), now);
    near.pair(R);
    near.handle_request(&parse(&request(Opcode::SendOnly, 100, 10)), now);
    near.handle_request(&parse(&request(Opcode::ReadRequest, 101, 600)), now);
    let response = read_response(Opcode::ReadResponseFirst, 101, 256, 2);
    near.fail_at(parse(&response).bth.psn, now);
    // The target's first word: what comes before the READ is done, the READ is not.
    let said: Vec<_> = std::iter::from_fn(|| near.poll_transmit(now)).map(|reply| aeth(&reply)).collect();
    assert_eq!(said, [(100, 0x1f), (101, 0x63)]);
    assert_eq!(near.handle_response(&parse(&response), now), Deliver::Absorbed);
    assert!(near.is_failed() && near.poll_transmit(now + Duration::from_secs(1)).is_none());
}
