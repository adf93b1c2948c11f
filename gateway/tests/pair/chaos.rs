//! Everything around a pair goes wrong in turn, under traffic whose contents are checked.
//!
//! Runs in a network name space of its own, since interfaces and addresses go away.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use super::logs::{Fifo, program};
use super::*;

const SITES: [Site; 2] = [Site::A, Site::B];
/// The name of [`inside`], for the test program that runs it.
const INSIDE: &str = "chaos::inside";
const SECONDS: &str = "LONGHAUL_CHAOS_SECONDS";
/// Memory that may come and go with what waits for the link.
const MEMORY: u64 = 24 << 20;
/// Files that may be open in addition: admin connections of the moment.
const FILES: u64 = 40;

/// Runs [`inside`] for so many seconds in a name space that has nothing but a loopback interface.
fn run_for(seconds: u64) {
    let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --ignored --nocapture";
    let status = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(INSIDE)
        .env(SECONDS, seconds.to_string())
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

/// Runs `ip ARGUMENTS`.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
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

/// A pair and its surroundings.
struct World {
    pair: Pair,
    /// Where the logs go.
    fifo: Fifo,
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

    /// The address of everything goes away, for long enough to be seen.
    fn address(&mut self) {
        ip("addr del 127.0.0.1/8 dev lo");
        pause(2200);
        ip("addr add 127.0.0.1/8 dev lo");
    }

    /// Clients that say nothing, and clients that ask all at once.
    fn flood(&mut self) {
        for site in SITES {
            let address = self.pair.testbed.admin(site);
            let idle: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(address).ok()).collect();
            std::thread::scope(|scope| {
                for path in ["/metrics", "/status", "/events", "/flows", "/trace"] {
                    scope.spawn(move || {
                        for _ in 0..20 {
                            let Ok(mut stream) = TcpStream::connect(address) else { continue };
                            let _ = write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
                            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                            let _ = stream.read(&mut [0; 4096]);
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

    /// Does the next bad thing. The log is read in some rounds only, and stalls in the others.
    fn next(&mut self) {
        let deeds: [fn(&mut Self); 6] =
            [Self::cut, Self::flap, Self::flood, Self::reloads, Self::address, Self::control];
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
    let program = program(folder.path(), &fifo.path);
    let mut pair = Pair::start_otherwise(3, |plan| {
        plan.program = program;
        plan.rate = "40 Mbit/s".to_owned();
        "scheme = \"sr\"".clone_into(&mut plan.policy);
        plan.limits = "idle_flow = \"5 min\"\ntarget_dead = \"30 s\"".to_owned();
    });
    pair.complete_transfer(40);
    let transfers: Vec<_> =
        (0..2).map(|_| pair.transfer(Limit::Time(Duration::from_secs(seconds)))).collect();
    let is_over = AtomicBool::new(false);
    let mut world = World { pair, fifo, round: 0 };
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
        let mut kinds: [BTreeSet<String>; 2] = Default::default();
        while !is_over.load(Ordering::Relaxed) {
            world.next();
            for (site, kinds) in SITES.into_iter().zip(&mut kinds) {
                let events = world.pair.testbed.fetch(site, "/events").unwrap();
                let events: gateway::events::Events = serde_json::from_str(&events).unwrap();
                kinds.extend(events.events.into_iter().map(|event| event.kind));
            }
            samples.push(SITES.map(|site| used(&world.pair, site)));
            // From the middle on nobody reads the log.
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
        println!("{} rounds; events {kinds:?}", world.round);
        for kinds in &kinds {
            for kind in ["started", "session_up", "session_lost", "wan_down", "wan_up"] {
                assert!(kinds.contains(kind), "no event {kind} in {kinds:?}");
            }
        }
    });
    for site in SITES {
        assert_eq!(world.pair.status(site).flows.failed, 0, "{site:?}");
    }
    // The first third warms up.
    let (warm, rest) = samples[samples.len() / 3..].split_at(samples.len() / 3);
    for (at, site) in SITES.into_iter().enumerate() {
        for (what, may_grow) in [MEMORY, FILES].into_iter().enumerate() {
            let most = |samples: &[[[u64; 2]; 2]]| samples.iter().map(|sample| sample[at][what]).max();
            let (before, after) = (most(warm).unwrap(), most(rest).unwrap());
            println!("{site:?}: {} {before}, then {after}", ["memory", "files"][what]);
            assert!(after <= before + may_grow, "{site:?} grows: {samples:?}");
        }
    }
    world.pair.testbed.stop().unwrap();
}
