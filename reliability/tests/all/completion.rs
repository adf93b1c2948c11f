//! How well the schemes do: repairs, parity, reports and virtual time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::world::{Loss, MS, Path, Setup, US, World};
use reliability::stream::{Kind, Scheme, Sender, classify};

/// When the last of `bulk`'s bytes can be there at best: 12402 packets of 1400 bytes and 66 of
/// overhead at 1 Gbit/s, and 10 ms.
const IDEAL: Duration = Duration::from_micros(155_400);

/// 16 MiB in 4 KiB records at 1 Gbit/s over 10 ms each way, all there at once.
fn bulk(scheme: Scheme, forward: Path) -> World {
    let setup = Setup {
        forward,
        backward: Path::clean(10 * MS),
        rtt_hint: 20 * MS,
        window: 8192,
        ..Setup::new(1, scheme)
    };
    let mut world = setup.build();
    world.load(4096, 4096..=4096, Duration::ZERO).run().all_delivered();
    world
}

fn lossy(p: f64) -> Path {
    Path::lossy(10 * MS, p)
}

fn is(packet: &[u8], kind: Kind) -> bool {
    classify(packet).unwrap().0 == kind
}

/// Packets of the first transmission that did not arrive.
fn lost(world: &World) -> u64 {
    let (sent, got) = (world.sender.stats(), world.receiver.stats());
    sent.data_packets - (got.data_packets - got.repaired)
}

#[test]
fn a_clean_link_is_used_to_the_full_with_few_reports() {
    let world = bulk(Scheme::sr(), lossy(0.0));
    assert!(world.completed < IDEAL + MS, "{:?}", world.completed);
    assert!(world.report_packets * 100 < world.packets, "{} for {}", world.report_packets, world.packets);
}

#[test]
fn selective_repeat_repairs_each_loss_about_once() {
    let world = bulk(Scheme::sr(), lossy(0.01));
    let (lost, stats) = (lost(&world), world.sender.stats());
    assert!(lost > 80 && stats.repairs <= lost + lost / 20 + 2, "{stats:?}");
    assert_eq!((stats.spurious_repairs, stats.rto_firings, stats.probes), (0, 0, 0));
    // A round trip for the repair of a loss at the end, one more for the loss of that repair.
    assert!(world.completed < IDEAL + 46 * MS, "{:?}", world.completed);
    assert!(world.report_packets * 50 < world.packets, "{} for {}", world.report_packets, world.packets);
}

#[test]
fn reports_stay_few_under_heavy_loss() {
    let world = bulk(Scheme::sr(), lossy(0.1));
    assert!(world.report_packets * 25 < world.packets, "{} for {}", world.report_packets, world.packets);
}

#[test]
fn reed_solomon_needs_almost_no_repairs_and_no_round_trip() {
    let world = bulk(Scheme::mds(32, 8), lossy(0.01));
    let (sent, got) = (world.sender.stats(), world.receiver.stats());
    assert!(sent.repairs <= 1, "{sent:?}");
    assert_eq!(got.decoded + sent.repairs, lost(&world));
    assert_eq!(
        (sent.data_packets % 32, sent.parity_packets),
        (0, sent.data_packets / 32 * 8),
        "three packets to a record fill the last block"
    );
    // A quarter more packets, and not a round trip more.
    assert!(world.completed < (IDEAL - 10 * MS).mul_f64(1.25) + 12 * MS, "{:?}", world.completed);
}

#[test]
fn xor_repairs_most_of_what_is_lost() {
    let world = bulk(Scheme::xor(32, 8), lossy(0.01));
    let (sent, got) = (world.sender.stats(), world.receiver.stats());
    assert!(got.decoded > 8 * sent.repairs, "{sent:?} {got:?}");
}

