//! Memory shared with the kernel, and system calls without a safe wrapper.
#![expect(unsafe_code, reason = "memory shared with the kernel, and socket options without a safe wrapper")]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping that the kernel reads and writes too. Who may touch which part when is up to the
/// rings' protocols, which their users keep.
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to the thread that made
// it.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps what a socket shows at `offset`.
    pub(crate) fn of(socket: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, socket, offset)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Memory of our own, to be lent to the kernel.
    pub(crate) fn own(len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: as above.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// A word that both sides reach by atomic accesses only.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: within the mapping and aligned, which begins at a page; all bit patterns are
        // valid.
        unsafe { self.place(at, 4).cast().as_ref() }
    }

    /// A double word, likewise.
    pub(crate) fn double(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        // SAFETY: as in `word`.
        unsafe { self.place(at, 8).cast().as_ref() }
    }

    /// Bytes that are this side's for now.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: within the mapping and initialised by the kernel; the rings say whose they are,
        // and the callers look there first.
        unsafe { slice::from_raw_parts(self.place(at, len).as_ptr(), len) }
    }

    /// The same, to be written.
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; `self` is borrowed exclusively, so that no other slice exists on
        // this side.
        unsafe { slice::from_raw_parts_mut(self.place(at, len).as_ptr(), len) }
    }

    /// Copies from one place to another, both this side's for now.
    pub(crate) fn copy(&mut self, from: usize, to: usize, len: usize) {
        let [from, to] = [from, to].map(|at| self.place(at, len));
        // SAFETY: both are within the mapping, which nothing else on this side borrows; they may
        // overlap.
        unsafe { ptr::copy(from.as_ptr(), to.as_ptr(), len) };
    }

    /// Where bytes within the mapping are.
    fn place(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping, which is one allocated object.
        unsafe { self.base.add(at) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `of` or `own` made the mapping with this length, and every borrow of it has
        // ended.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Sets a socket option.
pub(crate) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is plain data of the length given, only read, and alive during the call.
    check(unsafe {
        let length = size_of_val(value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, ptr::from_ref(value).cast(), length)
    })
}

/// Reads a socket option of fixed length.
pub(crate) fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    mut value: T,
) -> io::Result<T> {
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` and `length` are alive during the call, and the kernel writes no more than
    // `length` bytes of plain data.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &mut length)
    })?;
    Ok(value)
}

/// Binds a socket to an address in one of the kernel's formats.
pub(crate) fn bind<T: Copy>(socket: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: `address` is plain data of the length given, only read, and alive during the call.
    check(unsafe {
        let length = size_of_val(address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), length)
    })
}

/// Tells the kernel to look at a transmit ring.
pub(crate) fn kick(socket: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: nothing is pointed to.
    let sent =
        unsafe { libc::sendto(socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
