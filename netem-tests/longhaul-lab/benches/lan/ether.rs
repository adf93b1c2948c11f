//! Transmission by `sendmmsg`, of IP packets through a raw socket or of whole frames through
//! AF_PACKET, and by AF_PACKET's transmit ring.

use std::array;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmmsg, socket_with,
    sockopt,
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::memory::{Shared, bind, kick, set_option};

/// As the gateway has them.
const BATCH: usize = 32;
const SEND_BUFFER: usize = 8 << 20;
const SLOTS: usize = 1024;
/// Bytes of a frame's slot, and of a ring's block.
const SLOT: usize = 4608;
const BLOCK: usize = 256 * 1024;
const PER_BLOCK: usize = BLOCK / SLOT;
/// Where a frame begins in its slot of a ring.
const HEAD: usize = 32;

/// Packets or frames by `sendmmsg`.
pub(crate) struct Plain {
    socket: OwnedFd,
    /// Where packets go; frames say so themselves.
    destination: Option<SocketAddrV4>,
    slots: Box<[u8]>,
    lengths: Vec<usize>,
}

impl Plain {
    pub(crate) fn frames(index: u32) -> io::Result<Self> {
        Ok(Self::new(open(index)?, None))
    }

    pub(crate) fn packets(interface: &str, destination: Ipv4Addr) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
        socket.set_header_included_v4(true)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)?;
        Ok(Self::new(socket.into(), Some(SocketAddrV4::new(destination, 0))))
    }

    fn new(socket: OwnedFd, destination: Option<SocketAddrV4>) -> Self {
        Self { socket, destination, slots: vec![0; SLOTS * SLOT].into(), lengths: Vec::with_capacity(SLOTS) }
    }

    pub(crate) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.lengths.len() * SLOT;
        self.slots.get_mut(start..start + len)
    }

    pub(crate) fn commit(&mut self, len: usize) {
        self.lengths.push(len);
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.lengths.len() {
            sent += self.send_batch(sent)?;
        }
        self.lengths.clear();
        Ok(())
    }

    fn send_batch(&self, first: usize) -> io::Result<usize> {
        let count = (self.lengths.len() - first).min(BATCH);
        let mut parts: [_; BATCH] = array::from_fn(|nth| {
            let at = (first + nth) * SLOT;
            let len = self.lengths.get(first + nth).copied().unwrap_or(0);
            ([IoSlice::new(self.slots.get(at..at + len).unwrap_or_default())], SendAncillaryBuffer::default())
        });
        let destination = self.destination.as_ref().map(SocketAddrArg::as_any);
        let mut messages = parts.each_mut().map(|(frame, control)| match &destination {
            Some(destination) => MMsgHdr::new_with_addr(destination, frame, control),
            None => MMsgHdr::new(frame, control),
        });
        Ok(sendmmsg(&self.socket, messages.get_mut(..count).unwrap_or_default(), SendFlags::empty())?)
    }
}

/// Frames by a ring that the kernel reads them from without copying.
pub(crate) struct Ring {
    socket: OwnedFd,
    memory: Shared,
    next: usize,
}

impl Ring {
    const BLOCKS: usize = SLOTS.div_ceil(PER_BLOCK);

    pub(crate) fn open(index: u32) -> io::Result<Self> {
        let socket = open(index)?;
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: Self::BLOCKS as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: (Self::BLOCKS * PER_BLOCK) as u32,
        };
        set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_TX_RING, &request)?;
        let memory = Shared::of(socket.as_fd(), Self::BLOCKS * BLOCK, 0)?;
        Ok(Self { socket, memory, next: 0 })
    }

    fn at(slot: usize) -> usize {
        slot / PER_BLOCK * BLOCK + slot % PER_BLOCK * SLOT
    }

    pub(crate) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = Self::at(self.next);
        let free = self.memory.word(at).load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE;
        free.then(|| self.memory.bytes_mut(at + HEAD, len))
    }

    pub(crate) fn commit(&mut self, len: usize) {
        let at = Self::at(self.next);
        self.memory.word(at + 4).store(len as u32, Ordering::Relaxed);
        self.memory.word(at).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % (Self::BLOCKS * PER_BLOCK);
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        kick(self.socket.as_fd()).map(|_| ())
    }
}

fn open(index: u32) -> io::Result<OwnedFd> {
    // Protocol 0: receives nothing.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::empty(), None)?;
    sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    bind(socket.as_fd(), &address)?;
    Ok(socket)
}
