//! Input from the wire may be anything: nothing panics, and a malformed packet changes nothing.

use std::time::Instant;

use crate::world::{MS, STREAM, origin};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::stream::{
    Kind, Malformed, Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId, classify,
};

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
        Just(Scheme::Hybrid { k: 5, m: 2, depth: 3 }),
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
        let header = match (kind, packet[0] & 0x08) {
            (Kind::Parity, _) => 17,
            (Kind::Data, 0) => 11,
            (Kind::Data, _) => 19,
            _ => 48,
        };
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
    data[1] = 8;
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

/// Which group a packet claims to belong to.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// 2 XOR, 3 Reed-Solomon; 1 for none.
    coding: u8,
    k: u8,
    m: u8,
    depth: u8,
}

const UNCODED: Claim = Claim { coding: 1, k: 0, m: 0, depth: 0 };

/// A DATA packet that is well-formed by itself: one record of zeros in it, and nothing given up.
fn data(sequence: u64, claim: Claim, position: u16, len: u16) -> Vec<u8> {
    let mut packet = header(sequence, claim, position);
    packet.extend((len + 1).to_be_bytes());
    packet.resize(packet.len() + usize::from(len), 0);
    packet
}

fn header(sequence: u64, claim: Claim, position: u16) -> Vec<u8> {
    let mut packet = vec![0x80 | claim.coding << 2, 7, 0, 0xff, 0, 0, 0];
    packet.extend((sequence as u32).to_be_bytes());
    if claim.coding >= 2 {
        packet.extend([claim.k, claim.m, claim.depth]);
        packet.extend(position.to_be_bytes());
        packet.extend([0; 3]);
    }
    packet
}

/// A PARITY packet that is well-formed by itself.
fn parity(base: u64, claim: Claim, lane: u8, index: u8, count: u16, symbol: usize) -> Vec<u8> {
    let mut packet = vec![0xc0 | claim.coding << 2, 7, 0, 0, 0];
    packet.extend((base as u32).to_be_bytes());
    packet.extend([claim.k, claim.m, claim.depth, lane, index]);
    packet.extend(count.to_be_bytes());
    packet.push(claim.m);
    packet.resize(packet.len() + symbol, 0x5a);
    packet
}

/// Fails instead of hanging: what `f` does must come to an end.
fn ends<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    match result.recv_timeout(std::time::Duration::from_secs(120)) {
        Ok(value) => value,
        Err(_) => panic!("{what} does not come to an end"),
    }
}

/// The cheapest way to make a receiver set aside much: a packet each for groups that are as large
/// as can be, none of which completes.
#[test]
fn groups_that_never_fill_are_held_within_the_budget() {
    let memory = allocation_counter::measure(|| {
        let now = origin();
        let config = ReceiverConfig {
            decode_buffer: 1 << 20,
            window: 4096,
            ..ReceiverConfig::new(STREAM, MAX_PACKET)
        };
        let mut receiver = Receiver::new(config, now);
        let claim = Claim { coding: 3, k: 1, m: 254, depth: 255 };
        // The later ones first, so that each may reach up to the next.
        for sequence in (1..4096).rev() {
            receiver.handle_packet(&data(sequence, claim, 0, 20), now, &mut |_| {}).unwrap();
        }
    });
    assert!(memory.bytes_max < 24 << 20, "{} bytes", memory.bytes_max);
}

#[test]
fn a_group_that_turns_out_to_hold_nothing_does_not_stop_the_search_for_room() {
    ends("the receiver", || {
        let now = origin();
        let config = ReceiverConfig { decode_buffer: 4000, ..ReceiverConfig::new(STREAM, MAX_PACKET) };
        let mut receiver = Receiver::new(config, now);
        let claim = Claim { coding: 3, k: 8, m: 2, depth: 1 };
        // Packets 0 to 9 are a group of which something is missing, so what follows stays. Packet
        // 10 contradicts the group that 11 belongs to.
        let mut packets = vec![
            data(1, Claim { k: 10, ..claim }, 1, 300),
            data(11, claim, 1, 300),
            data(10, UNCODED, 0, 300),
        ];
        packets.extend((0..20).map(|group| data(21 + 8 * group, claim, 1, 300)));
        for packet in packets {
            receiver.handle_packet(&packet, now, &mut |_| {}).unwrap();
        }
        assert!(receiver.stats().blocks_given_up > 0, "{:?}", receiver.stats());
    });
}

