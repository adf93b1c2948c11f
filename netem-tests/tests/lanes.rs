//! Several lanes to one peer: what dies or becomes worse is left in time, and no operation fails of
//! it. The worlds check contents.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

use std::path::Path;
use std::time::Duration;

use config::Policy;
use linksim::impair::{LinkSpec, LinkStats};
use netem_tests::host::QpConfig;
use netem_tests::sim::{Connection, Fault, Life, Op, Report, Scenario, Work, World};
use reliability::lanes::Cause;
use roce::wire::Psn;
use splice::{PathStats, Settings};

const MS: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(20);
const SCHEMES: [&str; 3] =
    ["scheme = \"sr\"", "scheme = \"mds\"\nk = 32\nm = 8", "scheme = \"hybrid\"\nk = 32\nm = 8"];
/// When the programs are well under way.
const BEGIN: Duration = Duration::from_millis(1000);

/// A link of 10 ms one way, unless it says otherwise.
fn link(spec: &str) -> LinkSpec {
    let delay = if spec.starts_with("delay") { "" } else { "delay 10ms " };
    format!("{delay}{spec} rate 2gbit").parse().unwrap()
}

/// 32 flows that keep a link of 200 Mbit/s busy from site 0 to site 1 for some seconds, over lanes
/// like these.
fn scenario(scheme: &str, lanes: &[LinkSpec], writes: usize) -> Scenario {
    let text = format!("[[class]]\nname = \"default\"\n{scheme}\n");
    let policy = Policy::parse(Path::new("policy.toml"), &text).unwrap();
    let lanes_there = lanes.len() as u8;
    let settings = Settings {
        policy: policy.into(),
        lanes: lanes_there,
        idle_flow: Duration::from_secs(20),
        ..Settings::new(Vec::new(), 200_000_000, 1400)
    };
    let mut scenario = Scenario::new(1, settings);
    scenario.wan = [lanes[0]; 2];
    scenario.lanes = lanes[1..].iter().map(|lane| [*lane; 2]).collect();
    let work = Work { ops: vec![Op::Write(100_000, None); writes], depth: 4, ..Work::default() };
    let life = Life { psn: [Psn::new(7); 2], work: [work, Work::default()], ..Life::default() };
    let connection = Connection { hosts: [0, 0], qp: QpConfig::default(), lives: vec![life] };
    scenario.connections = vec![connection; 8];
    scenario
}

/// Packets of one lane's link that were given to it.
fn given(world: &World, lane: usize) -> u64 {
    let (_, LinkStats { submitted, .. }) = world.lanes(0)[lane];
    submitted
}

fn lane(world: &World, lane: usize) -> PathStats {
    world.lanes(0)[lane].0.clone()
}

fn play_until(world: &mut World, at: Duration) {
    while world.elapsed() < at {
        assert!(world.step().unwrap(), "the programs were done too soon");
    }
}

/// Plays until this is so, millisecond by millisecond; when that is.
fn play_while(world: &mut World, is: impl Fn(&World) -> bool) -> Duration {
    while is(world) {
        let next = world.elapsed() + MS;
        play_until(world, next);
    }
    world.elapsed()
}

fn finish(world: &mut World, scenario: &Scenario) -> Report {
    let report = world.run().unwrap();
    let posted = scenario.connections.iter().map(|connection| connection.lives[0].work[0].ops.len() as u64);
    assert_eq!((report.succeeded, report.failed, report.gave_up), (posted.sum(), 0, 0));
    report
}

/// When lane 1 of the scenario got no more data, and when it was left, after it had died.
fn death(scenario: &mut Scenario, both: bool) -> [Duration; 2] {
    let dead = link("loss 100%");
    let death = |site| (BEGIN, Fault::Lane { site, lane: 1, link: dead });
    scenario.faults = vec![death(0)];
    scenario.faults.extend(both.then(|| death(1)));
    let mut world = World::new(scenario.clone()).unwrap();
    play_until(&mut world, BEGIN);
    let before = given(&world, 1);
    assert!(before > 1000, "{before}");
    let stopped = play_while(&mut world, |world| lane(world, 1).health.usable) - BEGIN;
    let probes_from = given(&world, 1);
    let left = play_while(&mut world, |world| lane(world, 1).health.left.is_none()) - BEGIN;
    assert_eq!(lane(&world, 1).health.left, Some(Cause::Silent));
    play_until(&mut world, BEGIN + RTT * 20);
    let probes = given(&world, 1) - probes_from;
    // Two a round trip while it is suspect, one later, and those of the search for the MTU.
    assert!(probes <= 40, "{probes}");
    let report = finish(&mut world, scenario);
    assert_eq!(report.paths[0][1].health.leaves, 1);
    [stopped, left]
}

