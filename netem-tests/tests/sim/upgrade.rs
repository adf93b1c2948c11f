//! Gateways whose place other processes take, with their snapshots.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netem_tests::host::QpConfig;
use netem_tests::sim::{Atomics, Connection, Fault, Op, Scenario, Work, World};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::wire::Psn;
use snapshot::{Beside, HEADER, OLDEST, SEGMENT, Segment, Written, seal};
use splice::{Copying, Gateway, Settings};

use super::{are_seeds_named, clean, play_all};

/// Contents are right, nothing runs twice, and every snapshot is written alike by whoever has read
/// it: the world checks that. Where nothing else goes wrong, no operation fails.
#[test]
fn gateways_are_upgraded_and_no_flow_ends() {
    #[derive(Debug, Default)]
    struct Seen {
        upgraded: u64,
        benign: u64,
        upgraded_benign: u64,
        resumed: u64,
        succeeded: u64,
        atomics: Atomics,
        longest: Duration,
    }
    let seen = Mutex::new(Seen::default());
    let test = "gateways_are_upgraded_and_no_flow_ends";
    play_all(test, 120, Scenario::draw_with_upgrades, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.upgraded += report.upgraded;
        seen.resumed += report.resumed;
        seen.succeeded += report.succeeded;
        seen.atomics += report.atomics;
        if report.benign {
            seen.benign += 1;
            seen.upgraded_benign += report.upgraded;
            let longest = report.times.iter().max().copied().unwrap_or_default();
            seen.longest = seen.longest.max(longest.saturating_sub(report.outage));
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let has_happened = [seen.upgraded_benign, seen.resumed, seen.atomics.executed].iter().all(|n| *n > 0);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}

/// The settings of the gateways whose snapshots are kept.
fn kept_settings() -> Settings {
    Settings { total_buffer: 4 << 20, flows: 100, ..Settings::new(Vec::new(), 10_000_000, 1400) }
}

/// A gateway in the midst of everything: flows of either half that wait, streams with packets
/// unacknowledged, records that lack pieces.
fn busy_gateway() -> Vec<u8> {
    let ops = [Op::Write(5000, None), Op::Send(300, Some(7)), Op::Read(3000), Op::FetchAdd(1)];
    let work = Work { ops: ops.repeat(30), depth: 4, ..Work::default() };
    let mut scenario = clean(&[work.clone(), work], Duration::ZERO, 1);
    scenario.settings = kept_settings();
    scenario.wan = ["delay 10ms loss 5% rate 12mbit".parse().unwrap(); 2];
    let connection = |number: u32| {
        let mut connection = Connection { qp: QpConfig::default(), ..scenario.connections[0].clone() };
        connection.lives[0].psn = [Psn::new(number << 12), Psn::new(0xff_fff0)];
        connection
    };
    scenario.connections = (1..=4).map(connection).collect();
    let mut world = World::new(scenario).unwrap();
    while world.elapsed() < Duration::from_millis(600) {
        assert!(world.step().unwrap(), "over too soon");
    }
    world.snapshot(0).unwrap().unwrap()
}

/// Files of earlier versions are read as they were meant. If the state changes, the version
/// rises with it (`snapshot::VERSION`), and the file of the version before stays here.
#[test]
fn a_snapshot_of_version_1_is_read_and_written_alike() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/snapshots/1");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&file, busy_gateway()).unwrap();
    }
    let kept = std::fs::read(&file).unwrap();
    let now = Instant::now();
    let mut gateway = Gateway::restore(kept_settings(), &kept, now).unwrap();
    assert!(gateway.is_parked());
    assert!(gateway.snapshot(now).unwrap() == kept, "written otherwise than it was read");
    let waiting: usize = gateway.classes().map(|class| class.backlog + class.in_flight).sum();
    let stats = gateway.stats();
    assert_eq!((stats.near_flows, stats.far_flows), (4, 4));
    assert!(
        stats.buffers > 0 && stats.requests > 0 && stats.paired > 0 && waiting > 0,
        "{stats:?} {waiting}"
    );
}

