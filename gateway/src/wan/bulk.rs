//! [`Bulk`]: one non-blocking UDP socket with batches both ways.

use std::array;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::overrun::{self, Damaged};
use super::queue::{Batch, SendQueue};
use crate::steering::bind_alone;

/// Receive buffers filled by one system call. Few, so that they stay in the cache between the
/// kernel's copy and the opening.
const RECEIVE_BATCH: usize = 8;
/// Bytes of one receive buffer: the most that GRO joins.
const RECEIVE_BYTES: usize = 65_536;

/// How a [`Bulk`] socket is set up.
#[derive(Debug, Clone, Copy)]
pub struct BulkConfig {
    /// Segmentation offload. Off, each datagram is a system call of its own; for devices and
    /// captures that cannot do with it.
    pub gso: bool,
    /// Bytes of outgoing datagrams kept, at least 65,507. Small enough to stay in the cache.
    pub queue: usize,
    /// Bytes asked of the kernel for each of the socket's own buffers.
    pub socket_buffer: usize,
    /// ECN bits of everything sent, on the lanes where the path carries them.
    pub ecn: Option<EcnCodepoint>,
}

impl Default for BulkConfig {
    fn default() -> Self {
        Self { gso: true, queue: 256 * 1024, socket_buffer: 32 * 1024 * 1024, ecn: None }
    }
}

/// Metadata of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Who sent it.
    pub from: SocketAddr,
    /// The address of ours that it was sent to.
    pub to: Option<IpAddr>,
    /// Its ECN bits; `None` for Not-ECT.
    pub ecn: Option<EcnCodepoint>,
}

/// Bytes that the kernel granted for the socket's own buffers. It reports twice the usable figure,
/// for its book-keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketBuffers {
    /// `SO_RCVBUF`.
    pub receive: usize,
    /// `SO_SNDBUF`.
    pub send: usize,
}

/// Counters of a [`Bulk`] socket since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BulkStats {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Their bytes, UDP payload.
    pub sent_bytes: u64,
    /// System calls that carried them.
    pub sent_batches: u64,
    /// Times the kernel had no room (EAGAIN, ENOBUFS); the rest was kept.
    pub blocked: u64,
    /// Datagrams dropped for exceeding the interface's or path's MTU (EMSGSIZE).
    pub too_big: u64,
    /// Datagrams dropped because there was no way to the peer (ENETUNREACH, EHOSTUNREACH,
    /// ECONNREFUSED, ENETDOWN, ...).
    pub unreachable: u64,
    /// Datagrams dropped for any other error, a firewall's EPERM for instance.
    pub send_failed: u64,
    /// Datagrams dropped because their lane's socket was full, while other lanes went on.
    pub lane_full: u64,
    /// Times a device refused a batch and it was sent one by one; offload is off from then on.
    pub offload_refused: u64,
    /// Datagrams received.
    pub received: u64,
    /// Their bytes, UDP payload.
    pub received_bytes: u64,
    /// Buffers they came in, each of one or more datagrams.
    pub received_batches: u64,
    /// Datagrams received that were marked Congestion Experienced.
    pub received_ce: u64,
    /// Datagrams the kernel dropped because its buffer was full: this machine was too slow. Those
    /// that GRO had joined count once. Only as new as the last [`Bulk::take_overrun`].
    pub overrun: u64,
    /// Errors other than "nothing there" from receiving.
    pub receive_failed: u64,
}

