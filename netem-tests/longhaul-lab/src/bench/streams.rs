//! The way over the WAN by itself: records in, records out, without LAN or flows.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gateway::lan::wake::{PollFd, PollFlags, poll};
use gateway::wan::{Bulk, BulkConfig};
use reliability::human;
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};
use session::seal::pair;
use session::{Cipher, HEADER, OVERHEAD, Opener, Sealer};

use super::cpu::{CpuMeter, Pace};
use super::{BenchError, LOOPBACK};

/// `longhaul-lab bench wan`: goodput of streams between two threads as a share of the sealed-UDP
/// ceiling, measured next to each other.
#[derive(Debug, Clone)]
pub struct Wan {
    /// Duration of each transfer by scheme, cipher and datagram length, and of the ceiling, in
    /// turns.
    pub seconds: f64,
}

const SCHEMES: [(&str, Scheme); 2] =
    [("sr", Scheme::sr()), ("mds(32,8)", Scheme::Mds { k: 32, m: 8, depth: 1 })];
/// Ciphers of the ceiling, which a pair of gateways takes where both have the instructions.
const CIPHERS: [Cipher; 2] = [Cipher::Aes128Gcm, Cipher::Aegis128L];
/// UDP payloads: an MTU of 1500 and of 9000.
const SEGMENTS: [usize; 2] = [1472, 8972];
/// A RoCE packet of the longest path MTU, as a flow makes a record of it.
pub(super) const RECORD: usize = 4140;
const STREAM: StreamId = StreamId(0);
/// Bytes on their way at most, as for the ceiling.
const WINDOW: usize = 4 << 20;
pub(super) const WARM_UP: Duration = Duration::from_millis(200);
/// The machine's pace changes within seconds, by more than what is to be told apart.
const TURNS: u32 = 7;
/// Bytes of records that wait at most: few enough to stay in the cache until they leave, as what a
/// gateway takes from the LAN in a turn.
const BACKLOG: usize = 256 << 10;
/// Packets in a row before the other direction has its turn.
const BATCH: usize = 128;
/// Datagrams taken in a row.
const BUDGET: usize = 128;
/// Nobody sleeps longer than that.
pub(super) const NAP: Duration = Duration::from_millis(1);

const EXPLANATION: &str = "\
goodput: bytes of the records delivered. ratio: by the ceiling's UDP payload, with datagrams as long and AES-128-GCM, one thread
each way; medians of turns of one after the other (lowest to highest). AEGIS-128L is what gateways take where both machines have the instructions for it. Of what `mds(32,8)` sends a fifth is parity. resent: data packets sent again, because the receiver's socket had no room.";

