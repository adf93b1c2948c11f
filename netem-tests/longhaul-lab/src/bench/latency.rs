//! The time that a pair of gateways adds to a small message.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use gateway::lan::wake::{PollFd, PollFlags, poll};
use gateway::wan::{Bulk, BulkConfig};
use hdrhistogram::Histogram;
use link_emulator::{Port, Relay, RelaySpec, Side};
use linksim::impair::LinkSpec;
use session::OVERHEAD;
use session::seal::max_datagram;
use testbed::hostio::{Bound, Limit, Mix, Workload};
use testbed::{Plan, Site, Testbed, host_ip};

use super::hosts::Hosts;
use super::stages::{self, Stage};
use super::{BenchError, LOOPBACK};

/// `longhaul-lab bench latency`: 64-byte WRITEs, one at a time, straight over the emulated link and
/// through a pair of gateways.
#[derive(Debug, Clone)]
pub struct Latency {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// Length of each transfer.
    pub seconds: f64,
}

const MESSAGE: u32 = 64;
const RATE: &str = "10 Gbit/s";
/// Longer than a WRITE and its ACK take.
const BUSY_POLL: &str = "1 ms";
const MTU: u16 = 1500;
const SEED: u64 = 1;
const WARM_UP: Duration = Duration::from_millis(300);
/// Messages by which the gateways' own work is measured.
const MESSAGES: u32 = 20_000;
/// Datagrams there and back.
const HOPS: usize = 20_000;
/// UDP sockets that a WRITE and its ACK pass through more with the gateways: from the host to its
/// gateway, and from the other gateway to its host; and back.
const MORE_HOPS: u32 = 4;

const EXPLANATION: &str = "\
A hop is a datagram of 128 bytes from one thread's socket to another's that sleeps until it comes: send, wake, receive. Four more of
them and the work come before the ACK is back; the rest is processors that are shared, reports that are sent meanwhile, and caches; and
below zero where idle processors wake more slowly for single hops than for the four programs in turn. Gateways that poll need a
processor each, beside those of the hosts and the emulator: on fewer they are in each other's way.";

impl Latency {
    /// Measures and writes the table.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "WRITEs of {MESSAGE} bytes, one at a time, between software hosts over an idle, clean link (the emulator without delay, loopback):\n"
        )?;
        // Half before and half after, since a machine's pace changes.
        let mut alone = self.alone(interrupted)?;
        let through = self.through("0 s", interrupted)?;
        let polling = self.through(BUSY_POLL, interrupted)?;
        let after = self.alone(interrupted)?;
        alone.add(&after).map_err(io::Error::other)?;
        writeln!(out, "{:<44} {:>9} {:>9} {:>9}", "[us]", "p50", "p99", "messages")?;
        let at = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        let pairs = [
            ("hosts alone".to_owned(), &alone),
            ("through a pair of gateways".to_owned(), &through),
            (format!("likewise, busy_poll = \"{BUSY_POLL}\""), &polling),
        ];
        for (name, times) in pairs {
            let [p50, p99] = [0.5, 0.99].map(|quantile| at(times, quantile));
            writeln!(out, "{name:<44} {p50:>9.1} {p99:>9.1} {:>9}", times.len())?;
        }
        let added = |times| [0.5, 0.99].map(|quantile| at(times, quantile) - at(&alone, quantile));
        let [p50, p99] = added(&through);
        writeln!(out, "{:<44} {p50:>9.1} {p99:>9.1}", "added")?;
        let [polling_p50, polling_p99] = added(&polling);
        writeln!(out, "{:<44} {polling_p50:>9.1} {polling_p99:>9.1}", "added, busy polling")?;
        parts(out, p50)?;
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// The hosts straight through the emulator.
    fn alone(&self, interrupted: &dyn Fn() -> bool) -> Result<Histogram<u64>, BenchError> {
        let bound = [Bound::new(LOOPBACK)?, Bound::new(LOOPBACK)?];
        let [a, b] = &bound;
        let side = |host: &Bound| {
            host.address().map(|peer| Side { listen: LOOPBACK, peer: Some(peer), learn: false })
        };
        let (a_to_b, b_to_a) = (LinkSpec::default(), LinkSpec::default());
        let ports = vec![Port { a: side(a)?, b: side(b)? }];
        let relay = Relay::start(&RelaySpec { ports, lanes: 1, a_to_b, b_to_a, seed: SEED })?;
        let (for_a, for_b) = relay.addresses(0).ok_or(io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        let hosts = Hosts { bound, gateways: [for_a, for_b], index: 1, workload: self.workload() };
        let report = hosts.run(interrupted, &mut || Ok(()))?;
        relay.stop()?;
        Ok(report.latency)
    }

    /// The same by way of two gateway processes that poll so long before they sleep.
    fn through(&self, busy_poll: &str, interrupted: &dyn Fn() -> bool) -> Result<Histogram<u64>, BenchError> {
        let bound = [Bound::new(LOOPBACK)?, Bound::new(LOOPBACK)?];
        let [a, b] = &bound;
        let known = |site, host: &Bound| host.address().map(|address| vec![(host_ip(site, 1), address)]);
        let plan = Plan {
            program: self.program.clone(),
            policy: "scheme = \"sr\"".to_owned(),
            limits: String::new(),
            retention: None,
            busy_poll: busy_poll.to_owned(),
            dead_after: "5 s".to_owned(),
            resume_for: "2 min".to_owned(),
            rate: RATE.to_owned(),
            mtu: [MTU; 2],
            probe_mtu: false,
            congestion: "fixed",
            interface: [None, None],
            wan: [Ipv4Addr::LOCALHOST; 2],
            lan_mtu: [None; 2],
            lanes: 1,
            threads: [1; 2],
            link: LinkSpec::default(),
            seed: SEED,
            hosts: [known(Site::A, a)?, known(Site::B, b)?],
        };
        let mut testbed = Testbed::start(&plan, interrupted)?;
        let gateways = [testbed.lan(Site::A), testbed.lan(Site::B)];
        let hosts = Hosts { bound, gateways, index: 1, workload: self.workload() };
        let report = hosts.run(interrupted, &mut || Ok(()));
        // If a gateway has ended, that is the reason to show.
        testbed.check()?;
        let report = report?;
        testbed.stop()?;
        Ok(report.latency)
    }

    fn workload(&self) -> Workload {
        Workload {
            qps: 1,
            mix: Mix::WRITE,
            message: MESSAGE,
            depth: 1,
            limit: Limit::Time(WARM_UP + Duration::from_secs_f64(self.seconds)),
            warmup: WARM_UP,
            verify: false,
            seed: SEED,
            ..Workload::default()
        }
    }
}

