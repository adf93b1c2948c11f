//! `sdr_allreduce`: a ring allreduce over sites, on any reliability layer; contents are checked.
//!
//! `sdr_allreduce native` runs it on sealed UDP over loopback, a thread for each site.
//! `sdr_allreduce virtual` runs it in virtual time over links that lose packets, and compares
//! layers.

#[path = "../tests/link/mod.rs"]
mod link;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fec::Code;
use link::{Faults, Link};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sdr::blob::{BackEnd, Blob};
use sdr::layers::{Receiving, Scheme, Sending, Timing, choose};
use sdr::udp::{Unconnected, now};
use sdr::{Buffer, ControlPath, Engine, Mtu, QpAttr, Shape, connect, max_datagram};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SITES: usize = 4;

/// One site: it sends to the next one, and receives from the one before.
struct Site {
    index: usize,
    /// Numbers to be added up, a segment for each site.
    segments: Vec<Vec<u64>>,
    step: usize,
    sending: Sending,
    to_next: ControlPath,
    receiving: Receiving,
    from_last: ControlPath,
    is_under_way: bool,
}

impl Site {
    /// Each number is its place, times the site's number from 1.
    fn fill(index: usize, numbers: usize) -> Vec<Vec<u64>> {
        let number = |segment, at| (segment * numbers + at) as u64 * (index as u64 + 1);
        (0..SITES).map(|segment| (0..numbers).map(|at| number(segment, at)).collect()).collect()
    }

    fn is_right(&self) -> bool {
        let sites: u64 = (1..=SITES as u64).sum();
        let numbers = self.segments.iter().flatten().zip(0..);
        numbers.fold(true, |right, (found, at)| right && *found == at * sites)
    }

    fn is_done(&self) -> bool {
        self.step == 2 * SITES - 2
    }

    /// Sends, receives and adds up as far as that goes.
    fn poll(&mut self, now: Instant) -> Result<()> {
        while !self.is_done() {
            // First sums travel, then totals.
            let sent = (self.index + 2 * SITES - self.step) % SITES;
            let received = (sent + SITES - 1) % SITES;
            if !self.is_under_way {
                let bytes: Vec<u8> = self
                    .segments
                    .get(sent)
                    .into_iter()
                    .flatten()
                    .flat_map(|number| number.to_le_bytes())
                    .collect();
                self.receiving.expect(bytes.len())?;
                self.sending.send(&Arc::new(Buffer::from(bytes)))?;
                self.is_under_way = true;
            }
            self.receiving.poll(&self.from_last, now)?;
            let Some(bytes) = self.receiving.take() else {
                break;
            };
            let is_sum = self.step < SITES - 1;
            for (number, came) in
                self.segments.get_mut(received).into_iter().flatten().zip(bytes.as_chunks().0)
            {
                let came = u64::from_le_bytes(*came);
                *number = if is_sum { number.wrapping_add(came) } else { came };
            }
            self.step += 1;
            self.is_under_way = false;
        }
        self.receiving.poll(&self.from_last, now)?;
        self.sending.poll(&self.to_next, now)?;
        Ok(())
    }
}

fn schemes(shape: &Shape, link: &reliability::link::Link, bytes: u64) -> Result<Vec<(&'static str, Scheme)>> {
    Ok(vec![
        ("sr rto", Scheme::SrRto),
        ("sr nack", Scheme::SrNack),
        ("mds(32,8)", Scheme::Ec(Code::mds(32, 8)?)),
        ("xor(32,8)", Scheme::Ec(Code::xor(32, 8)?)),
        ("auto", choose(shape, link, bytes, 99.9, now())),
    ])
}

fn site(index: usize, numbers: usize, scheme: &Scheme, timing: Timing, ends: Ends) -> Result<Site> {
    Ok(Site {
        index,
        segments: Site::fill(index, numbers),
        step: 0,
        sending: Sending::new(ends.send, scheme.clone(), timing, now())?,
        to_next: ends.to_next,
        receiving: Receiving::new(ends.receive, scheme.clone(), timing, now())?,
        from_last: ends.from_last,
        is_under_way: false,
    })
}

struct Ends {
    send: sdr::SendQp,
    to_next: ControlPath,
    receive: sdr::RecvQp,
    from_last: ControlPath,
}

/// Returns the ends of each site, from those of each link: the sending one at site i, the other at
/// i + 1.
fn around<T>(near: Vec<T>, mut far: Vec<T>) -> impl Iterator<Item = (T, T)> {
    far.rotate_right(1);
    near.into_iter().zip(far)
}

