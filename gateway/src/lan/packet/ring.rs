//! The memory that the kernel puts received packets into: AF_PACKET's receive ring.
#![expect(unsafe_code, reason = "memory shared with the kernel, and socket options without a safe wrapper")]

use std::io;
use std::mem::{offset_of, size_of, size_of_val};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::SocketAddrAny;

use super::RingStats;
use crate::lan::MAX_PACKET;
use crate::mapping::Mapping;

/// Bytes of a block. The kernel allocates each block contiguously: larger ones are hard to come by.
const BLOCK: usize = 256 * 1024;
/// Room for the kernel's header and link-layer address in front of each packet, for both versions,
/// with their padding.
const FRAME_HEAD: usize = 96;
/// A frame of the per-packet ring.
const FRAME: usize = (MAX_PACKET + FRAME_HEAD).next_multiple_of(128);

/// The header of one packet in the ring.
struct Header {
    status: u32,
    /// Bytes there.
    captured: usize,
    /// Bytes there were on the wire.
    length: usize,
    /// Where the packet starts, from its header.
    offset: usize,
}

/// A receive ring and the place in it.
pub(super) enum Ring {
    /// TPACKET_V2: a frame per packet, ours the moment it is filled.
    Frames(Frames),
    /// TPACKET_V3: packets packed into blocks, ours when a block is full or its time is up.
    Blocks(Blocks),
}

impl Ring {
    /// Gives `socket` a ring of about `bytes`. With `retire` it is one of blocks, handed over when
    /// full or after that time.
    pub(super) fn new(socket: BorrowedFd<'_>, bytes: usize, retire: Option<Duration>) -> io::Result<Self> {
        let blocks = bytes.div_ceil(BLOCK).clamp(2, 8192);
        Ok(match retire {
            None => Self::Frames(Frames::new(socket, blocks)?),
            Some(after) => Self::Blocks(Blocks::new(socket, blocks, after)?),
        })
    }

    /// Hands out up to `budget` packets from their IP header on, in the order of arrival, and
    /// returns how many.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        stats: &mut RingStats,
        f: &mut dyn FnMut(&[u8]),
    ) -> usize {
        match self {
            Self::Frames(frames) => frames.receive(budget, stats, f),
            Self::Blocks(blocks) => blocks.receive(budget, stats, f),
        }
    }
}

pub(super) struct Frames {
    memory: Mapping,
    frames: usize,
    next: usize,
}

impl Frames {
    const PER_BLOCK: usize = BLOCK / FRAME;

    fn new(socket: BorrowedFd<'_>, blocks: usize) -> io::Result<Self> {
        let frames = blocks * Self::PER_BLOCK;
        set_option(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: frames as u32,
        };
        set_option(socket, libc::PACKET_RX_RING, &request)?;
        Ok(Self { memory: Mapping::new(socket, blocks * BLOCK)?, frames, next: 0 })
    }

    fn receive(&mut self, budget: usize, stats: &mut RingStats, f: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while taken < budget {
            // Frames do not cross blocks.
            let at = self.next / Self::PER_BLOCK * BLOCK + self.next % Self::PER_BLOCK * FRAME;
            let Some(status) = self.memory.word(at + offset_of!(libc::tpacket2_hdr, tp_status)) else {
                break;
            };
            let flags = status.load(Ordering::Acquire);
            if flags & libc::TP_STATUS_USER == 0 {
                break;
            }
            if let Some(header) = self.header(at, flags) {
                // SAFETY: the frame carries TP_STATUS_USER, read with Acquire, so the kernel has
                // finished writing it and keeps away until the store below.
                unsafe { hand_out(&self.memory, at, at + FRAME, &header, stats, f) };
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
            taken += 1;
        }
        taken
    }

    fn header(&self, at: usize, status: u32) -> Option<Header> {
        let word = |field| self.memory.word(at + field).map(|word| word.load(Ordering::Relaxed) as usize);
        Some(Header {
            status,
            captured: word(offset_of!(libc::tpacket2_hdr, tp_snaplen))?,
            length: word(offset_of!(libc::tpacket2_hdr, tp_len))?,
            offset: usize::from(
                self.memory.half(at + offset_of!(libc::tpacket2_hdr, tp_net))?.load(Ordering::Relaxed),
            ),
        })
    }
}

pub(super) struct Blocks {
    memory: Mapping,
    blocks: usize,
    next: usize,
    /// The block being read, when a budget ended amid it.
    open: Option<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    /// The next packet's header, from the start of the mapping.
    at: usize,
    left: u32,
}

impl Blocks {
    fn new(socket: BorrowedFd<'_>, blocks: usize, retire: Duration) -> io::Result<Self> {
        set_option(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))?;
        let frame_size = 2048;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            // Without meaning for packed blocks, but checked.
            tp_frame_size: frame_size,
            tp_frame_nr: (blocks * BLOCK) as u32 / frame_size,
            // Zero would be the kernel's own choice.
            tp_retire_blk_tov: u32::try_from(retire.as_millis()).unwrap_or(u32::MAX).max(1),
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(socket, libc::PACKET_RX_RING, &request)?;
        Ok(Self { memory: Mapping::new(socket, blocks * BLOCK)?, blocks, next: 0, open: None })
    }

