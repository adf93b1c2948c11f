//! Two sites of two gateways each, as processes on loopback, and RDMA hosts that check every byte.

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
use soft_nic::QpConfig;
use testbed::hostio::{Bound, Endpoint, EndpointConfig, Limit, Mix, Role, Workload};

#[path = "sites/processes.rs"]
mod processes;

#[path = "pair/prometheus/server.rs"]
mod prometheus;

#[path = "common/schemas.rs"]
mod schemas;

#[path = "sites/successor.rs"]
mod successor;

use processes::{PATIENCE, complete, done, longhaul, start_gateway, wait_until};
use prometheus::{OF_SEVERAL_GATEWAYS, Prometheus, RULES, dashboard_queries};
use successor::{Successor, upgrade};

/// Those of the first site, and then those of the other.
const NAMES: [&str; 4] = ["a1", "a2", "b1", "b2"];
const HOSTS: usize = 6;
const FIRST_PORT: u16 = 15_000;
static STARTED: AtomicU16 = AtomicU16::new(0);

/// Returns an address of loopback that no other process of this test uses.
fn address(node: usize) -> IpAddr {
    let [_, _, upper, lower] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + (upper & 0x7f), lower, 10 + u8::try_from(node).unwrap()).into()
}

fn host_ip(site: usize, host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, u8::try_from(site).unwrap(), 1 + u8::try_from(host).unwrap()).into()
}

struct Sites {
    gateways: Vec<Option<Child>>,
    /// Processes that have taken the places of others.
    successors: [Option<Successor>; 4],
    folder: tempfile::TempDir,
    /// By site.
    hosts: Vec<Vec<Option<Bound>>>,
    port: u16,
    threads: u8,
}

impl Sites {
    fn start(threads: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        let made = longhaul(&[&["keys", "--dir", dir], &NAMES[..]].concat());
        assert!(made.0, "{}", made.1);
        let policy = "[[class]]\nname = \"default\"\nscheme = \"sr\"\n";
        std::fs::write(folder.path().join("policy.toml"), policy).unwrap();
        let bound = |site: usize| {
            let any = SocketAddr::new(address(2 * site), 0);
            (0..HOSTS).map(|_| Some(Bound::new(any).unwrap())).collect()
        };
        let hosts = vec![bound(0), bound(1)];
        let port = FIRST_PORT + 40 * STARTED.fetch_add(1, Ordering::Relaxed);
        let successors = Default::default();
        let mut sites = Self { gateways: Vec::new(), successors, folder, hosts, port, threads };
        for node in 0..4 {
            std::fs::write(sites.path(node), sites.file(node)).unwrap();
            sites.gateways.push(Some(sites.gateway(node)));
        }
        sites.wait_for_sessions();
        sites
    }

    fn path(&self, node: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.toml", NAMES[node]))
    }

    fn log_path(&self, node: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.log", NAMES[node]))
    }

    fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.log_path(node)).unwrap_or_default()
    }

    fn gateway(&self, node: usize) -> Child {
        start_gateway(&self.path(node), &self.log_path(node))
    }

    fn wan(&self, node: usize) -> SocketAddr {
        SocketAddr::new(address(node), self.port)
    }

    fn lan(&self, node: usize) -> SocketAddr {
        SocketAddr::new(address(node), self.port + 39)
    }

    fn file(&self, node: usize) -> String {
        let (site, peer) = (node / 2, 1 - node / 2);
        let own: String = [2 * site, 2 * site + 1]
            .map(|node| format!("{{ name = \"{}\", address = \"{}\" }}", NAMES[node], self.wan(node)))
            .join(", ");
        let hosts: String = self.hosts[site]
            .iter()
            .enumerate()
            .map(|(host, bound)| {
                let outer = bound.as_ref().unwrap().address().unwrap();
                format!("\"{}\" = \"{outer}\"\n", host_ip(site, host))
            })
            .collect();
        let peers: String = [2 * peer, 2 * peer + 1]
            .map(|node| {
                format!(
                    "[[peer]]\nname = \"{}\"\nsite = \"{}\"\naddress = \"{}\"\nrate = \"200 Mbit/s\"\n\
                     remote = [\"10.0.{peer}.0/24\"]\ndead_after = \"1 s\"\n",
                    NAMES[node],
                    ["a", "b"][peer],
                    self.wan(node)
                )
            })
            .concat();
        let (name, wan, lan, threads) = (NAMES[node], self.wan(node), self.lan(node), self.threads);
        format!(
            "[site]\nname = \"{name}\"\ngateways = [{own}]\n[lan]\nmode = \"socket\"\nlisten = \"{lan}\"\n\
             [lan.hosts]\n{hosts}[wan]\nlisten = \"{wan}\"\nprobe_mtu = false\n\
             {peers}[identity]\ncertificate = \"{name}.crt\"\nkey = \"{name}.key\"\nauthority = \"ca.crt\"\n\
             [admin]\nlisten = \"{lan}\"\nsocket = \"{name}.sock\"\n[policy]\nfile = \"policy.toml\"\n\
             [data_plane]\nthreads = {threads}\n"
        )
    }

    fn status(&self, node: usize, peer: usize) -> Option<Status> {
        let admin = self.lan(node).to_string();
        serde_json::from_str(&longhaul(&["status", "--json", "--peer", NAMES[peer], "--admin", &admin]).1)
            .ok()
    }

    fn wait_for_sessions(&self) {
        for node in 0..4 {
            for peer in (0..4).filter(|peer| *peer != node) {
                let status = || self.status(node, peer);
                wait_until(|| status().is_some_and(|status| status.is_up()), || self.log(node));
            }
        }
    }

    /// Waits until a gateway has told this of who takes part.
    fn wait_for_members(&self, node: usize, members: &str) {
        let is_told = || {
            let log = self.log(node);
            let last = log.lines().rfind(|line| line.contains("that take part here have changed"));
            last.is_some_and(|line| line.contains(members))
        };
        wait_until(is_told, || format!("{members}: {}", self.log(node)));
    }

    /// Waits until a gateway tells that all of its site take part, and that it speaks for hosts.
    fn wait_for_status(&self, node: usize) {
        let first = node / 2 * 2;
        let own = [NAMES[first], NAMES[first + 1]];
        let told = || self.status(node, 2 - first).unwrap().surroundings.members.unwrap();
        let is_told = || {
            let told = told();
            let is_logged = self.log(node).contains("the gateway that speaks for pairs of hosts has changed");
            told.live == own && told.absent.is_empty() && told.pairs > 0 && is_logged
        };
        wait_until(is_told, || format!("{:?}: {}", told(), self.log(node)));
    }

    /// Begins a transfer between two hosts, which send to these gateways, of messages of a packet.
    fn transfer(&mut self, host: usize, through: [usize; 2], messages: u64) -> [Endpoint; 2] {
        self.transfer_of(1000, host, through, messages)
    }

    fn transfer_of(
        &mut self,
        message: u32,
        host: usize,
        through: [usize; 2],
        messages: u64,
    ) -> [Endpoint; 2] {
        let workload = Workload {
            qps: 2,
            mix: Mix::ALL,
            message,
            limit: Limit::Messages(messages),
            depth: 4,
            patience: PATIENCE,
            seed: host as u64,
            qp: QpConfig { timeout: Some(Duration::from_secs(1)), ..QpConfig::default() },
            ..Workload::default()
        };
        let mut start = |site: usize, role| {
            let bound = self.hosts[site][host].take().unwrap();
            let config = EndpointConfig {
                bind: bound.address().unwrap(),
                gateway: self.lan(through[site]),
                ip: host_ip(site, host),
                remote_ip: host_ip(1 - site, host),
                role,
                workload: workload.clone(),
            };
            Endpoint::start_on(bound, &config).unwrap()
        };
        let server = start(1, Role::Server);
        [start(0, Role::Client), server]
    }

    /// Has another process take a gateway's place.
    fn upgrade(&mut self, node: usize) {
        let successor = upgrade(&self.path(node), &self.log_path(node));
        if let Some(mut before) = self.gateways[node].take() {
            assert!(before.wait().unwrap().success(), "{}", self.log(node));
        }
        self.successors[node] = Some(successor);
    }

    fn runs(&self, node: usize) -> bool {
        self.gateways[node].is_some() || self.successors[node].is_some()
    }

    fn failed(&self) -> u64 {
        let all = (0..4).flat_map(|node| (0..4).map(move |peer| (node, peer)));
        let each = all.filter(|(node, peer)| node / 2 != peer / 2 && self.runs(*node));
        each.map(|(node, peer)| self.status(node, peer).unwrap().flows.failed).sum()
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        for child in self.gateways.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            (0..4).for_each(|node| eprintln!("{}:\n{}", NAMES[node], self.log(node)));
        }
    }
}

