//! Three sites, each with a gateway towards both others, links that lose packets, and RDMA hosts
//! that check every byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Child;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use gateway::admin::Status;
use link_emulator::{Port, Relay, RelaySpec};
use rustix::process::{Pid, Signal, kill_process};
use session::ThreadCounts;
use soft_nic::QpConfig;
use testbed::hostio::{Bound, Endpoint, EndpointConfig, Limit, Mix, Role, Workload};

#[path = "sites/processes.rs"]
mod processes;
#[path = "common/schemas.rs"]
mod schemas;
#[path = "sites/taken.rs"]
mod taken;

use processes::{PATIENCE, TICK, complete, done, longhaul, start_gateway, wait_until};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PAIRS: [[usize; 2]; 3] = [[0, 1], [0, 2], [1, 2]];
/// Ports of the first three sites; each further three have others.
const FIRST_PORT: u16 = 14_000;
const PORTS: u16 = 40;
static STARTED: AtomicU16 = AtomicU16::new(0);
const LINK: &str = "delay 2ms loss 0.5% reorder 0.5%";
const CUT: &str = "loss 100%";

/// Returns an address of loopback that no other process of this test uses.
fn loopback(number: u8) -> IpAddr {
    let process = std::process::id();
    let [_, _, upper, lower] = process.to_be_bytes();
    Ipv4Addr::new(127, 1 + (upper & 0x7f), lower, number).into()
}

/// Returns where the gateway of a site is.
fn gateway_address(site: usize) -> IpAddr {
    loopback(10 + u8::try_from(site).unwrap())
}

/// Returns where a site's gateway finds that of another: the link's end there.
fn link_end(at: usize, towards: usize) -> IpAddr {
    loopback(100 + 10 * u8::try_from(at).unwrap() + u8::try_from(towards).unwrap())
}

/// Returns the address in packets of a site's host.
fn host_ip(site: usize, index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, u8::try_from(site).unwrap(), u8::try_from(index).unwrap()).into()
}

/// Three gateways, and links between each two of them.
struct Sites {
    gateways: Vec<Child>,
    /// In the order of [`PAIRS`].
    links: Vec<Relay>,
    folder: tempfile::TempDir,
    /// By site and by the index of a pair, less one.
    hosts: Vec<Vec<Option<Bound>>>,
    port: u16,
    limits: String,
}

impl Sites {
    /// With so many hosts at each site, and so many threads.
    fn start(hosts: usize, threads: [u8; 3], lanes: u8) -> Self {
        Self::start_with(hosts, threads, lanes, "")
    }

    /// The same with further lines of `[limits]`.
    fn start_with(hosts: usize, threads: [u8; 3], lanes: u8, limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = longhaul(&["keys", "--dir", folder.path().to_str().unwrap(), "a", "b", "c"]);
        assert!(made.0, "{}", made.1);
        let policy = "[[class]]\nname = \"default\"\nscheme = \"sr\"\n";
        std::fs::write(folder.path().join("policy.toml"), policy).unwrap();
        let hosts: Vec<Vec<_>> = (0..3)
            .map(|site| {
                let address = SocketAddr::new(gateway_address(site), 0);
                (0..hosts).map(|_| Some(Bound::new(address).unwrap())).collect()
            })
            .collect();
        let port = FIRST_PORT + PORTS * STARTED.fetch_add(1, Ordering::Relaxed);
        let mut links = Vec::new();
        for [one, other] in PAIRS {
            let wan = |site| SocketAddr::new(gateway_address(site), port);
            let ends = [(one, other), (other, one)]
                .map(|(at, towards)| SocketAddr::new(link_end(at, towards), port));
            let spec = RelaySpec {
                ports: Port::gateway_pair(ends[0], wan(one), ends[1], wan(other)).into(),
                lanes: usize::from(
                    lanes * ThreadCounts { here: threads[one], there: threads[other] }.pairs(),
                ),
                a_to_b: LINK.parse().unwrap(),
                b_to_a: LINK.parse().unwrap(),
                seed: 7,
            };
            links.push(Relay::start(&spec).unwrap());
        }
        let limits = limits.to_owned();
        let mut sites = Self { gateways: Vec::new(), links, folder, hosts, port, limits };
        for site in 0..3 {
            let text = sites.file(site, threads, lanes);
            std::fs::write(sites.path(site), text).unwrap();
            sites.gateways.push(sites.gateway(site));
        }
        sites.wait_for_sessions();
        sites
    }

    fn path(&self, site: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.toml", NAMES[site]))
    }

    fn log(&self, site: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.log", NAMES[site]))
    }

    fn gateway(&self, site: usize) -> Child {
        start_gateway(&self.path(site), &self.log(site))
    }

