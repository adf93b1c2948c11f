//! Buffers that packets are written to and sent from.
//!
//! The crate's only `unsafe` stands here. It rests on two rules, which [`crate::slot`] keeps:
//!
//! - A packet's bytes are written once, by the worker that claimed the packet's bit, while the slot
//!   is pinned.
//! - A chunk's bytes are read only after its bit was seen, and nothing writes to them from then on.
#![expect(unsafe_code, reason = "workers write packets in place while the program reads finished chunks")]

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that back ends make accessible to their devices: once each, until it ends.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Holdings of back ends, by device. All of it ends before the memory does.
    held: Mutex<Vec<(usize, Holding)>>,
}

/// A back end's hold on a region, and the address that it is known by there.
type Holding = (Arc<dyn Any + Send + Sync>, usize);

// SAFETY: the address is not followed here, and the holdings are Send and Sync.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(start: NonNull<u8>, len: usize) -> Arc<Self> {
        Arc::new(Region { start, len, held: Mutex::default() })
    }

    /// Makes a region of memory that is not ours to free.
    ///
    /// # Safety
    /// `len` bytes from `start` on are initialised, and stay valid until the region and all buffers
    /// within it are dropped.
    #[must_use]
    pub unsafe fn foreign(start: NonNull<u8>, len: usize) -> Arc<Self> {
        Region::new(start, len)
    }

    /// Returns where it starts.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
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

    /// Returns by what `device` knows the region; `hold` makes it known at first.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices ask for it"))]
    pub(crate) fn hold<T: Any + Send + Sync>(
        &self,
        device: usize,
        hold: impl FnOnce() -> io::Result<(Arc<T>, usize)>,
    ) -> io::Result<usize> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, (_, known))) = held.iter().find(|(by, _)| *by == device) {
            return Ok(*known);
        }
        let (holding, known) = hold()?;
        held.push((device, (holding, known)));
        Ok(known)
    }

    fn release(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Makes regions accessible to a device.
pub(crate) trait Registry: Send + Sync {
    /// Returns by what the device knows the region. It is valid as long as the region.
    fn register(&self, region: &Region) -> io::Result<usize>;
}

/// A buffer to receive into or to send from, at a fixed address.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// True if the memory is this buffer's to free.
    owned: bool,
    region: Arc<Region>,
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
        Buffer { start, len, owned: false, region: Region::new(start, len) }
    }

    /// Makes a buffer of the bytes `range` of a foreign region; `None` if it has no such bytes.
    /// A device that knows the region knows the buffer.
    ///
    /// # Safety
    /// Nobody else accesses these bytes until the buffer is dropped.
    /// Where nobody receives into the buffer, others may read.
    #[must_use]
    pub unsafe fn within(region: &Arc<Region>, range: Range<usize>) -> Option<Self> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= region.len)?;
        // SAFETY: in bounds of the region.
        let start = unsafe { region.start.add(range.start) };
        Some(Buffer { start, len, owned: false, region: Arc::clone(region) })
    }

    /// Returns the region that it is in, for devices.
    pub(crate) fn region(&self) -> &Region {
        &self.region
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
        self.region.release();
        let mut this = self;
        // Its memory is given up here, and what is dropped frees nothing.
        this.owned = false;
        // SAFETY: the memory came from a boxed slice of this length, and is given up once.
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
        let start = unsafe { NonNull::new_unchecked(bytes.cast()) };
        Buffer { start, len, owned: true, region: Region::new(start, len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owned {
            self.region.release();
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

    /// Returns the buffer that it is a part of.
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.memory
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells where it was dropped.
    struct Held(Arc<Mutex<Vec<&'static str>>>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("released");
        }
    }

    #[test]
    fn a_device_knows_a_region_once_and_only_as_long_as_its_memory() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut buffer = Buffer::zeroed(8);
        buffer.as_mut_slice()[0] = 1;
        for (device, known) in [(1, 10), (1, 11), (2, 20)] {
            let hold = || Ok((Arc::new(Held(Arc::clone(&log))), known));
            assert_eq!(buffer.region().hold(device, hold).unwrap(), known.min(device * 10));
        }
        assert!(buffer.region().hold(3, || Err::<(Arc<()>, usize), _>(io::Error::other("no"))).is_err());
        assert!(log.lock().unwrap().is_empty());
        assert_eq!(buffer.into_vec(), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(log.lock().unwrap().len(), 2);
    }

    #[test]
    fn buffers_within_a_region_share_it_and_stay_in_bounds() {
        let mut memory = [1, 2, 3, 4];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the array outlives all of it, and nobody else uses it meanwhile.
        let (region, part, beyond, backwards) = unsafe {
            let region = Region::foreign(start, 4);
            let of = |range| Buffer::within(&region, range);
            #[expect(clippy::reversed_empty_ranges, reason = "it has to be refused")]
            let backwards = of(3..1);
            (Arc::clone(&region), of(1..3).unwrap(), of(3..5), backwards)
        };
        assert_eq!(part.as_slice(), [2, 3]);
        assert!(beyond.is_none() && backwards.is_none());
        assert!(std::ptr::eq(part.region(), &raw const *region));
    }
}