    fn receive(&mut self, budget: usize, stats: &mut RingStats, f: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = 0;
        while let Some(mut open) = self.open.or_else(|| self.filled()) {
            let end = (self.next + 1) * BLOCK;
            while open.left > 0 && taken < budget {
                // SAFETY: `filled` has seen TP_STATUS_USER on the block, with Acquire, and the
                // kernel keeps away until `release`.
                let step = unsafe { self.packet(open.at, end, stats, f) };
                open.left -= 1;
                taken += 1;
                match step {
                    ControlFlow::Continue(next) => open.at = next,
                    ControlFlow::Break(()) => open.left = 0,
                }
            }
            if open.left > 0 {
                self.open = Some(open);
                break;
            }
            self.release();
        }
        taken
    }

    /// The next block, if it is ours.
    fn filled(&self) -> Option<Open> {
        let status = self.status()?.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let field = |field| self.block_field(field).map(|word| word.load(Ordering::Relaxed));
        let left = field(offset_of!(libc::tpacket_hdr_v1, num_pkts))?;
        let first = field(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt))?;
        Some(Open { at: self.next * BLOCK + first as usize, left })
    }

    /// Hands out the packet whose header stands at `at`, and tells where the next one's is.
    ///
    /// # Safety
    /// The block that ends at `end` must be ours.
    unsafe fn packet(
        &self,
        at: usize,
        end: usize,
        stats: &mut RingStats,
        f: &mut dyn FnMut(&[u8]),
    ) -> ControlFlow<(), usize> {
        let word = |field| self.memory.word(at + field).map(|word| word.load(Ordering::Relaxed) as usize);
        let header = || {
            Some(Header {
                status: word(offset_of!(libc::tpacket3_hdr, tp_status))? as u32,
                captured: word(offset_of!(libc::tpacket3_hdr, tp_snaplen))?,
                length: word(offset_of!(libc::tpacket3_hdr, tp_len))?,
                offset: usize::from(
                    self.memory.half(at + offset_of!(libc::tpacket3_hdr, tp_net))?.load(Ordering::Relaxed),
                ),
            })
        };
        if let Some(header) = header() {
            // SAFETY: the block is ours, says the caller.
            unsafe { hand_out(&self.memory, at, end, &header, stats, f) };
        }
        match word(offset_of!(libc::tpacket3_hdr, tp_next_offset)) {
            Some(next) if next > 0 && at + next < end => ControlFlow::Continue(at + next),
            _ => ControlFlow::Break(()),
        }
    }

    fn release(&mut self) {
        self.open = None;
        if let Some(status) = self.status() {
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.next = (self.next + 1) % self.blocks;
    }

    fn status(&self) -> Option<&AtomicU32> {
        self.block_field(offset_of!(libc::tpacket_hdr_v1, block_status))
    }

    fn block_field(&self, field: usize) -> Option<&AtomicU32> {
        self.memory.word(self.next * BLOCK + offset_of!(libc::tpacket_block_desc, hdr) + field)
    }
}

/// Judges the packet whose header stands at `at` and hands it to `f`, unless it was cut short.
///
/// # Safety
/// The kernel must have given the memory from `at` to `end` to us.
unsafe fn hand_out(
    memory: &Mapping,
    at: usize,
    end: usize,
    header: &Header,
    stats: &mut RingStats,
    f: &mut dyn FnMut(&[u8]),
) {
    if header.captured < header.length || header.status & libc::TP_STATUS_COPY != 0 {
        stats.truncated += 1;
        return;
    }
    let start = at + header.offset;
    if start + header.captured > end {
        stats.truncated += 1;
        return;
    }
    // SAFETY: within a frame or block that the kernel has given to us, says the caller.
    if let Some(packet) = unsafe { memory.bytes(start, header.captured) } {
        stats.received += 1;
        stats.received_bytes += packet.len() as u64;
        f(packet);
    }
}