    fn file(&self, site: usize, all_threads: [u8; 3], lanes: u8) -> String {
        let (name, own, port) = (NAMES[site], gateway_address(site), self.port);
        let (lan, admin, threads) = (self.lan(site), self.admin(site), all_threads[site]);
        let hosts: String = (1..)
            .zip(&self.hosts[site])
            .map(|(index, bound)| {
                let outer = bound.as_ref().unwrap().address().unwrap();
                format!("\"{}\" = \"{outer}\"\n", host_ip(site, index))
            })
            .collect();
        let peers: String = (0..3)
            .filter(|peer| *peer != site)
            .map(|peer| {
                format!(
                    "[[peer]]\nname = \"{}\"\naddress = \"{}\"\nrate = \"200 Mbit/s\"\n\
                     remote = [\"10.0.{peer}.0/24\"]\ndead_after = \"1 s\"\nthreads = {}\n",
                    NAMES[peer],
                    SocketAddr::new(link_end(site, peer), self.port),
                    all_threads[peer]
                )
            })
            .collect();
        format!(
            "[site]\nname = \"{name}\"\n[lan]\nmode = \"socket\"\nlisten = \"{lan}\"\n\
             [lan.hosts]\n{hosts}[wan]\nlisten = \"{own}:{port}\"\nlanes = {lanes}\nprobe_mtu = false\n\
             {peers}[identity]\ncertificate = \"{name}.crt\"\nkey = \"{name}.key\"\nauthority = \"ca.crt\"\n\
             [admin]\nlisten = \"{admin}\"\n[policy]\nfile = \"policy.toml\"\n\
             [limits]\nidle_flow = \"1 s\"\ntarget_dead = \"2 s\"\n{}[data_plane]\nthreads = {threads}\n",
            self.limits
        )
    }

    fn lan(&self, site: usize) -> SocketAddr {
        SocketAddr::new(gateway_address(site), self.port + PORTS - 1)
    }

    fn admin(&self, site: usize) -> String {
        format!("{}:{}", gateway_address(site), self.port + PORTS - 1)
    }

    /// Returns a gateway's status towards a peer; `None` until it answers.
    fn status(&self, site: usize, peer: usize) -> Option<Status> {
        let args = ["status", "--json", "--peer", NAMES[peer], "--admin", &self.admin(site)];
        serde_json::from_str(&longhaul(&args).1).ok()
    }

    fn wait_for(&self, what: &str, site: usize, peer: usize, wanted: impl Fn(&Status) -> bool) {
        let status = || self.status(site, peer);
        let log = || std::fs::read_to_string(self.log(site)).unwrap_or_default();
        wait_until(
            || status().as_ref().is_some_and(&wanted),
            || format!("{what} at {}: {:?}\n{}", NAMES[site], status(), log()),
        );
    }

    fn wait_for_sessions(&self) {
        for [one, other] in PAIRS {
            for (site, peer) in [(one, other), (other, one)] {
                self.wait_for("no session", site, peer, Status::is_up);
            }
        }
    }

    /// Begins a transfer between the `index`-th hosts of two sites.
    fn transfer(&mut self, [one, other]: [usize; 2], index: usize, messages: u64) -> [Endpoint; 2] {
        let workload = Workload {
            qps: 3,
            mix: Mix::ALL,
            message: 9001,
            limit: Limit::Messages(messages),
            depth: 6,
            patience: PATIENCE,
            seed: index as u64,
            qp: QpConfig { timeout: Some(Duration::from_millis(500)), ..QpConfig::default() },
            ..Workload::default()
        };
        let mut start = |site: usize, peer, role| {
            let bound = self.hosts[site][index - 1].take().unwrap();
            let config = EndpointConfig {
                bind: bound.address().unwrap(),
                gateway: SocketAddr::new(gateway_address(site), self.port + PORTS - 1),
                ip: host_ip(site, index),
                remote_ip: host_ip(peer, index),
                role,
                workload: workload.clone(),
            };
            Endpoint::start_on(bound, &config).unwrap()
        };
        let server = start(other, one, Role::Server);
        [start(one, other, Role::Client), server]
    }

    /// Cuts a site off, or no longer.
    fn cut(&self, site: usize, link: &str) {
        for (pair, relay) in PAIRS.iter().zip(&self.links) {
            if pair.contains(&site) {
                relay.set_links(link.parse().unwrap(), link.parse().unwrap());
            }
        }
    }