#[test]
fn a_block_that_falls_short_asks_for_no_more_than_it_lacks() {
    let world = bulk(Scheme::mds(32, 2), lossy(0.05));
    let (sent, got, lost) = (world.sender.stats(), world.receiver.stats(), lost(&world));
    assert_eq!(got.decoded + got.repaired, lost);
    // Without the parity's help each loss is a repair; with it, the blocks with up to two losses
    // need none, and others two less.
    assert!(got.repaired * 10 < lost * 5, "{sent:?} {got:?} {lost}");
    assert!(sent.spurious_repairs * 50 <= sent.repairs, "{sent:?}");
}

#[test]
fn interleaving_bears_bursts() {
    fn burst(_: &[u8], order: u64) -> bool {
        order % 1000 < 20
    }
    let run = |scheme| {
        let setup = Setup { window: 8192, ..Setup::new(1, scheme) };
        let mut world = setup.build();
        world.drop_forward(burst).load(2048, 4096..=4096, Duration::ZERO).run().all_delivered();
        world.sender.stats().repairs
    };
    assert_eq!(run(Scheme::Mds { k: 16, m: 4, depth: 5 }), 0);
    assert!(run(Scheme::mds(16, 4)) > 20);
}

#[test]
fn a_lost_tail_costs_a_timeout_without_parity_and_nothing_with_it() {
    fn first_data(packet: &[u8], order: u64) -> bool {
        order == 1 && is(packet, Kind::Data)
    }
    let run = |scheme| {
        let setup = Setup {
            forward: Path::clean(10 * MS),
            backward: Path::clean(10 * MS),
            rtt_hint: 20 * MS,
            ..Setup::new(1, scheme)
        };
        let mut world = setup.build();
        world.drop_forward(first_data).load(1, 500..=500, Duration::ZERO).run().all_delivered();
        world.completed
    };
    let sr = run(Scheme::sr());
    assert!(sr > 40 * MS && sr < 100 * MS, "{sr:?}");
    let mds = run(Scheme::mds(32, 8));
    assert!(mds < 11 * MS, "{mds:?}");
    let xor = run(Scheme::xor(32, 8));
    assert!(xor < 11 * MS, "{xor:?}");
}

#[test]
fn a_last_block_without_its_parity_is_asked_for_before_the_timeout() {
    fn third_and_parity(packet: &[u8], order: u64) -> bool {
        is(packet, Kind::Parity) || (is(packet, Kind::Data) && order == 5)
    }
    let path = Path::clean(10 * MS);
    let setup =
        Setup { forward: path, backward: path, rtt_hint: 20 * MS, ..Setup::new(1, Scheme::mds(32, 8)) };
    let mut world = setup.build();
    world.drop_forward(third_and_parity);
    world.load(1, 10_000..=10_000, Duration::ZERO).run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.repairs, stats.rto_firings, stats.probes), (1, 0, 0), "{stats:?}");
    // There, 6 ms of silence, back, and there again.
    assert!(world.completed > 36 * MS && world.completed < 40 * MS, "{:?}", world.completed);
}

#[test]
fn a_lost_repair_is_repaired_again_after_a_round_trip() {
    // The 100th packet and the first three repairs.
    fn stubborn(packet: &[u8], _: u64) -> bool {
        is(packet, Kind::Data) && packet[7..11] == 100_u32.to_be_bytes() && {
            use std::sync::atomic::{AtomicU32, Ordering};
            static TIMES: AtomicU32 = AtomicU32::new(0);
            TIMES.fetch_add(1, Ordering::Relaxed) < 4
        }
    }
    let setup = Setup { window: 16384, ..Setup::new(1, Scheme::sr()) };
    let mut world = setup.build();
    world.drop_forward(stubborn).load(4096, 4096..=4096, Duration::ZERO).run().all_delivered();
    let stats = world.sender.stats();
    assert_eq!((stats.repairs, stats.rto_firings, stats.spurious_repairs), (4, 0, 0), "{stats:?}");
}

