//! The cost of a packet to the thread that takes it from the LAN or sends it there, by the ways
//! that the kernel offers: `cargo bench -p longhaul-lab --bench lan [ROUNDS]`.
//!
//! Needs root: makes two network name spaces joined by a veth pair, of which nothing is left
//! behind.

mod bpf;
mod ether;
mod memory;
#[expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "made for tests, of which this needs a part"
)]
#[path = "../../../../gateway/src/lan/netns.rs"]
mod netns;
mod ways;
mod xdp;

use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use ether::Plain;
use netns::{GATEWAY_MAC, HOST_MAC, Site};
use ways::{Receive, Receiver, Send, Sender};

/// The usual MTU of a LAN with RoCE payloads of 4096 bytes.
const MTU: u32 = 4200;
/// Bytes from the IP header on: a WRITE's only packet with payloads of 4096 and of 64 bytes.
const LENGTHS: [usize; 2] = [4096 + HEADERS, 64 + HEADERS];
/// IPv4, UDP, BTH, RETH, ICRC.
const HEADERS: usize = 20 + 8 + 12 + 16 + 4;
/// Packets between two turns.
const BATCH: usize = 64;
/// Turns of each way in each round.
const TURNS: usize = 500;
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// A host that is not there: the other end drops its packets as early as it can.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const STRANGER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];

const EXPLANATION: &str = "\
Nanoseconds of processor time per packet, the median of all rounds (from the least to the most). The ends take turns, a batch of 64 packets at a time, each on
a processor of its own where there are two. own: the thread that receives (reading each packet once) or sends (writing each packet once). flood: the
thread that sends to it, which on veth does the kernel's part of receiving as well (softirq: veth, filter or XDP program, copy into the ring), so
that differences in it are differences of that. What is sent goes to a host that is not there, and own includes that the other end drops it.
ratio: to the way that a gateway goes, at the top of each block. M/s: millions of packets that a thread could do in a second if it did nothing else.";

fn main() -> io::Result<()> {
    // Cargo itself passes `--bench`.
    let rounds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(9);
    let site = Site::new(MTU);
    // As `lan::guard` has it.
    site.gateway.ip("rule add priority 1 iif g0 ipproto udp dport 4791 to 10.0.1.0/24 protocol 76 blackhole");
    site.gateway.ip("neigh add 10.0.0.66 lladdr 02:00:00:00:00:66 dev g0");
    for length in LENGTHS {
        show(&format!("receive {length} bytes"), rounds, Receive::ALL, Receive::name, |way| {
            receive(&site, way, length)
        })?;
    }
    for length in LENGTHS {
        show(&format!("send {length} bytes"), rounds, Send::ALL, Send::name, |way| send(&site, way, length))?;
    }
    println!("\n{EXPLANATION}");
    Ok(())
}

/// Measures all ways by turns, and writes a line for each.
fn show<W: Copy, const N: usize>(
    what: &str,
    rounds: usize,
    ways: [W; N],
    name: impl Fn(W) -> &'static str,
    measure: impl Fn(W) -> io::Result<Cost>,
) -> io::Result<()> {
    let mut costs = ways.map(|way| (way, Vec::new()));
    for _ in 0..rounds {
        for (way, costs) in &mut costs {
            costs.push(measure(*way)?);
        }
    }
    println!(
        "\n{what:<32} {:<25} {:>6} {:>6} {:<25} {:>6} {:>8}",
        "own", "ratio", "M/s", "flood", "ratio", "lost"
    );
    let mut first = None;
    for (way, costs) in costs {
        let spread = |of: fn(&Cost) -> f64| Spread::of(costs.iter().map(of));
        let (own, flood) = (spread(|cost| cost.own), spread(|cost| cost.flood));
        let lost: usize = costs.iter().map(|cost| cost.lost).sum();
        let (first_own, first_flood) = *first.get_or_insert((own.median, flood.median));
        println!(
            "  {:<30} {own} {:>6.3} {:>6.2} {flood} {:>6} {lost:>8}",
            name(way),
            own.median / first_own,
            1000.0 / own.median,
            if flood.median.is_nan() { "-".to_owned() } else { format!("{:.3}", flood.median / first_flood) }
        );
    }
    Ok(())
}

/// Nanoseconds of processor time per packet, and packets that did not arrive.
struct Cost {
    own: f64,
    flood: f64,
    lost: usize,
}

