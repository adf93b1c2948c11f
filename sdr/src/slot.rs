//! A receive slot: what workers and the program that posts receives share.

use std::ptr;

use crate::bitmap::Bitmaps;
use crate::memory::{Buffer, Target};
use crate::shape::Shape;
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Relaxed, Release, SeqCst};

const OPEN: u64 = 1 << 31;
const PINS: u64 = OPEN - 1;

/// Lets workers into a slot while a receive is posted there, and tells when the last one left.
///
/// One word: message number (32 bits), open (1 bit), workers inside (31 bits).
/// A worker that finds the slot closed or of another generation leaves without touching anything.
pub struct Gate(AtomicU64);

impl Gate {
    /// Makes a closed gate.
    #[must_use]
    pub fn new() -> Self {
        Gate(AtomicU64::new(0))
    }

    /// Opens it for message `number`. It was closed, and [`Gate::is_vacant`].
    pub fn open(&self, number: u32) {
        let mut old = self.0.load(Relaxed);
        loop {
            // Workers that are about to find it closed are counted in, and count themselves out.
            let new = u64::from(number) << 32 | OPEN | old & PINS;
            match self.0.compare_exchange(old, new, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Opens it with a device inside, which leaves by [`Gate::leave`].
    pub(crate) fn open_for_device(&self, number: u32) {
        self.0.fetch_add(1, Acquire);
        self.open(number);
    }

    /// Counts a device out. All that it did is visible to who finds the gate vacant.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// Returns true if it is open.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices ask"))]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Acquire) & OPEN != 0
    }

    /// Closes it. From now on nobody gets in, and who is inside finishes.
    pub fn close(&self) {
        self.0.fetch_and(!OPEN, AcqRel);
    }

    /// Returns true if it is closed and nobody is inside. All that workers did is then visible.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.0.load(Acquire) & (OPEN | PINS) == 0
    }

    /// Enters. Returns the message number, or `None` if it is closed or `wanted` refuses the
    /// number.
    pub fn enter(&self, wanted: impl FnOnce(u32) -> bool) -> Option<Pinned<'_>> {
        let old = self.0.fetch_add(1, Acquire);
        let pinned = Pinned { gate: self, number: (old >> 32) as u32 };
        (old & OPEN != 0 && wanted(pinned.number)).then_some(pinned)
    }
}

impl Default for Gate {
    fn default() -> Self {
        Gate::new()
    }
}

/// Keeps a slot's buffer in place while a worker is inside.
pub struct Pinned<'a> {
    gate: &'a Gate,
    /// The message that the slot is open for.
    pub number: u32,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.gate.0.fetch_sub(1, Release);
    }
}

/// A packet's fate in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Placed { chunk: Option<u32> },
    Duplicate,
    Length,
}

/// Returns true if a packet of `len` bytes is a full one, or ends where a buffer of `whole` bytes
/// ends. The bit of another one would stand for bytes that are not there.
fn fits(shape: &Shape, whole: usize, offset: u32, len: usize) -> bool {
    let rest = whole.saturating_sub(offset as usize * shape.mtu() as usize);
    len > 0 && len == rest.min(shape.mtu() as usize)
}

pub(crate) struct Slot {
    pub(crate) gate: Gate,
    start: AtomicPtr<u8>,
    len: AtomicUsize,
    pub(crate) bitmaps: Bitmaps,
    /// Mask of fragments seen (upper half), and the fragments.
    imm: AtomicU64,
    /// By what a device knows the buffer's memory; 0 if no device is inside.
    pub(crate) device: AtomicUsize,
    /// True if no handle has the slot.
    pub(crate) free: AtomicBool,
}

impl Slot {
    pub(crate) fn new(shape: &Shape) -> Self {
        Slot {
            gate: Gate::new(),
            start: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            bitmaps: Bitmaps::new(shape, shape.max_message()),
            imm: AtomicU64::new(0),
            device: AtomicUsize::new(0),
            free: AtomicBool::new(true),
        }
    }