/// As the ring has it: the kernel writes to it at any time.
impl Mapping {
    /// A 32-bit field that the kernel may write at any time, in the machine's byte order.
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        // SAFETY: `field` has checked bounds and alignment, the mapping outlives the borrow, and
        // all bit patterns are valid. The kernel writes whole words, as an atomic store would; we
        // reach these fields through atomics only.
        self.field::<AtomicU32>(at).map(|field| unsafe { field.as_ref() })
    }

    /// A 16-bit field, likewise.
    fn half(&self, at: usize) -> Option<&AtomicU16> {
        // SAFETY: as in `word`.
        self.field::<AtomicU16>(at).map(|field| unsafe { field.as_ref() })
    }

    /// Where a field is, if it lies within the mapping and is aligned.
    fn field<T>(&self, at: usize) -> Option<NonNull<T>> {
        let within = at.checked_add(size_of::<T>())? <= self.len;
        // SAFETY: `at` lies within the mapping, which is one allocated object.
        let field = within.then(|| unsafe { self.base.add(at) })?.cast::<T>();
        field.is_aligned().then_some(field)
    }

    /// Bytes of the mapping.
    ///
    /// # Safety
    /// They must lie in a frame or block that the kernel has handed over and not got back for as
    /// long as the slice lives.
    unsafe fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the mapping, initialised by the kernel, and not written by anybody, says
        // the caller.
        Some(unsafe { slice::from_raw_parts(self.base.as_ptr().add(at), len) })
    }
}

/// Sets an AF_PACKET socket option.
pub(super) fn set_option<T: Copy>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is plain data of the length given, only read, and alive during the call.
    let result = unsafe {
        let length = size_of_val(value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, ptr::from_ref(value).cast(), length)
    };
    check(result)
}

/// Packets the kernel could not put into the ring since the last call.
pub(super) fn take_drops(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // The longer, V3 form; for V2 the kernel fills its first two fields, which are the same.
    let mut statistics = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    let mut length = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: `statistics` and `length` are alive during the call, and the kernel writes no more
    // than `length` bytes.
    let result = unsafe {
        let value = ptr::from_mut(&mut statistics).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &mut length)
    };
    check(result)?;
    Ok(u64::from(statistics.tp_drops))
}

/// Binds an AF_PACKET socket to an interface, to receive what arrives there whatever its protocol.
pub(super) fn bind(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let address = link(interface, libc::ETH_P_ALL as u16);
    // SAFETY: `address` is a complete link-layer address of the length given, alive during the
    // call.
    let result = unsafe {
        let length = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), length)
    };
    check(result)
}

fn link(interface: u32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// A link-layer address on an interface, to send packets of a protocol to; `None` where it is empty
/// or longer than there is room for.
pub(super) fn link_address(interface: u32, protocol: u16, bytes: &[u8]) -> Option<SocketAddrAny> {
    let mut address = link(interface, protocol);
    address.sll_halen = u8::try_from(bytes.len()).ok().filter(|length| *length > 0)?;
    address.sll_addr.get_mut(..bytes.len())?.copy_from_slice(bytes);
    // SAFETY: `address` is a complete link-layer address of the length given, and is copied.
    Some(unsafe { SocketAddrAny::read(ptr::from_ref(&address).cast(), size_of_val(&address) as u32) })
}

/// Returns true if an interface is administratively up.
pub(super) fn is_up(socket: BorrowedFd<'_>, interface: &str) -> io::Result<bool> {
    let mut request = named(interface);
    // SAFETY: SIOCGIFFLAGS reads the name and writes the flags of an `ifreq`, which is alive during
    // the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &mut request) })?;
    // SAFETY: after SIOCGIFFLAGS the flags are the union's live member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    // Up, and with a carrier.
    let usable = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(libc::c_int::from(flags) & usable == usable)
}

/// An interface's MTU: its longest IP packet, in bytes.
pub(super) fn mtu(socket: BorrowedFd<'_>, interface: &str) -> io::Result<usize> {
    let mut request = named(interface);
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU of an `ifreq`, which is alive during the
    // call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut request) })?;
    // SAFETY: after SIOCGIFMTU the MTU is the union's live member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A request about an interface.
fn named(interface: &str) -> libc::ifreq {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, as the name's end.
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().take(room).zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
