//! Everything around a pair goes wrong in turn, under traffic whose contents are checked.
//!
//! Runs in name spaces of its own, since interfaces and addresses go away:
//! ```text
//! [host0]      v0 10.0.0.x
//! gateway a    g0 10.0.0.254, 10.9.0.1
//! emulator
//! gateway b    g1 10.0.1.254, 10.9.0.2
//! [host1]      v1 10.0.1.x
//! ```
//! The gateways are in one name space, with the emulator and a Prometheus, which share its loopback
//! interface.

#[path = "chaos/hosts.rs"]
pub(super) mod hosts;
#[path = "chaos/told.rs"]
mod told;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use super::clock::follow;
use super::logs::{Fifo, lost, script};
use super::*;
use hosts::Hosts;
use told::Told;

const SITES: [Site; 2] = [Site::A, Site::B];
/// The name of [`inside`], for the test program that runs it.
const INSIDE: &str = "chaos::inside";
const SECONDS: &str = "LONGHAUL_CHAOS_SECONDS";
/// Names the folder that is a small disk of its own.
const DISK: &str = "LONGHAUL_CHAOS_DISK";
/// Makes the surroundings, and runs the test program in them.
const SURROUNDINGS: &str = r#"
set -e
mount -t tmpfs tmpfs /run
ip link set lo up
ip addr add 10.9.0.1/32 dev lo
ip addr add 10.9.0.2/32 dev lo
ip addr add 10.9.0.3/32 dev lo
for n in 0 1; do
  ip netns add host$n
  ip link add g$n mtu 4400 type veth peer name v$n mtu 4400 netns host$n
  ip addr add 10.0.$n.254/24 dev g$n
  ip link set g$n up
  ip -n host$n link set lo up
  for host in 1 2 3; do ip -n host$n addr add 10.0.$n.$host/24 dev v$n; done
  ip -n host$n link set v$n up
  ip -n host$n route add default via 10.0.$n.254
done
mount -t tmpfs -o size=8m tmpfs "$2"
exec "$0" --exact "$1" --ignored --nocapture
"#;
/// Memory that may come and go with what waits for the link.
const MEMORY: u64 = 24 << 20;
/// Files that may be open in addition: admin connections of the moment.
const FILES: u64 = 40;

/// Runs [`inside`] for so many seconds in name spaces of its own.
fn run_for(seconds: u64) {
    run_in_name_spaces(INSIDE, seconds);
}

/// Runs an ignored test in name spaces of its own.
pub(super) fn run_in_name_spaces(test: &str, seconds: u64) {
    let disk = tempfile::tempdir().unwrap();
    let status = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", SURROUNDINGS])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .arg(disk.path())
        .env(SECONDS, seconds.to_string())
        .env(DISK, disk.path())
        .status()
        .expect("unshare of util-linux");
    assert!(status.success(), "network name spaces need root; otherwise see above");
}

#[test]
fn no_flow_ends_whatever_goes_wrong_around_a_pair() {
    run_for(180);
}

/// Half an hour: `cargo test -p gateway --release --test pair chaos::half_an_hour -- --ignored`.
#[test]
#[ignore = "takes half an hour"]
fn half_an_hour() {
    run_for(1800);
}

/// Gateways on interfaces, whose place other processes take. Each opens sockets of its own there.
#[test]
fn processes_follow_one_another_on_interfaces() {
    run_in_name_spaces("chaos::upgrades_inside", 0);
}

