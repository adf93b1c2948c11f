//! The gateways find out how long a packet the long link carries, also where that changes under
//! traffic: no operation fails, and the worlds check contents.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

use std::path::Path;
use std::time::Duration;

use config::Policy;
use netem_tests::host::QpConfig;
use netem_tests::sim::{Connection, Fault, Life, Op, Report, Scenario, Work, World};
use reliability::mtu::{State, Status};
use roce::wire::{PathMtu, Psn};
use splice::Settings;

/// Bytes that seal, UDP and IP add to a packet.
const OVERHEAD: usize = 52;
const LARGEST: usize = 9000;
/// Plaintext bytes of the packets that a session begins with.
const BASE: usize = 1200 - 24;
const SCHEMES: [&str; 5] = [
    "scheme = \"sr\"",
    "scheme = \"mds\"\nk = 32\nm = 8",
    "scheme = \"xor\"\nk = 8\nm = 3\ninterleave = 2",
    "scheme = \"hybrid\"\nk = 32\nm = 8",
    "scheme = \"auto\"",
];

/// Both ways `count` WRITEs of 100 kB over a link of 100 Mbit/s and 20 ms, once in each life.
fn scenario(scheme: &str, link: &str, count: usize, lives: u32, pause: Duration) -> Scenario {
    let settings = Settings::new(Vec::new(), 90_000_000, LARGEST - OVERHEAD);
    let text = format!("[[class]]\nname = \"default\"\n{scheme}\n");
    let policy = Policy::parse(Path::new("policy.toml"), &text).unwrap().into();
    let settings = Settings { policy, find_mtu: true, ip_overhead: OVERHEAD, ..settings };
    let mut scenario = Scenario::new(1, settings);
    scenario.wan = [format!("delay 10ms rate 100mbit {link}").parse().unwrap(); 2];
    let work = Work { ops: vec![Op::Write(100_000, None); count], depth: 8, ..Work::default() };
    let life = |number: u32| Life {
        pause: if number > 1 { pause } else { Duration::ZERO },
        psn: [Psn::new(number << 20), Psn::new((3 * number) << 20)],
        work: [work.clone(), work.clone()],
        ..Life::default()
    };
    let qp = QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() };
    scenario.connections = vec![Connection { hosts: [0, 0], qp, lives: (1..=lives).map(life).collect() }];
    scenario.patience = Duration::from_secs(2000);
    scenario
}

fn run(scenario: Scenario) -> Report {
    let lives = scenario.connections.iter().flat_map(|connection| &connection.lives);
    let expected = lives.map(|life| 2 * life.work[0].ops.len() as u64).sum::<u64>();
    let report = World::new(scenario).unwrap().run().unwrap();
    assert_eq!((report.succeeded, report.failed, report.gave_up), (expected, 0, 0));
    report
}

fn found(report: &Report) -> [Status; 2] {
    [0, 1].map(|site| report.paths[site][0].mtu)
}

#[test]
fn whatever_the_link_carries_is_found_and_used() {
    for mtu in [1280, 1400, 1472, 1500, 4000, 9000] {
        for (loss, scheme) in [("", SCHEMES[0]), ("loss 5%", SCHEMES[0]), ("loss 5%", SCHEMES[3])] {
            // In bytes of plaintext and number.
            let link = format!("mtu {} {loss}", mtu - OVERHEAD + 8);
            let report = run(scenario(scheme, &link, 120, 1, Duration::ZERO));
            for (site, status) in found(&report).into_iter().enumerate() {
                assert_eq!((status.mtu, status.state), (mtu, State::Complete), "{loss}: {status:?}");
                assert_eq!(status.black_holes, 0, "{mtu} {loss}");
                // The peer is told.
                let told = usize::from(report.paths[1 - site][0].peer_packet) + OVERHEAD;
                assert!(
                    told <= status.mtu && (told == status.mtu || !loss.is_empty()),
                    "{told} of {status:?}"
                );
                // A probe's loss is none of the path's.
                if loss.is_empty() {
                    let drop = report.paths[site][0].summary.drop_long_run;
                    assert!(
                        status.lost == 0 || drop.likely < 2e-4,
                        "{mtu}: {drop:?} with {} probes lost",
                        status.lost
                    );
                }
                // Its packets are closer to that than to what it began with, search included, but
                // for the ends of messages and turns. Where packets are lost there are more turns.
                let [_, bulk] = &report.classes[site][0].sent;
                let mean = bulk.bytes / (bulk.data_packets + bulk.repairs + bulk.parity_packets);
                let least = u64::try_from(BASE + mtu - OVERHEAD).unwrap() / 2;
                let percent = if loss.is_empty() { 99 } else { 97 };
                assert!(
                    mean > least * percent / 100,
                    "{mtu} {loss} {scheme}: {mean} bytes a packet, {least} at least"
                );
            }
        }
    }
}

