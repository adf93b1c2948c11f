//! A packet socket that sends and receives whole Ethernet frames on one interface.
#![expect(
    unsafe_code,
    reason = "neither rustix nor socket2 has link-layer addresses, the options of packet sockets and times of arrival"
)]

use std::ffi::c_int;
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind, netdevice, sendmsg,
    socket_with,
};

use super::offload::Offload;

/// Asked of the kernel for each direction.
const SOCKET_BUFFER: usize = 16 << 20;

/// A non-blocking packet socket in promiscuous mode. It does not see what it sends.
pub(super) struct FrameSocket {
    socket: OwnedFd,
}

/// A frame that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) len: usize,
    /// When the sender's interface handed it over, since the epoch.
    pub(super) at: Option<Duration>,
}

/// Room for control messages, aligned as they are.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// The fate of a frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendResult {
    Sent,
    /// The interface's or the socket's queue is full.
    Full,
    Refused,
}

impl FrameSocket {
    /// Opens a socket on an interface of the current thread's network name space.
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 receives nothing, so no frame of another interface gets in before the bind.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let index = netdevice::name_to_index(&socket, interface)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        let membership = libc::packet_mreq {
            mr_ifindex: c_int::try_from(index).map_err(io::Error::other)?,
            mr_type: u16::try_from(libc::PACKET_MR_PROMISC).map_err(io::Error::other)?,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        grow_buffers(&socket);
        bind(&socket, &AllFramesOf { index })?;
        Ok(Self { socket })
    }

    /// The next frame, into `buffer` behind its offload header; `None` if there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a header of nothing but zeros names no buffers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of_val(&control));
        // SAFETY: the header names one exclusive slice and a control buffer, with their lengths,
        // which outlive the call; the descriptor is open.
        let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_TRUNC) };
        let Ok(len) = usize::try_from(len) else {
            let error = io::Error::last_os_error();
            return match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(None),
                // The interface went down, or a frame with an offload that the header cannot
                // express.
                Some(Errno::NETDOWN | Errno::INVAL) => Ok(None),
                _ => Err(error),
            };
        };
        Ok(Some(Received { len, at: time_of(&header) }))
    }

    /// Frames that the kernel dropped for want of room in the socket since last asked.
    pub(super) fn overrun(&self) -> io::Result<u64> {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = libc::socklen_t::try_from(size_of_val(&stats)).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `len` bytes into a structure that outlives the call;
        // the descriptor is open.
        let result = unsafe {
            let into = (&raw mut stats).cast();
            let socket = self.socket.as_raw_fd();
            libc::getsockopt(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, into, &raw mut len)
        };
        if result == 0 { Ok(stats.tp_drops.into()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a frame with its offload header.
    pub(super) fn send(&self, header: &[u8; Offload::LEN], frame: &[u8]) -> SendResult {
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        match sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::empty()) {
            Ok(_) => SendResult::Sent,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => SendResult::Full,
            Err(_) => SendResult::Refused,
        }
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room for the largest frame with its offload header.
pub(super) const MAX_FRAME: usize = Offload::LEN + (1 << 16) + 256;

/// The address that binds a packet socket to all frames of an interface.
struct AllFramesOf {
    index: u32,
}

// SAFETY: the closure gets a pointer to a whole `sockaddr_ll` that lives until it returns, and that
// structure's length.
unsafe impl SocketAddrArg for AllFramesOf {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        let address = libc::sockaddr_ll {
            // Both constants fit 16 bits, and so they are declared in the kernel.
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: self.index.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        f((&raw const address).cast(), size_of::<libc::sockaddr_ll>() as SocketAddrLen)
    }
}

/// The time among a received message's control messages.
fn time_of(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the kernel has filled the control buffer, which still is there, and says in the
    // header how far; both walk no further.
    let messages = std::iter::successors(unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }, |message| {
        // SAFETY: as above; `message` is one of the buffer's.
        unsafe { libc::CMSG_NXTHDR(header, &raw const **message).as_ref() }
    });
    let mut times =
        messages.filter(|one| (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS));
    let message = times.next()?;
    // SAFETY: the data of a message of this type is a `timespec`, perhaps not aligned.
    let time = unsafe { libc::CMSG_DATA(&raw const *message).cast::<libc::timespec>().read_unaligned() };
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

fn set_option<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes from a `T` that outlives the call; the descriptor is
    // open.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn grow_buffers(socket: &OwnedFd) {
    use rustix::net::sockopt;
    // Cut to the system's limit without CAP_NET_ADMIN: then that is what there is.
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER);
}