#[test]
fn the_end_of_a_transfer_is_reported_at_once() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8)] {
        let mut world = Setup::new(1, scheme).build();
        // 400 packets at 11.7 us each, so that reports by number of packets have gone shortly
        // before the end.
        world.load(400, 1300..=1300, Duration::ZERO);
        let known = Rc::new(Cell::new(None));
        let idle_since = known.clone();
        world.hook = Some(Box::new(move |sender, now| {
            let since = idle_since.get().unwrap_or(now);
            idle_since.set(sender.is_idle().then_some(since));
        }));
        world.run().all_delivered();
        let report = known.get().unwrap() - world.completed;
        assert!(
            report < 5 * MS + 250 * US,
            "{scheme:?}: {report:?} after the last delivery, 5 ms of it on the way"
        );
    }
}

#[test]
fn the_sender_tells_which_packets_are_acknowledged() {
    fn tenth(packet: &[u8], order: u64) -> bool {
        order < 100 && is(packet, Kind::Data) && packet[7..11] == 10_u32.to_be_bytes()
    }
    let mut world = Setup::new(1, Scheme::sr()).build();
    assert_eq!(world.sender.last_packet(), None);
    // 100 records of one packet each; the 10th is lost, and its repair comes after two round trips
    // of 10 ms.
    world.drop_forward(tenth).load(100, 1300..=1300, Duration::ZERO).run_until(16 * MS);
    let sender = &world.sender;
    assert_eq!(sender.last_packet(), Some(99));
    assert_eq!(sender.first_unacknowledged(0, 100), Some(10));
    assert_eq!(sender.first_unacknowledged(11, 100), None);
    assert_eq!(sender.first_unacknowledged(50, 1_000_000), Some(100), "what was not sent yet");
    assert_eq!(sender.first_unacknowledged(10, 10), None);
    world.run().all_delivered();
    assert_eq!((world.sender.last_packet(), world.sender.first_unacknowledged(0, 100)), (Some(99), None));
}

#[test]
fn lost_reports_cost_little() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::hybrid(32, 8)] {
        let setup = Setup { backward: lossy(0.5), ..Setup::new(3, scheme) };
        let mut world = setup.build();
        world.load(2048, 4096..=4096, Duration::ZERO).run().all_delivered();
        let stats = world.sender.stats();
        assert!(stats.repairs * 100 < stats.data_packets, "{stats:?}");
    }
}

#[test]
fn a_blackout_is_probed_sparingly_and_survived() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::xor(16, 4), Scheme::hybrid(32, 8)] {
        let mut world = Setup { window: 2000, ..Setup::new(5, scheme) }.build();
        world.load(2048, 4096..=4096, Duration::ZERO).run_until(20 * MS);
        world.set_paths(Path::lossy(5 * MS, 1.0), Path::lossy(5 * MS, 1.0));
        world.run_until(5000 * MS);
        let stats = world.sender.stats();
        assert!((5..20).contains(&stats.probes), "{stats:?}");
        assert!(stats.repairs < 150, "{stats:?}");
        world.set_paths(Path::lossy(5 * MS, 0.01), Path::clean(5 * MS));
        world.run().all_delivered();
        assert!(world.completed < 9000 * MS, "{:?}", world.completed);
    }
}

#[test]
fn a_probe_has_a_copy_more_each_time() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::hybrid(32, 8)] {
        let mut world = Setup::new(7, scheme).build();
        world.set_paths(Path::lossy(5 * MS, 1.0), Path::lossy(5 * MS, 1.0));
        world.load(1, 4096..=4096, Duration::ZERO).run_until(5000 * MS);
        let stats = world.sender.stats();
        assert!(stats.probes >= 3, "{stats:?}");
        assert_eq!(stats.copies, 3 * stats.probes - 3, "1, 2, 3, 3, ...: {stats:?}");
    }
}