impl Wan {
    /// Measures and writes a line for each scheme and datagram length.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "Records of {RECORD} bytes through sealed streams over loopback (GSO and GRO), next to UDP sealed with AES-128-GCM alone:\n"
        )?;
        writeln!(
            out,
            "{:<10} {:<12} {:>9} {:>10} {:>6} {:>10} {:>6} {:>6} {:<14} {:>9} {:>9}",
            "", "", "datagrams", "goodput", "", "ceiling", "", "", "", "ratio", ""
        )?;
        writeln!(
            out,
            "{:<10} {:<12} {:>9} {:>10} {:>6} {:>10} {:>6} {:>6} {:<14} {:>9} {:>9}",
            "scheme",
            "cipher",
            "[bytes]",
            "[Gbit/s]",
            "cores",
            "[Gbit/s]",
            "cores",
            "ratio",
            "",
            "per core",
            "resent"
        )?;
        for (name, scheme) in SCHEMES {
            let cases = CIPHERS.into_iter().flat_map(|cipher| SEGMENTS.map(|segment| (cipher, segment)));
            for (cipher, segment) in cases {
                if interrupted() {
                    return Err(BenchError::Interrupted);
                }
                let turns = (0..TURNS).map(|_| self.turn(scheme, cipher, segment));
                let turns = Turns(turns.collect::<Result<_, _>>()?);
                writeln!(out, "{name:<10} {:<12} {segment:>9} {turns}", cipher.name())?;
            }
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// One transfer beside the ceiling.
    fn turn(&self, scheme: Scheme, cipher: Cipher, segment: usize) -> Result<Turn, BenchError> {
        let seconds = self.seconds / f64::from(TURNS);
        let ceiling = Pace::of_ceiling(seconds, segment)?;
        let (carried, resent) = Self::transfer(scheme, cipher, segment, seconds)?;
        Ok(Turn { carried, ceiling, resent })
    }

    /// Returns the goodput, and the share of packets sent again.
    fn transfer(
        scheme: Scheme,
        cipher: Cipher,
        segment: usize,
        seconds: f64,
    ) -> Result<(Pace, f64), BenchError> {
        let max_packet = segment - OVERHEAD;
        let keys = |seed: u8| pair(1, cipher, &[seed; 32], u64::MAX).map_err(io::Error::other);
        let ((there, at_far), (back, at_near)) = (keys(1)?, keys(2)?);
        let bind = || Bulk::bind(LOOPBACK, BulkConfig::default());
        let (near, far) = (bind()?, bind()?);
        let (to_far, to_near) = (far.local_addr()?, near.local_addr()?);
        let window = WINDOW.min(far.socket_buffers().receive / 4) / segment;
        let now = Instant::now();
        let sender = Sender::new(
            SenderConfig {
                scheme,
                window,
                max_backlog: BACKLOG,
                rtt_hint: Duration::from_millis(1),
                rate: Some(400_000_000_000),
                ..SenderConfig::new(STREAM, max_packet)
            },
            now,
        );
        let receiver = Receiver::new(
            ReceiverConfig { rtt_hint: Duration::from_millis(1), ..ReceiverConfig::new(STREAM, max_packet) },
            now,
        );
        let mut near = End { socket: near, peer: to_far, sealer: there, opener: at_near, max_packet };
        let mut far = End { socket: far, peer: to_near, sealer: back, opener: at_far, max_packet };
        let (stop, delivered) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            // Named for profilers.
            let named = |name: &str| thread::Builder::new().name(name.to_owned());
            let sends = named("wan-sender").spawn_scoped(scope, || near.send(sender, &stop))?;
            let receives =
                named("wan-receiver").spawn_scoped(scope, || far.receive(receiver, &stop, &delivered));
            let receives = receives.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            thread::sleep(WARM_UP);
            let measured = || -> io::Result<Pace> {
                let (began, before) = (Instant::now(), delivered.load(Ordering::Relaxed));
                let meter = CpuMeter::start(&[std::process::id()])?;
                thread::sleep(Duration::from_secs_f64(seconds));
                let bytes = delivered.load(Ordering::Relaxed) - before;
                let rate = bytes as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9;
                Ok(Pace { rate, cores: meter.cores()? })
            }();
            stop.store(true, Ordering::Relaxed);
            let ended = || BenchError::Transfer("a thread has ended".to_owned());
            let resent = sends.join().map_err(|_| ended())??;
            receives.join().map_err(|_| ended())??;
            match measured? {
                Pace { rate, .. } if rate <= 0.0 => Err(BenchError::Transfer("nothing arrived".to_owned())),
                measured => Ok((measured, resent)),
            }
        })
    }
}

/// A transfer, and the ceiling just before it.
#[derive(Debug, Clone, Copy)]
struct Turn {
    carried: Pace,
    ceiling: Pace,
    /// Share of packets.
    resent: f64,
}

impl Turn {
    fn ratio(&self) -> f64 {
        self.carried.rate / self.ceiling.rate
    }

    fn per_core(&self) -> f64 {
        self.carried.per_core() / self.ceiling.per_core()
    }
}

/// Several turns of the same, of which medians count: a turn in which the machine did something
/// else is no measure.
struct Turns(Vec<Turn>);

