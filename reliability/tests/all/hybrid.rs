//! The parity of `hybrid`: what it adds and where, and how it repairs. `envelope.rs` has its
//! completion times.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::world::{MS, Path, Setup, US, World};
use reliability::stream::{Kind, Scheme, classify};

const HYBRID: Scheme = Scheme::hybrid(32, 8);

/// 10 ms each way at 1 Gbit/s: 1786 packets of 1400 bytes are on their way. A repair takes 27 ms,
/// the time of 2410 packets, or of 1928 with their parity.
fn setup(scheme: Scheme) -> Setup {
    let path = Path::clean(10 * MS);
    Setup { forward: path, backward: path, rtt_hint: 20 * MS, window: 16384, ..Setup::new(1, scheme) }
}

/// 16 MiB in 4 KiB records, 12396 packets, the sender knowing from the start how many are to come.
fn bulk(scheme: Scheme, forward: Path) -> World {
    let mut world = Setup { forward, ..setup(scheme) }.build();
    world.announce = true;
    world.load(4096, 4096..=4096, Duration::ZERO);
    world
}

/// When the last of `bulk`'s bytes can be there at best.
const IDEAL: Duration = Duration::from_micros(155_400);

fn is(packet: &[u8], kind: Kind) -> bool {
    classify(packet).unwrap().0 == kind
}

fn is_repair(packet: &[u8]) -> bool {
    packet[0] & 0x20 != 0
}

fn sequence(packet: &[u8]) -> u64 {
    u32::from_be_bytes(packet[7..11].try_into().unwrap()).into()
}

#[test]
fn a_long_transfer_has_parity_for_its_last_round_trip_only() {
    let mut world = bulk(HYBRID, Path::clean(10 * MS));
    world.run().all_delivered();
    let stats = world.sender.stats();
    // Three to a record; 12194 if all were filled.
    assert_eq!(stats.data_packets, 12288);
    let blocks = stats.parity_packets / 8;
    assert!((1928 / 32 - 1..=1928 / 32 + 3).contains(&blocks), "{stats:?}");
    assert!(world.completed < IDEAL + 8 * MS, "{:?}", world.completed);
}

#[test]
fn the_parity_follows_the_drop_rate() {
    let parities = |drop| {
        let mut world = bulk(HYBRID, Path::clean(10 * MS));
        world.sender.set_drop(drop);
        world.run().all_delivered();
        world.sender.stats().parity_packets
    };
    let [none, one, two, all] = [1e-8, 1e-6, 1e-3, f64::NAN].map(parities);
    assert_eq!(none, 0);
    assert!((70..=80).contains(&one), "{one} for 2410 packets");
    assert!(two > one * 3 / 2 && two < one * 5 / 2 && all > 6 * one, "{one} {two} {all}");
}

/// A packet sent before the tail was known to be none is described as coded, but gets no parity,
/// and is repaired by itself.
#[test]
fn a_group_after_which_more_turned_up_gets_no_parity() {
    fn second(packet: &[u8], _: u64) -> bool {
        sequence(packet) == 1 && is(packet, Kind::Data) && !is_repair(packet)
    }
    let mut world = setup(HYBRID).build();
    world.drop_forward(second);
    world.announce = true;
    world.hook = Some(Box::new(|sender, now| {
        if now == Duration::ZERO {
            sender.expect(0); // The first packets are sent without a word of what follows.
        }
    }));
    world.load(1, 4000..=4000, Duration::ZERO).run_until(Duration::ZERO);
    world.hook = None;
    world.load(4096, 4096..=4096, Duration::ZERO).run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.repairs - stats.copies, stats.further_parities), (1, 0), "{stats:?}");
    assert!(world.completed < IDEAL + 8 * MS, "{:?}", world.completed);
}

/// Data packets 3, 9, 15 and 21 of one block of 32 with two parities.
fn four_of_a_block(packet: &[u8]) -> bool {
    is(packet, Kind::Data) && !is_repair(packet) && [3, 9, 15, 21].contains(&sequence(packet))
}

/// One block of 32 packets, and nothing after it.
fn one_block(drop: fn(&[u8], u64) -> bool) -> World {
    let mut world = setup(Scheme::hybrid(32, 2)).build();
    world.drop_forward(drop);
    world.load(1, 32 * 1350..=32 * 1350, Duration::ZERO).run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.data_packets, stats.repairs, stats.rto_firings), (32, 0, 0), "{stats:?}");
    // There, 6 ms of silence, back, and there again.
    assert!(world.completed > 36 * MS && world.completed < 39 * MS, "{:?}", world.completed);
    world
}

