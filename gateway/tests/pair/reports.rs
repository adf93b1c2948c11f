//! Reports from users of other gateways, tunnels and exporters, tried on ours: what they met must
//! end no flow here.
//!
//! Each names the report. In name spaces of their own, since interfaces and tables go away.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use super::chaos::{ip, run_in_name_spaces, start_on_interfaces};
use super::logs::script;
use super::*;

const SITES: [Site; 2] = [Site::A, Site::B];

#[test]
fn what_others_report_ends_no_flow() {
    run_in_name_spaces("reports::inside", 0);
}

/// "MTU Discovery triggers blackhole frequently under high packet loss network"
/// (quinn-rs/quinn#2212, 13 % lost; likewise #1855, aws/s2n-quic#1680): a path that loses much is
/// not taken for one that came to carry less.
#[test]
fn a_path_that_loses_much_keeps_its_mtu() {
    let mut pair = Pair::start_otherwise(1, |plan| {
        (plan.mtu, plan.probe_mtu) = ([9000; 2], true);
        plan.link = "delay 5ms loss 15%".parse().unwrap();
    });
    pair.wait_for("the MTU is not found", |status| {
        status.mtu.is_some_and(|mtu| mtu.state == MtuState::Complete && mtu.to_peer == 9000)
    });
    pair.complete_transfer(600);
    for site in SITES {
        let mtu = pair.status(site).mtu.unwrap();
        assert_eq!((mtu.to_peer, mtu.from_peer, mtu.black_holes), (9000, Some(9000), 0), "{site:?}");
    }
    pair.testbed.stop().unwrap();
}

/// In the way of `sendmsg`: refuses what is to be cut into segments, as a kernel does by an
/// interface that cannot.
const REFUSING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    struct msghdr *m = (struct msghdr *)message;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == 103) { errno = EIO; return -1; }
    ssize_t (*real)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    return real(socket, message, flags);
}
"#;

/// "GSO fails on some platforms / interfaces" (quic-go/quic-go#3911, mozilla/neqo#3032,
/// envoyproxy/envoy#21200: "and envoy gives up delivering the packet!").
#[test]
fn a_kernel_that_refuses_segmentation_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [source, library] = ["refusing.c", "refusing.so"].map(|name| folder.path().join(name));
    std::fs::write(&source, REFUSING).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success());
    let commands = format!(
        "case \"$*\" in\ngateway*) export LD_PRELOAD={};;\nesac\nexec {} \"$@\"\n",
        library.display(),
        env!("CARGO_BIN_EXE_longhaul")
    );
    let program = script(folder.path(), &commands);
    let mut pair = Pair::start_otherwise(1, |plan| {
        (plan.program, plan.link) = (program, "delay 2ms".parse().unwrap());
        plan.rate = "2 Gbit/s".to_owned();
    });
    let transfer = pair.transfer_otherwise(Limit::Messages(200), |workload| workload.message = 256 << 10);
    complete(transfer, 200);
    let refused = |site| pair.counted(site, "longhaul_wan_offload_refused_total", |_| true);
    println!("refused: {} at a, {} at b", refused(Site::A), refused(Site::B));
    for site in SITES {
        let unsent = pair.counted(site, "longhaul_wan_unsent_packets_total", |_| true);
        assert_eq!((unsent, pair.status(site).flows.failed), (0, 0), "{site:?}");
    }
    assert!(refused(Site::A) > 0, "nothing was to be cut");
    pair.testbed.stop().unwrap();
}

struct World {
    pair: Pair,
    client: Endpoint,
    server: Endpoint,
    /// The log of both gateways.
    log: PathBuf,
}

impl World {
    /// The transfer goes on, and both gateways are as they were.
    fn goes_on(&self, what: &str) {
        let done = || self.client.progress().messages.load(Ordering::Relaxed);
        let before = done();
        wait_until(&format!("{what}: the transfer does not go on"), &|| done() > before + 50);
        for site in SITES {
            wait_until(&format!("{what}: no session"), &|| self.pair.status(site).is_up());
            assert_eq!(self.pair.status(site).flows.failed, 0, "{what}: {site:?}");
        }
    }
}

fn nft(arguments: &str) -> (bool, String) {
    let output = Command::new("nft").args(arguments.split_whitespace()).output().expect("nftables");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
#[ignore = "run by the others, in a name space"]
fn inside() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let commands = format!("exec {} \"$@\" 2>> {}\n", env!("CARGO_BIN_EXE_longhaul"), log.display());
    let program = script(folder.path(), &commands);
    let (mut pair, _hosts) = start_on_interfaces(2, |plan| plan.program = program);
    let (client, server) = pair.transfer(Limit::Messages(10_000_000));
    let world = World { pair, client, server, log };
    world.goes_on("at first");
    all_tables_are_flushed(&world);
    rules_go_while_the_kernel_has_much_to_tell(&world);
    interfaces_are_made_again(&world);
    no_more_files_can_be_opened(&world);
    files_are_swapped_as_in_a_pod(&world);
    let World { mut pair, client, server, .. } = world;
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0, "{client}\n{server}");
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

/// "Restarting nftables.service destroys rules created by other services" (NixOS/nixpkgs#286584).
fn all_tables_are_flushed(world: &World) {
    let tables = || nft("list tables").1.lines().filter(|line| line.contains("longhaul-")).count();
    let before = tables();
    assert!(before >= 4, "one about forwarding and one about neighbours for each");
    nft("flush ruleset");
    assert_eq!(tables(), before);
    let name = nft("list tables").1.lines().next().unwrap().to_owned();
    let (deleted, _) = nft(&name.replace("table", "delete table"));
    assert!(!deleted && tables() == before, "they are the gateways' own");
    world.goes_on("nft flush ruleset");
}

