//! Two gateway processes, a link that loses packets, and RDMA hosts that check every byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gateway::admin::{LaneState, MtuState, Status};
use gateway::requests::Answer;
use gateway::steering::thread_of;
use rustix::process::{Pid, Signal, kill_process};
use soft_nic::QpConfig;
use testbed::hostio::{Bound, Endpoint, EndpointConfig, Limit, Mix, Report, Role, Workload};
use testbed::{Plan, Site, Testbed, host_ip};

#[path = "pair/auto.rs"]
mod auto;
#[path = "pair/chaos.rs"]
mod chaos;
#[path = "pair/clock.rs"]
mod clock;
#[path = "pair/ecn.rs"]
mod ecn;
#[path = "pair/identity.rs"]
mod identity;
#[path = "pair/json.rs"]
mod json;
#[path = "pair/logs.rs"]
mod logs;
#[path = "pair/page.rs"]
mod page;
#[path = "pair/privileges.rs"]
mod privileges;
#[path = "pair/prometheus.rs"]
mod prometheus;
#[path = "pair/reads.rs"]
mod reads;
#[path = "pair/reports.rs"]
mod reports;
#[path = "pair/rest.rs"]
mod rest;
#[path = "pair/resume.rs"]
mod resume;
#[path = "common/schemas.rs"]
mod schemas;
#[path = "pair/service.rs"]
mod service;
#[path = "pair/statuses.rs"]
mod statuses;
#[path = "pair/stop.rs"]
mod stop;
#[path = "pair/take_over.rs"]
mod take_over;
#[path = "pair/thin.rs"]
mod thin;
#[path = "pair/threads.rs"]
mod threads;
#[path = "pair/times.rs"]
mod times;
#[path = "pair/upgrade.rs"]
mod upgrade;
#[path = "pair/zone.rs"]
mod zone;

/// Nothing here takes nearly as long, so that a busy machine fails no test.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);
const SCHEMES: [&str; 2] = ["scheme = \"sr\"", "scheme = \"mds\"\nk = 8\nm = 3"];

/// A pair of gateways and the hosts it knows.
struct Pair {
    testbed: Testbed,
    /// One pair of hosts for each transfer.
    hosts: std::vec::IntoIter<[Bound; 2]>,
    /// The hosts' addresses in their packets, by site.
    ips: [Vec<IpAddr>; 2],
    /// Where each site's hosts send to.
    lans: [SocketAddr; 2],
    index: u8,
}

