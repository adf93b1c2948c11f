//! Memory that is shared through a file descriptor: with the kernel, or with the next process.
#![expect(unsafe_code, reason = "shared memory has no safe wrapper")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A mapping of a part of what a descriptor stands for.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to the thread that made
// it.
unsafe impl Send for Mapping {}

// SAFETY: a shared reference to it changes nothing by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps so many bytes from the beginning. Their pages are there at once, so that no later
    /// access waits for one.
    pub(crate) fn new(of: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::of_part(of, 0, len)
    }

    /// The same, from an offset on, which is a multiple of a page.
    pub(crate) fn of_part(of: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, of, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Has the kernel find every page, which tells of those that it cannot read and ends nobody.
    /// Kernels before 5.14 do not know how. They give an empty page for one that has failed.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        // SAFETY: all of a mapping that is there. The advice changes nothing of what it holds.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateRead) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `of_part` made the mapping, of which these bytes are a part that no other value
        // has, and every borrow of it has ended.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A mapping of a file that is sealed against being cut, shared by two processes of one user.
#[derive(Debug)]
pub(crate) struct SharedFile(Mapping);

impl SharedFile {
    /// Maps so many bytes from an offset on, which is a multiple of a page.
    pub(crate) fn new(of: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Mapping::of_part(of, offset, len).map(Self)
    }

    /// Cuts it into parts of `each` bytes, a multiple of a page. The last may be shorter.
    pub(crate) fn split(self, each: usize) -> Vec<Self> {
        let whole = ManuallyDrop::new(self.0);
        let part = |from: usize| {
            // SAFETY: `from` is less than the mapping's length. The parts do not overlap, and the
            // whole is not unmapped itself.
            let base = unsafe { whole.base.add(from) };
            Self(Mapping { base, len: each.min(whole.len - from) })
        };
        (0..whole.len).step_by(each).map(part).collect()
    }

    /// Gives the file's memory back, for all who have it mapped. It reads as zeros from then on.
    pub(crate) fn release(&mut self) {
        // SAFETY: the pages are this mapping's alone, and nobody has borrowed them. Should it fail,
        // the memory is given back with the last mapping.
        let _ = unsafe { madvise(self.0.base.as_ptr().cast(), self.0.len, Advice::LinuxRemove) };
    }
}

impl AsRef<[u8]> for SharedFile {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: all of the mapping, which outlives the borrow. The other process has it mapped as
        // well: it writes before it says so and never after, or it ends.
        unsafe { slice::from_raw_parts(self.0.base.as_ptr(), self.0.len) }
    }
}

impl AsMut<[u8]> for SharedFile {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`; the borrow is the only one in this process, and the other one
        // reads when it is told to.
        unsafe { slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.len) }
    }
}