#[test]
#[ignore = "run by the others, in a name space"]
fn upgrades_inside() {
    let (mut pair, _hosts) = start_on_interfaces(2, |plan| plan.threads = [2; 2]);
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    let program = PathBuf::from(env!("CARGO_BIN_EXE_longhaul"));
    let done = || client.progress().messages.load(Ordering::Relaxed);
    for round in 0..8 {
        let before = done();
        wait_until("the transfer does not go on", &|| done() > before + 100);
        let (site, other) = (SITES[round % 2], SITES[(round + 1) % 2]);
        assert!(pair.testbed.upgrade(site, &program, PATIENCE).unwrap(), "round {round}");
        if round % 3 == 2 {
            // At once, while the session is on its way.
            assert!(pair.testbed.upgrade(other, &program, PATIENCE).unwrap(), "round {round}");
        }
        pair.testbed.wait_for_session(&|| false).unwrap();
        assert_eq!(ip("rule list pref 1").lines().count(), 2, "round {round}");
        // Who is killed before he has taken over leaves the rules as they are.
        drop(gateway::upgrade::Heir::connect(&pair.testbed.folder().join("a.sock")).unwrap());
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    pair.complete_transfer(40);
    for site in SITES {
        assert_eq!(pair.status(site).flows.failed, 0, "{site:?}");
    }
    moves_to_another_interface(&mut pair, &program);
    pair.testbed.stop().unwrap();
    assert_eq!(ip("rule list pref 1"), "");
}

/// An upgrade to a file with another LAN interface takes back what guarded the one before.
fn moves_to_another_interface(pair: &mut Pair, program: &Path) {
    let file = pair.testbed.folder().join("a.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"g0\""), "{text}");
    std::fs::write(&file, text.replace("\"g0\"", "\"spare\"")).unwrap();
    let rules = ip("rule list pref 1");
    assert!(rules.contains("iif g0 "), "{rules}");
    // Whoever does not come to take over takes back what he has put there.
    assert!(!pair.testbed.upgrade(Site::A, program, PATIENCE).unwrap_or(false), "there is no interface");
    assert_eq!(ip("rule list pref 1"), rules);
    ip("link add spare mtu 4400 type veth peer name other");
    ip("link set spare up");
    ip("link set other up");
    ip("addr add 10.0.7.254/24 dev spare");
    assert!(pair.testbed.upgrade(Site::A, program, PATIENCE).unwrap());
    wait_until("rules for the former interface remain", &|| {
        let rules = ip("rule list pref 1");
        rules.contains("iif spare ") && !rules.contains("iif g0 ")
    });
    // Another gateway may have the interface now.
    let rules = ip("rule list pref 1");
    assert_eq!(rules.lines().count(), 2, "{rules}");
}

/// Starts a pair whose gateways are the next hops of hosts in name spaces, and these.
pub(super) fn start_on_interfaces(transfers: u8, change: impl FnOnce(&mut Plan)) -> (Pair, [Hosts; 2]) {
    let mut hosts = None;
    let mut pair = Pair::start_otherwise(transfers, |plan| {
        on_interfaces(plan);
        change(plan);
        let [a, b] = plan.hosts.clone();
        hosts = Some([Hosts::start("host0", a), Hosts::start("host1", b)]);
    });
    let hosts = hosts.unwrap();
    pair.lans = hosts.each_ref().map(|hosts| hosts.address);
    (pair, hosts)
}

/// Has both gateways be the next hops of hosts in name spaces.
fn on_interfaces(plan: &mut Plan) {
    plan.rate = "40 Mbit/s".to_owned();
    "scheme = \"sr\"".clone_into(&mut plan.policy);
    plan.limits = "idle_flow = \"5 min\"\ntarget_dead = \"30 s\"".to_owned();
    plan.interface = [Some("g0".to_owned()), Some("g1".to_owned())];
    plan.wan = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
}

/// Runs `ip ARGUMENTS`, and returns what it shows.
pub(super) fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Memory and open files of a gateway.
fn used(pair: &Pair, site: Site) -> [u64; 2] {
    let process = format!("/proc/{}", pair.testbed.pid(site));
    let pages = std::fs::read_to_string(format!("{process}/statm")).unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    [4096 * pages, std::fs::read_dir(format!("{process}/fd")).unwrap().count() as u64]
}

/// The program of both gateways, whose clocks can be set: a's log goes to a pipe, b's to the small
/// disk. A pipe without a reader would hold up whoever opens it to write alone.
fn program(folder: &Path, pipe: &Path, disk: &Path) -> PathBuf {
    let binary = env!("CARGO_BIN_EXE_longhaul");
    let (log, time) = (disk.join("log"), folder.join("time"));
    let clock = follow(&time);
    let [pipe, log] = [pipe, &log].map(|path| path.to_str().unwrap());
    let commands = format!(
        "case \"$*\" in\n\
         gateway*)\n\
         {clock};;\nesac\n\
         case \"$*\" in\n\
         gateway*a.toml) exec 3<> {pipe} 2>> {pipe} 3>&-; LONGHAUL_LOG=trace exec {binary} \"$@\";;\n\
         gateway*b.toml) exec {binary} \"$@\" 2>> {log};;\n\
         *) exec {binary} \"$@\";;\nesac\n"
    );
    std::fs::write(&time, "+0").unwrap();
    script(folder, &commands)
}

