//! How throughput grows with the number of data-plane threads.
//!
//! It drives a stream per thread below `transport::Connection`, whose pacer would be the limit.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gateway::lan::wake::{PollFd, PollFlags, poll};
use gateway::plane::Share;
use gateway::steering::{self, Key};
use gateway::wan::{Bulk, BulkConfig};
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};
use session::seal::pair;
use session::{Cipher, OVERHEAD, ThreadPair};

use super::cpu::{CpuMeter, Pace};
use super::streams::{End, NAP, RECORD, WARM_UP};
use super::{BenchError, LOOPBACK};

/// `longhaul-lab bench wan --threads`: goodput of so many threads, each of which carries records
/// over the WAN and back to records by itself.
#[derive(Debug, Clone)]
pub struct Threads {
    /// Length of each transfer.
    pub seconds: f64,
    /// Numbers of threads.
    pub counts: Vec<u8>,
}

const SEGMENTS: [usize; 2] = [1472, 8972];
const CIPHER: Cipher = Cipher::Aegis128L;
const STREAM: StreamId = StreamId(0);
/// Far above what is reached; the threads share it all the same.
const RATE: u64 = 400_000_000_000;
/// Packets under way at most: what one turn sends, the same thread takes in with the next.
const WINDOW: usize = 256;
const BACKLOG: usize = 256 << 10;

const EXPLANATION: &str = "\
Each thread seals and sends, and receives and opens what it has sent: both ends of its own streams, so that n threads want n
processors. They share a session's keys, the port that they receive by, and the rate. ratio: by the goodput of the first row of its
length. Where other programs run, or the processors are threads of fewer cores, it is less than the number of threads.";

impl Threads {
    /// Measures and writes a line for each datagram length and number of threads.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "Records of {RECORD} bytes through sealed streams over loopback, {}, `sr`:\n",
            CIPHER.name()
        )?;
        writeln!(out, "{:>9} {:>8} {:>10} {:>6} {:>6} {:>9}", "datagrams", "", "goodput", "", "", "ratio")?;
        writeln!(
            out,
            "{:>9} {:>8} {:>10} {:>6} {:>6} {:>9}",
            "[bytes]", "threads", "[Gbit/s]", "cores", "ratio", "per core"
        )?;
        for segment in SEGMENTS {
            let mut first = None;
            for threads in &self.counts {
                if interrupted() {
                    return Err(BenchError::Interrupted);
                }
                let pace = self.transfer(segment, *threads)?;
                let first = *first.get_or_insert(pace);
                writeln!(
                    out,
                    "{segment:>9} {threads:>8} {:>10.2} {:>6.2} {:>6.3} {:>9.3}",
                    pace.rate,
                    pace.cores,
                    pace.rate / first.rate,
                    pace.per_core() / first.per_core()
                )?;
                out.flush()?;
            }
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    fn transfer(&self, segment: usize, threads: u8) -> Result<Pace, BenchError> {
        let bind = || steering::bind(LOOPBACK, threads, Key::Threads(threads));
        let (near, far) = (bind()?, bind()?);
        let shares = Share::all(RATE, threads, Instant::now());
        let mut loops = Vec::new();
        for (thread, ((near, far), share)) in (0..).zip(near.into_iter().zip(far).zip(shares)) {
            let bulk = |socket| Bulk::from_socket(socket, BulkConfig::default());
            loops.push(Loop::new(thread, bulk(near)?, bulk(far)?, segment, share)?);
        }
        let (stop, delivered) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let mut running = Vec::new();
            for (number, work) in loops.into_iter().enumerate() {
                let named = thread::Builder::new().name(format!("wan-{number}"));
                let started = named.spawn_scoped(scope, || work.run(&stop, &delivered));
                running.push(started.inspect_err(|_| stop.store(true, Ordering::Relaxed))?);
            }
            thread::sleep(WARM_UP);
            let measured = || -> io::Result<Pace> {
                let (began, before) = (Instant::now(), delivered.load(Ordering::Relaxed));
                let meter = CpuMeter::start(&[std::process::id()])?;
                thread::sleep(Duration::from_secs_f64(self.seconds));
                let bytes = delivered.load(Ordering::Relaxed) - before;
                let rate = bytes as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9;
                Ok(Pace { rate, cores: meter.cores()? })
            }();
            stop.store(true, Ordering::Relaxed);
            for thread in running {
                thread.join().map_err(|_| BenchError::Transfer("a thread has ended".to_owned()))??;
            }
            match measured? {
                Pace { rate, .. } if rate <= 0.0 => Err(BenchError::Transfer("nothing arrived".to_owned())),
                measured => Ok(measured),
            }
        })
    }
}

