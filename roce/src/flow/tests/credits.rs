//! End-to-end credits: how many receives the target has posted, as it tells its requester.

use std::time::Duration;

use super::{acknowledge, atomic_response, far_rules, near_rules, parse, read_response};
use crate::flow::far::{FarConfig, Verdict, Why};
use crate::wire::{Aeth, Opcode, Syndrome};

/// The response with other credits, if it has an AETH.
fn granting(credits: u8, mut response: Vec<u8>) -> Vec<u8> {
    if parse(&response).ext.aeth().is_some() {
        response[12] = credits;
    }
    response
}

/// Returns the AETH of the next packet to the requester.
fn told(bench: &mut near_rules::Bench) -> Option<Aeth> {
    let reply = bench.near.poll_transmit(bench.now)?;
    parse(&reply).ext.aeth().copied()
}

fn credits(credits: u8, msn: u32) -> Option<Aeth> {
    Some(Aeth { syndrome: Syndrome::Ack { credits }, msn })
}

#[test]
fn answers_grant_them_as_well() {
    let mut bench = near_rules::Bench::new();
    bench.request(Opcode::FetchAdd, 100, 0);
    bench.response(&granting(0x04, atomic_response(100, 7, 1)));
    bench.message(101, 40);
    assert_eq!(told(&mut bench), credits(0x04, 1), "inside the message");
    bench.request(Opcode::ReadRequest, 141, 100);
    bench.response(&granting(0x03, acknowledge(140, 0x1f, 2)));
    assert_eq!(told(&mut bench), credits(0x03, 2));
    bench.response(&granting(0x02, read_response(Opcode::ReadResponseOnly, 141, 100, 3)));
    bench.message(142, 40);
    assert_eq!(told(&mut bench), credits(0x02, 3));
}

#[test]
fn what_says_nothing_of_them_takes_none_back() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x05, 1));
    assert_eq!(told(&mut bench), credits(0x05, 1));
    bench.message(101, 1);
    bench.response(&acknowledge(101, 0x1f, 2));
    assert_eq!(told(&mut bench), credits(0x05, 2));
}

#[test]
fn room_for_more_is_told_unasked() {
    let mut bench = near_rules::Bench::new();
    bench.message(100, 1);
    bench.response(&acknowledge(100, 0x00, 1));
    assert_eq!(bench.said(), [(100, 0x00)]);
    bench.response(&acknowledge(100, 0x05, 1));
    assert_eq!(bench.said(), [(100, 0x05)]);
    assert!(bench.near.is_idle());
    // The same again, less, none, and of other PSNs.
    for (psn, syndrome) in [(100, 0x05), (100, 0x03), (100, 0x1f), (99, 0x06), (101, 0x06)] {
        bench.response(&acknowledge(psn, syndrome, 1));
        assert_eq!(bench.said(), [], "{psn} {syndrome:#x}");
    }
}

#[test]
fn room_for_more_is_relayed() {
    let mut bench = far_rules::Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    // Before the first word it could stand for what never came.
    assert_eq!(bench.response(&acknowledge(99, 0x08, 0)), Verdict::Drop(Why::Duplicate));
    assert!(bench.relayed(&acknowledge(100, 0x00, 1)).is_some());
    assert_eq!(bench.response(&acknowledge(100, 0x00, 1)), Verdict::Drop(Why::Duplicate));
    for syndrome in [0x01, 0x03] {
        assert_eq!(bench.response(&acknowledge(100, syndrome, 1)), Verdict::Absorbed);
    }
    bench.wait(Duration::from_millis(2));
    assert_eq!(bench.own(), Some((100, 0x03)), "as of late, once");
    assert_eq!(bench.response(&acknowledge(100, 0x03, 1)), Verdict::Drop(Why::Duplicate));
    assert!(bench.relayed(&acknowledge(101, 0x02, 2)).is_some());
    assert!(bench.far.is_idle());
}

#[test]
fn what_is_relayed_late_or_in_pieces_has_them() {
    let mut bench = far_rules::Bench::with(FarConfig { read_piece: 4096, ..far_rules::Bench::config() });
    bench.message(99, 1);
    bench.message(100, 40);
    bench.request(Opcode::ReadRequest, 140, 8192);
    bench.sent();
    bench.response(&acknowledge(99, 0x07, 1));
    bench.response(&acknowledge(103, 0x06, 1));
    bench.wait(Duration::from_millis(2));
    assert_eq!(bench.own(), Some((103, 0x06)));
    assert!(bench.relayed(&acknowledge(139, 0x05, 2)).is_some());
    // The target answers the last piece with its own AETH, and the last but one without: the
    // requester's READ ends with the last.
    let mut shown = Vec::new();
    for (from, to, msn) in [(0, 4096, 3), (4096, 8192, 4)] {
        bench.sent();
        let responses = far_rules::responses(140, from, to, msn);
        shown.extend(responses.into_iter().filter_map(|response| bench.relayed(&granting(0x04, response))));
    }
    let granted = |bytes: &Vec<u8>| parse(bytes).ext.aeth().map(|aeth| aeth.syndrome.to_u8());
    assert_eq!(granted(&shown[0]), Some(0x04));
    assert_eq!(granted(&shown[31]), Some(0x04));
    assert!(shown[1..31].iter().all(|response| granted(response).is_none()));
}