/// Asks for a path by a host's name, and returns the status code if any answer comes.
fn answer_to(address: SocketAddr, path: &str, host: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut answer = Vec::new();
    // A trace may be long, and what comes after the first line is of no interest here.
    let _ = stream.take(1 << 16).read_to_end(&mut answer);
    str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

/// A pair and its surroundings.
struct World {
    pair: Pair,
    hosts: [Hosts; 2],
    /// Where a's log goes, and what sets the clocks.
    fifo: Fifo,
    time: PathBuf,
    /// The folder of b's log, a small disk.
    disk: PathBuf,
    program: PathBuf,
    told: Told,
    /// Lines of logs that processes have lost which are gone, of either gateway.
    lost: [u64; 2],
    round: u64,
}

impl World {
    /// The link is cut for less than a session's patience.
    fn cut(&mut self) {
        self.pair.testbed.set_link("loss 100%".parse().unwrap());
        pause(400);
        self.pair.testbed.set_link("delay 2ms loss 1% reorder 1%".parse().unwrap());
    }

    /// The control connection dies, and comes back.
    fn control(&mut self) {
        self.pair.testbed.block_control(true);
        pause(2500);
        self.pair.testbed.block_control(false);
        self.pair.testbed.wait_for_session(&|| false).unwrap();
    }

    /// The interface that everything runs on goes down, and up again.
    fn flap(&mut self) {
        for _ in 0..3 {
            ip("link set lo down");
            pause(100);
            ip("link set lo up");
            pause(200);
        }
    }

    /// The addresses of the WAN go away, for long enough to be seen.
    fn address(&mut self) {
        ip("addr del 10.9.0.1/32 dev lo");
        ip("addr del 10.9.0.2/32 dev lo");
        pause(3200);
        ip("addr add 10.9.0.1/32 dev lo");
        ip("addr add 10.9.0.2/32 dev lo");
    }

    /// Bulk data is dropped on the way, and control is not.
    fn bulk(&mut self) {
        self.pair.testbed.block_bulk(true);
        pause(4000);
        self.pair.testbed.block_bulk(false);
        self.pair.testbed.wait_for_session(&|| false).unwrap();
    }

    /// The LANs' addresses go away, and then their interfaces go down.
    fn lan(&mut self) {
        for site in 0..2 {
            ip(&format!("addr del 10.0.{site}.254/24 dev g{site}"));
        }
        pause(700);
        for site in 0..2 {
            ip(&format!("addr add 10.0.{site}.254/24 dev g{site}"));
            ip(&format!("link set g{site} down"));
        }
        pause(2200);
        for site in 0..2 {
            ip(&format!("link set g{site} up"));
        }
    }

    /// Somebody removes the rules that keep the kernel from forwarding.
    fn rules(&mut self) {
        for _ in 0..2 {
            ip("rule del pref 1");
        }
        pause(2500);
        assert_eq!(ip("rule list pref 1").lines().count(), 2, "they are not put back");
    }

    /// The disk of b's log is full for a while, and policies are refused meanwhile.
    fn full_disk(&mut self) {
        let filler = self.disk.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
        self.reloads();
        pause(300);
        std::fs::remove_file(&filler).unwrap();
    }

    /// The clocks jump an hour ahead, to where certificates soon expire, before they were valid,
    /// and back.
    fn clock(&mut self) {
        const SOON: u64 = 86_400 * (3650 - 20);
        for time in ["+3600", &format!("+{SOON}"), "-172800", "+0"] {
            std::fs::write(&self.time, time).unwrap();
            pause(2500);
        }
    }

    /// Both sites get new certificates.
    fn identity(&mut self) {
        for (site, name) in [(Site::A, "a"), (Site::B, "b")] {
            self.pair.make_keys(name);
            self.pair.renewed(site);
        }
        self.pair.testbed.wait_for_session(&|| false).unwrap();
    }

    /// Somebody who has the certificate of a asks b for a session from elsewhere.
    fn thief(&mut self) {
        let folder = self.pair.testbed.folder().to_owned();
        let text = |site: &str| std::fs::read_to_string(folder.join(site)).unwrap();
        let (of_a, of_b) = (text("a.toml"), text("b.toml"));
        let value = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
            line.unwrap().trim_end_matches('"').to_owned()
        };
        // After `[lan]`, the listeners are those of the WAN and of admin.
        let to = value(of_b.split_once("[wan]").unwrap().1, "listen");
        let (_, port) = to.rsplit_once(':').unwrap();
        let (head, rest) = of_a.split_once("[wan]").unwrap();
        let from = value(rest, "listen");
        let rest = rest.replace(&from, &format!("10.9.0.3:{port}"));
        let rest = rest.replace(&value(&rest, "address"), &to);
        let (rest, end) = rest.split_once("[admin]").unwrap();
        let end = end.split_once("[policy]").unwrap().1;
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let head = head.replace("interface = \"g0\"", &format!("mode = \"socket\"\nlisten = \"{free}\""));
        let hosts = "[lan.hosts]\n\"10.0.0.1\" = \"127.0.0.1:9\"\n";
        let file = folder.join("thief.toml");
        std::fs::write(&file, format!("{head}{hosts}[wan]{rest}[policy]{end}")).unwrap();
        let mut thief = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        let mut thief = thief.args(["gateway", "--with-parent", "--config"]).arg(&file).spawn().unwrap();
        wait_until("the thief is not seen", &|| self.pair.says(Site::B, "\"impostor\""));
        thief.kill().unwrap();
        thief.wait().unwrap();
    }

    /// Hosts offer three times what the link carries, for a while.
    fn overload(&mut self) {
        let ips = [0, 1].map(|site| IpAddr::from([10, 0, site, 1]));
        let [a, b] = &self.hosts;
        std::thread::scope(|scope| {
            for (hosts, ips) in [(a, ips), (b, [ips[1], ips[0]])] {
                scope.spawn(move || hosts.flood(ips, 120e6, Duration::from_millis(1500)));
            }
        });
    }

    /// Hosts write to queue pairs that are not there. These flows fail, and no others.
    fn nobody(&mut self) {
        let ips = [0, 1].map(|site| IpAddr::from([10, 0, site, 1]));
        self.hosts[0].write_to_nobody(ips);
        self.hosts[1].write_to_nobody([ips[1], ips[0]]);
    }

    /// Hosts send what cannot cross.
    fn mistake(&mut self) {
        let [a, b] = [0, 1].map(|site| Ipv4Addr::new(10, 0, site, 3));
        self.hosts[0].send_with_options(a, b);
        self.hosts[1].send_with_options(b, a);
    }

    /// Clients that say nothing, and clients that ask all at once, now and then by a strange name.
    fn flood(&mut self) {
        for site in SITES {
            let address = self.pair.testbed.admin(site);
            let idle: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
            std::thread::scope(|scope| {
                for path in ["/metrics", "/status", "/events", "/flows", "/trace"] {
                    scope.spawn(move || {
                        let end = Instant::now() + PATIENCE;
                        let ask =
                            |turn| answer_to(address, path, ["localhost", "x"][usize::from(turn % 4 == 3)]);
                        let mut answers: Vec<_> = (0..20).filter_map(ask).collect();
                        let mut turns = 20..;
                        for (code, what) in [(200, "nothing is answered"), (421, "no stranger is refused")] {
                            while !answers.contains(&code) {
                                assert!(Instant::now() < end, "{site:?}: {path}: {what}: {answers:?}");
                                answers.extend(turns.next().and_then(ask));
                            }
                        }
                    });
                }
            });
            drop(idle);
        }
    }

    /// Policies follow one another, some of them with mistakes, by admin and by signal.
    fn reloads(&mut self) {
        for turn in 0..20 {
            let policy = match turn % 3 {
                0 => "[[class]]\nname = \"default\"\nscheme = \"sr\"\n",
                1 => "[[class]]\nname = \"default\"\nscheme = \"mds\"\nk = 8\nm = 3\n",
                _ => "[[class]]\nname = \"default\"\nscheme = \"no such\"\n",
            };
            self.pair.testbed.write_policy(policy).unwrap();
            for site in SITES {
                let pid = Pid::from_raw(self.pair.testbed.pid(site) as i32).unwrap();
                kill_process(pid, Signal::HUP).unwrap();
                let answer = self.pair.reload(site);
                assert!(turn % 3 != 2 || !answer.adopted, "{answer:?}");
            }
        }
        self.pair.testbed.write_policy("[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();
    }

    /// Takes what a gateway's process has to tell, which may be its last chance.
    fn hear(&mut self, at: usize) {
        self.told.note(at, &self.pair.testbed.fetch(SITES[at], "/events").unwrap());
    }

    /// The process of a gateway is about to be another one.
    fn leave(&mut self, at: usize) {
        self.hear(at);
        self.told.begin_anew(at);
        self.lost[at] += lost(&self.pair, SITES[at]);
    }

    /// Other processes take the gateways' places.
    fn upgrade(&mut self) {
        for (at, site) in SITES.into_iter().enumerate() {
            self.leave(at);
            let program = self.program.clone();
            assert!(self.pair.testbed.upgrade(site, &program, PATIENCE).unwrap(), "{site:?}");
            self.pair.testbed.wait_for_session(&|| false).unwrap();
            // Whoever is killed before he has taken over.
            let socket = self.pair.testbed.folder().join(["a.sock", "b.sock"][at]);
            drop(gateway::upgrade::Heir::connect(&socket).unwrap());
            wait_until("nobody says so", &|| self.pair.says(site, "\"upgrade_failed\""));
        }
    }

    /// The gateways' processes are killed, one after the other, and start again.
    fn kill(&mut self) {
        for (at, site) in SITES.into_iter().enumerate() {
            // A gateway writes down what it would tell a restarted peer about ten times a second.
            pause(300);
            self.leave(at);
            self.pair.testbed.kill(site).unwrap();
            self.pair.testbed.restart(site).unwrap();
            self.pair.testbed.wait_for_session(&|| false).unwrap();
        }
    }

    /// Does the next bad thing. The log is read in some rounds only, and stalls in the others.
    fn next(&mut self) {
        let deeds: [fn(&mut Self); 18] = [
            Self::nobody,
            Self::overload,
            Self::cut,
            Self::lan,
            Self::flap,
            Self::rules,
            Self::flood,
            Self::clock,
            Self::bulk,
            Self::reloads,
            Self::address,
            Self::full_disk,
            Self::upgrade,
            Self::control,
            Self::mistake,
            Self::identity,
            Self::thief,
            Self::kill,
        ];
        deeds[self.round as usize % deeds.len()](self);
        self.round += 1;
        if self.round % 4 < 2 {
            self.fifo.read();
        }
        pause(700);
    }
}

#[test]
#[ignore = "run by the others, in a name space"]
fn inside() {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let folder = tempfile::tempdir().unwrap();
    let fifo = Fifo::new(folder.path());
    let disk = PathBuf::from(std::env::var_os(DISK).unwrap());
    let program = program(folder.path(), &fifo.path, &disk);
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut pair, hosts) = start_on_interfaces(3, |plan| {
        plan.program.clone_from(&program);
        plan.retention = Some(memory.path().to_owned());
    });
    let told = Told::start(SITES.map(|site| pair.testbed.admin(site)));
    pair.complete_transfer(40);
    let transfers: Vec<_> =
        (0..2).map(|_| pair.transfer(Limit::Time(Duration::from_secs(seconds)))).collect();
    let is_over = AtomicBool::new(false);
    let time = folder.path().join("time");
    let mut world = World { pair, hosts, fifo, time, disk, program, told, lost: [0; 2], round: 0 };
    let mut samples: Vec<[[u64; 2]; 2]> = Vec::new();
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let running = transfers.into_iter().map(|(client, server)| {
            scope.spawn(move || {
                let ended = testbed::hostio::run_pair(client, server);
                is_over.store(true, Ordering::Relaxed);
                ended.unwrap()
            })
        });
        let running: Vec<_> = running.collect();
        let begun = Instant::now();
        while !is_over.load(Ordering::Relaxed) {
            world.next();
            (0..2).for_each(|at| world.hear(at));
            samples.push(SITES.map(|site| used(&world.pair, site)));
            // From the middle on nobody reads the log of a.
            if begun.elapsed() > Duration::from_secs(seconds / 2) {
                world.fifo.reader = std::fs::File::open("/dev/null").unwrap();
            }
        }
        for thread in running {
            let (client, server) = thread.join().unwrap();
            assert!(client.is_clean() && client.messages > 0, "{client}");
            assert!(server.is_clean() && server.messages > 0, "{server}");
            println!("{client}");
        }
        println!("{} rounds", world.round);
    });
    for (site, before) in SITES.into_iter().zip(world.lost) {
        assert!(before + lost(&world.pair, site) > 0, "{site:?}: every sink has failed at times");
    }
    judge_use(&samples);
    world.told.judge(&std::fs::read_to_string(world.disk.join("log")).unwrap());
    world.pair.testbed.stop().unwrap();
}

/// Neither memory nor open files grow. The first third warms up.
fn judge_use(samples: &[[[u64; 2]; 2]]) {
    let (warm, rest) = samples[samples.len() / 3..].split_at(samples.len() / 3);
    for (at, site) in SITES.into_iter().enumerate() {
        for (what, may_grow) in [MEMORY, FILES].into_iter().enumerate() {
            let most = |samples: &[[[u64; 2]; 2]]| samples.iter().map(|sample| sample[at][what]).max();
            let (before, after) = (most(warm).unwrap(), most(rest).unwrap());
            println!("{site:?}: {} {before}, then {after}", ["memory", "files"][what]);
            assert!(after <= before + may_grow, "{site:?} grows: {samples:?}");
        }
    }
}
