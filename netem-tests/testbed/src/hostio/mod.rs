//! Software RDMA hosts on real sockets, with a workload: the traffic of the demo and of the
//! end-to-end benchmarks.
//!
//! Each [`Endpoint`] is a thread that runs one [`Host`] on a UDP socket in the encapsulation of the
//! gateway's `lan.mode = "socket"`: a datagram is one whole IP packet. A client and a server built
//! from the same [`Workload`] know each other's queue pairs, keys and addresses without exchanging
//! anything, so they may run in one process or in two.

mod client;
mod flooder;
mod server;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::Client;
pub use flooder::{FloodConfig, Flooder};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags};
use server::Server;
pub use workload::{Limit, Mix, Workload};

use link_emulator::udp::{Inbox, Outbox, Sent, Socket, wait};
use soft_nic::{Completion, Host, HostError, HostStats, Status};

/// Longest sleep, so that stopping takes effect soon.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Divisor of the time: this part at most goes into looking at the queue pairs' timers, of which
/// there may be thousands.
const TIMER_SHARE: u32 = 20;
/// Time that looking at few of them takes, which is always done.
const CHEAP_LOOK: Duration = Duration::from_micros(10);

/// Receive calls, and packets sent, before the other direction has its turn.
const RECEIVE_ROUNDS: usize = 2;
const SEND_BUDGET: usize = 128;

/// Which end of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Posts the operations and measures.
    Client,
    /// Holds the memory and posts receives, until stopped.
    Server,
}

/// One host and its place.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// The UDP socket; port 0 picks a free one.
    pub bind: SocketAddr,
    /// Where every packet is sent: the gateway's LAN socket, or for plain RC the other endpoint's
    /// or a relay's.
    pub gateway: SocketAddr,
    /// This host's own address, as in its packets.
    pub ip: IpAddr,
    /// The other host's.
    pub remote_ip: IpAddr,
    /// Client or server.
    pub role: Role,
    /// The same on both ends.
    pub workload: Workload,
}

/// Why an endpoint does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The socket.
    #[error("socket of the RDMA host: {0}")]
    Io(#[from] io::Error),
    /// The workload asks the host for something impossible.
    #[error("RDMA host: {0}")]
    Host(#[from] HostError),
    /// The workload is impossible in itself.
    #[error("workload: {0}")]
    Workload(&'static str),
    /// A bug.
    #[error("the thread of the RDMA host panicked")]
    Panicked,
}

/// How far an endpoint is; read while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Messages completed (server: received).
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Work requests that failed, and messages with wrong contents.
    pub errors: AtomicU64,
}

/// The results of an endpoint.
#[derive(Debug, Clone)]
pub struct Report {
    /// Messages completed after the warm-up (server: receives filled).
    pub messages: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Payload bytes that were read back at the end, with [`Workload::verify`] (server: 0).
    pub read_back: u64,
    /// From the end of the warm-up to the last completion counted.
    pub elapsed: Duration,
    /// Nanoseconds from posting to completion (empty at the server).
    pub latency: Histogram<u64>,
    /// With [`Workload::timeline`]: each message, from the start of the run and the warm-up
    /// included; at last those never completed.
    pub timeline: Vec<Span>,
    /// Work requests that ended otherwise than with success, per status; a queue pair's flushed
    /// ones included.
    pub failures: Vec<(Status, u64)>,
    /// Messages whose contents, order or length were wrong; counted only with [`Workload::verify`].
    pub corrupt: u64,
    /// Nothing moved for [`Workload::patience`], and the client gave up.
    pub stalled: bool,
    /// The host's own counters.
    pub host: HostStats,
    /// Packets not sent because the kernel's send queue stayed full.
    pub send_full: u64,
    /// Packets the kernel refused to send.
    pub refused: u64,
}

impl fmt::Display for Report {
    /// A few lines for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gbit = self.goodput() / 1e9;
        writeln!(
            f,
            "{gbit:.3} Gbit/s, {} messages, {} bytes in {:.3?}",
            self.messages, self.bytes, self.elapsed
        )?;
        if !self.latency.is_empty() {
            let at = |quantile| Duration::from_nanos(self.latency.value_at_quantile(quantile));
            writeln!(f, "completion: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}", at(0.5), at(0.99), at(0.999))?;
        }
        for (status, count) in &self.failures {
            writeln!(f, "failed: {count} x {status:?}")?;
        }
        if self.corrupt > 0 {
            writeln!(f, "WRONG CONTENTS: {}", self.corrupt)?;
        }
        if self.stalled {
            writeln!(f, "stalled")?;
        }
        write!(f, "{:?}, not sent {} + {}", self.host, self.send_full, self.refused)
    }
}

