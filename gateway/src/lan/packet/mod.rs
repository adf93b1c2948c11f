//! [`Packet`]: the local side as the RDMA hosts' next hop, on a network interface. Needs
//! CAP_NET_RAW.

mod filter;
mod groups;
pub(in crate::lan) mod hops;
mod raw;
pub(in crate::lan) mod resolve;
mod ring;
#[cfg(test)]
pub(in crate::lan) mod tests;
pub(in crate::lan) mod waiting;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lan::{Link, MAX_PACKET};
use crate::steering::Part;

use groups::Groups;
use raw::Sender;
pub use raw::TransmitStats;
use ring::Ring;

/// How a [`Packet`] is set up.
#[derive(Debug, Clone)]
pub struct PacketConfig {
    /// The interface towards the RDMA hosts.
    pub interface: String,
    /// Longest IP packet to send, in bytes, where that is less than the interface's MTU.
    pub mtu: usize,
    /// Bytes of the receive ring, rounded up to blocks of 256 KiB; the kernel's memory, locked.
    pub ring: usize,
    /// `None`: every packet is ours the moment it is there (TPACKET_V2). `Some`: packets come in
    /// blocks, when one is full or after this time (TPACKET_V3); fewer wake-ups at high rates. The
    /// kernel counts it in milliseconds, and before Linux 6.18 in timer ticks (4 ms at 250 Hz), of
    /// which a packet may wait two.
    pub retire: Option<Duration>,
    /// Whose packets to receive, where several threads have a socket each.
    pub part: Part,
    /// Multicast groups to receive from as well. Where there are several threads, the first one
    /// joins them for all.
    pub groups: Vec<IpAddr>,
}

impl PacketConfig {
    /// The defaults for `interface`: its own MTU, a ring of 32 MiB.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mtu: MAX_PACKET,
            ring: 32 * 1024 * 1024,
            retire: None,
            part: Part::WHOLE,
            groups: Vec::new(),
        }
    }
}

/// Counters of reception since the socket was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Packets handed out.
    pub received: u64,
    /// Their bytes, from the IP header on.
    pub received_bytes: u64,
    /// Packets the kernel dropped because the ring was full. As of the last [`Packet::check`].
    pub dropped: u64,
    /// Packets skipped because they are longer than any RoCEv2 packet and were cut.
    pub truncated: u64,
}

/// An AF_PACKET receive ring and raw IP sockets on one interface.
///
/// Receives what is UDP for port 4791 and addressed to this host's link-layer address or one of the
/// multicast groups given, or a thread's part of it, each packet once, none of our own; as it is
/// handed out it starts at the IP header. Sends whole IP packets by the same interface, wherever
/// the routing table takes them there: what it and the neighbour table say is asked about once a
/// second for each destination.
/// Until the next hop has answered, packets for it wait apart and hold up nobody else's.
///
/// Bounds: a full ring makes the kernel drop and count ([`RingStats::dropped`]); a full transmit
/// queue (1024 packets) makes [`reserve`](Self::reserve) return `None`.
/// Four packets for each of 64 pairs of source and destination wait for a next hop, 3 s at most;
/// the rest is dropped ([`TransmitStats::wait_full`], [`TransmitStats::no_neighbour`]).
///
/// An interface that goes down or away shows as an error from [`receive`](Self::receive) or
/// [`flush`](Self::flush), once for each change; call [`check`](Self::check) about every second,
/// and it goes on where it left off when an interface of that name is up again.
pub struct Packet {
    socket: Socket,
    ring: Ring,
    sender: Sender,
    groups: Groups,
    interface: String,
    /// As configured.
    mtu: usize,
    /// The interface's number when the sockets were last bound to it.
    index: u32,
    stats: RingStats,
}