#[test]
fn the_scheme_may_change_at_any_time() {
    for seed in 0..4 {
        let path = Path { reorder: (0.05, MS), ..lossy(0.03) };
        let setup = Setup { forward: path, backward: path, ..Setup::new(seed, Scheme::sr()) };
        let mut world = setup.build();
        let schemes = [
            Scheme::mds(32, 8),
            Scheme::sr(),
            Scheme::Xor { k: 10, m: 3, depth: 3 },
            Scheme::Mds { k: 5, m: 3, depth: 8 },
            Scheme::xor(7, 7),
            Scheme::hybrid(32, 8),
            Scheme::mds(254, 1),
            Scheme::Hybrid { k: 9, m: 2, depth: 4 },
        ];
        let mut turn = 0;
        world.hook = Some(Box::new(move |sender, now| {
            let next = (now.as_micros() / 1300) as usize;
            if next != turn {
                turn = next;
                sender.set_flush([100 * US, MS][turn / schemes.len() % 2]);
                sender.set_scheme(schemes[turn % schemes.len()]);
            }
        }));
        world.load(1500, 8..=8000, 30 * US).run().all_delivered();
        assert!(world.receiver.stats().decoded > 20);
    }
}

#[test]
fn a_block_is_closed_at_once_when_nothing_more_is_known_to_come() {
    for (expected, short_blocks) in [(0, 1), (1, 0)] {
        let rtt_hint = 64 * MS;
        let setup = Setup { flush: 20 * MS, rtt_hint, ..Setup::new(1, Scheme::mds(8, 2)) };
        let mut world = setup.build();
        world.sender.expect(expected);
        world.load(3, 1000..=1000, 500 * US).run_until(MS * 3 / 2);
        assert_eq!(
            world.sender.stats().short_blocks,
            0,
            "the third came less than a 64th of a round trip ago"
        );
        world.run_until(5 * MS);
        assert_eq!(world.sender.stats().short_blocks, short_blocks, "{expected} bytes expected");
        world.run().all_delivered();
        assert_eq!(world.sender.stats().short_blocks, 1, "after its flush time at the latest");
    }
}

/// Records that wait for the window are known to come.
#[test]
fn a_block_is_not_closed_at_once_while_more_waits() {
    let setup = Setup { window: 300, flush: 20 * MS, ..Setup::new(1, Scheme::mds(64, 2)) };
    let mut world = setup.build();
    world.load(6400, 1300..=1300, Duration::ZERO).run().all_delivered();
    assert_eq!(world.sender.stats().data_packets % 64, 0);
    assert_eq!(world.sender.stats().short_blocks, 0);
}

#[test]
fn the_flush_deadline_may_change_at_any_time() {
    // Three records and then nothing: the block is closed by the deadline that it was begun with.
    let setup = Setup { flush: 2 * MS, ..Setup::new(1, Scheme::mds(8, 2)) };
    let mut world = setup.build();
    world.sender.expect(1);
    world.hook = Some(Box::new(|sender, now| {
        sender.set_flush(if now < MS { 2 * MS } else { 20 * MS });
    }));
    world.load(3, 1000..=1000, Duration::ZERO).run_until(MS);
    assert_eq!((world.sender.stats().data_packets, world.sender.stats().parity_packets), (3, 0));
    world.run_until(3 * MS);
    assert_eq!(world.sender.stats().short_blocks, 1, "as it was begun");
    world.load(3, 1000..=1000, Duration::ZERO).run_until(12 * MS);
    assert_eq!((world.sender.stats().data_packets, world.sender.stats().short_blocks), (6, 1));
    world.run().all_delivered();
    assert_eq!(world.sender.stats().short_blocks, 2);
}

#[test]
fn limits_may_change_at_any_time() {
    let mut world = Setup::new(1, Scheme::sr()).build();
    let (start, record) = (world.start, [0; 1000]);
    let pushed = |sender: &mut Sender| (0..).take_while(|_| sender.push(&[&record], start).is_ok()).count();
    world.sender.set_limits(10_000, 1 << 20);
    let few = pushed(&mut world.sender);
    assert!((9..=10).contains(&few), "{few}");
    world.sender.set_limits(100_000, 1 << 20);
    let more = pushed(&mut world.sender);
    assert!((85..=90).contains(&more), "{more}");
    world.sender.set_limits(100, 100);
    assert_eq!(pushed(&mut world.sender), 0);
    assert!(world.sender.backlog() > 90_000, "what was taken stays");
}