/// A non-blocking UDP socket that sends and receives in batches, and others that only send
/// ([`add_lane`](Self::add_lane)): what leaves by them has other source ports, which is how
/// networks tell flows apart that they spread over several ways. Nothing is received by them, so
/// they are not polled.
///
/// To send: [`reserve`](Self::reserve) a slot, write (and seal) the datagram in place,
/// [`commit`](Self::commit) it, repeat, and [`flush`](Self::flush). Datagrams of equal length to
/// one peer, committed one after the other, leave in one system call, the last of them may be
/// shorter. A reservation that is not committed costs nothing.
///
/// Bounded by [`BulkConfig::queue`]: when it is full `reserve` returns `None`, and the owner
/// flushes. When the kernel takes no more, what is left waits ([`backlog`](Self::backlog)) and the
/// owner polls [`blocked_fds`](Self::blocked_fds) for writing. Nothing but that holds a datagram
/// back: every other error is counted in [`BulkStats`] and the datagrams concerned are dropped, as
/// the network might have done.
///
/// A lane whose socket is full holds up no other lane. As long as others go on, such lanes keep
/// half of the queue at most: of what they have beyond, the oldest is dropped.
pub struct Bulk {
    outlets: Outlets,
    config: BulkConfig,
    queue: SendQueue,
    /// The lanes whose sockets were full when they were last tried, a bit for each.
    blocked: u64,
    receive: Box<[u8]>,
    buffers: SocketBuffers,
    stats: BulkStats,
    /// The kernel's count of drops, as last read.
    drops: u32,
    damaged: Damaged,
}

/// The sockets. The first one receives, and is also what the first lane leaves by, unless the
/// others are all the lanes.
struct Outlets {
    first: Outlet,
    further: Vec<Outlet>,
    first_sends: bool,
}

/// A socket to send by.
struct Outlet {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Datagrams committed so far.
    committed: u64,
    /// Datagrams that were sent or dropped; they leave in order.
    left: u64,
    /// They carry [`BulkConfig::ecn`].
    is_marked: bool,
}

impl Bulk {
    /// A socket bound to `address`. An IPv6 one is for IPv6 only.
    pub fn bind(address: SocketAddr, config: BulkConfig) -> io::Result<Self> {
        Self::from_socket(bind_alone(address)?, config)
    }

