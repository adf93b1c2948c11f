//! A UDP socket that receives and sends many datagrams per system call (GRO, GSO).

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Datagrams (or GRO batches of them) per receive call.
const BATCHES: usize = 16;

/// Room for the largest datagram, and for the largest GRO batch.
const BATCH_LEN: usize = 1 << 16;

/// Most bytes the kernel takes in one GSO send.
const MAX_SEND: usize = 65507;

/// Asked of the kernel for each direction; without privileges it gives what `net.core.rmem_max`
/// allows.
const SOCKET_BUFFER: usize = 16 << 20;

/// How long to wait for room in a full send queue before a datagram is dropped.
const SEND_PATIENCE: Duration = Duration::from_millis(20);

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Buffers for [`Socket::receive`]; one set serves any number of sockets.
#[derive(Debug)]
pub struct Inbox {
    storage: Box<[u8]>,
    metas: [RecvMeta; BATCHES],
    filled: usize,
}

/// Counts of datagrams sent and not sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Dropped because the kernel's send queue stayed full.
    pub full: u64,
    /// Refused by the kernel (no route, too long for the interface, ...).
    pub refused: u64,
}

impl Socket {
    /// Returns a non-blocking socket with large buffers.
    ///
    /// # Errors
    /// The system's, such as an address in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        grow_buffers(&socket);
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state })
    }

    /// Returns the address the socket is bound to.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the bytes that the kernel keeps for datagrams that wait, its own overhead included.
    ///
    /// # Errors
    /// The system's.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        Ok(rustix::net::sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Fills the inbox with what is there; `false` if nothing is.
    ///
    /// # Errors
    /// The system's, but for those that an ICMP message left behind.
    pub fn receive(&self, inbox: &mut Inbox) -> io::Result<bool> {
        let mut chunks = inbox.storage.chunks_exact_mut(BATCH_LEN);
        let mut buffers: [IoSliceMut<'_>; BATCHES] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        inbox.filled = 0;
        match self.state.recv((&self.socket).into(), &mut buffers, &mut inbox.metas) {
            Ok(filled) => {
                inbox.filled = filled;
                Ok(filled > 0)
            }
            // An error that an ICMP message left behind says nothing about the socket.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Datagrams that one send may hold.
    pub fn max_segments(&self, segment: usize) -> usize {
        self.state.max_gso_segments().min(MAX_SEND / segment.max(1)).max(1)
    }

    /// Sends `contents`, datagrams of `segment` bytes of which the last may be shorter, in as few
    /// calls as possible.
    pub fn send(&self, to: SocketAddr, ecn: Option<EcnCodepoint>, contents: &[u8], segment: usize) -> Sent {
        let mut sent = Sent::default();
        let mut rest = contents;
        while !rest.is_empty() || (contents.is_empty() && sent == Sent::default()) {
            let len = rest.len().min(segment.max(1).saturating_mul(self.max_segments(segment)));
            let Some((batch, after)) = rest.split_at_checked(len) else {
                break;
            };
            rest = after;
            let count = u64::try_from(len.div_ceil(segment.max(1)).max(1)).unwrap_or(1);
            match self.send_batch(to, ecn, batch, segment) {
                Ok(()) => {
                    sent.datagrams += count;
                    sent.bytes += u64::try_from(len).unwrap_or(0);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sent.full += count,
                Err(_) => sent.refused += count,
            }
        }
        sent
    }

    fn send_batch(
        &self,
        to: SocketAddr,
        ecn: Option<EcnCodepoint>,
        contents: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit { destination: to, ecn, contents, segment_size, src_ip: None };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(&mut [PollFd::new(&self.socket, PollFlags::OUT)], SEND_PATIENCE)?;
                self.state.try_send((&self.socket).into(), &transmit)
            }
            result => result,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    /// Returns empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            storage: vec![0; BATCHES * BATCH_LEN].into_boxed_slice(),
            metas: [RecvMeta::default(); BATCHES],
            filled: 0,
        }
    }

    /// Returns true if the last receive filled all there is, so that more may have come.
    pub fn is_full(&self) -> bool {
        self.filled == BATCHES
    }

    /// Returns the batches of the last receive, each with the source, the ECN bits, the bytes, and
    /// the length of each datagram in it.
    pub fn batches(&self) -> impl Iterator<Item = Batch<'_>> {
        let filled = self.metas.iter().take(self.filled);
        filled.zip(self.storage.chunks_exact(BATCH_LEN)).filter_map(|(meta, buffer)| {
            let bytes = buffer.get(..meta.len)?;
            Some(Batch { from: meta.addr, ecn: meta.ecn, bytes, stride: meta.stride })
        })
    }
}

