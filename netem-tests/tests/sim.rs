//! Many worlds, each from one seed, and the invariants after every step.
//!
//! `LONGHAUL_SIM_SEEDS=5000..9000 cargo test -p netem-tests --release --test sim` plays others;
//! `LONGHAUL_SIM_SEED=77` one alone, and says what happened in it if it fails.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

#[path = "sim/crash.rs"]
mod crash;
#[path = "sim/pause.rs"]
mod pause;
#[path = "sim/refusal.rs"]
mod refusal;
#[path = "sim/upgrade.rs"]
mod upgrade;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netem_tests::host::QpConfig;
use netem_tests::sim::{Atomics, Burst, Connection, Fault, Life, Op, Report, Scenario, Work, World};
use reliability::estimator::Summary;
use reliability::stream::Scheme;
use roce::wire::Psn;
use splice::record::Reason;
use splice::{LanDrop, Settings, Tuning};

/// Plays one scenario; what went wrong as text.
fn play(scenario: Scenario) -> Result<Report, String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(scenario).map_err(|error| format!("impossible: {error}"))?;
        world.run().map_err(|violation| violation.to_string())
    }));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panic: {}",
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        ))
    })
}

fn seeds(count: u64) -> Range<u64> {
    netem_tests::seeds("LONGHAUL_SIM_SEEDS", 0..count)
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    let seen = Mutex::new((0, 0, 0, Atomics::default()));
    play_all("invariants_hold_whatever_goes_wrong", 700, Scenario::draw, &|_, report| {
        if let Ok((early, lost, mads, atomics)) = seen.lock().as_deref_mut() {
            *early += report.early;
            *lost += report.lost;
            *mads += report.mads;
            *atomics += report.atomics;
        }
    });
    let (early, lost, mads, atomics) = seen.into_inner().unwrap();
    println!(
        "{early} operations succeeded before their target had them, of which {lost} never arrived; {mads} MADs; {atomics:?}"
    );
    assert!(
        early > 0 && mads > 0 && atomics.executed > 0 || are_seeds_named(),
        "worlds without atomics or MADs, or none completes locally"
    );
}