impl Pair {
    /// Returns the sum of the series of this metric that `is_meant` takes by their labels, of which
    /// there is one at least.
    fn counted(&self, site: Site, metric: &str, is_meant: impl Fn(&str) -> bool) -> u64 {
        let metrics = self.testbed.fetch(site, "/metrics").unwrap();
        let series = metrics.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
        let values: Vec<u64> = series
            .filter(|rest| is_meant(rest))
            .map(|rest| rest.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert!(!values.is_empty(), "no {metric} in {metrics}");
        values.iter().sum()
    }

    /// On a link that loses and reorders packets.
    fn start(policy: &str, transfers: u8) -> Self {
        Self::start_otherwise(transfers, |plan| policy.clone_into(&mut plan.policy))
    }

    fn start_otherwise(transfers: u8, change: impl FnOnce(&mut Plan)) -> Self {
        let bind = || Bound::new(([127, 0, 0, 1], 0).into()).unwrap();
        let hosts: Vec<[Bound; 2]> = (0..transfers).map(|_| [bind(), bind()]).collect();
        let known = [(0, Site::A), (1, Site::B)].map(|(at, site)| {
            let address =
                |(index, pair): (u8, &[Bound; 2])| (host_ip(site, index), pair[at].address().unwrap());
            (1..).zip(&hosts).map(address).collect()
        });
        let mut plan = Plan {
            program: PathBuf::from(env!("CARGO_BIN_EXE_longhaul")),
            policy: SCHEMES[1].to_owned(),
            limits: "idle_flow = \"1 s\"\ntarget_dead = \"2 s\"".to_owned(),
            retention: None,
            busy_poll: "0 s".to_owned(),
            rate: "400 Mbit/s".to_owned(),
            dead_after: "1 s".to_owned(),
            resume_for: "2 min".to_owned(),
            mtu: [1500; 2],
            probe_mtu: false,
            congestion: "fixed",
            interface: [None, None],
            wan: [Ipv4Addr::LOCALHOST; 2],
            lan_mtu: [None; 2],
            lanes: 1,
            threads: [1; 2],
            link: "delay 2ms loss 1% reorder 1%".parse().unwrap(),
            seed: 7,
            hosts: known,
        };
        change(&mut plan);
        let testbed = Testbed::start(&plan, &|| false).unwrap_or_else(|error| panic!("{error}"));
        let lans = [Site::A, Site::B].map(|site| testbed.lan(site));
        let ips = plan.hosts.map(|hosts| hosts.into_iter().map(|(ip, _)| ip).collect());
        Self { testbed, hosts: hosts.into_iter(), ips, lans, index: 0 }
    }

    /// Client and server of the next transfer.
    fn transfer(&mut self, limit: Limit) -> (Endpoint, Endpoint) {
        self.transfer_otherwise(limit, |_| {})
    }

    fn transfer_otherwise(
        &mut self,
        limit: Limit,
        change: impl FnOnce(&mut Workload),
    ) -> (Endpoint, Endpoint) {
        let [a, b] = self.hosts.next().unwrap();
        let [ip_a, ip_b] = self.ips.each_ref().map(|ips| ips[usize::from(self.index)]);
        self.index += 1;
        let mut workload = Workload {
            qps: 3,
            mix: Mix::ALL,
            message: 9001,
            limit,
            depth: 6,
            patience: PATIENCE,
            seed: u64::from(self.index),
            qp: QpConfig { timeout: Some(Duration::from_millis(500)), ..QpConfig::default() },
            ..Workload::default()
        };
        change(&mut workload);
        let start = |bound: Bound, site, [ip, remote_ip]: [IpAddr; 2], role| {
            let config = EndpointConfig {
                bind: bound.address().unwrap(),
                gateway: self.lans[site as usize],
                ip,
                remote_ip,
                role,
                workload: workload.clone(),
            };
            Endpoint::start_on(bound, &config).unwrap()
        };
        let server = start(b, Site::B, [ip_b, ip_a], Role::Server);
        (start(a, Site::A, [ip_a, ip_b], Role::Client), server)
    }

    /// Runs the next transfer to its end, which has to be a good one.
    fn complete_transfer(&mut self, messages: u64) {
        let transfer = self.transfer(Limit::Messages(messages));
        let server = complete(transfer, messages);
        assert!(server.messages > 0, "{server}");
    }

    fn status(&self, site: Site) -> Status {
        self.testbed.status(site).unwrap()
    }

    fn reload(&self, site: Site) -> Answer {
        self.testbed.reload(site).unwrap()
    }

    /// Waits until both gateways satisfy `wanted`.
    fn wait_for(&self, what: &str, wanted: fn(&Status) -> bool) {
        let end = Instant::now() + PATIENCE;
        for site in [Site::A, Site::B] {
            loop {
                let status = self.status(site);
                if wanted(&status) {
                    break;
                }
                assert!(Instant::now() < end, "{what} at {site:?}: {status:?}");
                std::thread::sleep(TICK);
            }
        }
    }
}

/// Waits for a good end with so many messages of each queue pair, and returns the server's report.
fn complete((client, server): (Endpoint, Endpoint), messages: u64) -> Report {
    let (client, server) = testbed::hostio::run_pair(client, server).unwrap();
    assert!(client.is_clean() && client.messages == 3 * messages, "{client}");
    assert!(server.is_clean(), "{server}");
    server
}

fn is_empty(status: &Status) -> bool {
    let streams_empty =
        status.classes.iter().all(|class| class.backlog_bytes == 0 && class.in_flight_bytes == 0);
    let flows = status.flows;
    let buffers = status.buffers;
    streams_empty
        && (flows.near, flows.far, flows.unpaired) == (0, 0, 0)
        && (buffers.count, buffers.bytes) == (0, 0)
}

#[test]
fn contents_survive_loss_and_nothing_is_left_behind() {
    for policy in SCHEMES {
        let mut pair = Pair::start(policy, 2);
        pair.complete_transfer(120);
        pair.complete_transfer(40);
        let lost = pair.testbed.link_stats();
        assert!(lost.a_to_b.link.lost > 0 && lost.b_to_a.link.lost > 0, "{lost}");
        pair.wait_for("something is left", is_empty);
        let statuses = [Site::A, Site::B].map(|site| pair.status(site));
        let classes = statuses.iter().flat_map(|status| &status.classes);
        let (repaired, decoded) =
            classes.fold((0, 0), |(r, d), class| (r + class.repairs, d + class.decoded));
        assert!(repaired + decoded > 0, "{statuses:?}");
        assert_eq!(decoded > 0, policy.contains("mds"), "{statuses:?}");
        for status in &statuses {
            assert_eq!((status.flows.opened, status.flows.failed), (6, 0), "{status:?}");
        }
        let metrics = pair.testbed.fetch(Site::B, "/metrics").unwrap();
        for series in ["longhaul_flows{", "longhaul_buffers{", "longhaul_buffer_bytes{"] {
            let values: Vec<&str> = metrics.lines().filter(|line| line.starts_with(series)).collect();
            assert!(!values.is_empty() && values.iter().all(|line| line.ends_with(" 0")), "{values:?}");
        }
        pair.testbed.stop().unwrap();
    }
}

/// One of three lanes dies under traffic, both ways, and lives again: no operation fails, and both
/// gateways say how it stands.
#[test]
fn a_lane_that_dies_is_left_and_nothing_is_lost() {
    let clear = "delay 5ms loss 0.1%".parse().unwrap();
    let mut pair = Pair::start_otherwise(3, |plan| {
        (plan.lanes, plan.link) = (3, clear);
        SCHEMES[0].clone_into(&mut plan.policy);
    });
    pair.complete_transfer(60);
    let states = |pair: &Pair, site| pair.status(site).lanes;
    for site in [Site::A, Site::B] {
        wait_until("not all lanes are used", &|| {
            let lanes = states(&pair, site);
            lanes.len() == 3 && lanes.iter().all(|lane| lane.state == LaneState::InUse && lane.share > 0.0)
        });
    }
    let (client, server) = pair.transfer(Limit::Messages(600));
    let dead = "loss 100%".parse().unwrap();
    pair.testbed.set_lane(1, dead, dead);
    let server = complete((client, server), 600);
    assert!(server.messages > 0, "{server}");
    for site in [Site::A, Site::B] {
        wait_until("the dead lane is not left", &|| {
            let lanes = states(&pair, site);
            lanes[1].share == 0.0 && !matches!(lanes[1].state, LaneState::InUse | LaneState::Suspect)
        });
        let shown = longhaul(&["status", "--admin", &pair.testbed.admin(site).to_string()]);
        let line = shown.lines().find(|line| line.starts_with("lane 1 ")).unwrap();
        assert!(line.contains(" 0 % of packets") && line.contains("left, "), "{shown}");
        let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
        let state = |line: &&str| line.starts_with("longhaul_lane_state{") && line.contains("lane=\"1\"");
        let value = metrics.lines().find(state).and_then(|line| line.rsplit(' ').next()).unwrap();
        // Left; on a machine as busy as can be perhaps for another reason than silence.
        assert!(["3", "4", "5"].contains(&value), "{metrics}");
    }
    pair.testbed.set_lane(1, clear, clear);
    for site in [Site::A, Site::B] {
        wait_until("the lane does not return", &|| states(&pair, site)[1].state == LaneState::InUse);
    }
    pair.complete_transfer(60);
    for site in [Site::A, Site::B] {
        let status = pair.status(site);
        assert_eq!((status.flows.opened, status.flows.failed), (9, 0), "{status:?}");
    }
    pair.testbed.stop().unwrap();
}

/// Each thread carries its hosts' operations by its own lanes, whatever becomes of the other's;
/// policies and sessions are everybody's.
#[test]
fn two_threads_carry_what_their_hosts_say() {
    const THREADS: u8 = 2;
    const TRANSFERS: u8 = 8;
    let clear = "delay 2ms loss 1%".parse().unwrap();
    let mut pair = Pair::start_otherwise(TRANSFERS, |plan| {
        (plan.lanes, plan.threads, plan.link) = (2, [THREADS; 2], clear);
    });
    let thread = |index| thread_of(host_ip(Site::A, index), host_ip(Site::B, index), THREADS);
    let first = thread(1);
    // Of the first transfers that are of both threads, together.
    let several = (2..TRANSFERS).find(|index| thread(*index) != first).unwrap();
    let transfers: Vec<_> = (0..several).map(|_| pair.transfer(Limit::Messages(200))).collect();
    for (client, server) in transfers {
        let server = complete((client, server), 200);
        assert!(server.messages > 0, "{server}");
    }
    for site in [Site::A, Site::B] {
        let status = pair.status(site);
        let numbers: Vec<usize> = status.lanes.iter().map(|lane| lane.lane).collect();
        assert_eq!(numbers, [0, 1, 2, 3], "{status:?}");
        assert_eq!((status.flows.opened, status.flows.failed), (3 * u64::from(several), 0), "{status:?}");
    }

    // The lanes of the next transfer's thread are cut, and one of the other thread's still ends.
    let cut = usize::from(thread(several + 1));
    let set =
        |pair: &Pair, link| (2 * cut..2 * cut + 2).for_each(|lane| pair.testbed.set_lane(lane, link, link));
    set(&pair, "loss 100%".parse().unwrap());
    let (client, server) = pair.transfer(Limit::Messages(20));
    let other = (several + 2..=TRANSFERS).find(|index| usize::from(thread(*index)) != cut).unwrap();
    for _ in several + 2..other {
        let _ = pair.hosts.next();
        pair.index += 1;
    }
    pair.complete_transfer(20);
    assert!(client.is_running());
    for (generation, policy) in (2..).zip(SCHEMES) {
        pair.testbed.write_policy(&format!("[[class]]\nname = \"default\"\n{policy}\n")).unwrap();
        for site in [Site::A, Site::B] {
            let answer = pair.reload(site);
            assert!(answer.adopted && answer.generation == generation, "{answer:?}");
        }
    }
    set(&pair, clear);
    complete((client, server), 20);
    pair.wait_for("something is left", is_empty);
    pair.testbed.stop().unwrap();
}

#[test]
fn a_plane_that_polls_does_not_sleep_while_there_is_traffic() {
    let sleeps_of_a_transfer = |busy_poll: &str| {
        let mut pair = Pair::start_otherwise(2, |plan| busy_poll.clone_into(&mut plan.busy_poll));
        let sleeps = |pair: &Pair| -> u64 {
            let metrics = pair.testbed.fetch(Site::A, "/metrics").unwrap();
            let line = metrics.lines().find(|line| line.starts_with("longhaul_plane_sleeps_total")).unwrap();
            line.split_whitespace().last().unwrap().parse().unwrap()
        };
        pair.complete_transfer(20);
        let before = sleeps(&pair);
        pair.complete_transfer(40);
        std::thread::sleep(Duration::from_millis(200));
        let after = sleeps(&pair);
        pair.testbed.stop().unwrap();
        after - before
    };
    assert!(sleeps_of_a_transfer("0 s") > 20);
    // The link's probes keep it awake even between transfers; but a machine may hold everybody up
    // for a second.
    assert!(sleeps_of_a_transfer("1 s") < 10);
}

/// Policies of several classes, each of which removes, adds, renames or reorders some of those
/// before.
const POLICIES: [&str; 4] = [
    "[[class]]\nname = \"small\"\nmatch = { size = { at_most = \"4 KiB\" } }\nscheme = \"mds\"\nk = 2\nm = 2\nflush = \"200 us\"\npriority = 5\n\
     [[class]]\nname = \"default\"\nscheme = \"sr\"\n",
    "[[class]]\nname = \"pairs\"\nmatch = { qp = [\"0-0xffffff\"], size = { at_least = \"1 KiB\" } }\nscheme = \"xor\"\nk = 8\nm = 4\n\
     [[class]]\nname = \"small\"\nmatch = { size = { at_most = \"4 KiB\" } }\nscheme = \"sr\"\n\
     [[class]]\nname = \"default\"\nscheme = \"auto\"\n",
    "[[class]]\nname = \"rest\"\nscheme = \"mds\"\nk = 8\nm = 3\n",
    "[[class]]\nname = \"small\"\nmatch = { size = { at_most = \"4 KiB\" } }\nscheme = \"sr\"\npriority = 1\n\
     [[class]]\nname = \"rest\"\nscheme = \"mds\"\nk = 8\nm = 3\npriority = 7\n",
];

#[test]
fn policies_change_under_traffic() {
    let mut pair = Pair::start(SCHEMES[0], 2);
    let (client, server) = pair.transfer(Limit::Messages(1500));
    let mut generation = 1;
    let end = Instant::now() + PATIENCE;
    while client.is_running() {
        assert!(Instant::now() < end, "the transfer does not end");
        let policy = POLICIES[generation as usize % POLICIES.len()];
        pair.testbed.write_policy(policy).unwrap();
        generation += 1;
        for site in [Site::A, Site::B] {
            let mut answer = pair.reload(site);
            // On a machine so busy that nothing has drained for several rounds.
            while answer.problems.contains("still in use") && Instant::now() < end {
                std::thread::sleep(TICK);
                answer = pair.reload(site);
            }
            assert!(answer.adopted && !answer.differences.is_empty(), "{answer:?}");
            assert_eq!((answer.generation, answer.problems.as_str()), (generation, ""));
        }
        // A file with an error in between, which changes nothing.
        pair.testbed.write_policy(&policy.replace("scheme", "shceme")).unwrap();
        let answer = pair.reload(Site::A);
        assert!(!answer.adopted && answer.problems.contains("did you mean `scheme`?"), "{answer:?}");
        std::thread::sleep(3 * TICK);
    }
    complete((client, server), 1500);
    assert!(generation > 3, "{generation} generations");

    // SIGHUP does the same.
    let policy = POLICIES[0];
    pair.testbed.write_policy(policy).unwrap();
    for site in [Site::A, Site::B] {
        let pid = Pid::from_raw(pair.testbed.pid(site).cast_signed()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        let end = Instant::now() + PATIENCE;
        while pair.status(site).policy.generation == generation {
            assert!(Instant::now() < end, "SIGHUP is not heeded");
            std::thread::sleep(TICK);
        }
        let status = pair.status(site);
        assert_eq!(status.policy.generation, generation + 1);
        let names: Vec<&str> = status.classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["small", "default"]);
        assert_eq!((status.flows.failed, status.flows.opened), (0, 3), "{status:?}");
        assert_eq!(pair.counted(site, "longhaul_policy_generation", |_| true), generation + 1);
        let is_ok = |labels: &str| labels.contains("\"ok\"");
        assert_eq!(pair.counted(site, "longhaul_policy_reloads_total", is_ok), generation);
        assert!(status.policy.refused >= if site == Site::A { generation - 1 } else { 0 });
    }
    pair.complete_transfer(40);
    pair.wait_for("something is left", is_empty);
    for site in [Site::A, Site::B] {
        let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
        let draining = metrics.lines().find(|line| line.starts_with("longhaul_streams_draining{")).unwrap();
        assert!(draining.ends_with(" 0"), "{draining}");
    }
    pair.testbed.stop().unwrap();
}

fn longhaul(arguments: &[&str]) -> String {
    longhaul_that_ends_with(0, arguments)
}

fn longhaul_that_ends_with(status: i32, arguments: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_longhaul");
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Each gateway finds out what the link carries, up to what it was told to look for, and shows it.
#[test]
fn each_gateway_finds_the_mtu_of_its_way() {
    // In bytes of UDP payload.
    for (mtu, link, found) in [
        ([9000, 9000], "delay 2ms mtu 1472", [1500, 1500]),
        ([9000, 1400], "delay 2ms loss 2% mtu 1472", [1500, 1400]),
        ([9000, 9000], "delay 2ms", [9000, 9000]),
    ] {
        let mut pair = Pair::start_otherwise(2, |plan| {
            (plan.mtu, plan.probe_mtu) = (mtu, true);
            plan.link = link.parse().unwrap();
        });
        pair.complete_transfer(40);
        for (site, [to, from]) in [(Site::A, found), (Site::B, [found[1], found[0]])] {
            wait_until("the MTU is not found", &|| {
                // There is none before a session is seen, some 0.1 s after it begins.
                pair.status(site).mtu.is_some_and(|mtu| {
                    mtu.state == MtuState::Complete && mtu.to_peer == to && mtu.from_peer == Some(from)
                })
            });
            let status = longhaul(&["status", "--admin", &pair.testbed.admin(site).to_string()]);
            let line = format!("MTU      {to} bytes to the peer (found), {from} from it; ");
            assert!(status.contains(&line), "{status}");
            let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
            let mut series = metrics.lines().filter(|line| line.starts_with("longhaul_wan_mtu_bytes{"));
            assert!(
                series.any(|line| line.contains("to_peer") && line.ends_with(&format!(" {to}"))),
                "{metrics}"
            );
            assert!(pair.status(site).mtu.is_none_or(|mtu| mtu.black_holes == 0));
        }
        pair.complete_transfer(40);
        pair.testbed.stop().unwrap();
    }
}

/// The link comes to carry less under traffic: it stalls for a moment, and nothing fails.
#[test]
fn a_link_that_comes_to_carry_less_is_survived() {
    for policy in SCHEMES {
        let mut pair = Pair::start_otherwise(2, |plan| {
            (plan.mtu, plan.probe_mtu) = ([9000; 2], true);
            policy.clone_into(&mut plan.policy);
            plan.link = "delay 2ms loss 0.5%".parse().unwrap();
        });
        pair.complete_transfer(40);
        // A gateway that had not yet come to use more would have nothing to lose.
        pair.wait_for("the MTU is not found", |status| {
            status.mtu.is_some_and(|mtu| mtu.state == MtuState::Complete && mtu.to_peer == 9000)
        });
        let (client, server) = pair.transfer(Limit::Messages(2000));
        wait_until("the transfer does not start", &|| {
            client.progress().messages.load(Ordering::Relaxed) > 30
        });
        pair.testbed.set_link("delay 2ms loss 0.5% mtu 1372".parse().unwrap());
        complete((client, server), 2000);
        pair.wait_for("the MTU is not found anew", |status| {
            status.mtu.is_some_and(|mtu| (1385..=1400).contains(&mtu.to_peer) && mtu.black_holes > 0)
        });
        pair.testbed.stop().unwrap();
    }
}

/// The length configured is the length sent.
#[test]
fn a_configured_mtu_is_not_searched() {
    let mut pair = Pair::start_otherwise(1, |plan| plan.mtu = [1500, 9000]);
    pair.complete_transfer(40);
    for (site, mtu) in [(Site::A, 1500), (Site::B, 9000)] {
        // What a gateway says is up to a tenth of a second old, and a transfer may be shorter.
        wait_until("the MTU is not shown", &|| pair.status(site).mtu.is_some());
        let status = pair.status(site).mtu.unwrap();
        assert_eq!((status.to_peer, status.from_peer, status.state), (mtu, None, MtuState::Fixed));
        assert_eq!(status.probes, 0);
    }
    pair.testbed.stop().unwrap();
}

fn failed(report: &Report) -> u64 {
    report.failures.iter().map(|(_, count)| count).sum()
}

/// The hosts' path MTU is 1024: what does not fit a LAN ends in an error that both programs see, at
/// the first packet.
#[test]
fn programs_learn_that_a_lan_is_too_narrow() {
    for (site, lan_mtu) in [(Site::B, [None, Some(600)]), (Site::A, [Some(600), None])] {
        let mut pair = Pair::start_otherwise(1, |plan| plan.lan_mtu = lan_mtu);
        let (client, server) = pair.transfer(Limit::Messages(100));
        wait_until("the requester's program is left waiting", &|| !client.is_running());
        wait_until("the target's program is left waiting", &|| {
            server.progress().errors.load(Ordering::Relaxed) >= 3
        });
        let (client, server): (Report, Report) = (client.join().unwrap(), server.stop().unwrap());
        assert!(!client.stalled && failed(&client) >= 3 && failed(&server) >= 3, "{client}\n{server}");
        wait_until("a gateway's numbers are not what happened", &|| {
            let metrics = pair.testbed.fetch(site, "/metrics").unwrap();
            let value = |series: &str, label: &str| {
                let is_it = |line: &&str| line.starts_with(series) && line.contains(label);
                metrics.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            };
            value("longhaul_lan_mtu_bytes", "") == Some(600)
                && value("longhaul_lan_unsent_packets_total", "too_big") >= Some(3)
                && value("longhaul_flows_failed_total", "too_long") == Some(3)
        });
        let ends = format!("{} 0x", host_ip(Site::B, 1));
        wait_until("no event tells of each flow that failed", &|| {
            let events = pair.testbed.fetch(site, "/events").unwrap();
            let events: gateway::events::Events = serde_json::from_str(&events).unwrap();
            let failed = events.events.iter().filter(|event| event.kind == "flow_failed");
            failed.filter(|event| event.text.contains(&ends) && event.text.contains(": too_long (")).count()
                == 3
        });
        pair.testbed.stop().unwrap();
    }
}

fn wait_until(what: &str, reached: &dyn Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(TICK);
    }
}

/// Neither program is left waiting, and each sees its requests fail.
fn both_end_with_errors(client: Endpoint, server: Endpoint) {
    wait_until("the requester's program is left waiting", &|| !client.is_running());
    wait_until("the target's program is left waiting", &|| {
        server.progress().errors.load(Ordering::Relaxed) >= 3
    });
    let (client, server): (Report, Report) = (client.join().unwrap(), server.stop().unwrap());
    assert!(!client.stalled && client.corrupt == 0 && server.corrupt == 0, "{client}\n{server}");
    assert!(failed(&client) >= 3 && failed(&server) >= 3, "{client}\n{server}");
}

fn a_killed_gateway_is_survived(site: Site) {
    let mut pair =
        Pair::start_otherwise(2, |plan| (plan.threads, plan.resume_for) = ([2; 2], "0 s".to_owned()));
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    wait_until("the transfer does not start", &|| client.progress().messages.load(Ordering::Relaxed) > 30);
    // A gateway writes down what it would tell a restarted peer about ten times a second.
    std::thread::sleep(Duration::from_millis(300));
    pair.testbed.kill(site).unwrap();
    pair.testbed.restart(site).unwrap();
    both_end_with_errors(client, server);

    pair.testbed.wait_for_session(&|| false).unwrap();
    pair.complete_transfer(40);
    pair.wait_for("something is left", is_empty);
    pair.testbed.stop().unwrap();
}

#[test]
fn programs_learn_of_a_requesters_gateway_killed() {
    a_killed_gateway_is_survived(Site::A);
}

#[test]
fn programs_learn_of_a_targets_gateway_killed() {
    a_killed_gateway_is_survived(Site::B);
}