/// As docs/adr/0009-lanes.md says. Where it dies both ways, so do some of the reports on others.
#[test]
fn a_dead_lane_gets_nothing_after_five_round_trips_and_is_left_after_seven() {
    let kinds =
        SCHEMES.into_iter().map(|scheme| (scheme, 4, 1)).chain((2..6).map(|seed| (SCHEMES[0], 2, seed)));
    for (scheme, lanes, seed) in kinds {
        for (both, bounds) in [(false, [5, 7]), (true, [7, 9])] {
            let mut scenario = scenario(scheme, &vec![link(""); lanes], 45);
            scenario.seed = seed;
            let [stopped, left] = death(&mut scenario, both);
            println!(
                "{scheme:?}, {lanes} lanes, both ways {both}: no data after {stopped:?}, left after {left:?}"
            );
            assert!(
                stopped <= RTT * bounds[0] && left <= RTT * bounds[1],
                "seed {seed}: {stopped:?} {left:?}"
            );
        }
    }
}

/// When each message ended and how long it took, of one after the other on each flow.
fn ends(times: &[Duration], messages: usize) -> Vec<(Duration, Duration)> {
    let ended = |flow: &[Duration]| {
        let sum = |end: &mut Duration, took: &Duration| {
            *end += *took;
            Some((*end, *took))
        };
        flow.iter().scan(Duration::ZERO, sum).collect::<Vec<_>>()
    };
    times.chunks(messages).flat_map(ended).collect()
}

fn p99(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    assert!(times.len() >= 200, "{}", times.len());
    times.sort();
    times[times.len() * 99 / 100]
}

/// Parity makes up for what died with the lane.
#[test]
fn a_lane_that_dies_under_load_takes_nothing_that_has_to_be_repaired() {
    const MESSAGES: usize = 60;
    const DIES: Duration = Duration::from_secs(3);
    for (lanes, both) in [(5, false), (5, true), (8, true), (16, true)] {
        let mut scenario = scenario(SCHEMES[1], &vec![link(""); lanes], 0);
        let work = Work { ops: vec![Op::Write(64 << 10, None); MESSAGES], depth: 1, ..Work::default() };
        let life = Life { psn: [Psn::new(7); 2], work: [work, Work::default()], ..Life::default() };
        let connection = Connection { hosts: [0, 0], qp: QpConfig::default(), lives: vec![life] };
        scenario.connections = vec![connection; 32];
        let dead = |site| (DIES, Fault::Lane { site, lane: 1, link: link("loss 100%") });
        scenario.faults = vec![dead(0)];
        scenario.faults.extend(both.then(|| dead(1)));
        let mut world = World::new(scenario.clone()).unwrap();
        let report = finish(&mut world, &scenario);
        let ends = ends(&report.times, MESSAGES);
        let half = Duration::from_millis(500);
        let before = p99(ends.iter().filter(|(end, _)| (BEGIN..DIES - half).contains(end)).map(|end| end.1));
        let around = |&(end, took): &(Duration, Duration)| end >= DIES - half && end - took < DIES + half;
        let around = p99(ends.iter().filter(|end| around(end)).map(|end| end.1));
        let sent = || report.classes[0].iter().flat_map(|class| &class.sent);
        let [data, repairs, parity] = [
            sent().map(|stream| stream.data_packets).sum::<u64>(),
            sent().map(|stream| stream.repairs).sum(),
            sent().map(|stream| stream.parity_packets).sum(),
        ];
        println!(
            "{lanes} lanes, both ways {both}: p99 {before:?}, around the death {around:?}; \
             {repairs} repairs of {data} packets, {parity} of parity"
        );
        assert!(around < before * 110 / 100, "{lanes} {both}: {before:?} {around:?}");
        assert_eq!(repairs, 0, "{lanes} {both}");
    }
}