impl Turns {
    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratios = || self.0.iter().map(Turn::ratio);
        write!(
            f,
            "{:>10.2} {:>6.2} {:>10.2} {:>6.2} {:>6.3} ({:.2} to {:.2}) {:>9.3} {:>9}",
            self.median(|turn| turn.carried.rate),
            self.median(|turn| turn.carried.cores),
            self.median(|turn| turn.ceiling.rate),
            self.median(|turn| turn.ceiling.cores),
            self.median(Turn::ratio),
            ratios().fold(f64::INFINITY, f64::min),
            ratios().fold(0.0, f64::max),
            self.median(Turn::per_core),
            human::share(self.median(|turn| turn.resent)),
        )
    }
}

/// One end: a thread's socket and keys.
pub(super) struct End {
    pub(super) socket: Bulk,
    pub(super) peer: SocketAddr,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) max_packet: usize,
}

impl End {
    /// Keeps the stream full; the share of packets sent again.
    fn send(&mut self, mut stream: Sender, stop: &AtomicBool) -> io::Result<f64> {
        let record = [0x5a; RECORD];
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            while stream.push(&[&record], now).is_ok() {}
            let heard = self.take(|packet| {
                // A report that was overtaken is none of ours to mend.
                let _ = stream.handle_report(packet, now);
            });
            if stream.next_timeout().is_some_and(|at| at <= now) {
                stream.handle_timeout(now);
            }
            let sent = self.give(|out| stream.poll_transmit(now, out).map(|transmit| transmit.len));
            if sent == 0 && heard == 0 {
                self.nap(stream.next_timeout())?;
            }
        }
        let stats = stream.stats();
        Ok(stats.repairs as f64 / stats.data_packets.max(1) as f64)
    }

    fn receive(&mut self, mut stream: Receiver, stop: &AtomicBool, delivered: &AtomicU64) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let mut bytes = 0;
            let heard = self.take(|packet| {
                let _ = stream.handle_packet(packet, now, &mut |record| bytes += record.len() as u64);
            });
            delivered.fetch_add(bytes, Ordering::Relaxed);
            if stream.next_timeout().is_some_and(|at| at <= now) {
                stream.handle_timeout(now);
            }
            let told = self.give(|out| stream.poll_report(now, out));
            if heard == 0 && told == 0 {
                self.nap(stream.next_timeout())?;
            }
        }
        Ok(())
    }

    /// Takes what has arrived and is authentic.
    pub(super) fn take(&mut self, mut packet: impl FnMut(&[u8])) -> usize {
        let Self { socket, opener, .. } = self;
        socket.receive(BUDGET, &mut |datagram, _| {
            if let Ok(plaintext) = opener.open(datagram) {
                packet(plaintext);
            }
        })
    }

    /// Seals and sends what there is.
    pub(super) fn give(&mut self, mut next: impl FnMut(&mut [u8]) -> Option<usize>) -> usize {
        let Self { socket, sealer, peer, max_packet, .. } = self;
        let mut sent = 0;
        while sent < BATCH {
            let Some(room) = socket.reserve(*max_packet + OVERHEAD) else { break };
            let Some(len) = room.get_mut(HEADER..HEADER + *max_packet).and_then(&mut next) else { break };
            if let Ok(sealed) = sealer.seal(0, room, len) {
                socket.commit(sealed, *peer);
            }
            sent += 1;
        }
        socket.flush();
        sent
    }

    fn nap(&self, until: Option<Instant>) -> io::Result<()> {
        let timer = until.map_or(NAP, |at| at.saturating_duration_since(Instant::now()).min(NAP));
        let fd = self.socket.fd();
        poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(timer))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_with_either_scheme() {
        for ((name, scheme), cipher) in SCHEMES.into_iter().zip(CIPHERS) {
            let (pace, resent) = Wan::transfer(scheme, cipher, 1472, 0.1).unwrap();
            assert!(pace.rate > 0.0 && (0.0..1.0).contains(&resent), "{name}: {pace:?}, {resent}");
        }
    }
}
