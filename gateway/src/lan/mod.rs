//! The local side: how packets of the RDMA hosts come in and go out, and how the thread that moves
//! them sleeps.
//!
//! A packet here is a whole IP packet, from its IP header to its ICRC, exactly as it stands on the
//! wire. What is in it beyond the two addresses is no business of this folder. Everything is
//! synchronous and non-blocking, for the one data-plane thread that owns it; unsafe code is
//! confined to `packet::ring`.

mod family;
pub mod guard;
pub(crate) mod netlink;
#[cfg(test)]
pub(crate) mod netns;
pub mod packet;
pub mod rdma;
pub mod socket;
pub mod usable;
pub mod wake;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use packet::Packet;
use socket::Socket;
use wake::{PollFd, PollFlags, poll};

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The longest packet carried: 4096 bytes of payload with all headers there are, and then some.
pub const MAX_PACKET: usize = 4400;

/// The local side in either mode.
///
/// To receive: poll [`fd`](Self::fd) for reading, then [`receive`](Self::receive). To send:
/// [`reserve`](Self::reserve), write the packet, [`commit`](Self::commit), repeat,
/// [`flush`](Self::flush); while [`blocked_fd`](Self::blocked_fd) gives one, poll it for writing
/// and flush again; likewise [`ways_fd`](Self::ways_fd) for reading.
/// Call [`check`](Self::check) about every second.
pub enum Lan {
    /// On an interface, as the hosts' next hop.
    Packet(Packet),
    /// Over UDP, unprivileged.
    Socket(Socket),
}

/// The state of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Usable.
    Up,
    /// There, but administratively down or without a carrier.
    Down,
    /// No interface has that name.
    Gone,
}

impl Link {
    /// Returns the state in a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Gone => "gone",
        }
    }
}

impl Lan {
    /// Hands packets to `f`, each from its IP header on, and returns how many; about `budget` at
    /// most (a batch is not cut).
    ///
    /// # Errors
    /// The interface went down or away. Not fatal: report it, and go on.
    pub fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        match self {
            Self::Packet(packet) => packet.receive(budget, f),
            Self::Socket(socket) => Ok(socket.receive(budget, f)),
        }
    }

    /// Room for one packet of up to [`MAX_PACKET`] bytes, or `None` while the queue is full: flush,
    /// and if that does not help, wait.
    pub fn reserve(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Packet(packet) => packet.reserve(),
            Self::Socket(socket) => socket.reserve(),
        }
    }

    /// Takes the first `len` bytes of the last reservation as a packet to be sent.
    pub fn commit(&mut self, len: usize) {
        match self {
            Self::Packet(packet) => packet.commit(len),
            Self::Socket(socket) => socket.commit(len),
        }
    }

    /// Sends what was committed, as far as the kernel takes it, and returns how many packets it
    /// took.
    ///
    /// # Errors
    /// The interface is down or gone, and what was queued was dropped. Not fatal: report it, and go
    /// on.
    pub fn flush(&mut self) -> io::Result<usize> {
        match self {
            Self::Packet(packet) => packet.flush(),
            Self::Socket(socket) => Ok(socket.flush()),
        }
    }

    /// Sends what `next` writes, its length being returned, until there is nothing more, `budget`
    /// packets were queued, or the kernel takes no more: whatever does not fit into the queue at
    /// once. How many packets were queued is returned.
    pub fn send(&mut self, budget: usize, next: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> usize {
        let (mut sent, mut flushed) = (0, false);
        while sent < budget {
            let Some(room) = self.reserve() else {
                if flushed {
                    break;
                }
                // Whether that sends what is queued or drops it, there may be room then.
                let _ = self.flush();
                flushed = true;
                continue;
            };
            flushed = false;
            let Some(len) = next(room) else { break };
            self.commit(len);
            sent += 1;
        }
        // A link that is down drops what was queued, as a switch would; whoever calls `check` is
        // told.
        let _ = self.flush();
        sent
    }

    /// Longest IP packet that can be sent, in bytes: what was configured, [`MAX_PACKET`] or the
    /// interface's MTU, whichever is least.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        match self {
            Self::Packet(packet) => packet.mtu(),
            Self::Socket(socket) => Ok(socket.mtu()),
        }
    }

    /// Packets received so far; several that came as one (GRO) count once.
    pub fn received_batches(&self) -> u64 {
        match self {
            Self::Packet(packet) => packet.ring_stats().received,
            Self::Socket(socket) => socket.udp_stats().received_batches,
        }
    }

    /// To be polled for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Packet(packet) => packet.fd(),
            Self::Socket(socket) => socket.fd(),
        }
    }

    /// To be polled for writing, while packets wait to be sent.
    pub fn blocked_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Packet(packet) => packet.blocked_fd(),
            Self::Socket(socket) => socket.blocked_fd(),
        }
    }

    /// To be polled for reading, while packets wait for their next hop to answer; then flush.
    pub fn ways_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Packet(packet) => packet.ways_fd(),
            Self::Socket(socket) => socket.ways_fd(),
        }
    }

    /// Sends what waits for its next hop to answer, as far as that comes within this time. Blocks.
    pub fn send_what_waits(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while let Some(ways) = self.ways_fd()
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            let mut fds = [PollFd::from_borrowed_fd(ways, PollFlags::IN)];
            if left.is_zero() || poll(&mut fds, Some(left)).is_err() {
                return;
            }
            let _ = self.flush();
        }
    }

    /// Looks at the interface and takes it up again when it came back.
    pub fn check(&mut self) -> io::Result<Link> {
        match self {
            Self::Packet(packet) => packet.check(),
            Self::Socket(_) => Ok(Link::Up),
        }
    }
}

/// The addresses of an IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inner {
    V4 { source: Ipv4Addr, destination: Ipv4Addr },
    V6 { source: Ipv6Addr, destination: Ipv6Addr },
}

impl Inner {
    fn source(self) -> IpAddr {
        match self {
            Self::V4 { source, .. } => source.into(),
            Self::V6 { source, .. } => source.into(),
        }
    }

    fn destination(self) -> IpAddr {
        match self {
            Self::V4 { destination, .. } => destination.into(),
            Self::V6 { destination, .. } => destination.into(),
        }
    }
}

/// Reads the addresses of a packet whose header is whole; nothing else of it is checked.
fn inner(packet: &[u8]) -> Option<Inner> {
    match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk::<20>()?;
            let (source, destination) = header.split_last_chunk::<8>()?.1.split_first_chunk::<4>()?;
            let destination = destination.first_chunk::<4>()?;
            Some(Inner::V4 { source: (*source).into(), destination: (*destination).into() })
        }
        6 => {
            let header = packet.first_chunk::<40>()?;
            let (source, destination) = header.split_last_chunk::<32>()?.1.split_first_chunk::<16>()?;
            let destination = destination.first_chunk::<16>()?;
            Some(Inner::V6 { source: (*source).into(), destination: (*destination).into() })
        }
        _ => None,
    }
}