#[test]
fn unrepaired_stretches_disturb_nothing() {
    for seed in 0..4 {
        let setup = Setup { forward: lossy(0.03), backward: lossy(0.03), ..Setup::new(seed, Scheme::sr()) };
        let mut world = setup.build();
        world.hook = Some(Box::new(|sender, now| {
            let scheme = [Scheme::sr(), Scheme::None, Scheme::mds(8, 2)][(now.as_millis() / 10 % 3) as usize];
            if sender.scheme() != scheme {
                sender.set_scheme(scheme);
            }
        }));
        world.load(1000, 8..=4000, 30 * US).run();
        assert!(world.delivered() > 900, "{}", world.delivered());
    }
}

#[test]
fn a_receiver_with_less_room_slows_the_sender_down() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::hybrid(32, 8)] {
        let mut world = Setup { receiver_window: Some(200), ..Setup::new(2, scheme) }.build();
        world.load(500, 4096..=4096, Duration::ZERO).run().all_delivered();
        let (sent, got) = (world.sender.stats(), world.receiver.stats());
        // Only what was sent before the first report can have been too much.
        assert!(got.beyond_window < 1200, "{got:?}");
        assert!(sent.repairs <= got.beyond_window + 50, "{sent:?} {got:?}");
    }
}

#[test]
fn too_little_room_for_copies_costs_repairs_only() {
    let setup = Setup {
        forward: lossy(0.2),
        decode_buffer: 100_000,
        ..Setup::new(4, Scheme::Mds { k: 32, m: 4, depth: 2 })
    };
    let mut world = setup.build();
    world.load(1000, 4096..=4096, Duration::ZERO).run().all_delivered();
    let got = world.receiver.stats();
    assert!(got.blocks_given_up > 10 && got.repaired > 100, "{got:?}");
}

#[test]
fn bursty_loss_of_everything_at_a_time_ends_well() {
    let loss = Loss::Bursts { enter: 0.002, leave: 0.01, loss: 1.0 };
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::xor(32, 8), Scheme::hybrid(32, 8)] {
        let world = bulk(scheme, Path { loss, ..lossy(0.0) });
        let stats = world.sender.stats();
        let repairs = stats.repairs - stats.copies;
        assert!(repairs <= lost(&world) * 5 / 4 + 50, "{stats:?} {}", lost(&world));
    }
}

#[test]
fn a_jittery_path_is_not_taken_for_a_lossy_one() {
    let path = Path { reorder: (0.5, 3 * MS), ..Path::clean(10 * MS) };
    let setup = Setup {
        forward: path,
        backward: path,
        rtt_hint: 20 * MS,
        reorder_time: 3 * MS,
        ..Setup::new(6, Scheme::sr())
    };
    let mut world = setup.build();
    world.load(1000, 4096..=4096, Duration::ZERO).run().all_delivered();
    assert_eq!(world.sender.stats().repairs, 0);
}

#[test]
fn a_receiver_told_of_jitter_waits_for_it() {
    let path = Path { reorder: (0.5, 3 * MS), ..Path::clean(10 * MS) };
    let repairs = |told: Option<Duration>| {
        let setup = Setup { forward: path, backward: path, rtt_hint: 20 * MS, ..Setup::new(6, Scheme::sr()) };
        let mut world = setup.build();
        if let Some(time) = told {
            world.receiver.set_reorder_time(time);
        }
        world.load(1000, 4096..=4096, Duration::ZERO).run().all_delivered();
        world.sender.stats().repairs
    };
    assert_eq!(repairs(Some(3 * MS)), 0);
    assert!(repairs(None) > 100);
}