impl Report {
    /// Payload bits per second.
    pub fn goodput(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 * 8.0 / seconds } else { 0.0 }
    }

    /// Everything was delivered, and rightly.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.corrupt == 0 && !self.stalled
    }
}

/// When a message was posted and completed, from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Posted.
    pub posted: Duration,
    /// Completed with success; `None`: not when the run ended.
    pub completed: Option<Duration>,
}

/// A running host. Stops when dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<Result<Report, EndpointError>>>,
}

impl Endpoint {
    /// Binds the socket, sets the host up, and starts its thread.
    pub fn start(config: &EndpointConfig) -> Result<Endpoint, EndpointError> {
        Endpoint::start_on(Bound::new(config.bind)?, config)
    }

    /// As [`Endpoint::start`], on a socket bound before, so that two endpoints can name each other.
    pub fn start_on(bound: Bound, config: &EndpointConfig) -> Result<Endpoint, EndpointError> {
        let address = bound.address()?;
        config.workload.check().map_err(EndpointError::Workload)?;
        let (host, program) = match config.role {
            Role::Client => Client::new(config, bound.ring()?)
                .map(|(host, client)| (host, Program::Client(Box::new(client))))?,
            Role::Server => {
                Server::new(config).map(|(host, server)| (host, Program::Server(Box::new(server))))?
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let progress = Arc::new(Progress::default());
        let runner = Runner {
            socket: bound.socket,
            gateway: config.gateway,
            host,
            program,
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            sent: Sent::default(),
            timers: Timers::default(),
            stop: Arc::clone(&stop),
            progress: Arc::clone(&progress),
        };
        let name = if config.role == Role::Client { "rdma-client" } else { "rdma-server" };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || runner.run())?;
        Ok(Endpoint { address, stop, progress, thread: Some(thread) })
    }

    /// The address of the UDP socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How far it is.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns true while the thread runs. A client ends by itself.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for a client's end.
    pub fn join(mut self) -> Result<Report, EndpointError> {
        self.finish()
    }

    /// Ends it now.
    pub fn stop(mut self) -> Result<Report, EndpointError> {
        self.stop.store(true, Ordering::Release);
        self.finish()
    }

    fn finish(&mut self) -> Result<Report, EndpointError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(EndpointError::Panicked),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Nobody is left to hear of an error.
            let _ = thread.join();
        }
    }
}

/// A bound socket that no host runs on yet.
pub struct Bound {
    socket: Socket,
}

impl Bound {
    /// Binds; port 0 picks a free one.
    pub fn new(address: SocketAddr) -> io::Result<Bound> {
        Ok(Bound { socket: Socket::bind(address)? })
    }

    /// The address bound.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Bytes of its receive ring.
    fn ring(&self) -> io::Result<usize> {
        self.socket.receive_buffer()
    }
}

/// Runs a client against a server until the client is done, and returns both reports.
pub fn run_pair(client: Endpoint, server: Endpoint) -> Result<(Report, Report), EndpointError> {
    let client = client.join()?;
    Ok((client, server.stop()?))
}

enum Program {
    Client(Box<Client>),
    Server(Box<Server>),
}

/// The thread: socket, host, program.
struct Runner {
    socket: Socket,
    gateway: SocketAddr,
    host: Host,
    program: Program,
    inbox: Inbox,
    outbox: Outbox,
    sent: Sent,
    timers: Timers,
    stop: Arc<AtomicBool>,
    progress: Arc<Progress>,
}

impl Runner {
    fn run(mut self) -> Result<Report, EndpointError> {
        let mut receives = true;
        while !self.stop.load(Ordering::Acquire) {
            let more = receives && self.receive()?;
            let now = Instant::now();
            if self.timers.next(&self.host, now).is_some_and(|at| at <= now) {
                self.host.handle_timeout(now);
                self.timers = Timers::default();
            }
            let finished = self.drive(now)?;
            let sent = self.transmit(now);
            if finished {
                break;
            }
            if more || sent > 0 {
                // What was sent may have completed something, which is looked at once without a
                // system call for what may have come.
                receives = more || !receives || sent >= SEND_BUDGET;
            } else {
                self.sleep(now)?;
                receives = true;
            }
        }
        Ok(self.report())
    }

