//! The thread that drives an engine over sockets.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use session::{HEADER, Opener, Sealer};

use super::now;
use crate::engine::Engine;
use crate::link::Alarm;

/// Bytes asked of the kernel for each socket's buffers.
const SOCKET_BUFFER: usize = 8 << 20;
/// Receive buffers filled by one system call, and the bytes of each: the most that GRO joins.
const RECEIVE_BATCH: usize = 8;
const RECEIVE_BYTES: usize = 65_536;
/// Bytes of a batch of datagrams that leave by one system call.
const SEND_BYTES: usize = 60_000;
/// Datagrams sent between two looks at the sockets.
const ROUND: usize = 64;
/// Time that a full socket is waited for. What it still refuses is lost, as on the path.
const SEND_PATIENCE: Duration = Duration::from_millis(10);

/// Counters of a queue pair on UDP.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct UdpStats {
    /// Datagrams handed to the kernel.
    pub sent: AtomicU64,
    /// Datagrams that the kernel refused.
    pub unsent: AtomicU64,
    /// Datagrams received.
    pub received: AtomicU64,
    /// Datagrams that were not authentic, replayed, foreign or too old.
    pub unopened: AtomicU64,
    /// Authentic datagrams that were taken in.
    pub taken: AtomicU64,
    /// Authentic datagrams that were refused: duplicates, late ones, or such that make no sense.
    pub refused: AtomicU64,
    /// Times that a socket was found closed or shut down: that ends the queue pair.
    pub failed: AtomicU64,
}

/// A socket, and the datagrams that wait to leave by it.
pub(super) struct Channel {
    pub(super) socket: UdpSocket,
    state: UdpSocketState,
    /// Datagrams that wait, and room behind them for the next one.
    batch: Box<[u8]>,
    /// Bytes that wait.
    len: usize,
    /// Bytes of each datagram of the batch; the last one may be shorter.
    segment: usize,
    count: usize,
}

impl Channel {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        grow_buffers(&socket);
        let state = UdpSocketState::new((&socket).into())?;
        let batch = vec![0; SEND_BYTES].into();
        Ok(Channel { socket, state, batch, len: 0, segment: 0, count: 0 })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Returns room for the next datagram, of `size` bytes; sends the batch first if there is none.
    fn room(&mut self, size: usize, peer: SocketAddr, stats: &UdpStats) -> &mut [u8] {
        if self.count >= self.state.max_gso_segments() || self.len + size > self.batch.len() {
            self.flush(peer, stats);
        }
        self.batch.get_mut(self.len..self.len + size).unwrap_or_default()
    }

    /// Adds the first `len` bytes of the room as a datagram.
    ///
    /// A longer one than those of the batch has the batch sent first. A shorter one ends it.
    fn commit(&mut self, len: usize, peer: SocketAddr, stats: &UdpStats) {
        if self.count > 0 && len > self.segment {
            let start = self.len;
            self.flush(peer, stats);
            self.batch.copy_within(start..start + len, 0);
        }
        if self.count == 0 {
            self.segment = len;
        }
        self.len += len;
        self.count += 1;
        if len < self.segment {
            self.flush(peer, stats);
        }
    }

    fn flush(&mut self, peer: SocketAddr, stats: &UdpStats) {
        if self.count == 0 {
            return;
        }
        let transmit = Transmit {
            destination: peer,
            ecn: None,
            contents: self.batch.get(..self.len).unwrap_or_default(),
            segment_size: (self.count > 1).then_some(self.segment),
            src_ip: None,
        };
        let deadline = now() + SEND_PATIENCE;
        let counter = loop {
            match self.state.try_send((&self.socket).into(), &transmit) {
                Ok(()) => break &stats.sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now() < deadline => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    // An error shows at the next try.
                    let _ = poll(&mut fds, Some(&timespec(Duration::from_millis(1))));
                }
                Err(_) => break &stats.unsent,
            }
        };
        counter.fetch_add(self.count as u64, Relaxed);
        (self.len, self.count) = (0, 0);
    }
}