/// Well-formed packets of groups that contradict one another, near the window's begin and end: no
/// packet is worth more than its share of work, what is held stays within bounds, and an honest
/// sender's packets still get through.
#[test]
fn a_peer_that_contradicts_itself_costs_no_more_than_the_bounds_say() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => [seed.parse().unwrap(); 1].to_vec(),
        Err(_) => (0..24).collect(),
    };
    for seed in seeds {
        println!("seed {seed}");
        ends("the receiver", move || {
            let memory = allocation_counter::measure(|| contradict(seed));
            assert!(memory.bytes_max < 24 << 20, "seed {seed}: {} bytes", memory.bytes_max);
        });
    }
}

fn contradict(seed: u64) {
    const WINDOW: u64 = 4096;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut now = origin();
    let config = ReceiverConfig {
        window: WINDOW as usize,
        decode_buffer: 1 << 20,
        ..ReceiverConfig::new(STREAM, MAX_PACKET)
    };
    let mut receiver = Receiver::new(config, now);
    let mut out = [0; MAX_PACKET];
    let shapes: Vec<_> = (0..rng.random_range(1..6)).map(|_| claim(&mut rng)).collect();
    let descending = rng.random_bool(0.3);
    for turn in 0..20_000_u64 {
        let claim = shapes[rng.random_range(0..shapes.len())];
        let packets = u64::from(claim.k) * u64::from(claim.depth);
        let sequence = if descending { WINDOW - 1 - turn % WINDOW } else { rng.random_range(0..WINDOW) };
        let len = rng.random_range(0..300);
        let packet = match rng.random_range(0..10) {
            0 => data(sequence, UNCODED, 0, len),
            1..3 => {
                let count = rng.random_range(1..=packets) as u16;
                let lane = rng.random_range(0..claim.depth).min((count - 1).min(255) as u8);
                let index = rng.random_range(0..claim.m);
                parity(sequence, claim, lane, index, count, usize::from(len))
            }
            _ => {
                let position =
                    if rng.random_bool(0.5) { 0 } else { rng.random_range(0..packets.min(sequence + 1)) };
                data(sequence, claim, position as u16, len)
            }
        };
        receiver.handle_packet(&packet, now, &mut |_| {}).unwrap();
        if turn % 64 == 0 {
            now += MS;
            receiver.handle_timeout(now);
            // As many parts as a report can have.
            let parts = (0..100).take_while(|_| receiver.poll_report(now, &mut out).is_some()).count();
            assert!(parts < 100, "seed {seed}: a report without end");
        }
    }
    // Whatever there was, the packets that were missing are taken.
    let mut records = 0;
    for sequence in 0..2 * WINDOW {
        receiver.handle_packet(&data(sequence, UNCODED, 0, 9), now, &mut |_| records += 1).unwrap();
    }
    assert!(records >= WINDOW, "seed {seed}: {records} records");
    let stats = receiver.stats();
    assert!(stats.data_packets + stats.decoded >= 2 * WINDOW, "seed {seed}: {stats:?}");
}

/// A shape that can be; mostly one that makes much of little.
fn claim(rng: &mut Pcg64Mcg) -> Claim {
    let k = [1, 2, 8, 100][rng.random_range(0..4)];
    let coding = rng.random_range(2..=3);
    let m = if coding == 2 { rng.random_range(1..=k) } else { rng.random_range(1..=255 - k) };
    Claim { coding, k, m, depth: [1, 3, 64, 255][rng.random_range(0..4)] }
}