impl Packet {
    /// Opens the sockets on an interface that exists. It may still be down.
    pub fn open(config: &PacketConfig) -> io::Result<Self> {
        // Protocol 0: nothing is received before the filter and the ring are there and the socket
        // is bound.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(0)))?;
        socket.set_nonblocking(true)?;
        socket.attach_filter(&filter::roce(config.part, &config.groups))?;
        // The filter has the last word on it; this saves the kernel the copy. Linux 4.20 and later.
        let _ = ring::set_option(socket.as_fd(), libc::PACKET_IGNORE_OUTGOING, &1i32);
        let ring = Ring::new(socket.as_fd(), config.ring, config.retire)?;
        let index = name_to_index(&socket, &config.interface)?;
        let sender = Sender::new(&config.interface, index, config.part.threads)?;
        ring::bind(socket.as_fd(), index)?;
        let joined = if config.part.thread == 0 { config.groups.as_slice() } else { &[] };
        let groups = Groups::join(joined, index)?;
        Ok(Self {
            socket,
            ring,
            sender,
            groups,
            interface: config.interface.clone(),
            mtu: config.mtu.min(MAX_PACKET),
            index,
            stats: RingStats::default(),
        })
    }

    /// Hands up to `budget` packets to `f`, each from its IP header on, without copying, and
    /// returns how many were taken from the ring. Ready for more when it returns `budget`.
    ///
    /// # Errors
    /// What became of the interface, `ENETDOWN` as a rule, when nothing was received; once for each
    /// change.
    pub fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let taken = self.ring.receive(budget, &mut self.stats, f);
        if taken == 0
            && let Some(error) = self.socket.take_error()?
        {
            return Err(error);
        }
        Ok(taken)
    }

    /// Room for one packet of up to [`MAX_PACKET`](crate::lan::MAX_PACKET) bytes, or `None` while
    /// the queue is full.
    pub fn reserve(&mut self) -> Option<&mut [u8]> {
        self.sender.reserve()
    }

    /// Takes the first `len` bytes of the last reservation as an IP packet to be sent where its
    /// header says. IPv4's header checksum and total length are filled in.
    pub fn commit(&mut self, len: usize) {
        self.sender.commit(len);
    }

    /// Sends what was committed, as far as the kernel takes it, and returns how many packets it
    /// took. What it refuses for a packet's own reasons is counted and dropped; what it has no room
    /// for stays.
    ///
    /// # Errors
    /// The interface is down or gone; everything queued was dropped.
    pub fn flush(&mut self) -> io::Result<usize> {
        self.sender.flush()
    }

    /// To be polled for reading, while packets wait for their next hop to answer; then flush.
    pub fn ways_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sender.ways_fd()
    }

    /// Packets committed that the kernel has not taken.
    pub fn backlog(&self) -> usize {
        self.sender.backlog()
    }

    /// The receiving socket, to be polled for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket to poll for writing, while packets wait to be sent.
    pub fn blocked_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sender.blocked_fd()
    }

    /// Longest IP packet that can be sent, in bytes. Asks the kernel for the interface's MTU: a
    /// system call, for once a second or so.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn mtu(&self) -> io::Result<usize> {
        Ok(ring::mtu(self.socket.as_fd(), &self.interface)?.min(self.mtu))
    }

    /// Looks at the interface, and binds to it and joins the groups anew when it is another one of
    /// the same name. Binding anew needs CAP_NET_RAW. Also takes over the kernel's count of drops.
    pub fn check(&mut self) -> io::Result<Link> {
        self.stats.dropped += ring::take_drops(self.socket.as_fd())?;
        let index = match name_to_index(&self.socket, &self.interface) {
            Ok(index) => index,
            Err(Errno::NODEV) => {
                self.sender.forget();
                return Ok(Link::Gone);
            }
            Err(error) => return Err(error.into()),
        };
        if index != self.index {
            self.sender.bind(&self.interface, index)?;
            ring::bind(self.socket.as_fd(), index)?;
            self.groups.follow(self.index, index)?;
            self.index = index;
        }
        if ring::is_up(self.socket.as_fd(), &self.interface)? {
            return Ok(Link::Up);
        }
        self.sender.forget();
        Ok(Link::Down)
    }

    /// Counters of reception.
    pub fn ring_stats(&self) -> &RingStats {
        &self.stats
    }

    /// Counters of transmission.
    pub fn transmit_stats(&self) -> &TransmitStats {
        self.sender.stats()
    }
}