    /// Takes over a bound socket.
    pub fn from_socket(socket: UdpSocket, config: BulkConfig) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let buffers = enlarge(&socket, config.socket_buffer);
        let address = socket.local_addr()?;
        tracing::info!(
            %address,
            asked = config.socket_buffer,
            receive = buffers.receive,
            send = buffers.send,
            segments = state.max_gso_segments(),
            "UDP socket buffers"
        );
        let receive = vec![0; RECEIVE_BATCH * RECEIVE_BYTES].into_boxed_slice();
        Ok(Self {
            outlets: Outlets { first: Outlet::new(socket, state), further: Vec::new(), first_sends: true },
            config,
            queue: SendQueue::new(config.queue),
            blocked: 0,
            receive,
            buffers,
            stats: BulkStats::default(),
            drops: 0,
            damaged: Damaged::new(),
        })
    }

    /// For a socket that receives only: all lanes are still to be added.
    #[must_use]
    pub fn without_lanes(mut self) -> Self {
        self.outlets.first_sends = false;
        self
    }

    /// One more lane to send by, from a socket bound to `address`. What comes there is never looked
    /// at, and the kernel keeps as little of it as it can.
    pub fn add_lane(&mut self, address: SocketAddr) -> io::Result<()> {
        self.add_lane_by(bind_alone(address)?)
    }

    /// As [`Bulk::add_lane`], with a socket that is bound.
    pub fn add_lane_by(&mut self, socket: UdpSocket) -> io::Result<()> {
        let address = socket.local_addr()?;
        let state = UdpSocketState::new((&socket).into())?;
        let buffer = enlarge_sending(&socket, self.config.socket_buffer);
        let _ = sockopt::set_socket_recv_buffer_size(&socket, 0);
        tracing::info!(%address, send = buffer, "a further lane's UDP socket");
        self.outlets.further.push(Outlet::new(socket, state));
        Ok(())
    }

    /// Room for one datagram of up to `len` bytes, or `None` when the queue is full (flush first)
    /// or `len` exceeds 65,507.
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.queue.reserve(len)
    }

    /// Takes the first `len` bytes of the last reservation as a datagram for `to`.
    pub fn commit(&mut self, len: usize, to: SocketAddr) {
        self.commit_on(0, len, to);
    }

    /// As [`Bulk::commit`], by a lane; one that does not exist drops it.
    pub fn commit_on(&mut self, lane: usize, len: usize, to: SocketAddr) {
        let Some(outlet) = self.outlets.get_mut(lane) else { return };
        let max_segments = if self.config.gso { outlet.state.max_gso_segments() } else { 1 };
        outlet.committed += u64::from(self.queue.commit(len, (lane, to), max_segments));
    }

    /// As [`Bulk::commit_on`], but in a system call of its own: one that the interface may refuse.
    pub fn commit_alone(&mut self, lane: usize, len: usize, to: SocketAddr) {
        let Some(outlet) = self.outlets.get_mut(lane) else { return };
        self.queue.close();
        outlet.committed += u64::from(self.queue.commit(len, (lane, to), 1));
    }

    /// Sets whether what leaves by a lane carries [`BulkConfig::ecn`]. Returns true if that is new.
    pub fn set_marked(&mut self, lane: usize, is_marked: bool) -> bool {
        let ecn = self.config.ecn.is_some();
        let outlet = self.outlets.get_mut(lane).filter(|_| ecn);
        outlet.is_some_and(|outlet| std::mem::replace(&mut outlet.is_marked, is_marked) != is_marked)
    }

    /// Datagrams committed to a lane since the socket was made; the ordinal of the next one there.
    pub fn committed(&self, lane: usize) -> u64 {
        self.outlets.get(lane).map_or(0, |outlet| outlet.committed)
    }

    /// The first `len` bytes of the last reservation, as far as they were reserved.
    pub(crate) fn reserved(&self, len: usize) -> Option<&[u8]> {
        self.queue.reserved(len)
    }

    /// Hands what was committed to the kernel, as far as it takes it. Returns the datagrams it
    /// took.
    pub fn flush(&mut self) -> usize {
        self.flush_noting(&mut |_, _, _| {})
    }

    /// As [`Bulk::flush`], and tells lane and ordinals there of the datagrams that were dropped,
    /// each lane's in ascending order, and whether for being too long (EMSGSIZE).
    pub fn flush_noting(&mut self, dropped: &mut dyn FnMut(usize, Range<u64>, bool)) -> usize {
        let before = self.stats.sent;
        let (mut blocked, mut nth) = (0, 0);
        while let Some((batch, bytes)) = self.queue.get(nth) {
            let Some(outlet) = self.outlets.get_mut(batch.lane) else {
                self.queue.remove(nth);
                continue;
            };
            if blocked & bit(batch.lane) != 0 {
                nth += 1;
                continue;
            }
            let ecn = self.config.ecn.filter(|_| outlet.is_marked);
            match outlet.transmit(ecn, batch, bytes, &mut self.stats, dropped) {
                Ok(()) => {
                    self.queue.remove(nth);
                }
                Err(Blocked { gone }) => {
                    self.stats.blocked += 1;
                    self.queue.advance(nth, gone);
                    blocked |= bit(batch.lane);
                    nth += 1;
                }
            }
        }
        self.blocked = blocked;
        if blocked.count_ones() < self.outlets.count() {
            self.drop_blocked(dropped);
        }
        (self.stats.sent - before) as usize
    }

    /// Leaves half of the queue to the lanes that go on. All that waits is for others.
    fn drop_blocked(&mut self, dropped: &mut dyn FnMut(usize, Range<u64>, bool)) {
        while self.queue.is_half_full()
            && let Some(batch) = self.queue.remove(0)
        {
            self.stats.lane_full += batch.datagrams() as u64;
            if let Some(outlet) = self.outlets.get_mut(batch.lane) {
                let first = outlet.left;
                outlet.left += batch.datagrams() as u64;
                dropped(batch.lane, first..outlet.left, false);
            }
        }
    }

    /// Receives until nothing is left or about `budget` datagrams were handed to `f`, and returns
    /// how many. What one system call brought is always handed out whole, so it may be some
    /// hundreds more. The slices are `f`'s to change, for opening in place.
    pub fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&mut [u8], Arrival)) -> usize {
        let before = self.stats.received;
        let Outlet { socket, state, .. } = &self.outlets.first;
        while ((self.stats.received - before) as usize) < budget {
            let mut metas = [RecvMeta::default(); RECEIVE_BATCH];
            let mut buffers = self.receive.chunks_mut(RECEIVE_BYTES);
            let mut slices: [_; RECEIVE_BATCH] =
                array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
            let filled = match state.recv(socket.into(), &mut slices, &mut metas) {
                Ok(filled) => filled,
                Err(error) => {
                    self.stats.receive_failed += u64::from(error.kind() != io::ErrorKind::WouldBlock);
                    break;
                }
            };
            for (meta, slice) in metas.iter().zip(&mut slices).take(filled) {
                hand_out(meta, slice, &mut self.stats, f);
            }
            if filled < RECEIVE_BATCH {
                break;
            }
        }
        (self.stats.received - before) as usize
    }

    /// Datagrams that the kernel dropped since this was last asked, as in [`BulkStats::overrun`].
    /// Always 0 where the kernel does not tell.
    pub fn take_overrun(&mut self) -> u64 {
        let drops = overrun::drops(self.fd()).unwrap_or(self.drops);
        let more = u64::from(drops.wrapping_sub(self.drops));
        self.drops = drops;
        if more == 0 {
            return 0;
        }
        let more = more.saturating_sub(self.damaged.take());
        self.stats.overrun += more;
        more
    }

    /// Bytes committed that the kernel has not taken. While there are any, poll
    /// [`blocked_fds`](Self::blocked_fds) for writing.
    pub fn backlog(&self) -> usize {
        self.queue.backlog()
    }

    /// The sockets that waiting datagrams are for, to be polled for writing.
    pub fn blocked_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        (0..self.outlets.count() as usize)
            .filter(|lane| self.blocked & bit(*lane) != 0)
            .filter_map(|lane| Some(self.outlets.get(lane)?.socket.as_fd()))
    }

    /// The lanes whose sockets are full while others' are not, a bit for each: what is committed
    /// there waits, and may be dropped.
    pub fn full_lanes(&self) -> u64 {
        if self.blocked.count_ones() < self.outlets.count() { self.blocked } else { 0 }
    }

    /// Its sockets: the one that receives, and the further lanes'.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Outlets { first, further, .. } = &self.outlets;
        std::iter::once(first).chain(further).map(|outlet| outlet.socket.as_fd())
    }

    /// The socket that receives, to be polled.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.outlets.first.socket.as_fd()
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.outlets.first.socket.local_addr()
    }

    /// Returns what the kernel granted for its buffers.
    pub fn socket_buffers(&self) -> SocketBuffers {
        self.buffers
    }

    /// Counters.
    pub fn stats(&self) -> &BulkStats {
        &self.stats
    }
}