/// A code is made for packets that pay for it. Before, blocks of ever new shapes cost 232 times
/// what a DATA packet does.
#[test]
fn blocks_of_ever_new_shapes_make_few_codes() {
    let now = origin();
    let mut receiver = Receiver::new(ReceiverConfig::new(STREAM, MAX_PACKET), now);
    // A block of one packet, of which the parity alone comes: with one data packet to a block that
    // is the packet's symbol, here four bytes of padding.
    let block = |base: u64| {
        let claim = Claim { coding: 3, k: 1, m: (base % 254) as u8 + 1, depth: 1 };
        let mut packet = parity(base, claim, 0, 0, 1, 6);
        let symbol = packet.len() - 6;
        packet[symbol..].copy_from_slice(&[0, 4, 0, 0, 0, 0]);
        packet
    };
    for base in 0..10_000 {
        receiver.handle_packet(&block(base), now, &mut |_| {}).unwrap();
    }
    let stats = receiver.stats().clone();
    // A few at once, one for each 1024 packets, and those whose turn comes again while they are
    // kept.
    let most = 8 + 9 + 4 * 40;
    assert!(stats.decoded <= most && stats.decoded + stats.blocks_given_up == 10_000, "{stats:?}");
    // An honest sender's change of scheme is paid for by time as well.
    receiver.handle_packet(&block(10_000), now + 200 * MS, &mut |_| {}).unwrap();
    assert_eq!(receiver.stats().decoded, stats.decoded + 1);
}

/// A DATA packet with a piece of a record that began in another packet.
fn piece(sequence: u64, record: u64, total: u32, offset: u32, len: usize) -> Vec<u8> {
    let mut packet = header(sequence, UNCODED, 0);
    packet.push(0x80 | (sequence - record) as u8);
    packet.extend((0x8000_0000 | total).to_be_bytes());
    if record < sequence {
        packet.extend((0x8000_0000 | offset).to_be_bytes());
    }
    packet.resize(packet.len() + len, record as u8);
    packet
}

/// Pieces of ever other records, far apart, far into them: what is held is counted, and has its
/// bound.
#[test]
fn pieces_take_no_more_than_the_buffer_for_them() {
    const BUFFER: usize = 4 << 20;
    for (what, step, total) in [("far into", 1, 65_536), ("pages", 64, 40)] {
        let measured = allocation_counter::measure(|| {
            let config = ReceiverConfig {
                join_buffer: BUFFER,
                window: 30_000 * step,
                ..ReceiverConfig::new(STREAM, MAX_PACKET)
            };
            let mut receiver = Receiver::new(config, origin());
            for sequence in (1..30_000).map(|at| at * step as u64) {
                let packet = piece(sequence, sequence - 1, total, total - 1, 1);
                receiver.handle_packet(&packet, origin(), &mut |_| {}).unwrap();
                assert!(receiver.memory()[0] <= BUFFER);
            }
        });
        assert!(measured.bytes_max <= BUFFER as u64 + (1 << 20), "{what}: {}", measured.bytes_max);
    }
}

#[test]
fn a_piece_that_states_another_length_changes_nothing() {
    let mut receiver = Receiver::new(ReceiverConfig::new(STREAM, MAX_PACKET), origin());
    let mut records = Vec::new();
    for packet in [
        piece(7, 7, 300, 0, 100),
        piece(8, 7, 60_000, 59_900, 100),
        piece(9, 7, 200, 100, 100),
        piece(10, 7, 300, 100, 100),
        piece(11, 7, 300, 200, 100),
    ] {
        receiver.handle_packet(&packet, origin(), &mut |record| records.push(record.to_vec())).unwrap();
    }
    assert_eq!((records, receiver.stats().contradictions), (vec![vec![7; 300]], 2));
}

/// A record is given up for want of room: what comes of it later is dropped, and counted.
#[test]
fn a_piece_of_a_record_given_up_is_counted() {
    let config = ReceiverConfig { join_buffer: 16 << 10, ..ReceiverConfig::new(STREAM, MAX_PACKET) };
    let mut receiver = Receiver::new(config, origin());
    let mut records = Vec::new();
    for packet in [
        piece(7, 7, 9000, 0, 100),
        piece(8, 8, 9000, 0, 100),
        piece(9, 7, 9000, 100, 8900),
        piece(10, 8, 9000, 100, 8900),
    ] {
        receiver.handle_packet(&packet, origin(), &mut |record| records.push(record.to_vec())).unwrap();
    }
    let stats = receiver.stats();
    assert_eq!((stats.records_abandoned, stats.late_pieces), (1, 1));
    assert_eq!(records, [vec![8; 9000]]);
}