    /// Has all gateways stop, which they do well.
    fn stop(mut self) {
        for child in &mut self.gateways {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            kill_process(pid, Signal::TERM).unwrap();
        }
        for mut child in std::mem::take(&mut self.gateways) {
            assert!(child.wait().unwrap().success());
        }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        for child in &mut self.gateways {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One site is cut off under load. The two others carry on as if nothing was, and its own flows go
/// on when it is back. Every transfer's contents are checked.
#[test]
fn a_site_that_is_cut_off_disturbs_no_other() {
    for (threads, lanes) in [([1; 3], 1), ([2; 3], 2), ([2, 1, 3], 1)] {
        const MESSAGES: u64 = 5000;
        let mut sites = Sites::start(3, threads, lanes);
        let transfers: Vec<_> =
            (1..).zip(PAIRS).map(|(index, pair)| sites.transfer(pair, index, MESSAGES)).collect();
        let client = |nth: usize| &transfers[nth][0];
        let said = |what: &str| format!("{what}: {:?}", [0, 1, 2].map(|nth| done(client(nth))));
        wait_until(|| (0..3).all(|nth| done(client(nth)) > 30), || said("not all transfers start"));
        sites.cut(2, CUT);
        for (site, peer) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
            sites.wait_for("the session is not lost", site, peer, |status| status.session.state == "lost");
        }
        // What was under way has come by now.
        let stuck = [1, 2].map(|nth| done(client(nth)));
        let before = done(client(0));
        wait_until(|| done(client(0)) > before + 200, || said("the other sites' transfer does not go on"));
        assert_eq!([1, 2].map(|nth| done(client(nth))), stuck, "of a site that is cut off");
        for (site, peer) in [(0, 1), (1, 0)] {
            let status = sites.status(site, peer).unwrap();
            assert!(status.is_up() && status.session.established == 1, "{status:?}");
            assert_eq!(status.flows.failed, 0, "{status:?}");
        }
        sites.cut(2, LINK);
        for transfer in transfers {
            complete(transfer, 3 * MESSAGES);
        }
        for [one, other] in PAIRS {
            for (site, peer) in [(one, other), (other, one)] {
                let status = sites.status(site, peer).unwrap();
                assert_eq!((status.flows.opened, status.flows.failed), (3, 0), "{status:?}");
                assert_eq!(status.peer, NAMES[peer]);
                assert_eq!(status.session.resumed > 0, [one, other].contains(&2), "{status:?}");
            }
        }
        sites.stop();
    }
}

/// Every series has the peer's name, and each command tells of every peer.
#[test]
fn each_peer_is_told_of_by_its_name() {
    let mut sites = Sites::start(2, [1; 3], 1);
    let transfers = [sites.transfer([0, 1], 1, 60), sites.transfer([0, 2], 2, 20)];
    transfers.into_iter().zip([60, 20]).for_each(|(transfer, messages)| complete(transfer, 3 * messages));
    let admin = sites.admin(0);
    let (is_up, shown) = longhaul(&["status", "--admin", &admin]);
    assert!(is_up && shown.contains("peer     b at") && shown.contains("peer     c at"), "{shown}");
    let (_, events) = longhaul(&["events", "--admin", &admin]);
    assert!(
        ["b", "c"].iter().all(|peer| events.contains(&format!("towards {peer}: with {peer} at"))),
        "{events}"
    );
    let metrics = fetch(&admin, "/metrics");
    for peer in ["b", "c"] {
        let series = format!("longhaul_session_up{{site=\"a\",peer=\"{peer}\"}} 1");
        assert!(metrics.contains(&series), "{metrics}");
    }
    let types = |name: &str| metrics.lines().filter(|line| *line == format!("# TYPE {name} gauge")).count();
    assert_eq!(types("longhaul_session_up"), 1);
    let (is_refused, text) = longhaul(&["status", "--admin", &admin, "--peer", "x"]);
    assert!(!is_refused && text.contains("there is b, c"), "{text}");
    let started = events.lines().find(|line| line.contains(" started ")).unwrap();
    assert!(!started.contains("towards"), "{started}");
    lists_are_each_peers(&admin);
    let (is_reloaded, text) = longhaul(&["reload", "--admin", &admin]);
    assert!(is_reloaded && text.contains("generation 2"), "{text}");
    sites.stop();
}

/// Flows and their judgement come with the name of the peer, as tables and as JSON.
fn lists_are_each_peers(admin: &str) {
    let mut schemas = schemas::Schemas::generate();
    for command in ["flows", "doctor", "status"] {
        let (_, tables) = longhaul(&[command, "--admin", admin]);
        let heads = ["b", "c"].map(|peer| format!("towards {peer}:\n"));
        assert!(command == "status" || heads.iter().all(|head| tables.contains(head)), "{tables}");
        let (_, lists) = longhaul(&[command, "--admin", admin, "--json"]);
        let lists = schemas.hold(command, &lists);
        let peers: Vec<_> = lists.as_array().unwrap().iter().map(|list| list["peer"].clone()).collect();
        assert_eq!(peers, ["b", "c"]);
        let (_, list) = longhaul(&[command, "--admin", admin, "--json", "--peer", "c"]);
        assert_eq!(schemas.hold(command, &list)["peer"], "c");
    }
    for command in ["flows", "events"] {
        let (is_known, text) = longhaul(&[command, "--admin", admin, "--class", "defualt"]);
        assert!(!is_known && text.contains("the policy has no class defualt; it has default"), "{text}");
        let (is_known, text) = longhaul(&[command, "--admin", admin, "--class", "default"]);
        assert!(is_known, "{text}");
    }
    // A plan is for one link.
    let (is_planned, text) = longhaul(&["plan", "--admin", admin, "--rtt", "1 ms", "--drop", "0"]);
    assert!(!is_planned && text.contains("has several peers: say --peer, one of b, c"), "{text}");
    let plan = ["plan", "--admin", admin, "--peer", "c", "--rtt", "1 ms", "--drop", "0"];
    let (is_planned, text) = longhaul(&plan);
    assert!(is_planned, "{text}");
}

fn fetch(admin: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(admin).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