/// A lane's bit. There are no more lanes than bits.
fn bit(lane: usize) -> u64 {
    u32::try_from(lane).ok().and_then(|lane| 1_u64.checked_shl(lane)).unwrap_or(0)
}

impl Outlets {
    /// Lanes.
    fn count(&self) -> u32 {
        self.further.len() as u32 + u32::from(self.first_sends)
    }

    fn get(&self, lane: usize) -> Option<&Outlet> {
        match lane.checked_sub(self.first_sends.into()) {
            None => Some(&self.first),
            Some(further) => self.further.get(further),
        }
    }

    fn get_mut(&mut self, lane: usize) -> Option<&mut Outlet> {
        match lane.checked_sub(self.first_sends.into()) {
            None => Some(&mut self.first),
            Some(further) => self.further.get_mut(further),
        }
    }
}

impl Outlet {
    fn new(socket: UdpSocket, state: UdpSocketState) -> Self {
        Self { socket, state, committed: 0, left: 0, is_marked: true }
    }

    /// Sends a batch, and counts what became of it.
    fn transmit(
        &mut self,
        ecn: Option<EcnCodepoint>,
        batch: Batch,
        bytes: &[u8],
        stats: &mut BulkStats,
        dropped: &mut dyn FnMut(usize, Range<u64>, bool),
    ) -> Result<(), Blocked> {
        let Self { socket, state, left, .. } = self;
        let outgoing = Outgoing { socket, state, ecn, batch };
        let mut count = |stats: &mut BulkStats, result: Result<(), Errno>, datagrams: usize, bytes: usize| {
            let first = *left;
            *left += datagrams as u64;
            stats.count_sending(result, datagrams, bytes);
            if result.is_err() {
                dropped(batch.lane, first..*left, result == Err(Errno::MSGSIZE));
            }
        };
        match outgoing.transmit(bytes) {
            Err(Errno::AGAIN | Errno::NOBUFS) => return Err(Blocked { gone: 0 }),
            // Too long may be all but the last.
            Err(refused @ (Errno::IO | Errno::INVAL | Errno::MSGSIZE)) if batch.datagrams() > 1 => {
                stats.offload_refused += u64::from(refused != Errno::MSGSIZE);
                for (nth, datagram) in bytes.chunks(batch.segment).enumerate() {
                    match outgoing.transmit(datagram) {
                        Err(Errno::AGAIN | Errno::NOBUFS) => {
                            return Err(Blocked { gone: nth * batch.segment });
                        }
                        result => count(stats, result, 1, datagram.len()),
                    }
                }
            }
            result => count(stats, result, batch.datagrams(), bytes.len()),
        }
        Ok(())
    }
}