fn receive(site: &Site, way: Receive, length: usize) -> io::Result<Cost> {
    let mut flood = site.host.run(|| Plain::frames(ways::index("v0")?))?;
    let mut receiver = site.gateway.run(|| Receiver::open(way))?;
    let frame = frame(GATEWAY_MAC, HOST_MAC, HOST, REMOTE, length);
    let (go, turn) = channel();
    let (done, taken) = channel();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            pin(1);
            let mut spent = Duration::ZERO;
            while turn.recv().is_ok() {
                let (before, began) = (cpu_time(), Instant::now());
                let (mut count, mut sum) = (0, 0u64);
                while count < BATCH && receiver.hears() && began.elapsed() < Duration::from_millis(50) {
                    count += receiver.receive(BATCH - count, &mut |packet| sum ^= read(packet))?;
                }
                std::hint::black_box(sum);
                spent += cpu_time() - before;
                if done.send(count).is_err() {
                    break;
                }
            }
            Ok::<_, io::Error>(spent)
        });
        pin(0);
        let (mut spent, mut lost) = (Duration::ZERO, 0);
        for _ in 0..TURNS {
            let before = cpu_time();
            for _ in 0..BATCH {
                if let Some(slot) = flood.reserve(frame.len()) {
                    slot.copy_from_slice(&frame);
                    flood.commit(frame.len());
                }
            }
            flood.flush()?;
            spent += cpu_time() - before;
            let _ = go.send(());
            let Ok(count) = taken.recv() else { break };
            lost += BATCH - count;
        }
        drop(go);
        let own = receiving.join().map_err(|_| io::Error::other("the receiving thread"))??;
        Ok(Cost { own: per_packet(own), flood: per_packet(spent), lost })
    })
}

fn send(site: &Site, way: Send, length: usize) -> io::Result<Cost> {
    let before_all = arrived(site)?;
    let mut sender = site.gateway.run(|| Sender::open(way))?;
    let frame = frame(STRANGER_MAC, GATEWAY_MAC, REMOTE, STRANGER, length);
    pin(1);
    let mut spent = Duration::ZERO;
    for _ in 0..TURNS {
        let before = cpu_time();
        for _ in 0..BATCH {
            sender.put(&frame)?;
        }
        sender.flush()?;
        spent += cpu_time() - before;
    }
    let lost = (TURNS * BATCH).saturating_sub(arrived(site)? - before_all);
    Ok(Cost { own: per_packet(spent), flood: f64::NAN, lost })
}

/// Packets that the host's end has seen.
fn arrived(site: &Site) -> io::Result<usize> {
    let shown = site.host.ip("-s link show dev v0");
    let mut lines = shown.lines().skip_while(|line| !line.trim_start().starts_with("RX:")).skip(1);
    let packets = lines.next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::Error::other(shown))
}

fn per_packet(spent: Duration) -> f64 {
    spent.as_secs_f64() * 1e9 / (TURNS * BATCH) as f64
}

/// An Ethernet frame around a UDP packet for port 4791.
fn frame(to: [u8; 6], from: [u8; 6], source: Ipv4Addr, destination: Ipv4Addr, length: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x08, 0x00]].concat();
    let start = [0x45, 0, (length >> 8) as u8, length as u8, 0, 0, 0x40, 0, 64, 17];
    let addresses = [source.octets(), destination.octets()].concat();
    let (words, more) = (start.as_chunks::<2>().0, addresses.as_chunks::<2>().0);
    let sum: u32 = words.iter().chain(more).map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame.extend(start);
    frame.extend(checksum.to_be_bytes());
    frame.extend(addresses);
    let udp = (length - 20) as u16;
    frame.extend([0xc0, 0, 0x12, 0xb7, (udp >> 8) as u8, udp as u8, 0, 0]);
    frame.resize(14 + length, 0x5a);
    frame
}

/// Looks at every byte.
fn read(packet: &[u8]) -> u64 {
    let (words, _) = packet.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word))
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// To a processor, where there is one of that number.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = sched_setaffinity(None, &set);
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |nth: usize| values.get(nth).copied().unwrap_or(f64::NAN);
        Self { least: at(0), median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.median.is_nan() {
            return write!(f, "{:>26}", "-");
        }
        write!(f, "{:>8.0} ({:>6.0} to {:>6.0})", self.median, self.least, self.most)
    }
}