/// Hosts of both sites send to either gateway, whoever speaks for them.
#[test]
fn packets_at_any_gateway_come_to_the_one_that_speaks() {
    for threads in [1, 2] {
        const MESSAGES: u64 = 300;
        let mut sites = Sites::start(threads);
        (0..4).for_each(|node| sites.wait_for_members(node, &NAMES[node / 2 * 2..][..2].join(", ")));
        let through = |host: usize| [host % 2, 2 + host / 2 % 2];
        let transfers: Vec<_> =
            (0..HOSTS).map(|host| sites.transfer(host, through(host), MESSAGES)).collect();
        transfers.into_iter().for_each(|transfer| complete(transfer, 2 * MESSAGES));
        assert_eq!(sites.failed(), 0);
        // Each gateway spoke for some.
        for (node, name) in NAMES.iter().enumerate() {
            let opened: u64 = (0..4)
                .filter(|peer| peer / 2 != node / 2)
                .map(|peer| sites.status(node, peer).unwrap().flows.opened)
                .sum();
            assert!(opened > 0, "{name} had no flow");
            sites.wait_for_status(node);
            assert_eq!(
                sites.status(node, node ^ 1).unwrap().surroundings.members,
                None,
                "a gateway of this site"
            );
        }
        let handed_over = |node: usize| {
            sites.status(node, (node ^ 2) & 2).unwrap().surroundings.members.unwrap().handed_over
        };
        assert!((0..4).map(handed_over).sum::<u64>() > 0);
        let (_, shown) = longhaul(&["status", "--json", "--admin", &sites.lan(0).to_string()]);
        let statuses = schemas::Schemas::generate().hold("status", &shown);
        assert!(shown.contains("\"handed_over\"") && statuses.as_array().unwrap().len() == 3, "{shown}");
    }
}

/// A gateway is killed under load. Its hosts' programs see a delay, and return to it when it is
/// back.
#[test]
fn the_hosts_of_a_gateway_that_dies_go_on_by_the_other() {
    const MESSAGES: u64 = 8000;
    let mut sites = Sites::start(1);
    (0..4).for_each(|node| sites.wait_for_members(node, &NAMES[node / 2 * 2..][..2].join(", ")));
    // Routes lead to those that live.
    let transfers: Vec<_> =
        (0..HOSTS).map(|host| sites.transfer(host, [1, 2 + host % 2], MESSAGES)).collect();
    let done = |nth: usize| done(&transfers[nth][0]);
    let said = |what: &str| format!("{what}: {:?}", (0..HOSTS).map(done).collect::<Vec<_>>());
    wait_until(|| (0..HOSTS).all(|nth| done(nth) > 100), || said("not all transfers start"));
    let opened = |peer: usize| sites.status(0, peer).unwrap().flows.opened;
    assert!(opened(2) + opened(3) > 0, "who dies spoke for nobody");
    let mut dead = sites.gateways[0].take().unwrap();
    dead.kill().unwrap();
    dead.wait().unwrap();
    let before: Vec<_> = (0..HOSTS).map(done).collect();
    let goes_on = |nth: usize| done(nth) > before[nth] + 50 || done(nth) == 2 * MESSAGES;
    wait_until(|| (0..HOSTS).all(goes_on), || said("not all go on"));
    sites.wait_for_members(1, "members=a2");
    sites.gateways[0] = Some(sites.gateway(0));
    sites.wait_for_members(1, "a1, a2");
    transfers.into_iter().for_each(|transfer| complete(transfer, 2 * MESSAGES));
}