    /// Receives packets, and returns true if there may be more.
    fn receive(&mut self) -> io::Result<bool> {
        for _ in 0..RECEIVE_ROUNDS {
            if !self.socket.receive(&mut self.inbox)? {
                return Ok(false);
            }
            let now = Instant::now();
            for batch in self.inbox.batches() {
                for packet in batch.datagrams() {
                    self.host.handle_packet(packet, now);
                }
            }
            if !self.inbox.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn drive(&mut self, now: Instant) -> Result<bool, HostError> {
        match &mut self.program {
            Program::Client(client) => client.drive(&mut self.host, now, &self.progress),
            Program::Server(server) => server.drive(&mut self.host, &self.progress).map(|()| false),
        }
    }

    fn transmit(&mut self, now: Instant) -> usize {
        let mut packets = 0;
        while packets < SEND_BUDGET
            && let Some(len) = self.host.poll_transmit(now, self.outbox.room())
        {
            self.sent.add(self.outbox.commit(len, &self.socket, self.gateway, None));
            packets += 1;
        }
        self.sent.add(self.outbox.flush(&self.socket, self.gateway, None));
        packets
    }

    fn sleep(&mut self, now: Instant) -> io::Result<()> {
        let next = self.timers.next(&self.host, now);
        let timeout = next.map_or(MAX_SLEEP, |at| at.saturating_duration_since(now).min(MAX_SLEEP));
        wait(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)], timeout)
    }

    fn report(self) -> Report {
        let tally = match self.program {
            Program::Client(client) => client.into_tally(),
            Program::Server(server) => server.into_tally(),
        };
        Report {
            messages: tally.messages,
            bytes: tally.bytes,
            read_back: tally.read_back,
            elapsed: tally.elapsed,
            latency: tally.latency,
            timeline: tally.timeline,
            failures: tally.failures,
            corrupt: tally.corrupt,
            stalled: tally.stalled,
            host: *self.host.stats(),
            send_full: self.sent.full,
            refused: self.sent.refused,
        }
    }
}

/// When a timer of the host is due: looked up anew each time as long as that is cheap, and
/// otherwise when it was long ago.
#[derive(Default)]
struct Timers {
    /// Look no sooner than then.
    look_at: Option<Instant>,
}

impl Timers {
    /// When to look again, where it is too early to look.
    fn next(&mut self, host: &Host, now: Instant) -> Option<Instant> {
        if let Some(later) = self.look_at.filter(|at| now < *at) {
            return Some(later);
        }
        let began = Instant::now();
        let next = host.next_timeout();
        let took = began.elapsed();
        self.look_at = (took > CHEAP_LOOK).then(|| now + took * TIMER_SHARE);
        // What is due is due, whatever it took to find out.
        next
    }
}

/// Counters of client and server.
struct Tally {
    messages: u64,
    bytes: u64,
    read_back: u64,
    elapsed: Duration,
    latency: Histogram<u64>,
    timeline: Vec<Span>,
    failures: Vec<(Status, u64)>,
    corrupt: u64,
    stalled: bool,
}

impl Tally {
    /// One nanosecond to an hour, three digits.
    const LONGEST: u64 = 3_600_000_000_000;

    fn new() -> Result<Self, EndpointError> {
        let latency = Histogram::new_with_bounds(1, Self::LONGEST, 3)
            .map_err(|_| EndpointError::Workload("the bounds of the histogram"))?;
        Ok(Self {
            messages: 0,
            bytes: 0,
            read_back: 0,
            elapsed: Duration::ZERO,
            latency,
            timeline: Vec::new(),
            failures: Vec::new(),
            corrupt: 0,
            stalled: false,
        })
    }

    fn failure(&mut self, completion: &Completion, progress: &Progress) {
        progress.errors.fetch_add(1, Ordering::Relaxed);
        match self.failures.iter_mut().find(|(status, _)| *status == completion.status) {
            Some((_, count)) => *count += 1,
            None => self.failures.push((completion.status, 1)),
        }
    }

    fn wrong(&mut self, progress: &Progress) {
        progress.errors.fetch_add(1, Ordering::Relaxed);
        self.corrupt += 1;
    }

    /// Forgets what the warm-up measured. Failures stay: they are never part of a warm-up.
    fn reset_measurements(&mut self) {
        self.messages = 0;
        self.bytes = 0;
        self.latency.reset();
    }
}
