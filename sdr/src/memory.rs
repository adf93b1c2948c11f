//! Buffers that packets are written to and sent from.
//!
//! The crate's only `unsafe` stands here. It rests on two rules, which [`crate::slot`] keeps:
//!
//! - A packet's bytes are written once, by the worker that claimed the packet's bit, while the slot
//!   is pinned.
//! - A chunk's bytes are read only after its bit was seen, and nothing writes to them from then on.
#![expect(unsafe_code, reason = "workers write packets in place while the program reads finished chunks")]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A buffer to receive into or to send from, at a fixed address.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// True if the memory is this buffer's to free.
    owned: bool,
}

// SAFETY: a buffer is the only owner of its bytes, as `Box<[u8]>` is; a foreign one by its
// contract.
unsafe impl Send for Buffer {}
// SAFETY: safe code only reads through `&Buffer`. What workers write obeys the module's rules.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Makes a buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        vec![0; len].into()
    }

    /// Makes a buffer of memory that is not ours to free.
    ///
    /// # Safety
    /// `len` bytes from `start` on are initialised.
    /// They stay valid, and nobody else accesses them, until the buffer is dropped.
    /// Where nobody receives into the buffer, others may read.
    #[must_use]
    pub unsafe fn foreign(start: NonNull<u8>, len: usize) -> Self {
        Buffer { start, len, owned: false }
    }

    /// Returns its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the contents. A buffer that packets may arrive in is inside a handle, which hands
    /// out chunks only.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is valid, and no worker writes to a buffer outside a handle.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the contents to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the contents as a vector: without a copy where the buffer owns them.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        if !self.owned {
            return self.as_slice().to_vec();
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the memory came from a boxed slice of this length, and is given up here once.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(this.start.as_ptr(), this.len)) }.into()
    }

    /// Returns its address, for workers.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Reads bytes of a buffer in a handle. `None` if `range` is out of bounds.
    ///
    /// The caller saw the bits of all chunks that `range` touches.
    pub(crate) fn finished(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: in bounds, and no worker writes to chunks whose bits are set.
        Some(unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.end - range.start)
        })
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let len = bytes.len();
        // SAFETY: a box's address is never null.
        Buffer { start: unsafe { NonNull::new_unchecked(bytes.cast()) }, len, owned: true }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: the memory came from a boxed slice of this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len)) });
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("owned", &self.owned).finish_non_exhaustive()
    }
}

/// The place where a slot's packets go.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

impl Target {
    /// Writes `bytes` at `offset`. False, and nothing is written, if they do not fit.
    ///
    /// # Safety
    /// The slot is pinned, so that the buffer lives.
    /// The caller claimed the bit of the packet that these bytes are.
    pub(crate) unsafe fn write(self, offset: usize, bytes: &[u8]) -> bool {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: in bounds of a buffer that lives; nobody else reads or writes an unfinished
        // packet.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }
}

/// A part of a buffer, to be sent. Clones share the buffer.
#[derive(Debug, Clone)]
pub struct Slice {
    memory: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Slice {
    /// Returns the bytes `range` of `memory`; `None` if it has no such bytes.
    #[must_use]
    pub fn new(memory: &Arc<Buffer>, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= memory.len()).then(|| Slice { memory: Arc::clone(memory), start: range.start, len })
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.memory.as_slice().get(self.start..self.start + self.len).unwrap_or_default()
    }

    /// Returns how many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Self {
        let memory = Arc::new(Buffer::from(bytes));
        Slice { start: 0, len: memory.len(), memory }
    }
}
