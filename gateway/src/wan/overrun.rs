//! Datagrams that the kernel dropped because a socket's receive buffer was full.
#![expect(unsafe_code, reason = "a socket option without a safe wrapper")]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Words of the answer; later kernels may know more.
const WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// Packets dropped since the socket was made, modulo 2^32 (`SO_MEMINFO`, Linux 4.12). One that GRO
/// had joined counts once.
pub(super) fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut words = [0_u32; WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: `words` and `length` are alive during the call, and the kernel writes no more than
    // `length` bytes.
    let result = unsafe {
        let value = ptr::from_mut(&mut words).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, value, &mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let [.., drops] = words;
    Ok(drops)
}
