//! AF_XDP sockets in copy mode, for packets of up to two pages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::memory::{Shared, bind, kick, option, set_option};

/// The kernel takes no longer ones. Of a received packet, it leaves the first 256 bytes of each
/// free.
const CHUNK: usize = 4096;
const SLOTS: u32 = 4096;

/// A ring of descriptors.
struct Ring {
    memory: Shared,
    offsets: libc::xdp_ring_offset,
    /// Where this side is: the next descriptor to write or read.
    next: u32,
}

impl Ring {
    fn new(
        socket: &OwnedFd,
        make: libc::c_int,
        entry: usize,
        offsets: libc::xdp_ring_offset,
        place: u64,
    ) -> io::Result<Self> {
        set_option(socket.as_fd(), libc::SOL_XDP, make, &SLOTS)?;
        let len = offsets.desc as usize + SLOTS as usize * entry;
        Ok(Self { memory: Shared::of(socket.as_fd(), len, place)?, offsets, next: 0 })
    }

    fn entry(&self, nth: u32, size: usize) -> usize {
        self.offsets.desc as usize + (nth % SLOTS) as usize * size
    }

    /// Descriptors that the kernel has put here and we have not read, or, for a ring of ours, has
    /// not yet read.
    fn produced(&self) -> u32 {
        self.memory.word(self.offsets.producer as usize).load(Ordering::Acquire)
    }

    fn consumed(&self) -> u32 {
        self.memory.word(self.offsets.consumer as usize).load(Ordering::Acquire)
    }

    fn show_produced(&self) {
        self.memory.word(self.offsets.producer as usize).store(self.next, Ordering::Release);
    }

    fn show_consumed(&self) {
        self.memory.word(self.offsets.consumer as usize).store(self.next, Ordering::Release);
    }

    fn put_address(&mut self, address: u64) {
        self.memory.double(self.entry(self.next, 8)).store(address, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    fn put(&mut self, address: u64, len: u32, options: u32) {
        let at = self.entry(self.next, 16);
        self.memory.double(at).store(address, Ordering::Relaxed);
        self.memory.double(at + 8).store(u64::from(options) << 32 | u64::from(len), Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    fn get(&self, nth: u32) -> (usize, usize, bool) {
        let at = self.entry(nth, 16);
        let address = self.memory.double(at).load(Ordering::Relaxed);
        let rest = self.memory.double(at + 8).load(Ordering::Relaxed);
        (address as usize, rest as u32 as usize, (rest >> 32) as u32 & libc::XDP_PKT_CONTD != 0)
    }
}

pub(crate) struct Receiver {
    pub(crate) socket: OwnedFd,
    packets: Ring,
    fill: Ring,
    _completion: Ring,
    /// Only every other chunk is lent to the kernel: behind the first half of a packet in two there
    /// is room for the second.
    memory: Shared,
}

impl Receiver {
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        let (socket, memory, offsets) = open()?;
        let mut fill =
            Ring::new(&socket, libc::XDP_UMEM_FILL_RING, 8, offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let place = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let _completion = Ring::new(&socket, libc::XDP_UMEM_COMPLETION_RING, 8, offsets.cr, place)?;
        let packets =
            Ring::new(&socket, libc::XDP_RX_RING, 16, offsets.rx, libc::XDP_PGOFF_RX_RING.cast_unsigned())?;
        for slot in 0..u64::from(SLOTS) {
            fill.put_address(slot * 2 * CHUNK as u64);
        }
        fill.show_produced();
        bind(socket.as_fd(), &address(index))?;
        Ok(Self { socket, packets, fill, _completion, memory })
    }

    /// Hands out what is there, each packet from its IP header on.
    pub(crate) fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&[u8])) -> usize {
        let produced = self.packets.produced();
        let mut taken = 0;
        while self.packets.next != produced && taken < budget {
            let (at, mut len, more) = self.packets.get(self.packets.next);
            self.packets.next = self.packets.next.wrapping_add(1);
            self.fill.put_address((at / CHUNK * CHUNK) as u64);
            let mut continued = more;
            while continued && self.packets.next != produced {
                let (from, tail, more) = self.packets.get(self.packets.next);
                self.packets.next = self.packets.next.wrapping_add(1);
                self.memory.copy(from, at + len, tail);
                self.fill.put_address((from / CHUNK * CHUNK) as u64);
                len += tail;
                continued = more;
            }
            if let Some(packet) = self.memory.bytes(at, len).get(14..) {
                f(packet);
            }
            taken += 1;
        }
        // The chunks go back when all of them have been looked at.
        self.packets.show_consumed();
        self.fill.show_produced();
        taken
    }
}

pub(crate) struct Sender {
    socket: OwnedFd,
    packets: Ring,
    completion: Ring,
    _fill: Ring,
    memory: Shared,
    /// Packets put here so far, modulo the number of slots.
    slot: u32,
}

impl Sender {
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        let (socket, memory, offsets) = open()?;
        let _fill =
            Ring::new(&socket, libc::XDP_UMEM_FILL_RING, 8, offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let place = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Ring::new(&socket, libc::XDP_UMEM_COMPLETION_RING, 8, offsets.cr, place)?;
        let packets =
            Ring::new(&socket, libc::XDP_TX_RING, 16, offsets.tx, libc::XDP_PGOFF_TX_RING.cast_unsigned())?;
        bind(socket.as_fd(), &address(index))?;
        Ok(Self { socket, packets, completion, _fill, memory, slot: 0 })
    }

    /// Room for the next frame.
    pub(crate) fn reserve(&mut self, len: usize) -> &mut [u8] {
        self.memory.bytes_mut(self.slot as usize * 2 * CHUNK, len)
    }

    pub(crate) fn commit(&mut self, len: usize) {
        let at = u64::from(self.slot) * 2 * CHUNK as u64;
        let first = len.min(CHUNK);
        let rest = len - first;
        self.packets.put(at, first as u32, if rest > 0 { libc::XDP_PKT_CONTD } else { 0 });
        if rest > 0 {
            self.packets.put(at + CHUNK as u64, rest as u32, 0);
        }
        self.slot = (self.slot + 1) % SLOTS;
    }

    /// Sends everything. The kernel takes 32 packets with each call.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.packets.show_produced();
        while self.packets.consumed() != self.packets.next {
            match kick(self.socket.as_fd()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            // Makes room: what was sent is complete.
            self.completion.next = self.completion.produced();
            self.completion.show_consumed();
        }
        self.completion.next = self.completion.produced();
        self.completion.show_consumed();
        Ok(())
    }
}

fn open() -> io::Result<(OwnedFd, Shared, libc::xdp_mmap_offsets)> {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::empty(), None)?;
    let len = SLOTS as usize * 2 * CHUNK;
    let memory = Shared::own(len)?;
    let lent = libc::xdp_umem_reg {
        addr: memory.address(),
        len: len as u64,
        chunk_size: CHUNK as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &lent)?;
    let nowhere = || libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let offsets = libc::xdp_mmap_offsets { rx: nowhere(), tx: nowhere(), fr: nowhere(), cr: nowhere() };
    let offsets = option(socket.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)?;
    Ok((socket, memory, offsets))
}

fn address(index: u32) -> libc::sockaddr_xdp {
    libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | libc::XDP_USE_SG,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    }
}
