//! A flooding host on a real socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Bound, EndpointError, SEND_BUDGET};
use link_emulator::udp::{Outbox, Sent, Socket};
use soft_nic::flood::{Flood, FloodKind};

/// Longest sleep, so that stopping takes effect soon.
const MOST_SLEEP: Duration = Duration::from_millis(5);
/// Shorter ones take longer than they should.
const LEAST_SLEEP: Duration = Duration::from_micros(100);

/// Settings of a [`Flooder`].
#[derive(Clone, Copy, Debug)]
pub struct FloodConfig {
    /// The kind of packet that it sends.
    pub kind: FloodKind,
    /// How much of it, bit/s of whole IP packets.
    pub rate: f64,
    /// Its own address, as in its packets, and its target's.
    pub ips: [IpAddr; 2],
    /// Where every packet is sent: the gateway's LAN socket.
    pub gateway: SocketAddr,
}

/// A thread that runs a [`Flood`] in the encapsulation of `lan.mode = "socket"`. Stops when
/// dropped.
#[derive(Debug)]
pub struct Flooder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Flooder {
    /// Begins to flood.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(bound: Bound, config: FloodConfig) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || run(&bound.socket, config, &stopped);
        let thread = std::thread::Builder::new().name("flooder".into()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends it, and counts the packets that it sent.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn stop(mut self) -> Result<u64, EndpointError> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(sent)) => Ok(sent),
            Some(Err(_)) | None => Err(EndpointError::Panicked),
        }
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Nobody is left to hear how much it sent.
            let _ = thread.join();
        }
    }
}

/// Answers stay in the socket until it is full.
fn run(socket: &Socket, config: FloodConfig, stop: &AtomicBool) -> u64 {
    let mut flood = Flood::new(config.kind, config.rate, config.ips, Instant::now());
    let (mut outbox, mut sent) = (Outbox::new(), Sent::default());
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        for _ in 0..SEND_BUDGET {
            let Some(len) = flood.poll_transmit(now, outbox.room()) else { break };
            sent.add(outbox.commit(len, socket, config.gateway, None));
        }
        sent.add(outbox.flush(socket, config.gateway, None));
        let next = flood.next_timeout().saturating_duration_since(Instant::now());
        if !next.is_zero() {
            std::thread::sleep(next.clamp(LEAST_SLEEP, MOST_SLEEP));
        }
    }
    sent.datagrams
}
