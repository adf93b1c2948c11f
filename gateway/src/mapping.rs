//! Memory that is shared through a file descriptor: with the kernel, or with the next process.
#![expect(unsafe_code, reason = "shared memory has no safe wrapper")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of what a descriptor stands for, from its beginning.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to the thread that made
// it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps so many bytes. Their pages are there at once, so that no later access waits for one.
    pub(crate) fn new(of: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, of, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and every borrow of it has ended.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