/// The same worlds, with several classes that are added, removed, reordered and changed on the way,
/// at each site for itself.
#[test]
fn policies_change_and_no_flow_is_disturbed() {
    let (changes, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let draw = Scenario::draw_with_reloads;
    play_all("policies_change_and_no_flow_is_disturbed", 400, draw, &|reloads, report| {
        changes.fetch_add(reloads, Ordering::Relaxed);
        refused.fetch_add(report.policies_refused, Ordering::Relaxed);
    });
    let (changes, refused) = (changes.into_inner(), refused.into_inner());
    println!("{changes} changes of policy, {refused} of them refused for want of streams");
    assert!(changes > 0 || are_seeds_named(), "no policy was changed");
    assert!(refused * 50 <= changes, "{refused} of {changes} refused");
}

/// Lives that join one of several queue pairs of each end: no packet says which one sent it, and
/// its number has another partner than before.
#[test]
fn queue_pairs_change_their_partners() {
    let seen = Mutex::new([0; 4]);
    play_all("queue_pairs_change_their_partners", 250, Scenario::draw_with_partners, &|_, report| {
        for stats in &report.gateways {
            // Since a crash is a lost session, those whom a gateway does not know meet silence.
            let unknown = stats.doomed + stats.silenced;
            let happened = [stats.replaced, stats.session_failed, unknown, stats.near.fatal_naks];
            if let Ok(mut seen) = seen.lock() {
                seen.iter_mut().zip(happened).for_each(|(seen, happened)| *seen += happened);
            }
        }
    });
    let seen = seen.into_inner().unwrap();
    let [replaced, ended, unknown, refused] = seen;
    println!(
        "flows: {replaced} replaced, {ended} ended with their session, {unknown} unknown; {refused} refusals"
    );
    assert!(seen.iter().all(|happened| *happened > 0) || are_seeds_named(), "{seen:?}");
}

/// From the end of an outage to the end of the last operation that it held up, at most: what was
/// under way is sent again, and requesters try again at the pace of their timers.
const RECOVERY: Duration = Duration::from_secs(20);

/// Sessions are lost and go on. Where the outages are within `resume_for` and nothing else goes
/// wrong, no operation fails, and all are done soon after; elsewhere each ends within the program's
/// patience.
#[test]
fn flows_survive_the_loss_of_their_session() {
    #[derive(Debug, Default)]
    struct Seen {
        benign: u64,
        resumed: u64,
        ended: u64,
        succeeded: u64,
        atomics: Atomics,
        recovery: Duration,
    }
    let seen = Mutex::new(Seen::default());
    let test = "flows_survive_the_loss_of_their_session";
    play_all(test, 200, Scenario::draw_with_outages, &|_, report| {
        let Ok(mut seen) = seen.lock() else { return };
        seen.resumed += report.resumed;
        seen.ended += report.gateways.iter().map(|stats| stats.session_failed).sum::<u64>();
        seen.succeeded += report.succeeded;
        seen.atomics += report.atomics;
        if report.benign {
            seen.benign += 1;
            let longest = report.times.iter().max().copied().unwrap_or_default();
            seen.recovery = seen.recovery.max(longest.saturating_sub(report.outage));
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    assert!(seen.recovery <= RECOVERY, "{seen:?}");
    let has_happened = [seen.benign, seen.resumed, seen.ended, seen.atomics.executed].iter().all(|n| *n > 0);
    assert!(has_happened || are_seeds_named(), "{seen:?}");
}

/// Returns true if the environment names some, which may be too few to meet everything.
fn are_seeds_named() -> bool {
    ["LONGHAUL_SIM_SEED", "LONGHAUL_SIM_SEEDS"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Plays many seeds, or the one that the environment names. `seen` gets each good one's number of
/// reloads and its report.
fn play_all(test: &str, count: u64, draw: fn(u64) -> Scenario, seen: &(dyn Fn(u64, &Report) + Sync)) {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return explain(seed.parse().unwrap(), draw);
    }
    let seeds = seeds(count);
    let next = AtomicU64::new(seeds.start);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return failures;
            }
            let scenario = draw(seed);
            let reloads = scenario.reloads.len() as u64;
            let result = play(scenario);
            if std::env::var_os("LONGHAUL_SIM_VERBOSE").is_some() {
                let steps = result.as_ref().map_or(0, |report| report.steps);
                eprintln!("seed {seed}: {steps} steps");
            }
            match result {
                Ok(report) => seen(reloads, &report),
                Err(why) => {
                    eprintln!(
                        "seed {seed}: {why}\n  LONGHAUL_SIM_SEED={seed} cargo test -p netem-tests --release --test sim {test} -- --nocapture"
                    );
                    failures.push(seed);
                }
            }
        }
    };
    let failures: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(
        failures.is_empty(),
        "{} of {} seeds failed: {failures:?}",
        failures.len(),
        seeds.end - seeds.start
    );
}

/// Each of these broke a rule once:
/// - a queue pair in its next life was refused; requesters were told that packets were done which
///   no target had (6, 20, 227, 482);
/// - aborting a connection hit the one after it (258);
/// - the requester of a target that had failed was forgotten, or known to the wrong side only, and
///   waited for ever (1612, 2440, 4296, 4439);
/// - requests of an earlier life, late, took the place of the next one's, which waited for ever
///   (14156, 18982);
/// - a flow forgotten at one end was waited for at the other (14839);
/// - the next life of a queue pair, beginning where the last one did, was refused or acknowledged
///   past what it had sent (767, 1057, 6497, 7891, 9021);
/// - a flow was replaced while its requester was being told to go on from elsewhere, and its target
///   never heard that it had ended (2018);
/// - an ACK went past an atomic that a flow had carried before it began earlier (6497);
/// - timers piled up (275, 7163);
/// - the model itself forbade what gateways without memory may do (7347, 8642, 22123).
const ONCE_BROKEN: [u64; 23] = [
    767, 6, 20, 227, 482, 258, 1612, 2440, 4296, 4439, 14156, 18982, 14839, 1057, 6497, 7891, 9021, 2018,
    275, 7163, 7347, 8642, 22123,
];

/// When they broke it, requesters were refused at once.
const DRAWS: [fn(u64) -> Scenario; 2] = [Scenario::draw_with_naks, Scenario::draw];

#[test]
fn what_was_broken_once_holds() {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return DRAWS.iter().for_each(|draw| explain(seed.parse().unwrap(), *draw));
    }
    for (seed, draw) in ONCE_BROKEN.iter().flat_map(|seed| DRAWS.map(|draw| (*seed, draw))) {
        if let Err(why) = play(draw(seed)) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn a_world_plays_the_same_way_twice() {
    for draw in [Scenario::draw, Scenario::draw_with_reloads] {
        let [first, second] = [5, 5].map(|seed| format!("{:?}", play(draw(seed)).unwrap()));
        assert_eq!(first, second);
    }
}

/// Work for one end, on a clean link.
fn sends(count: usize, len: u32) -> Work {
    Work { ops: vec![Op::Send(len, None); count], depth: 8, ..Work::default() }
}

fn clean(work: &[Work; 2], pause: Duration, lives: u32) -> Scenario {
    let settings =
        Settings { idle_flow: Duration::from_secs(300), ..Settings::new(Vec::new(), 1_000_000_000, 1400) };
    let mut scenario = Scenario::new(1, settings);
    scenario.wan = ["delay 10ms rate 2gbit".parse().unwrap(); 2];
    let life = |number: u32| Life {
        pause,
        psn: [Psn::new(number << 20), Psn::new((3 * number) << 20)],
        work: work.clone(),
        ..Life::default()
    };
    let qp = QpConfig::default();
    scenario.connections = vec![Connection { hosts: [0, 0], qp, lives: (1..=lives).map(life).collect() }];
    scenario
}

#[test]
fn a_queue_pair_is_taken_up_at_once_in_its_next_life() {
    let pause = Duration::from_millis(1);
    let report = World::new(clean(&[sends(20, 5000), sends(3, 1)], pause, 4)).unwrap().run().unwrap();
    assert_eq!((report.succeeded, report.failed), (4 * 23, 0));
    // A round trip for each of three batches and the session's beginning; before, five seconds of
    // silence and a refusal.
    assert!(report.busy < Duration::from_secs(2), "{:?}", report.busy);
}

/// Programs that begin at the same PSN in every life, and agree on each across the link.
#[test]
fn a_life_that_begins_where_the_last_one_did_is_not_answered_from_memory() {
    for pause in [20, 200, 2000, 12_000, 25_000].map(Duration::from_millis) {
        let mixed = Work {
            ops: [Op::Send(3000, None), Op::Write(900, None), Op::Read(2000), Op::FetchAdd(1)].repeat(4),
            depth: 4,
            ..Work::default()
        };
        let mut scenario = clean(&[mixed, sends(3, 1)], pause, 3);
        for life in &mut scenario.connections[0].lives {
            life.psn = [Psn::new(0), Psn::new(0)];
        }
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!((report.succeeded, report.failed), (3 * 19, 0), "{pause:?}");
        let replaced: u64 = report.gateways.iter().map(|gateway| gateway.replaced).sum();
        assert_eq!(replaced, 4, "{pause:?}: both flows, twice");
    }
}

/// Receives come about when the requester's patience with RNR ends: a SEND is received, or its
/// requester learns that it was not, and the world holds that it is not both.
#[test]
fn what_ends_for_want_of_a_receive_never_arrives() {
    let (mut received, mut not_received) = (0, 0);
    for (seed, rnr_retry) in (0..20).flat_map(|seed| [0, 1, 3].map(|retries| (seed, retries))) {
        let target = Work { receives_after: Duration::from_millis(200 + 20 * seed), ..Work::default() };
        let mut scenario = clean(&[sends(20, 3000), target], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.settings.idle_flow = Duration::from_secs(20);
        // RNR NAKs and tries are lost here, too.
        scenario.lan = "delay 5us loss 2%".parse().unwrap();
        scenario.connections[0].qp.rnr_retry = rnr_retry;
        let report = World::new(scenario).unwrap().run();
        let report = report.unwrap_or_else(|why| panic!("seed {seed}, {rnr_retry} retries: {why}"));
        received += u64::from(report.succeeded == 20);
        not_received += report.not_received;
    }
    println!("{received} times received, {not_received} times not");
    assert!(received > 5 && not_received > 5, "{received} and {not_received}");
}

const ATOMICS: [Op; 4] = [Op::FetchAdd(3), Op::CompareSwap(9), Op::AtomicWrite(5), Op::Flush(8)];

/// However the session between the gateways ends, an atomic whose requester repeats it in a later
/// one is executed once: the world counts. Who is refused at once repeats nothing. Where a target's
/// queue pair survives, the repetition comes to it, which has to know it: both gateways crashed and
/// nobody told it, or its own did and it is told a second later.
/// It goes nowhere in all other cases.
#[test]
fn atomics_run_at_most_once_whatever_ends_the_session() {
    let crash =
        |site| Fault::Crash { site, down: Duration::from_millis(100), noticed: Duration::from_millis(20) };
    let cut = Fault::Partition(Duration::from_secs(6));
    let ends = [
        ("reconnect", vec![Fault::Reconnect], false, false),
        ("cut", vec![cut], true, false),
        ("requester's gateway", vec![crash(0)], true, false),
        ("target's gateway", vec![crash(1)], true, true),
        ("both gateways", vec![crash(0), crash(1)], true, true),
    ];
    for (what, faults, repeats, comes) in ends {
        let mut seen = Atomics::default();
        for step in 0..12_u64 {
            let atomics = Work { ops: ATOMICS.repeat(50), depth: 8, ..Work::default() };
            let mut scenario = clean(&[atomics, Work::default()], Duration::ZERO, 1);
            scenario.seed = step;
            scenario.settings.idle_flow = Duration::from_secs(20);
            // Responses are lost here, too.
            scenario.lan = "delay 5us loss 2%".parse().unwrap();
            let at = Duration::from_micros(350_000 + 3700 * step);
            scenario.faults = faults.iter().map(|fault| (at, *fault)).collect();
            let report =
                World::new(scenario).unwrap().run().unwrap_or_else(|why| panic!("{what} {step}: {why}"));
            seen += report.atomics;
        }
        println!("{what}: {seen:?}");
        assert!(seen.executed > 100 && (seen.repeated > 12 || !repeats), "{what}: {seen:?}");
        assert_eq!(seen.recognised > 0, comes, "{what}: {seen:?}");
    }
}

/// Connection management is repaired by whatever scheme, and in any crowd, and comes out as often
/// as it went in.
#[test]
fn every_mad_comes_out_once() {
    for seed in 0..4 {
        let mut scenario = clean(&[sends(50, 5000), sends(50, 5000)], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.wan = ["delay 10ms 3ms rate 2gbit loss 15% duplicate 5%".parse().unwrap(); 2];
        let at = Duration::from_millis(400);
        let burst = |site| Burst { at, site, opcode: 0x64, qpn: 1, len: 264, count: 100 };
        scenario.bursts = vec![burst(0), burst(1)];
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!(report.mads, 200, "seed {seed}");
    }
}

/// The rarer operations, both ways, on a link that loses, with flags that their requesters' NICs
/// and programs set.
#[test]
fn rare_operations_arrive_once_and_as_they_were_sent() {
    let mixed = Work {
        ops: [
            Op::SendInvalidate(3000),
            Op::AtomicWrite(7),
            Op::Flush(5000),
            Op::Write(2000, Some(9)),
            Op::SendInvalidate(0),
            Op::Flush(0),
            Op::FetchAdd(1),
            Op::Read(3000),
        ]
        .repeat(25),
        depth: 16,
        solicited_every: 2,
        ..Work::default()
    };
    for (seed, migreq) in [(1, false), (2, true)] {
        let mut scenario = clean(&[mixed.clone(), mixed.clone()], Duration::ZERO, 2);
        scenario.seed = seed;
        scenario.wan = ["delay 10ms 2ms rate 2gbit loss 3%".parse().unwrap(); 2];
        scenario.lan = "delay 5us loss 1%".parse().unwrap();
        scenario.connections[0].qp.migreq = migreq;
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!((report.succeeded, report.failed), (2 * 400, 0), "seed {seed}");
        // Two atomics and two FLUSHes in eight.
        assert_eq!(report.atomics.executed, 400, "seed {seed}");
    }
}

/// Requesters whose timers are shorter than the way, and that forget where an ATOMIC WRITE or FLUSH
/// went as they repeat it: the gateways know what it was, and never show a target the second. In
/// the first life the session comes up: before, a request goes nowhere, and only its repetition
/// goes on.
#[test]
fn what_is_repeated_without_its_address_is_not_taken_for_another() {
    for op in [Op::AtomicWrite(3), Op::Flush(500)] {
        let writes = Work { ops: vec![op; 30], depth: 1, ..Work::default() };
        let mut scenario = clean(&[writes.clone(), writes], Duration::from_secs(2), 3);
        scenario.connections[0].lives[0].work = [sends(1, 1), sends(1, 1)];
        scenario.wan = ["delay 200ms rate 2gbit".parse().unwrap(); 2];
        scenario.connections[0].qp.forgets_addresses = true;
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!((report.succeeded, report.failed), (122, 0), "{op:?}");
        assert_eq!(report.duplicates, [0, 0], "{op:?}");
        let repeated: u64 = report.gateways.iter().map(|gateway| gateway.near.duplicates).sum();
        assert!(repeated >= 2 * 120, "{op:?}: {repeated}");
    }
}

/// Flows that were under way end by its requesters' own patience, nothing is refused, and the queue
/// pairs made anew work at once: with other PSNs, or the same.
#[test]
fn what_a_long_cut_interrupts_ends_as_it_would_without_gateways() {
    for same in [false, true] {
        let writes = Work { ops: vec![Op::Write(20_000, None); 600], depth: 8, ..Work::default() };
        // The next life begins when the link is back, and the last one still answered nothing.
        let pause = Duration::from_secs(8);
        let mut scenario = clean(&[writes.clone(), writes.clone()], pause, 2);
        let connection = &mut scenario.connections[0];
        connection.qp = QpConfig { retry_cnt: 6, timeout: Some(Duration::from_millis(500)), ..connection.qp };
        if same {
            connection.lives[1].psn = connection.lives[0].psn;
        }
        let cut = scenario.dead_after + Duration::from_secs(1);
        scenario.faults = vec![(pause + Duration::from_millis(1200), Fault::Partition(cut))];
        let report = World::new(scenario).unwrap().run().unwrap();
        let what = format!("{same}: {report:?}");
        let ended = report.failed + report.not_posted;
        assert!(report.failed >= 2 && ended < 1200 && report.succeeded == 2400 - ended, "{what}");
        let refused: u64 = report.gateways.iter().map(|gateway| gateway.near.fatal_naks).sum();
        assert_eq!(refused, 0, "{what}");
        let [a, b] = report.gateways.each_ref().map(|gateway| gateway.near_opened);
        assert_eq!((a, b), (2, 2), "{what}");
    }
}

/// Responses come faster from the target's LAN than the link takes them, so that the far halves are
/// told to hold their READs. Once all READs under way are answered, nothing of the target's tells
/// them to go on: only the drained stream does.
#[test]
fn reads_held_back_go_on_once_the_stream_has_drained() {
    let reads = Work { ops: vec![Op::Read(1 << 20); 12], depth: 4, ..Work::default() };
    let mut scenario = clean(&[reads, Work::default()], Duration::ZERO, 1);
    scenario.settings = Settings::new(Vec::new(), 200_000_000, 8900);
    scenario.wan = ["delay 10ms rate 220mbit".parse().unwrap(); 2];
    // 16 MiB asked for at a time: a stream holds its READs from 4 MiB of backlog on.
    let qp = QpConfig { timeout: Some(Duration::from_secs(4)), ..QpConfig::default() };
    scenario.connections = vec![Connection { qp, ..scenario.connections[0].clone() }; 4];
    let report = World::new(scenario).unwrap().run().unwrap();
    assert_eq!((report.succeeded, report.failed, report.gave_up), (4 * 12, 0, 0));
}

/// As `ib_read_bw -b -q 8 -s 1048576`, each queue pair with sixteen READs under way in either
/// direction: 128 MiB asked for each way, of targets whose LAN is fifty times as fast as the long
/// link, and ten thousand times as close. What a gateway asks of a target, it must have room for.
#[test]
fn reads_far_beyond_what_the_link_carries_are_asked_for_as_there_is_room() {
    for (length, count, seed) in [(1 << 20, 16, 1), (5_000_001, 1, 2)] {
        let reads = Work { ops: vec![Op::Read(length); count], depth: 16, ..Work::default() };
        let mut scenario = clean(&[reads.clone(), reads], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.settings = Settings::new(Vec::new(), 190_000_000, 1400);
        scenario.wan = ["delay 10ms loss 3% rate 200mbit".parse().unwrap(); 2];
        scenario.lan = "delay 20us rate 10gbit".parse().unwrap();
        // A NIC that counts what it has under way in READs, not in PSNs.
        let qp = QpConfig { window: 1 << 20, ..QpConfig::default() };
        scenario.connections = vec![Connection { qp, ..scenario.connections[0].clone() }; 8];
        let report = World::new(scenario).unwrap().run().unwrap();
        let total = 2 * 8 * count as u64;
        assert_eq!((report.succeeded, report.failed, report.gave_up), (total, 0, 0), "seed {seed}");
        // Before: 1500 and 1685 READs asked for again by seed 1, and 1.5 million responses dropped
        // at each site. A flow's first READ may be asked for again where its turn ends before the
        // answer: one for each flow.
        assert!(
            report.duplicates.iter().sum::<u64>() <= 16,
            "seed {seed}: {:?} READs again",
            report.duplicates
        );
        for stats in report.gateways {
            assert_eq!(stats.lan_drops[LanDrop::NoRoom as usize], 0, "seed {seed}");
            assert_eq!(stats.lan_drops[LanDrop::OutOfSequence as usize], 0, "seed {seed}");
        }
    }
}

/// Four flows to a target that has fallen silent could fill all buffers of its gateway several
/// times over; the flows to the target beside it, as busy as they are, are not to notice.
#[test]
fn a_silent_target_costs_its_own_requesters_their_flows_and_no_others() {
    let writes = |count, len| Work { ops: vec![Op::Write(len, None); count], depth: 8, ..Work::default() };
    for seed in 3..=4 {
        let mut scenario = clean(&[writes(120, 100_000), Work::default()], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.settings.total_buffer = 4 << 20;
        scenario.narrow = true;
        scenario.hosts = [1, 2];
        let spared = scenario.connections[0].clone();
        let flood = Life { work: [writes(1, 24 << 20), Work::default()], ..spared.lives[0].clone() };
        let doomed = Connection { hosts: [0, 1], lives: vec![flood], ..spared.clone() };
        scenario.connections = [vec![spared; 12], vec![doomed; 4]].concat();
        scenario.wan = ["delay 5ms loss 0.5% rate 2gbit".parse().unwrap(); 2];
        let silence = Fault::Silence { site: 1, host: 1, time: Some(Duration::from_secs(15)) };
        scenario.faults = vec![(Duration::from_millis(450), silence)];
        let mut world = World::new(scenario).unwrap();
        let report = world.run().unwrap();
        let what = format!("seed {seed}: {:?} {report:?}", world.outcomes().collect::<Vec<_>>());
        let ended: Vec<_> = world.outcomes().collect();
        assert!(ended[..12].iter().all(|ended| *ended == (120, 0)), "{what}");
        assert!(ended[12..].iter().all(|ended| *ended == (0, 1)), "{what}");
        // For being silent, all of them: nobody had more on its way than the target's gateway
        // holds.
        let mut silent = [0; 9];
        silent[Reason::TargetDead as usize] = 4;
        assert_eq!(report.gateways[1].failed, silent, "{what}");
    }
}

/// One way of a link under load for a while, and then left alone.
struct Way {
    /// The gateway's estimate of it.
    summary: Summary,
    /// Packets that the link took, and lost.
    submitted: f64,
    lost: f64,
    /// Data packets sent, and sent again.
    data: u64,
    repairs: u64,
}

fn both_ways(wan: [&str; 2]) -> [Way; 2] {
    let writes = Work { ops: vec![Op::Write(40_000, None); 600], depth: 8, ..Work::default() };
    let mut scenario = clean(&[writes.clone(), writes], Duration::ZERO, 1);
    scenario.wan = wan.map(|spec| spec.parse().unwrap());
    // The world rests five times as long and a few minutes; the estimates remember ten.
    scenario.settings.idle_flow = Duration::from_secs(20);
    let probes = scenario.settings.probes.per_second;
    let mut world = World::new(scenario).unwrap();
    let report = world.run().unwrap();
    let most = u64::from(probes) * (world.elapsed().as_secs() + 1);
    [0, 1].map(|site| {
        let (submitted, lost) = report.wan[site];
        let [path] = &report.paths[site][..] else { panic!("{:?}", report.paths) };
        let summary = path.summary;
        assert!(submitted > 10_000, "{submitted}");
        // Long after the last operation, the probes have kept it alive, and no more of them than
        // were allowed.
        assert!(summary.age.is_some_and(|age| age < Duration::from_secs(1)), "{summary:?}");
        assert!((most / 2..=most).contains(&path.probes) && path.reports > 100, "{most}: {path:?}");
        let streams = || report.classes[site].iter().flat_map(|class| &class.sent);
        Way {
            summary,
            submitted: submitted as f64,
            lost: lost as f64,
            data: streams().map(|stream| stream.data_packets).sum(),
            repairs: streams().map(|stream| stream.repairs).sum(),
        }
    })
}

#[test]
fn each_way_of_a_lossy_link_is_estimated() {
    let links = ["delay 10ms rate 2gbit loss 3%", "delay 10ms 4ms rate 2gbit loss gemodel 0.2% 20%"];
    let found = both_ways(links);
    for Way { summary, submitted, lost, .. } in &found {
        assert!(*lost > 60.0, "{lost}");
        let truth = lost / submitted;
        assert!((summary.drop_long_run.likely / truth - 1.0).abs() < 0.02, "{truth}: {summary:?}");
        assert!((15..20).contains(&summary.rtt.minimum.as_millis()), "{summary:?}");
        assert!(summary.congestive < 0.4, "no queue stands, for all the jitter: {summary:?}");
    }
    let [alone, bursts] = found.map(|way| way.summary.burst.unwrap().likely);
    assert!(alone < 1.2 && (3.5..6.5).contains(&bursts), "{alone} {bursts}");
}

/// Packets that overtake each other by up to 8 ms, packets that skip the whole way, and packets
/// that come late by many round trips: not one is taken for lost, and hardly any sent again.
#[test]
fn pure_reordering_is_no_loss() {
    let jitter = both_ways(["delay 10ms 4ms rate 2gbit", "delay 10ms rate 2gbit reorder 5% gap 3"]);
    let late = both_ways(["delay 6ms reorder 98%", "delay 8ms reorder 95%"]);
    for Way { summary, submitted, lost, data, repairs } in jitter.into_iter().chain(late) {
        assert_eq!(lost, 0.0);
        assert_eq!((summary.drop.likely, summary.drop_long_run.likely), (0.0, 0.0), "{summary:?}");
        assert!(summary.drop_long_run.high < 12.0 / submitted, "{submitted}: {summary:?}");
        assert_eq!((summary.burst, summary.changes), (None, 0), "{summary:?}");
        assert!(summary.reordering.share > 0.01 && summary.congestive == 0.0, "{summary:?}");
        assert!(100 * repairs <= data && data > 5000, "{repairs} of {data}");
    }
}

/// Schemes of all kinds, one after the other, every 30 ms at each gateway, in the midst of blocks
/// and messages: every operation succeeds, and the invariants hold after every step.
#[test]
fn schemes_change_under_running_flows() {
    let schemes = [
        Scheme::Mds { k: 8, m: 3, depth: 1 },
        Scheme::sr(),
        Scheme::Hybrid { k: 16, m: 4, depth: 2 },
        Scheme::Xor { k: 8, m: 4, depth: 2 },
        Scheme::Mds { k: 32, m: 8, depth: 4 },
    ];
    for (seed, wan) in
        [(1, "delay 10ms rate 2gbit loss 2%"), (2, "delay 5ms 2ms rate 2gbit loss gemodel 0.5% 20%")]
    {
        let mixed = Work {
            ops: [Op::Write(40_000, None), Op::Send(3000, None), Op::Read(20_000), Op::FetchAdd(1)]
                .repeat(60),
            depth: 8,
            ..Work::default()
        };
        let mut scenario = clean(&[mixed.clone(), mixed], Duration::ZERO, 1);
        scenario.seed = seed;
        scenario.wan = [wan.parse().unwrap(); 2];
        scenario.faults = (0..80_u32)
            .map(|step| {
                let scheme = |offset| schemes[(step as usize / 2 + offset) % schemes.len()];
                let tuning = Tuning { prompt: scheme(1), bulk: scheme(0), drop: 0.02, burst: 2.0 };
                let tune = Fault::Tune { site: step as usize % 2, tuning };
                (Duration::from_millis(200 + 15 * u64::from(step)), tune)
            })
            .collect();
        let report = World::new(scenario).unwrap().run().unwrap();
        assert_eq!((report.succeeded, report.failed, report.gave_up), (480, 0, 0), "seed {seed}: {report:?}");
        // Through two dozen changes at each gateway.
        assert!(report.busy > Duration::from_millis(900), "seed {seed}: {:?}", report.busy);
    }
}

/// One world, with its scenario, and its last lines if it fails.
fn explain(seed: u64, draw: fn(u64) -> Scenario) {
    let scenario = draw(seed);
    eprintln!("{scenario:#?}");
    let mut world = World::new(scenario).unwrap();
    world.record();
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    if !matches!(result, Ok(Ok(_))) {
        let skip =
            std::env::var("LONGHAUL_SIM_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(300);
        for line in world.trace().iter().skip(world.trace().len().saturating_sub(skip)) {
            eprintln!("{line}");
        }
        eprintln!("{}", world.describe());
    }
    match result {
        Ok(Ok(report)) => eprintln!("{report:#?}"),
        Ok(Err(violation)) => panic!("seed {seed}: {violation}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