fn native() -> Result<()> {
    let attr = QpAttr { rtt: Duration::from_millis(2), mtu: Mtu::B1024, chunk_log: 13, ..QpAttr::default() };
    let link = reliability::link::Link::new(attr.rate, attr.rtt, 1e-4, 1024);
    let numbers = 1 << 17;
    for (name, scheme) in schemes(&Shape::new(&attr)?, &link, numbers as u64 * 8)? {
        let (mut near, mut far, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SITES {
            let ends = (
                Unconnected::bind(attr, "127.0.0.1".parse()?)?,
                Unconnected::bind(attr, "127.0.0.1".parse()?)?,
            );
            let blobs = (ends.0.blob(), ends.1.blob());
            let (a, b) = (ends.0.connect(&blobs.1, &[3; 32])?, ends.1.connect(&blobs.0, &[3; 32])?);
            near.push((a.send, a.receive, a.control));
            far.push((b.send, b.receive, b.control));
            links.extend([a.link, b.link]);
        }
        let idle = Arc::new(AtomicUsize::new(0));
        let start = now();
        let mut threads = Vec::new();
        for (index, ((send, _, to_next), (_, receive, from_last))) in around(near, far).enumerate() {
            let (Some(send), Some(receive)) = (send, receive) else {
                return Err("one direction only".into());
            };
            let timing = Timing::new(attr.rtt, attr.rate);
            let mut site = site(index, numbers, &scheme, timing, Ends { send, to_next, receive, from_last })?;
            let idle = Arc::clone(&idle);
            threads.push(std::thread::spawn(move || {
                let mut is_counted = false;
                while idle.load(Ordering::Relaxed) < SITES {
                    if let Err(error) = site.poll(now()) {
                        return Err(error.to_string());
                    }
                    if !is_counted && site.is_done() && site.sending.is_idle() {
                        is_counted = true;
                        idle.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
                if site.is_right() { Ok(()) } else { Err("wrong sums".into()) }
            }));
        }
        for thread in threads {
            thread.join().map_err(|_| "a site panicked")??;
        }
        println!(
            "{name:10} {SITES} sites, {} bytes each: {:?}, sums right",
            numbers * SITES * 8,
            start.elapsed()
        );
        drop(links);
    }
    Ok(())
}

/// One run in virtual time. Returns when the last site had all sums.
fn run(attr: &QpAttr, scheme: &Scheme, one_in: u64, numbers: usize, seed: u64) -> Result<Duration> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let start = now();
    let faults =
        Faults { loss: one_in, burst: 1, twice: 0, held: 0, delay: attr.rtt / 2, most_held: Duration::ZERO };
    let blob = Blob::new(*attr, BackEnd::None, Vec::new())?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut paths: Vec<([Engine; 2], [Link; 2])> = Vec::new();
    for _ in 0..SITES {
        let (a, b) = (connect(&blob, &blob, 0, start)?, connect(&blob, &blob, 0, start)?);
        near.push((a.send, a.receive, a.control));
        far.push((b.send, b.receive, b.control));
        paths.push(([a.engine, b.engine], [Link::new(faults), Link::new(faults)]));
    }
    let mut sites = Vec::new();
    for (index, ((send, _, to_next), (_, receive, from_last))) in around(near, far).enumerate() {
        let (Some(send), Some(receive)) = (send, receive) else { return Err("one direction only".into()) };
        let timing = Timing::new(attr.rtt, attr.rate);
        sites.push(site(index, numbers, scheme, timing, Ends { send, to_next, receive, from_last })?);
    }
    let mut time = start;
    let mut out = vec![0; max_datagram(attr)];
    while !sites.iter().all(Site::is_done) {
        for site in &mut sites {
            site.poll(time)?;
        }
        for (engines, links) in &mut paths {
            for (engine, link) in engines.iter_mut().zip(links.iter_mut()) {
                while let Some(packet) = engine.poll_transmit(time, &mut out) {
                    link.send(out.get(..packet.len).unwrap_or_default(), time, &mut rng);
                }
            }
            for (link, engine) in links.iter_mut().zip(engines.iter_mut().rev()) {
                for datagram in link.due(time) {
                    // Late packets and duplicates are refused, and counted.
                    let _ = engine.handle(&datagram, time);
                }
            }
        }
        time += Duration::from_micros(100);
    }
    if sites.iter().all(Site::is_right) { Ok(time - start) } else { Err("wrong sums".into()) }
}

fn virtually(runs: u64) -> Result<()> {
    let attr = QpAttr {
        chunk_log: 13,
        in_flight_log: 24,
        messages_log: 5,
        mtu: Mtu::B4096,
        rate: 4_000_000_000,
        ..QpAttr::default()
    };
    let numbers = 1 << 16;
    println!(
        "{SITES} sites, {} bytes each, {:?}, {} bit/s, {runs} runs a cell",
        numbers * SITES * 8,
        attr.rtt,
        attr.rate
    );
    for one_in in [100_000, 10_000, 1000, 100] {
        let drop = 1.0 / one_in as f64;
        let link = reliability::link::Link::new(attr.rate, attr.rtt, drop, 4096);
        let mut baseline = None;
        for (name, scheme) in schemes(&Shape::new(&attr)?, &link, numbers as u64 * 8)? {
            let mut times = Vec::new();
            for seed in 0..runs {
                times.push(run(&attr, &scheme, one_in, numbers, seed)?);
            }
            times.sort();
            let at =
                |share: f64| times.get(((runs - 1) as f64 * share) as usize).copied().unwrap_or_default();
            let (median, p99) = (at(0.5), at(0.99));
            let first = *baseline.get_or_insert(p99.as_secs_f64());
            println!(
                "drop {drop:.0e}  {name:10} p50 {median:?}  p99 {p99:?}  {:.2} times faster than sr rto",
                first / p99.as_secs_f64()
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("native") => native(),
        Some("virtual") => virtually(arguments.next().map_or(Ok(100), |runs| runs.parse())?),
        _ => Err("usage: sdr_allreduce native | virtual [RUNS]".into()),
    }
}
