//! The socket of the control connection.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

use super::refusal::Refusals;

/// Datagrams to strangers at once.
const BURST: u32 = 32;
/// The interval at which one more may follow.
const REFILL: Duration = Duration::from_millis(125);

/// A UDP socket whose datagrams are not ECN-capable, and that sends strangers few.
///
/// QUIC marks all of its packets, and goes on doing so where none arrives (RFC 9000, 13.4.2).
/// Some paths drop marked packets, and a connection over them never comes up.
/// What little the control connection sends gains nothing from marks.
///
/// QUIC answers whoever sends it something (Version Negotiation, Retry, stateless resets).
/// An answer to an address on the link where nobody is waits 3 s in the kernel, in the socket's
/// send buffer.
/// So one who sends in such names would have the peer's packets wait.
/// Answers to other addresses than the peer's are bounded to 32 at once and 8 a second.
/// As many as can wait take two thirds of a send buffer of Linux's default size.
#[derive(Debug)]
pub(super) struct ControlSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    strangers: Strangers,
    gate: Gate,
}

/// Keeps a control connection from receiving, while another process holds the same socket.
///
/// What comes meanwhile waits in the kernel for whoever receives next. Sending goes on.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    is_shut: AtomicBool,
    /// Whoever wanted to receive meanwhile.
    waiting: Mutex<Option<Waker>>,
}

impl Gate {
    /// Nothing is received from now on, but for a batch that is on its way out of the kernel.
    pub fn shut(&self) {
        self.0.is_shut.store(true, Ordering::SeqCst);
    }

    /// Receiving goes on.
    pub fn open(&self) {
        self.0.is_shut.store(false, Ordering::SeqCst);
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Returns true if it is shut. Whoever asks is woken when it opens.
    fn holds_up(&self, cx: &Context<'_>) -> bool {
        let is_shut = || self.0.is_shut.load(Ordering::SeqCst);
        if !is_shut() {
            return false;
        }
        *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // It may have opened before the waker was there.
        is_shut()
    }
}

/// Those who are not the peer, and what may still be sent to them.
#[derive(Debug)]
pub(super) struct Strangers {
    peer: IpAddr,
    allowance: Mutex<Allowance>,
    refusals: Arc<Refusals>,
}

/// A token bucket of datagrams.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Up to when it has been refilled.
    refilled: Instant,
}

impl ControlSocket {
    /// Takes over a bound socket. Must be called within a tokio runtime.
    pub(super) fn new(socket: std::net::UdpSocket, strangers: Strangers, gate: Gate) -> io::Result<Self> {
        Ok(Self { socket: TokioRuntime.wrap_udp_socket(socket)?, strangers, gate })
    }
}

impl Strangers {
    /// All but `peer`. What they are not sent is counted.
    pub(super) fn new(peer: IpAddr, refusals: Arc<Refusals>) -> Self {
        let allowance = Mutex::new(Allowance { left: BURST, refilled: Instant::now() });
        Self { peer: peer.to_canonical(), allowance, refusals }
    }

    /// Returns true if so many datagrams may be sent there.
    fn may_have(&self, destination: IpAddr, datagrams: u32) -> bool {
        if destination.to_canonical() == self.peer {
            return true;
        }
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        let is_granted = allowance.take(datagrams, Instant::now());
        if !is_granted {
            self.refusals.count_unanswered(datagrams);
        }
        is_granted
    }
}

impl Allowance {
    /// Takes so many, all or none.
    fn take(&mut self, datagrams: u32, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.refilled);
        let due = u32::try_from(elapsed.as_nanos() / REFILL.as_nanos()).unwrap_or(u32::MAX);
        if due >= BURST {
            (self.left, self.refilled) = (BURST, now);
        } else {
            self.left = (self.left + due).min(BURST);
            self.refilled += REFILL * due;
        }
        match self.left.checked_sub(datagrams) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// Datagrams that one system call sends.
fn datagrams(transmit: &Transmit<'_>) -> u32 {
    let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
    u32::try_from(transmit.contents.len().div_ceil(segment)).unwrap_or(u32::MAX)
}

impl AsyncUdpSocket for ControlSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if !self.strangers.may_have(transmit.destination.ip(), datagrams(transmit)) {
            // As if it had been lost on the way.
            return Ok(());
        }
        self.socket.try_send(&Transmit { ecn: None, ..transmit.clone() })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.gate.holds_up(cx) {
            return Poll::Pending;
        }
        self.socket.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_get_few_datagrams_and_the_peer_all() {
        let now = Instant::now();
        let mut allowance = Allowance { left: BURST, refilled: now };
        assert!(!allowance.take(BURST + 1, now), "more than there ever are");
        assert!((0..BURST).all(|_| allowance.take(1, now)) && !allowance.take(1, now));
        let later = now + REFILL * 5 / 2;
        assert!(allowance.take(2, later) && !allowance.take(1, later));
        assert!(allowance.take(1, now + REFILL * 3), "halves are not forgotten");
        assert!(!allowance.take(1, later), "clocks of two threads differ");
        let much_later = now + REFILL * 1000;
        assert!(allowance.take(BURST, much_later) && !allowance.take(1, much_later));

        let refusals = Arc::<Refusals>::default();
        let strangers = Strangers::new([192, 0, 2, 1].into(), Arc::clone(&refusals));
        let mapped = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
        for _ in 0..1000 {
            assert!(strangers.may_have([192, 0, 2, 1].into(), 10) && strangers.may_have(mapped.into(), 10));
        }
        // Whole lots only, and however long this takes, not all of them.
        while strangers.may_have([192, 0, 2, 2].into(), BURST) {}
        assert_eq!(refusals.unanswered() % u64::from(BURST), 0);
        assert!(refusals.unanswered() > 0);
    }
}