/// The same with packets in memory beside it, of which some were copied ahead.
#[test]
fn a_snapshot_of_version_2_is_read_as_that_of_version_1() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/snapshots");
    let (file, beside) = (folder.join("2"), folder.join("2-packets"));
    let earlier = std::fs::read(folder.join("1")).unwrap();
    let now = Instant::now();
    let mut gateway = Gateway::restore(kept_settings(), &earlier, now).unwrap();
    let mut memory = Beside::new(Box::new(vec![0; SEGMENT]), Box::new(vec![0; 1 << 20]));
    let mut at = Copying::default();
    while memory.used() < 5000 {
        assert!(!gateway.copy_ahead(&mut at, &mut memory, 1000), "there is more");
    }
    let ahead = memory.used();
    let (written, memory) = gateway.snapshot_beside(now, memory);
    let (Written::There(len), Some(memory)) = (written.unwrap(), memory) else { panic!("it has room") };
    let used = memory.used();
    let (mut packets, state) = memory.into_memory();
    let (packets, mut state) = ((*packets).as_mut(), state.unwrap());
    let state = &(*state).as_mut()[..len];
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&file, state).unwrap();
        std::fs::write(&beside, &packets[..used]).unwrap();
    }
    let (kept, memory) = (std::fs::read(&file).unwrap(), std::fs::read(&beside).unwrap());
    assert!(state == kept && packets[..used] == memory, "written otherwise than it was");
    assert!(ahead < used && used + len < earlier.len() + earlier.len() / 10, "{ahead} {used} {len}");
    let segments = [Arc::new(Segment::new(Box::new(memory)))];
    let mut gateway = Gateway::restore_beside(kept_settings(), &kept, &segments, now).unwrap();
    assert!(gateway.snapshot(now).unwrap() == earlier, "read otherwise than it was meant");
    // Without the packets, or with some of them, it is none.
    let less = [Arc::new(Segment::new(Box::new(vec![0; used - 100])))];
    for segments in [&[][..], &less[..]] {
        let refused = Gateway::restore_beside(kept_settings(), &kept, segments, now).err().unwrap();
        assert!(refused.to_string().contains("content"), "{refused}");
    }
}

/// A gateway with a flow that has failed, since the target's host vanished. That has left READs and
/// atomics without an answer.
fn owing_gateway() -> Vec<u8> {
    let work = Work { ops: [Op::Read(3000), Op::FetchAdd(1)].repeat(30), depth: 8, ..Work::default() };
    let mut scenario = clean(&[work, Work::default()], Duration::from_millis(100), 1);
    scenario.settings = Settings { target_dead: Duration::from_secs(1), ..kept_settings() };
    scenario.faults = vec![(Duration::from_millis(320), Fault::Silence { site: 1, host: 0, time: None })];
    let mut world = World::new(scenario).unwrap();
    while world.elapsed() < Duration::from_secs(3) {
        assert!(world.step().unwrap(), "over too soon");
    }
    world.snapshot(0).unwrap().unwrap()
}

#[test]
fn a_snapshot_of_a_flow_that_owes_answers_is_read_and_written_alike() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/snapshots/1-owing");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&file, owing_gateway()).unwrap();
    }
    let kept = std::fs::read(&file).unwrap();
    let now = Instant::now();
    let mut gateway = Gateway::restore(kept_settings(), &kept, now).unwrap();
    assert!(gateway.snapshot(now).unwrap() == kept, "written otherwise than it was read");
    assert_eq!((gateway.owing_flows(), gateway.stats().near_flows), (1, 1));
}

#[test]
fn a_snapshot_that_does_not_fit_is_refused_by_name() {
    let now = Instant::now();
    let snapshot = busy_gateway();
    let refusal = |settings: Settings, snapshot: &[u8]| {
        Gateway::restore(settings, snapshot, now).err().map(|refused| refused.to_string())
    };
    assert_eq!(refusal(kept_settings(), &snapshot), None);
    let other = |name: &str| Some(format!("`{name}` is another one here: that takes a restart"));
    let settings = kept_settings();
    let flows = Settings { flows: 99, ..kept_settings() };
    let lanes = Settings { lanes: 2, ..kept_settings() };
    let rate = Settings { rate: settings.rate + 1, ..settings };
    assert_eq!(refusal(flows, &snapshot), other("limits.flows"));
    assert_eq!(refusal(lanes, &snapshot), other("wan.lanes"));
    assert_eq!(refusal(rate, &snapshot), other("peer.rate"));
    // Whatever changes on the way.
    for place in (0..snapshot.len()).step_by(101) {
        let mut changed = snapshot.clone();
        changed[place] ^= 1;
        assert!(refusal(kept_settings(), &changed).is_some(), "byte {place}");
    }
}

/// Whatever stands behind a header that is right, it is read or refused. A seed that fails is the
/// last that is printed.
#[test]
fn any_state_is_read_or_refused() {
    let snapshot = busy_gateway();
    let now = Instant::now();
    let (mut read, mut refused) = (0, 0);
    for seed in 0..2000 {
        println!("seed {seed}");
        let mut dice = Pcg64Mcg::seed_from_u64(seed);
        let mut changed = snapshot.clone();
        for _ in 0..dice.random_range(1..4) {
            // Where counts and numbers stand rather than contents, mostly.
            let most = if dice.random_bool(0.5) { 4000 } else { changed.len() - HEADER };
            let place = HEADER + dice.random_range(0..most);
            changed[place] = if dice.random_bool(0.3) { 0xff } else { dice.random() };
        }
        if dice.random_bool(0.1) {
            changed.truncate(dice.random_range(HEADER..changed.len()));
        }
        seal(&mut changed, OLDEST);
        match Gateway::restore(kept_settings(), &changed, now) {
            Ok(mut gateway) => {
                assert!(gateway.snapshot(now).is_ok(), "what was read can be written");
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 0 && refused > 0, "{read} {refused}");
}