/// A socket takes no more for now.
struct Blocked {
    /// Bytes of the batch that have left, or were dropped.
    gone: usize,
}

/// A batch on its way to the kernel.
struct Outgoing<'a> {
    socket: &'a UdpSocket,
    state: &'a UdpSocketState,
    ecn: Option<EcnCodepoint>,
    batch: Batch,
}

impl Outgoing<'_> {
    /// One system call: `bytes`, the whole batch or one of its datagrams.
    fn transmit(&self, bytes: &[u8]) -> Result<(), Errno> {
        let transmit = Transmit {
            destination: self.batch.destination,
            ecn: self.ecn,
            contents: bytes,
            segment_size: (bytes.len() > self.batch.segment).then_some(self.batch.segment),
            src_ip: None,
        };
        let attempt = || {
            self.state
                .try_send(self.socket.into(), &transmit)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        match attempt() {
            // An answer to an earlier datagram, not to this one, which was not even tried.
            Err(Errno::CONNREFUSED) => attempt(),
            result => result,
        }
    }
}

impl BulkStats {
    /// Counts what became of one system call.
    fn count_sending(&mut self, result: Result<(), Errno>, datagrams: usize, bytes: usize) {
        let datagrams = datagrams as u64;
        match result {
            Ok(()) => {
                self.sent += datagrams;
                self.sent_bytes += bytes as u64;
                self.sent_batches += 1;
            }
            Err(Errno::MSGSIZE) => self.too_big += datagrams,
            Err(
                Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::CONNREFUSED
                | Errno::NETDOWN
                | Errno::HOSTDOWN
                | Errno::NODEV
                | Errno::NXIO,
            ) => self.unreachable += datagrams,
            Err(_) => self.send_failed += datagrams,
        }
    }
}

fn hand_out(
    meta: &RecvMeta,
    buffer: &mut [u8],
    stats: &mut BulkStats,
    f: &mut dyn FnMut(&mut [u8], Arrival),
) {
    let arrival = Arrival { from: meta.addr, to: meta.dst_ip, ecn: meta.ecn };
    let Some(bytes) = buffer.get_mut(..meta.len) else {
        return;
    };
    let before = stats.received;
    for datagram in bytes.chunks_mut(meta.stride.max(1)) {
        stats.received += 1;
        f(datagram, arrival);
    }
    stats.received_bytes += meta.len as u64;
    stats.received_batches += 1;
    if meta.ecn == Some(EcnCodepoint::Ce) {
        stats.received_ce += stats.received - before;
    }
}

/// Asks for large socket buffers: beyond the system's limit where CAP_NET_ADMIN allows it, up to
/// the limit otherwise.
fn enlarge(socket: &UdpSocket, bytes: usize) -> SocketBuffers {
    // Refusal is no failure: what was granted is read back, logged and kept.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes));
    let send = enlarge_sending(socket, bytes);
    SocketBuffers { receive: sockopt::socket_recv_buffer_size(socket).unwrap_or(0), send }
}

/// As [`enlarge`], for sending alone.
fn enlarge_sending(socket: &UdpSocket, bytes: usize) -> usize {
    let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes));
    sockopt::socket_send_buffer_size(socket).unwrap_or(0)
}