/// Writes the parts that the added time consists of.
fn parts(out: &mut dyn Write, added: f64) -> Result<(), BenchError> {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let max_packet = usize::from(max_datagram(MTU, false)) - OVERHEAD;
    let work = stages::measure(MESSAGES, MESSAGE, max_packet)?;
    writeln!(out, "\nthe work of both gateways for one of them, there and back")?;
    let mut sum = -micros(work.clock(MESSAGES));
    for (stage, name) in Stage::ALL {
        let time = micros(work.of_one(stage, MESSAGES));
        sum += time;
        writeln!(out, "  {name:<42} {time:>9.2}")?;
    }
    writeln!(out, "  {:<42} {sum:>9.2}", "together, without the clock's own time")?;
    let hop = micros(hop()?);
    let hops = hop * f64::from(MORE_HOPS);
    writeln!(out, "{:<44} {hops:>9.1}", format!("{MORE_HOPS} UDP hops more, {hop:.1} each"))?;
    writeln!(out, "{:<44} {:>9.1}", "the rest", added - sum - hops)?;
    Ok(())
}

/// The median time of a datagram from one socket to another whose thread sleeps.
fn hop() -> io::Result<Duration> {
    let config = BulkConfig::default();
    let [mut near, mut far] = [Bulk::bind(LOOPBACK, config)?, Bulk::bind(LOOPBACK, config)?];
    let (to_far, to_near) = (far.local_addr()?, near.local_addr()?);
    let echo = thread::spawn(move || {
        while wait(&mut far)? {
            send(&mut far, to_near);
        }
        Ok::<_, io::Error>(())
    });
    let mut times = Vec::with_capacity(HOPS);
    for _ in 0..HOPS {
        let began = Instant::now();
        send(&mut near, to_far);
        if !wait(&mut near)? {
            break;
        }
        times.push(began.elapsed() / 2);
    }
    // It hears nothing more, and ends.
    echo.join().map_err(|_| io::Error::other("the thread that echoes"))??;
    times.sort_unstable();
    times.get(times.len() / 2).copied().ok_or(io::Error::from(io::ErrorKind::TimedOut))
}

fn send(socket: &mut Bulk, to: SocketAddr) {
    const LENGTH: usize = 128;
    if socket.reserve(LENGTH).is_some() {
        socket.commit(LENGTH, to);
        socket.flush();
    }
}

/// Sleeps until something comes, and takes it; `false` if nothing does for long.
fn wait(socket: &mut Bulk) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_millis(200);
    loop {
        let fd = socket.fd();
        if poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(PATIENCE))? == 0 {
            return Ok(false);
        }
        if socket.receive(8, &mut |_, _| ()) > 0 {
            return Ok(true);
        }
    }
}