#[test]
fn a_link_that_comes_to_carry_less_ends_no_flow() {
    for (number, scheme) in SCHEMES.iter().enumerate() {
        for (before, after) in [(9000, 1500), (9000, 1300), (1500, 1280)] {
            let link = format!("loss 0.5% mtu {}", before - OVERHEAD + 8);
            let mut scenario = scenario(scheme, &link, 130, 1, Duration::ZERO);
            scenario.seed = number as u64;
            // In the midst of traffic.
            let narrow = |site| (Duration::from_millis(600), Fault::Mtu { site, packet: after - OVERHEAD });
            scenario.faults = vec![narrow(0), narrow(1)];
            let report = run(scenario);
            for status in found(&report) {
                let found = (status.mtu, status.black_holes);
                assert_eq!(found, (after, 1), "{scheme} from {before}: {status:?}");
            }
            // 13 MB each way take 1.2 s; the change is noticed after about a second and a half.
            assert!(report.busy < Duration::from_secs(7), "{scheme} {before} to {after}: {:?}", report.busy);
        }
    }
}

/// The pieces of a packet take one lane, so that a receiver need not keep those of all packets
/// which leave while the slower lane's are under way.
#[test]
fn pieces_meet_though_the_lanes_differ() {
    let repairs = |other: &str, at: u64| {
        let mut scenario = scenario(SCHEMES[0], "", 100, 1, Duration::ZERO);
        scenario.settings.lanes = 2;
        scenario.settings.rate = 900_000_000;
        let link = |delay| format!("delay {delay} rate 1gbit mtu {}", 9000 - OVERHEAD + 8).parse().unwrap();
        scenario.wan = [link("50ms"); 2];
        scenario.lanes = vec![[link(other); 2]];
        scenario.connections = vec![scenario.connections.remove(0); 16];
        let narrow = |site| (Duration::from_millis(at), Fault::Mtu { site, packet: 1500 - OVERHEAD });
        scenario.faults = vec![narrow(0), narrow(1)];
        run(scenario).classes.map(|classes| classes[0].sent[1].repairs).iter().sum::<u64>()
    };
    // At some moments one more round of repairs is lost before the change is noticed.
    let [alike, apart] = ["50ms", "60ms"].map(|other| {
        let mut counts = [1500, 1600, 1700].map(|at| repairs(other, at));
        counts.sort_unstable();
        counts[1]
    });
    // The change is noticed after some rounds of repairs, all lost. Were pieces on any lane: 1.7
    // times as many.
    assert!(
        alike > 1000 && 10 * apart < 13 * alike,
        "{apart} packets repaired, {alike} where lanes are alike"
    );
}

#[test]
fn a_link_that_comes_to_carry_more_is_found_after_a_while() {
    for scheme in &SCHEMES[..4] {
        let link = format!("loss 0.5% mtu {}", 1500 - OVERHEAD + 8);
        let mut scenario = scenario(scheme, &link, 40, 2, Duration::from_secs(650));
        let widen = |site| (Duration::from_millis(900), Fault::Mtu { site, packet: LARGEST });
        scenario.faults = vec![widen(0), widen(1)];
        for status in found(&run(scenario)) {
            assert_eq!(
                (status.mtu, status.state, status.black_holes),
                (9000, State::Complete, 0),
                "{scheme}"
            );
        }
    }
}

/// Nothing is probed where it is not asked for.
#[test]
fn what_is_configured_is_used_as_it_is() {
    let mut scenario = scenario(SCHEMES[0], "", 20, 1, Duration::ZERO);
    scenario.settings.find_mtu = false;
    for status in found(&run(scenario)) {
        assert_eq!(status, Status { packet: LARGEST - OVERHEAD, mtu: LARGEST, ..Status::default() });
    }
}