/// The dashboard shows which gateways of each site live, one of which dies and comes back.
#[test]
fn a_dashboard_shows_who_of_a_site_lives() {
    let mut sites = Sites::start(1);
    (0..4).for_each(|node| sites.wait_for_members(node, &NAMES[node / 2 * 2..][..2].join(", ")));
    let targets = [0, 1, 2, 3].map(|node| sites.lan(node));
    let mut prometheus = Prometheus::start(&targets, RULES);
    prometheus.wait_for("a scrape of all", |prometheus| prometheus.count("up == 1") == 4);
    let mut queries = dashboard_queries();
    queries.retain(|query| query.starts_with(OF_SEVERAL_GATEWAYS));
    assert_eq!(queries.len(), 1, "{queries:?}");
    let query = &queries[0];
    // Each tells of the other one of its site.
    let shows = |prometheus: &mut Prometheus, what: &str, series: usize| {
        let what = format!("{query}{what}");
        prometheus.wait_for(&what, |prometheus| prometheus.count(&what) == series);
    };
    shows(&mut prometheus, " == 1", 4);
    let mut dead = sites.gateways[0].take().unwrap();
    dead.kill().unwrap();
    dead.wait().unwrap();
    shows(&mut prometheus, " == 0", 1);
    sites.gateways[0] = Some(sites.gateway(0));
    shows(&mut prometheus, " == 1", 4);
}

/// Each gateway is replaced by another process in turn, twice, under load with messages of many
/// packets. No flow ends, nothing moves, and every byte is checked.
#[test]
fn gateways_are_upgraded_in_turn_and_no_flow_ends() {
    const MESSAGES: u64 = 4000;
    for threads in [1, 2] {
        let mut sites = Sites::start(threads);
        (0..4).for_each(|node| sites.wait_for_members(node, &NAMES[node / 2 * 2..][..2].join(", ")));
        let through = |host: usize| [host % 2, 2 + host / 2 % 2];
        let transfers: Vec<_> =
            (0..HOSTS).map(|host| sites.transfer_of(20_000, host, through(host), MESSAGES)).collect();
        let counts = || -> Vec<u64> { transfers.iter().map(|[client, _]| done(client)).collect() };
        let go_on = |what: &str| {
            let before = counts();
            let goes_on = |(now, before): (u64, &u64)| now > before + 20 || now == 2 * MESSAGES;
            wait_until(
                || counts().into_iter().zip(&before).all(goes_on),
                || format!("{what}: {before:?}, {:?}", counts()),
            );
        };
        go_on("not all transfers start");
        for round in 0..8 {
            let node = round % 4;
            let before = moved_at_others(&sites, node);
            sites.upgrade(node);
            go_on(&format!("not all go on after upgrade {round}"));
            // Counts begin anew with a process.
            assert_eq!(moved_at_others(&sites, node), before, "pairs moved by upgrade {round}");
            assert!(counts().iter().any(|done| *done < 2 * MESSAGES), "the load was over too soon");
        }
        sites.wait_for_sessions();
        transfers.into_iter().for_each(|transfer| complete(transfer, 2 * MESSAGES));
        assert_eq!(sites.failed(), 0);
        for (node, name) in NAMES.iter().enumerate() {
            assert_eq!(moved(&sites, node), 0, "pairs moved at {name}: {}", sites.log(node));
        }
    }
}

/// Returns how many pairs of hosts moved as this process saw it.
fn moved(sites: &Sites, node: usize) -> u64 {
    sites.status(node, 2 - node / 2 * 2).unwrap().surroundings.members.unwrap().moved
}

fn moved_at_others(sites: &Sites, node: usize) -> Vec<u64> {
    (0..4).filter(|other| *other != node).map(|other| moved(sites, other)).collect()
}
