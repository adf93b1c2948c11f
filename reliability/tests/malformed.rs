//! What comes from the wire may be anything: nothing panics, and a malformed packet changes nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod world;

use std::time::Instant;

use proptest::prelude::*;
use reliability::stream::{
    Kind, Malformed, Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId, classify,
};
use world::{MS, STREAM, origin};

const MAX_PACKET: usize = 400;

/// A sender and a receiver in the middle of something, and packets of theirs of every kind.
struct Middle {
    now: Instant,
    sender: Sender,
    receiver: Receiver,
    packets: Vec<Vec<u8>>,
}

fn middle(scheme: Scheme) -> Middle {
    let now = origin();
    let mut sender =
        Sender::new(SenderConfig { scheme, window: 500, ..SenderConfig::new(STREAM, MAX_PACKET) }, now);
    let mut receiver =
        Receiver::new(ReceiverConfig { window: 500, ..ReceiverConfig::new(STREAM, MAX_PACKET) }, now);
    let mut packets = Vec::new();
    let mut out = [0; MAX_PACKET];
    for i in 0..40_u8 {
        sender.push(&[&[i; 300][..7 * usize::from(i) + 1]], now).unwrap();
        sender.push(&[&[i; 999]], now).unwrap();
    }
    while let Some(transmit) = sender.poll_transmit(now, &mut out) {
        let packet = out[..transmit.len].to_vec();
        // Some arrive, some are on their way, some are lost.
        if packets.len() % 5 != 3 && packets.len() < 100 {
            receiver.handle_packet(&packet, now, &mut |_| {}).unwrap();
        }
        packets.push(packet);
    }
    let now = now + 5 * MS;
    sender.handle_timeout(now);
    receiver.handle_timeout(now);
    while let Some(len) = receiver.poll_report(now, &mut out) {
        packets.push(out[..len].to_vec());
    }
    Middle { now, sender, receiver, packets }
}

/// Feeds the packet to both ends. An error must leave no trace but the counter.
fn feed(middle: &mut Middle, packet: &[u8]) {
    let before = format!("{:?}", middle.receiver);
    let malformed = middle.receiver.stats().malformed;
    if middle.receiver.handle_packet(packet, middle.now, &mut |_| {}).is_err() {
        let expected =
            before.replace(&format!("malformed: {malformed}"), &format!("malformed: {}", malformed + 1));
        assert!(format!("{:?}", middle.receiver) == expected, "a trace of {packet:?}");
    }
    let before = format!("{:?}", middle.sender);
    if middle.sender.handle_report(packet, middle.now).is_err() {
        assert!(format!("{:?}", middle.sender) == before, "a trace of {packet:?}");
    }
    let _ = classify(packet);
}

/// Whatever was fed, the two can still go on.
fn go_on(middle: &mut Middle) {
    let mut out = [0; MAX_PACKET];
    for step in 1..50 {
        let now = middle.now + step * MS;
        middle.sender.handle_timeout(now);
        middle.receiver.handle_timeout(now);
        for _ in 0..500 {
            let Some(transmit) = middle.sender.poll_transmit(now, &mut out) else {
                break;
            };
            let _ = middle.receiver.handle_packet(&out[..transmit.len], now, &mut |_| {});
        }
        for _ in 0..50 {
            let Some(len) = middle.receiver.poll_report(now, &mut out) else {
                break;
            };
            let _ = middle.sender.handle_report(&out[..len], now);
        }
    }
}

fn scheme() -> impl Strategy<Value = Scheme> {
    prop_oneof![
        Just(Scheme::None),
        Just(Scheme::sr()),
        Just(Scheme::Xor { k: 6, m: 2, depth: 2 }),
        Just(Scheme::Mds { k: 5, m: 2, depth: 3 }),
        Just(Scheme::mds(8, 3)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(
        scheme in scheme(),
        kind in 0_u8..5,
        mut packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..12),
    ) {
        let mut middle = middle(scheme);
        for packet in &mut packets {
            // Mostly with a start that gets past the first checks.
            for (byte, start) in packet.iter_mut().zip([kind, 0, 0, 7]) {
                *byte = start;
            }
            feed(&mut middle, packet);
        }
        go_on(&mut middle);
    }

    #[test]
    fn truncated_and_altered_packets(
        scheme in scheme(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..60, any::<u8>(), any::<Option<prop::sample::Index>>()), 1..20),
    ) {
        let mut middle = middle(scheme);
        for (which, at, value, cut) in changes {
            let mut packet = which.get(&middle.packets).clone();
            if let Some(byte) = packet.get_mut(at) {
                *byte = value;
            }
            if let Some(cut) = cut {
                packet.truncate(cut.index(packet.len() + 1));
            }
            feed(&mut middle, &packet);
        }
        go_on(&mut middle);
    }
}

#[test]
fn every_truncation_of_a_header_is_refused() {
    let mut middle = middle(Scheme::mds(8, 3));
    for packet in middle.packets.clone() {
        let (kind, _) = classify(&packet).unwrap();
        let header = if kind == Kind::Parity { 26 } else { 28 };
        for len in 0..header {
            let (a, b) = (
                middle.receiver.handle_packet(&packet[..len], middle.now, &mut |_| {}),
                middle.sender.handle_report(&packet[..len], middle.now),
            );
            assert!(a.is_err() && b.is_err(), "{kind:?} cut to {len}");
        }
    }
}

#[test]
fn packets_of_another_stream_or_direction_are_named_as_such() {
    let mut middle = middle(Scheme::sr());
    let mut data = middle.packets[0].clone();
    let mut report = middle.packets.last().unwrap().clone();
    assert_eq!(middle.sender.handle_report(&data, middle.now), Err(Malformed::Direction(Kind::Data)));
    let now = middle.now;
    let mut receive = |packet: &[u8]| middle.receiver.handle_packet(packet, now, &mut |_| {});
    assert_eq!(receive(&report), Err(Malformed::Direction(Kind::Report)));
    data[3] = 8;
    report[3] = 8;
    assert_eq!(receive(&data), Err(Malformed::Stream(StreamId(8))));
    assert_eq!(middle.sender.handle_report(&report, now), Err(Malformed::Stream(StreamId(8))));
    assert_eq!(receive(&[9, 0, 0, 7]), Err(Malformed::Kind(9)));
}

#[test]
fn a_report_of_what_was_never_sent_is_refused() {
    let mut middle = middle(Scheme::sr());
    let mut report = middle.packets.last().unwrap().clone();
    report[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
    assert_eq!(middle.sender.handle_report(&report, middle.now), Err(Malformed::Report));
}

#[test]
fn records_longer_than_agreed_are_refused() {
    let now = origin();
    let config = SenderConfig { max_record: 9000, ..SenderConfig::new(STREAM, MAX_PACKET) };
    let mut sender = Sender::new(config, now);
    let config = ReceiverConfig { max_record: 5000, ..ReceiverConfig::new(STREAM, MAX_PACKET) };
    let mut receiver = Receiver::new(config, now);
    sender.push(&[&[1; 6000]], now).unwrap();
    let mut out = [0; MAX_PACKET];
    let len = sender.poll_transmit(now, &mut out).unwrap().len;
    assert_eq!(receiver.handle_packet(&out[..len], now, &mut |_| {}), Err(Malformed::RecordLength(6000)));
    assert_eq!(receiver.stats().malformed, 1);
}