/// Asks for large buffers: beyond the system's limit first, which takes privileges.
fn grow_buffers(socket: &UdpSocket) {
    // The kernel grants what it allows; less means more loss under load.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

pub(super) struct Driver {
    engine: Engine,
    channels: Vec<Channel>,
    peers: Vec<SocketAddr>,
    sealer: Sealer,
    opener: Opener,
    alarm: Arc<Alarm>,
    stats: Arc<UdpStats>,
    /// Bytes of the largest datagram, sealed.
    size: usize,
    receive: Vec<u8>,
}

impl Driver {
    pub(super) fn new(
        engine: Engine,
        channels: Vec<Channel>,
        peers: Vec<SocketAddr>,
        (sealer, opener): (Sealer, Opener),
        (alarm, stats): (Arc<Alarm>, Arc<UdpStats>),
        size: usize,
    ) -> Self {
        let receive = vec![0; RECEIVE_BATCH * RECEIVE_BYTES];
        Driver { engine, channels, peers, sealer, opener, alarm, stats, size, receive }
    }

    /// Runs until the queue pair has ended and said so.
    pub(super) fn run(mut self) {
        loop {
            if self.alarm.stop.load(Relaxed) {
                self.engine.close();
            }
            let received = self.take_in();
            let sent = self.send_round();
            if self.engine.has_ended() && sent == 0 {
                return;
            }
            if received == 0 && sent < ROUND {
                self.rest();
            }
        }
    }

    /// Sends what is due, [`ROUND`] datagrams at most. Returns how many it sent.
    fn send_round(&mut self) -> usize {
        let mut sent = 0;
        let time = now();
        while sent < ROUND {
            // It is written and sealed where it leaves from.
            let next = usize::from(self.engine.next_channel());
            let (Some(channel), Some(peer)) = (self.channels.get_mut(next), self.peers.get(next)) else {
                break;
            };
            let room = channel.room(self.size, *peer, &self.stats);
            let Some(text) = room.get_mut(HEADER..self.size - session::schedule::TAG) else {
                break;
            };
            let Some(transmit) = self.engine.poll_transmit(time, text) else {
                break;
            };
            sent += 1;
            let Ok(len) = self.sealer.seal(transmit.channel, room, transmit.len) else {
                // Keys are used up: the peer learns it by silence.
                self.engine.close();
                continue;
            };
            if usize::from(transmit.channel) == next {
                channel.commit(len, *peer, &self.stats);
            } else {
                self.hand_over(next, usize::from(transmit.channel), len);
            }
        }
        // Another round follows a full one at once, and fills up the batches.
        if sent < ROUND {
            for (channel, peer) in self.channels.iter_mut().zip(&self.peers) {
                channel.flush(*peer, &self.stats);
            }
        }
        sent
    }

    /// Moves a datagram of `len` bytes from the room of a channel to another one: few are no data.
    fn hand_over(&mut self, from: usize, to: usize, len: usize) {
        let datagram = self.channels.get(from).and_then(|from| from.batch.get(from.len..from.len + len));
        let datagram = datagram.unwrap_or_default().to_vec();
        if let (Some(channel), Some(peer)) = (self.channels.get_mut(to), self.peers.get(to)) {
            channel
                .room(self.size, *peer, &self.stats)
                .iter_mut()
                .zip(&datagram)
                .for_each(|(to, from)| *to = *from);
            channel.commit(len, *peer, &self.stats);
        }
    }

    /// Takes in what waits at the sockets, a batch each. Returns how many datagrams came.
    fn take_in(&mut self) -> usize {
        let (mut count, mut taken, mut is_gone) = (0, 0, false);
        let time = now();
        for channel in &self.channels {
            let mut metas = [RecvMeta::default(); RECEIVE_BATCH];
            let mut buffers = self.receive.chunks_mut(RECEIVE_BYTES).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; RECEIVE_BATCH] =
                std::array::from_fn(|_| buffers.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let filled = match channel.state.recv((&channel.socket).into(), &mut slices, &mut metas) {
                Ok(filled) => filled,
                Err(error) => {
                    is_gone |= is_no_socket(&error);
                    continue;
                }
            };
            for (slice, meta) in slices.iter_mut().zip(&metas).take(filled) {
                let Some(bytes) = slice.get_mut(..meta.len) else {
                    continue;
                };
                for datagram in bytes.chunks_mut(meta.stride.max(1)) {
                    count += 1;
                    taken += open(&mut self.opener, &mut self.engine, datagram, time, &self.stats);
                }
            }
        }
        self.stats.received.fetch_add(count as u64, Relaxed);
        self.stats.taken.fetch_add(taken, Relaxed);
        if is_gone {
            self.fail();
        }
        count
    }

    /// Ends the queue pair: a socket does not work any more.
    fn fail(&mut self) {
        if !self.engine.has_ended() {
            self.stats.failed.fetch_add(1, Relaxed);
            self.engine.close();
        }
    }

    /// Waits until something arrives, is due, or is wanted.
    fn rest(&mut self) {
        self.alarm.asleep.store(true, SeqCst);
        // Whoever rings from now on writes to the event. Whoever rang before is seen by looking
        // once more.
        if self.send_round() > 0 {
            self.alarm.asleep.store(false, SeqCst);
            return;
        }
        let time = now();
        let until = self.engine.next_timeout(time);
        let wait = until.saturating_duration_since(time);
        if !wait.is_zero() && !self.alarm.stop.load(Relaxed) {
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.channels.len() + 1);
            fds.push(PollFd::from_borrowed_fd(self.alarm.event.as_fd(), PollFlags::IN));
            fds.extend(self.channels.iter().map(|channel| PollFd::new(&channel.socket, PollFlags::IN)));
            let polled = poll(&mut fds, Some(&timespec(wait)));
            // Neither goes away by receiving, and polling would return at once for ever.
            let is_gone = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::NVAL | PollFlags::HUP);
            if polled.is_err_and(|error| error != Errno::INTR) || fds.iter().any(is_gone) {
                self.fail();
            }
        }
        self.alarm.asleep.store(false, SeqCst);
        let _ = rustix::io::read(&self.alarm.event, &mut [0; 8]);
    }
}

/// Returns true if the program has closed the socket.
///
/// Its descriptor may name something else by now.
fn is_no_socket(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BADF | Errno::NOTSOCK))
}

/// Opens a datagram and takes it in. Returns 1 if it was taken.
fn open(
    opener: &mut Opener,
    engine: &mut Engine,
    datagram: &mut [u8],
    time: Instant,
    stats: &UdpStats,
) -> u64 {
    let Ok(text) = opener.open(datagram) else {
        stats.unopened.fetch_add(1, Relaxed);
        return 0;
    };
    let Ok(()) = engine.handle(text, time) else {
        stats.refused.fetch_add(1, Relaxed);
        return 0;
    };
    1
}