#[test]
fn a_block_that_falls_short_gets_further_parity() {
    let world = one_block(|packet, _| four_of_a_block(packet));
    let (sent, got) = (world.sender.stats(), world.receiver.stats());
    assert_eq!(got.decoded, 4);
    assert!((2..=4).contains(&sent.further_parities), "{sent:?}");
}

#[test]
fn the_loss_of_a_further_parity_is_covered() {
    let world = one_block(|packet, _| {
        static FURTHER: AtomicU32 = AtomicU32::new(0);
        let further = is(packet, Kind::Parity) && is_repair(packet);
        four_of_a_block(packet) || (further && FURTHER.fetch_add(1, Relaxed) == 0)
    });
    assert_eq!(world.receiver.stats().decoded, 4);
}

/// All that can be made of a block, and then the packets themselves.
#[test]
fn a_block_without_parity_left_is_repaired_packet_by_packet() {
    let mut world = setup(Scheme::hybrid(250, 2)).build();
    world.drop_forward(|packet, order| {
        (is(packet, Kind::Data) && order <= 20) || (is(packet, Kind::Parity) && is_repair(packet))
    });
    world.load(1, 60_000..=60_000, Duration::ZERO).run().all_delivered();
    let stats = world.sender.stats();
    assert!(stats.further_parities == 3 && stats.repairs >= 18, "{stats:?}");
}

/// The packet was sent before the tail, its repair in it.
#[test]
fn a_repair_that_is_lost_in_the_tail_costs_no_round_trip() {
    let mut world = bulk(HYBRID, Path::clean(10 * MS));
    world.drop_forward(|packet, _| {
        static TIMES: AtomicU32 = AtomicU32::new(0);
        is(packet, Kind::Data) && sequence(packet) == 9500 && TIMES.fetch_add(1, Relaxed) < 2
    });
    world.run().all_delivered();
    let stats = world.sender.stats();
    assert!((1..=3).contains(&stats.copies) && stats.repairs == 1 + stats.copies, "{stats:?}");
    assert!(world.completed < IDEAL + 8 * MS, "{:?}", world.completed);
}

#[test]
fn a_repair_before_the_tail_is_sent_once() {
    let mut world = bulk(HYBRID, Path::clean(10 * MS));
    world.drop_forward(|packet, _| {
        is(packet, Kind::Data)
            && !is_repair(packet)
            && sequence(packet).is_multiple_of(1000)
            && sequence(packet) < 7000
    });
    world.run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.repairs, stats.copies), (7, 0), "{stats:?}");
}

/// The receiver says that it cannot decode, rather than being sent parity for ever.
#[test]
fn blocks_given_up_by_the_receiver_are_repaired_packet_by_packet() {
    for decode_buffer in [0, 100_000] {
        let forward = Path::lossy(10 * MS, 0.2);
        let mut world =
            Setup { forward, decode_buffer, ..setup(Scheme::Hybrid { k: 32, m: 4, depth: 2 }) }.build();
        world.load(300, 4096..=4096, Duration::ZERO).run().all_delivered();
        let got = world.receiver.stats();
        assert!(got.blocks_given_up > 10 && got.repaired > 50, "{got:?}");
    }
}

#[test]
fn a_block_that_arrived_before_it_was_closed_gets_no_parity() {
    let path = Path::clean(20 * US);
    let setup = Setup { forward: path, backward: path, rtt_hint: 40 * US, flush: 20 * MS, ..setup(HYBRID) };
    let mut world = setup.build();
    world.load(100, 500..=5000, 5 * MS).run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.parity_packets, stats.repairs), (0, 0), "{stats:?}");
}

/// A burst as long as a block and its parity.
#[test]
fn known_bursts_are_borne_by_interleaving() {
    fn burst(_: &[u8], order: u64) -> bool {
        order % 2000 < 40
    }
    let run = |mean_run| {
        let mut world = setup(HYBRID).build();
        world.drop_forward(burst);
        world.sender.set_drop(0.02);
        world.sender.set_burst(mean_run);
        world.load(300, 4096..=4096, Duration::ZERO).run().all_delivered();
        let stats = world.sender.stats();
        stats.repairs + stats.further_parities
    };
    assert_eq!(run(10.0), 0);
    assert!(run(1.0) > 20);
}

/// Short transfers again and again: each is a tail of its own.
#[test]
fn every_short_transfer_is_protected() {
    let mut world = Setup { forward: Path::lossy(10 * MS, 0.05), ..setup(HYBRID) }.build();
    world.sender.set_drop(0.05);
    world.load(200, 3000..=20_000, 100 * MS).run().all_delivered();
    let (sent, got) = (world.sender.stats(), world.receiver.stats());
    assert!(got.decoded > 50 && sent.rto_firings + got.repaired <= 2, "{sent:?} {got:?}");
}