/// Both ends of a stream, on one thread.
struct Loop {
    near: End,
    far: End,
    sender: Sender,
    receiver: Receiver,
    share: Share,
}

impl Loop {
    fn new(thread: u8, near: Bulk, far: Bulk, segment: usize, share: Share) -> io::Result<Self> {
        let max_packet = segment - OVERHEAD;
        // All threads' keys are made from the same secrets.
        let keys = |seed: u8| {
            let (sealer, opener) = pair(1, CIPHER, &[seed; 32], u64::MAX).map_err(io::Error::other)?;
            Ok::<_, io::Error>((
                sealer.between(ThreadPair::alike(thread)),
                opener.between(ThreadPair::alike(thread)),
            ))
        };
        let ((there, at_far), (back, at_near)) = (keys(1)?, keys(2)?);
        let (to_far, to_near) = (far.local_addr()?, near.local_addr()?);
        let now = Instant::now();
        let rtt_hint = Duration::from_millis(1);
        let sender = SenderConfig {
            scheme: Scheme::sr(),
            window: WINDOW,
            max_backlog: BACKLOG,
            rtt_hint,
            rate: Some(RATE),
            ..SenderConfig::new(STREAM, max_packet)
        };
        let receiver = ReceiverConfig { rtt_hint, ..ReceiverConfig::new(STREAM, max_packet) };
        Ok(Self {
            near: End { socket: near, peer: to_far, sealer: there, opener: at_near, max_packet },
            far: End { socket: far, peer: to_near, sealer: back, opener: at_far, max_packet },
            sender: Sender::new(sender, now),
            receiver: Receiver::new(receiver, now),
            share,
        })
    }

    fn run(self, stop: &AtomicBool, delivered: &AtomicU64) -> io::Result<()> {
        let Self { mut near, mut far, mut sender, mut receiver, mut share } = self;
        let record = [0x5a; RECORD];
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            while sender.push(&[&record], now).is_ok() {}
            if sender.next_timeout().is_some_and(|at| at <= now) {
                sender.handle_timeout(now);
            }
            let mut wire = 0;
            let mut moved = near.give(|out| {
                let len = sender.poll_transmit(now, out)?.len;
                wire += len;
                Some(len)
            });
            share.note(wire);
            // Nothing is paced here; what the others want is looked at as a gateway would.
            let _ = share.settle(Some(RATE), now);
            let mut bytes = 0;
            moved += far.take(|packet| {
                let _ = receiver.handle_packet(packet, now, &mut |record| bytes += record.len() as u64);
            });
            delivered.fetch_add(bytes, Ordering::Relaxed);
            if receiver.next_timeout().is_some_and(|at| at <= now) {
                receiver.handle_timeout(now);
            }
            moved += far.give(|out| receiver.poll_report(now, out));
            moved += near.take(|packet| {
                let _ = sender.handle_report(packet, now);
            });
            if moved == 0 {
                let timers = sender.next_timeout().into_iter().chain(receiver.next_timeout()).min();
                let until = timers.map_or(NAP, |at| at.saturating_duration_since(Instant::now()).min(NAP));
                let [near, far] = [&near, &far].map(|end| end.socket.fd());
                let fd = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
                poll(&mut [fd(near.as_fd()), fd(far.as_fd())], Some(until))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_with_one_thread_and_with_three() {
        let bench = Threads { seconds: 0.1, counts: Vec::new() };
        for threads in [1, 3] {
            let pace = bench.transfer(1472, threads).unwrap();
            assert!(pace.rate > 0.0 && pace.cores > 0.0, "{threads}: {pace:?}");
        }
    }
}
