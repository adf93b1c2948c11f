//! Two sites of two gateways each in packet mode, under FRR as `packaging/` configures it, and RDMA
//! hosts that check every byte. Everything is in name spaces, which `netem-tests/lab/`'s
//! `four-gateways.sh` makes: as root, with FRR installed.
//!
//! ```text
//! cargo test -p gateway --release --test frr -- --ignored --nocapture
//! ```
//!
//! | variable | what | usually |
//! |---|---|---|
//! | `LAB_DEEDS` | what befalls the gateway, as `four-gateways.sh` names it | all five |
//! | `LAB_TRY` | milliseconds of a queue pair's try | 1000, as UCX |
//! | `LAB_TRIES` | tries after the first; 7: without end | 6 |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use link_emulator::{Bridge, BridgeSpec};
use soft_nic::QpConfig;
use splice::members::{HostPair, MemberId, owner};
use testbed::hostio::{Bound, Endpoint, EndpointConfig, Limit, Mix, Progress, Report, Role, Workload};

#[path = "pair/chaos/hosts.rs"]
#[expect(dead_code, reason = "what is sent to nobody is sent in other tests")]
mod hosts;

use hosts::Hosts;

const SURROUNDINGS: &str = r#"
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/frr && mkdir -p /run/netns /run/frr || exit 1
ip link set lo up
. "$LAB_SCRIPTS/four-gateways.sh"
sites || exit 1
"$0" --exact inside --ignored --nocapture; status=$?
for pid in /run/gateway-*.pid /run/routes-*.pid /run/frr/*/*.pid; do kill "$(cat "$pid")" 2> /dev/null; done
exit $status
"#;
const LINK: &str = "delay 10ms loss 1% rate 100mbit limit 20000";
const PAIRS: u8 = 6;
const PATIENCE: Duration = Duration::from_secs(30);
const HELD: Duration = Duration::from_secs(8);
const KINDS: [&str; 5] = ["lan", "wan", "kill", "cut", "stop"];
const ACTIVE: [&str; 2] = ["a1", "b1"];

#[test]
#[ignore = "needs root and FRR, and takes minutes: by name"]
fn no_program_sees_a_gateway_go() {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("frr");
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs).unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let status = Command::new("unshare")
        .args(["--net", "--mount", "bash", "-c", SURROUNDINGS])
        .arg(std::env::current_exe().unwrap())
        .env("LAB_SOFT", "1")
        .env("LAB_LONGHAUL", env!("CARGO_BIN_EXE_longhaul"))
        .env("LAB_SCRIPTS", tree.join("netem-tests/lab"))
        .env("LAB_TREE", tree)
        .env("LAB_RATE", "100 Mbit/s")
        .env("LAB_LOGS", &logs)
        .status()
        .expect("unshare of util-linux");
    assert!(status.success(), "it needs root and FRR; otherwise see above, and {}", logs.display());
}

/// Two hosts, and how long the requester waited for a completion at most.
struct Transfer {
    nth: u8,
    client: Endpoint,
    server: Endpoint,
    longest: Arc<std::sync::Mutex<Duration>>,
    is_over: Arc<AtomicBool>,
    watcher: JoinHandle<()>,
}

fn ip(site: u8, nth: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, site, 10 + nth).into()
}

fn variable(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Runs a function of `four-gateways.sh`.
fn run(what: &str) {
    let script = format!(". \"$LAB_SCRIPTS/four-gateways.sh\"; {what}");
    let status = Command::new("bash").args(["-c", &script]).status().unwrap();
    assert!(status.success(), "{what}");
}

/// Looks at the requester's progress until it is over.
fn watch(progress: &Progress, longest: &std::sync::Mutex<Duration>, is_over: &AtomicBool) {
    let done = || progress.messages.load(Ordering::Relaxed);
    let (mut before, mut since) = (done(), Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
        let now = done();
        let mut longest = longest.lock().unwrap();
        *longest = (*longest).max(since.elapsed());
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
}

impl Transfer {
    fn start(nth: u8, [client, server]: [Bound; 2], lans: [std::net::SocketAddr; 2]) -> Self {
        let workload = Workload {
            qps: 2,
            mix: Mix::ALL,
            message: 20_000,
            limit: Limit::Time(Duration::from_secs(3600)),
            depth: 4,
            patience: PATIENCE,
            seed: u64::from(nth),
            qp: QpConfig {
                timeout: Some(Duration::from_millis(variable("LAB_TRY", 1000))),
                retry_cnt: u8::try_from(variable("LAB_TRIES", 6)).unwrap(),
                ..QpConfig::default()
            },
            ..Workload::default()
        };
        let start = |bound: Bound, site: u8, role| {
            let config = EndpointConfig {
                bind: bound.address().unwrap(),
                gateway: lans[usize::from(site)],
                ip: ip(site, nth),
                remote_ip: ip(1 - site, nth),
                role,
                workload: workload.clone(),
            };
            Endpoint::start_on(bound, &config).unwrap()
        };
        let server = start(server, 1, Role::Server);
        let client = start(client, 0, Role::Client);
        let (longest, is_over) = (Arc::default(), Arc::<AtomicBool>::default());
        let shared = (Arc::clone(client.progress()), Arc::clone(&longest), Arc::clone(&is_over));
        let watcher = std::thread::spawn(move || watch(&shared.0, &shared.1, &shared.2));
        Self { nth, client, server, longest, is_over, watcher }
    }

    /// Returns the gateway of a site that is to speak for the hosts.
    fn owner(&self, site: u8) -> String {
        let names: Vec<String> =
            (1..=2).map(|nth| format!("{}{nth}", ["a", "b"][usize::from(site)])).collect();
        let members = names.iter().map(|name| MemberId(config::member_number(name)));
        let owner = owner(HostPair::new(ip(0, self.nth), ip(1, self.nth)), members).unwrap();
        names.into_iter().find(|name| MemberId(config::member_number(name)) == owner).unwrap()
    }

    /// Returns the longest wait since the last call.
    fn take_longest(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }

    fn end(self) -> (u8, Report, Report) {
        self.is_over.store(true, Ordering::Relaxed);
        self.watcher.join().unwrap();
        (self.nth, self.client.stop().unwrap(), self.server.stop().unwrap())
    }
}

/// The longest wait of the hosts that the gateway speaks for, and of all others.
fn stalls(transfers: &[Transfer], name: &str) -> [f64; 2] {
    let site = u8::from(name.starts_with('b'));
    let mut stalls = [Duration::ZERO; 2];
    for transfer in transfers {
        let stall = &mut stalls[usize::from(transfer.owner(site) != name)];
        *stall = (*stall).max(transfer.take_longest());
    }
    stalls.map(|stall| stall.as_secs_f64())
}

#[test]
#[ignore = "run by the other, in a name space"]
fn inside() {
    if std::env::var_os("LAB_SOFT").is_none() {
        println!("skipped: the other test makes its surroundings");
        return;
    }
    let side = |name: &str| format!("net:{name}").parse().unwrap();
    let link = LINK.parse().unwrap();
    let spec = BridgeSpec { a: side("la"), b: side("lb"), a_to_b: link, b_to_a: link, seed: 7 };
    let bridge = Bridge::start(&spec).unwrap();
    run("four_gateways");
    let bound = || Bound::new(([127, 0, 0, 1], 0).into()).unwrap();
    let bounds: Vec<[Bound; 2]> = (0..PAIRS).map(|_| [bound(), bound()]).collect();
    let known = |site: u8| {
        let each = (0..PAIRS).zip(&bounds);
        each.map(|(nth, both)| (ip(site, nth), both[usize::from(site)].address().unwrap())).collect()
    };
    let hosts = [Hosts::start("hosta", known(0)), Hosts::start("hostb", known(1))];
    let lans = hosts.each_ref().map(|hosts| hosts.address);
    let transfers: Vec<_> =
        (0..PAIRS).zip(bounds).map(|(nth, both)| Transfer::start(nth, both, lans)).collect();
    let owned = |name: &str| {
        transfers.iter().filter(|transfer| transfer.owner(u8::from(name.starts_with('b'))) == name).count()
    };
    println!("{:?}", ["a1", "a2", "b1", "b2"].map(|name| (name, owned(name))));
    std::thread::sleep(HELD);
    let [first, _] = stalls(&transfers, "a1");
    println!("longest stall before: {first:.2} s");
    let kinds = std::env::var("LAB_DEEDS").unwrap_or(KINDS.join(" "));
    for kind in kinds.split_whitespace() {
        for name in ACTIVE {
            stalls(&transfers, name);
            run(&format!("befall {kind} {name}"));
            std::thread::sleep(HELD);
            let [own, others] = stalls(&transfers, name);
            run(&format!("undo {kind} {name}"));
            std::thread::sleep(HELD);
            let [own_back, others_back] = stalls(&transfers, name);
            run("all_sessions && all_ways");
            println!(
                "{kind} {name}: its hosts {own:.2} s, others {others:.2} s; taken back {own_back:.2} s, {others_back:.2} s"
            );
        }
    }
    judge(transfers);
    drop(bridge);
}

fn judge(transfers: Vec<Transfer>) {
    let mut is_good = true;
    for (nth, client, server) in transfers.into_iter().map(Transfer::end) {
        let is_clean = client.is_clean() && server.is_clean() && client.messages > 0;
        is_good &= is_clean;
        println!(
            "hosts {nth}: {} messages{}",
            client.messages,
            if is_clean { String::new() } else { format!("\n{client}\n{server}") }
        );
    }
    assert!(is_good, "see above");
}