/// "netlink-listen recvmsg overrun: No buffer space available" (FRRouting/frr#7883,
/// acassen/keepalived#392): a daemon that misses what the kernel tells.
fn rules_go_while_the_kernel_has_much_to_tell(world: &World) {
    let line = |verb, n: u32| format!("addr {verb} 10.77.{}.{}/32 dev lo\n", n / 250, n % 250 + 1);
    let batch: String =
        ["add", "del"].iter().flat_map(|verb| (0..2000).map(move |n| line(verb, n))).collect();
    let file = world.pair.testbed.folder().join("batch");
    std::fs::write(&file, batch).unwrap();
    let file = file.to_str().unwrap();
    let mut storm = Command::new("ip").args(["-batch", file]).spawn().unwrap();
    for _ in 0..2 {
        ip("rule del pref 1");
    }
    storm.wait().unwrap();
    wait_until("the rules are not put back", &|| ip("rule list pref 1").lines().count() == 2);
    world.goes_on("a storm of netlink");
}

/// "Ethernet transport never recovers receive path after interface destroy/recreate"
/// (jmcorgan/fips#125): the name is the same, and the number is another one.
fn interfaces_are_made_again(world: &World) {
    let index = |n: usize| {
        // "7: g0@if2: ..."
        ip(&format!("-o link show g{n}")).split_once(':').unwrap().0.to_owned()
    };
    let before = [0, 1].map(index);
    for n in 0..2 {
        ip(&format!("link del g{n}"));
    }
    // Somebody else gets the numbers' neighbours.
    ip("link add other type veth peer name another");
    for n in 0..2 {
        ip(&format!("link add g{n} mtu 4400 type veth peer name v{n} mtu 4400 netns host{n}"));
        ip(&format!("addr add 10.0.{n}.254/24 dev g{n}"));
        ip(&format!("link set g{n} up"));
        for host in 1..4 {
            ip(&format!("-n host{n} addr add 10.0.{n}.{host}/24 dev v{n}"));
        }
        ip(&format!("-n host{n} link set v{n} up"));
        ip(&format!("-n host{n} route add default via 10.0.{n}.254"));
    }
    assert!(before.iter().zip([0, 1].map(index)).all(|(before, after)| *before != after));
    world.goes_on("interfaces made again");
    ip("link del other");
}

/// "http: Accept error: accept4: too many open files; retrying" (prometheus/blackbox_exporter#96,
/// prometheus/node_exporter#1163): 121,827 lines in a weekend.
fn no_more_files_can_be_opened(world: &World) {
    let limit = |pid: u32, most: &str| {
        let (pid, most) = (pid.to_string(), format!("--nofile={most}:"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &most]).status().unwrap().success());
    };
    let refused = || {
        let log = std::fs::read_to_string(&world.log).unwrap();
        log.lines().filter(|line| line.contains("admin listener cannot accept")).count()
    };
    for (before, site) in SITES.into_iter().enumerate() {
        let (pid, address) = (world.pair.testbed.pid(site), world.pair.testbed.admin(site));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let limited = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        limit(pid, &(open + 2).to_string());
        let flood: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
        wait_until("nothing is refused", &|| refused() > before);
        // As many more attempts as there would be lines without a bound.
        std::thread::sleep(Duration::from_secs(3));
        limit(pid, limited.split_whitespace().nth(3).unwrap());
        drop(flood);
        world.goes_on("no more files");
        let lines = world.pair.counted(site, "longhaul_log_lines_lost_total", |_| true);
        assert_eq!(lines, 0, "{site:?}: so many lines that some were left out");
        assert_eq!(refused(), before + 1, "{site:?}: it is told once");
    }
}

/// "Minio does not detect updates to certificates stored in a Kubernetes Secret"
/// (minio/minio#14357): the names are links by way of `..data`, and that is what is swapped.
fn files_are_swapped_as_in_a_pod(world: &World) {
    let folder = world.pair.testbed.folder();
    let at = |path: &str| folder.join(path);
    let link = |target: &str, name: &str| {
        let new = at("..new");
        std::os::unix::fs::symlink(target, &new).unwrap();
        std::fs::rename(new, at(name)).unwrap();
    };
    let keys = |to: &str| {
        std::fs::create_dir(at(to)).unwrap();
        ["ca.crt", "ca.key"]
            .iter()
            .for_each(|name| assert!(std::fs::copy(at(name), at(to).join(name)).unwrap() > 0));
        longhaul(&["keys", "--dir", at(to).to_str().unwrap(), "b"]);
    };
    let identities = || world.pair.testbed.fetch(Site::B, "/events").unwrap().matches("\"identity\"").count();
    for round in 0..2 {
        let (before, to) = (identities(), format!("..{round}"));
        keys(&to);
        link(&to, "..data");
        if round == 0 {
            ["b.crt", "b.key"].iter().for_each(|name| link(&format!("..data/{name}"), name));
        }
        wait_until("nobody notices the new certificate", &|| identities() > before);
        world.goes_on("a pod's secret is renewed");
    }
    let events = world.pair.testbed.fetch(Site::B, "/events").unwrap();
    assert!(!events.contains("refused: "), "{events}");
}