    /// Opens the slot for message `number` into `buffer`, which stays until the gate is vacant
    /// again.
    ///
    /// A device that knows its memory as `device` is inside until it leaves; 0 stands for none.
    pub(crate) fn open(&self, shape: &Shape, number: u32, buffer: &Buffer, device: usize) {
        self.bitmaps.clear(shape, buffer.len() as u32);
        self.imm.store(0, Relaxed);
        self.start.store(buffer.start(), Relaxed);
        self.len.store(buffer.len(), Relaxed);
        self.free.store(false, Relaxed);
        if device != 0 {
            self.device.store(device, SeqCst);
            self.gate.open_for_device(number);
        } else {
            self.gate.open(number);
        }
    }

    /// Counts the device out, if one is inside: once, whoever calls.
    pub(crate) fn device_leaves(&self) {
        if self.device.swap(0, SeqCst) != 0 {
            self.gate.leave();
        }
    }

    /// Returns true if a device may still write to the buffer.
    pub(crate) fn has_device(&self) -> bool {
        self.device.load(SeqCst) != 0
    }

    /// Returns address and bytes of the buffer, for a device.
    #[cfg(feature = "verbs")]
    pub(crate) fn target(&self) -> Target {
        Target { start: self.start.load(Relaxed), len: self.len.load(Relaxed) }
    }

    /// Takes in a packet that a device has put in place.
    #[cfg(feature = "verbs")]
    pub(crate) fn take_placed(
        &self,
        shape: &Shape,
        _pinned: &Pinned<'_>,
        (offset, fragment): (u32, u8),
        len: usize,
    ) -> Taken {
        let whole = self.len.load(Relaxed);
        if !fits(shape, whole, offset, len) {
            return Taken::Length;
        }
        if !self.bitmaps.claim(offset) {
            return Taken::Duplicate;
        }
        self.sample(offset, fragment);
        Taken::Placed { chunk: self.bitmaps.land(shape, offset, whole as u32) }
    }

    /// Takes a packet in. `pinned` is of this slot.
    #[expect(unsafe_code, reason = "writes a claimed packet; see `memory`")]
    pub(crate) fn take(
        &self,
        shape: &Shape,
        _pinned: &Pinned<'_>,
        (offset, fragment): (u32, u8),
        payload: &[u8],
    ) -> Taken {
        let target = Target { start: self.start.load(Relaxed), len: self.len.load(Relaxed) };
        let first = offset as usize * shape.mtu() as usize;
        if !fits(shape, target.len, offset, payload.len()) {
            return Taken::Length;
        }
        if !self.bitmaps.claim(offset) {
            return Taken::Duplicate;
        }
        // SAFETY: the slot is pinned, and the packet's bit was claimed just now.
        if !unsafe { target.write(first, payload) } {
            return Taken::Length;
        }
        self.sample(offset, fragment);
        Taken::Placed { chunk: self.bitmaps.land(shape, offset, target.len as u32) }
    }

    /// Notes the fragment of the user's immediate that the packet at `offset` carried.
    ///
    /// It comes before the packet lands: who sees all bits sees the immediate.
    fn sample(&self, offset: u32, fragment: u8) {
        let nibble = offset % crate::imm::IMM_PACKETS;
        // Mostly it was seen before, and a look is cheaper than a change.
        if self.imm.load(Relaxed) >> (32 + nibble) & 1 == 1 {
            return;
        }
        self.imm.fetch_or(1 << (32 + nibble) | u64::from(fragment & 0xf) << (4 * nibble), Relaxed);
    }

    /// Returns the user's immediate, once all of it was seen.
    pub(crate) fn imm(&self) -> Option<u32> {
        let imm = self.imm.load(Relaxed);
        (imm >> 32 == 0xff).then_some(imm as u32)
    }
}