#[test]
fn a_lane_that_lives_again_is_used_again() {
    let mut scenario = scenario(SCHEMES[0], &[link(""); 2], 150);
    let fault = |at, spec| (at, Fault::Lane { site: 0, lane: 1, link: link(spec) });
    let back = BEGIN + RTT * 25;
    scenario.faults = vec![fault(BEGIN, "loss 100%"), fault(back, "")];
    let mut world = World::new(scenario.clone()).unwrap();
    play_until(&mut world, back);
    assert_eq!(lane(&world, 1).health.left, Some(Cause::Silent));
    let returned = play_while(&mut world, |world| !lane(world, 1).health.usable) - back;
    println!("back after {returned:?}");
    assert!((RTT * 12..RTT * 24).contains(&returned), "{returned:?}");
    finish(&mut world, &scenario);
}

/// The whole link, for as long as many times a dead lane is borne.
#[test]
fn a_cut_of_all_lanes_is_no_fault_of_any() {
    let mut scenario = scenario(SCHEMES[0], &[link(""), link("delay 11ms"), link("delay 12ms")], 120);
    scenario.faults = vec![(BEGIN, Fault::Partition(Duration::from_millis(700)))];
    let mut world = World::new(scenario.clone()).unwrap();
    let report = finish(&mut world, &scenario);
    for path in &report.paths[0] {
        assert_eq!((path.health.leaves, path.health.left), (0, None), "{:?}", path.lane);
    }
}

#[test]
fn a_lane_that_loses_five_percent_more_gets_a_smaller_part() {
    for (more, most) in [("loss 5%", 0.5), ("loss 15%", 0.05)] {
        let scenario = scenario(SCHEMES[0], &[link(""), link(more)], 120);
        let mut world = World::new(scenario.clone()).unwrap();
        play_until(&mut world, BEGIN);
        let before = [0, 1].map(|lane| given(&world, lane));
        play_until(&mut world, BEGIN + Duration::from_secs(1));
        let [good, bad] = [0, 1].map(|lane| (given(&world, lane) - before[lane]) as f64);
        println!("{more}: {} of the other's packets, {:?}", bad / good, lane(&world, 1).health);
        assert!(bad / good < most, "{more}: {bad} and {good}");
        finish(&mut world, &scenario);
    }
}

/// A lane that loses as many as all others is as good as they are.
#[test]
fn losses_alike_are_shared_alike() {
    let scenario = scenario(SCHEMES[0], &[link("loss 5%"); 3], 80);
    let mut world = World::new(scenario.clone()).unwrap();
    play_until(&mut world, BEGIN + Duration::from_secs(1));
    let given = [0, 1, 2].map(|lane| given(&world, lane) as f64);
    let [least, most] =
        [given.iter().copied().fold(f64::MAX, f64::min), given.iter().copied().fold(0.0, f64::max)];
    assert!(least > most * 0.7, "{given:?}");
    finish(&mut world, &scenario);
}

/// Lanes of different lengths, on which nothing is lost: whatever is sent again is sent in vain.
#[test]
fn what_overtakes_on_a_shorter_lane_is_no_loss() {
    let lanes = ["", "delay 11ms", "delay 13ms 1ms", "delay 16ms"].map(link);
    for scheme in SCHEMES {
        let scenario = scenario(scheme, &lanes, 120);
        let mut world = World::new(scenario.clone()).unwrap();
        let report = finish(&mut world, &scenario);
        let sent = || report.classes[0].iter().flat_map(|class| &class.sent);
        let (data, again) = (
            sent().map(|stream| stream.data_packets).sum::<u64>(),
            sent().map(|stream| stream.repairs).sum::<u64>(),
        );
        println!("{scheme:?}: {again} of {data} sent again");
        assert!(data > 50_000 && again * 200 <= data, "{scheme}: {again} of {data}");
        assert_eq!(report.wan.map(|(_, lost)| lost), [0, 0]);
    }
}

/// Too long a lane is left, and slows nobody down.
#[test]
fn a_lane_that_becomes_much_slower_is_left() {
    let mut scenario = scenario(SCHEMES[0], &[link(""); 2], 120);
    scenario.faults = vec![(BEGIN, Fault::Lane { site: 0, lane: 1, link: link("delay 40ms") })];
    let mut world = World::new(scenario.clone()).unwrap();
    play_until(&mut world, BEGIN);
    let left = play_while(&mut world, |world| lane(world, 1).health.left.is_none()) - BEGIN;
    println!("left after {left:?}");
    assert_eq!(lane(&world, 1).health.left, Some(Cause::Slow));
    // Sixteen of its own round trips after that is known.
    assert!(left <= RTT * 70, "{left:?}");
    finish(&mut world, &scenario);
}