/// Datagrams of equal length (the last may be shorter) that arrived together.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Source of all of them.
    pub from: SocketAddr,
    /// Their ECN bits.
    pub ecn: Option<EcnCodepoint>,
    /// Their payloads, one after the other.
    pub bytes: &'a [u8],
    /// Bytes of each but the last.
    pub stride: usize,
}

impl<'a> Batch<'a> {
    /// Returns each datagram's payload.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let empty = self.bytes.is_empty().then_some(self.bytes);
        self.bytes.chunks(self.stride.max(1)).chain(empty)
    }

    /// Counts the datagrams.
    #[must_use]
    pub fn count(&self) -> u64 {
        let count = self.bytes.len().div_ceil(self.stride.max(1)).max(1);
        u64::try_from(count).unwrap_or(0)
    }
}

/// Collects datagrams for one destination until they make a GSO batch.
#[derive(Debug)]
pub struct Outbox {
    buffer: Box<[u8]>,
    len: usize,
    segment: usize,
    count: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// Returns an empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self { buffer: vec![0; MAX_SEND + BATCH_LEN].into_boxed_slice(), len: 0, segment: 0, count: 0 }
    }

    /// Room for one datagram of any length, to be filled from its start.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.len..).unwrap_or_default()
    }

    /// Takes the first `len` bytes of the room as the next datagram; sends what no further datagram
    /// may join.
    pub fn commit(&mut self, len: usize, socket: &Socket, to: SocketAddr, ecn: Option<EcnCodepoint>) -> Sent {
        let mut sent = Sent::default();
        // An empty datagram cannot be part of a batch.
        let joins = len > 0 && len <= self.segment && self.len + len <= MAX_SEND;
        if self.count > 0 && !joins {
            let start = self.len;
            sent = self.flush(socket, to, ecn);
            self.buffer.copy_within(start..start + len, 0);
        }
        if self.count == 0 {
            self.segment = len;
        }
        self.len += len;
        self.count += 1;
        if len < self.segment || len == 0 || self.count >= socket.max_segments(self.segment) {
            sent.add(self.flush(socket, to, ecn));
        }
        sent
    }

    /// Sends what is there.
    pub fn flush(&mut self, socket: &Socket, to: SocketAddr, ecn: Option<EcnCodepoint>) -> Sent {
        if self.count == 0 {
            return Sent::default();
        }
        let sent = socket.send(to, ecn, self.buffer.get(..self.len).unwrap_or_default(), self.segment);
        self.len = 0;
        self.count = 0;
        sent
    }
}

impl Sent {
    /// Adds other counts.
    pub fn add(&mut self, other: Sent) {
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
        self.full += other.full;
        self.refused += other.refused;
    }
}

/// Waits until a descriptor is ready or the time is over.
///
/// # Errors
/// The system's; a signal is none.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A burst of a full window must fit, or the emulator and the hosts would lose packets that no link
/// asked them to.
fn grow_buffers(socket: &UdpSocket) {
    use rustix::net::sockopt;
    // Without privileges the first fails and the second is cut to the system's limit: then that is
    // what there is.
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn datagrams_of_any_lengths_keep_order_and_contents() {
        let bind = || Socket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (from, to) = (bind(), bind());
        let address = to.local_addr().unwrap();
        // Growing, shrinking, equal, empty, and more of one length than a batch can hold.
        let mut lengths = vec![100, 100, 200, 50, 50, 60, 1400, 1400, 1399, 1, 0, 0, 7, 60_000, 60_000];
        lengths.extend([1000; 150]);
        let (mut outbox, mut sent) = (Outbox::new(), Sent::default());
        for (index, len) in (0u8..).zip(&lengths) {
            outbox.room()[..*len].fill(index);
            sent.add(outbox.commit(*len, &from, address, Some(EcnCodepoint::Ect1)));
        }
        sent.add(outbox.flush(&from, address, Some(EcnCodepoint::Ect1)));
        let total = lengths.iter().sum::<usize>() as u64;
        assert_eq!((sent.datagrams, sent.bytes, sent.full + sent.refused), (165, total, 0));
        let mut inbox = Inbox::new();
        let mut received = Vec::new();
        while received.len() < lengths.len() {
            wait(&mut [PollFd::new(&to, PollFlags::IN)], Duration::from_secs(5)).unwrap();
            assert!(to.receive(&mut inbox).unwrap(), "only {} arrived", received.len());
            for batch in inbox.batches() {
                assert_eq!(batch.ecn, Some(EcnCodepoint::Ect1));
                received.extend(batch.datagrams().map(<[u8]>::to_vec));
            }
        }
        let wanted: Vec<Vec<u8>> = (0u8..).zip(&lengths).map(|(index, len)| vec![index; *len]).collect();
        assert!(received == wanted);
    }
}
