//! The two bitmaps of a receive slot: one bit a packet, and one a chunk.

use std::sync::Arc;

use crate::shape::Shape;
use crate::sync::{AcqRel, Acquire, AtomicU8, AtomicU32, AtomicU64, Relaxed, Release};

/// Packet bits and chunk bits of one slot, for workers that know nothing of each other.
///
/// A worker claims a packet, puts its bytes in place, and reports that it landed.
/// The worker whose packet was its chunk's last missing one sets the chunk's bit.
///
/// ```text
/// claim:  old = claimed.fetch_or(bit, Relaxed)         the bit was set: a duplicate, stop
/// land:   landed.fetch_or(bit, Release)
///         count.fetch_add(1, AcqRel) + 1 == packets    then chunks.fetch_or(bit, Release)
/// read:   chunks.load(Acquire)                         before the payload is touched
/// ```
pub struct Bitmaps {
    claimed: Box<[AtomicU64]>,
    landed: Box<[AtomicU64]>,
    counts: Box<[AtomicU32]>,
    chunks: Arc<[AtomicU8]>,
}

impl Bitmaps {
    /// Makes clear bitmaps for buffers of up to `bytes` bytes.
    #[must_use]
    pub fn new(shape: &Shape, bytes: u32) -> Self {
        let words = shape.packets(bytes).div_ceil(u64::BITS);
        let chunks = shape.chunks(bytes);
        Bitmaps {
            claimed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            landed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            counts: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..chunks.div_ceil(8)).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Clears all bits of a buffer of `bytes` bytes. No worker is inside.
    pub fn clear(&self, shape: &Shape, bytes: u32) {
        let words = shape.packets(bytes).div_ceil(u64::BITS) as usize;
        let chunks = shape.chunks(bytes) as usize;
        for word in self.claimed.iter().take(words).chain(self.landed.iter().take(words)) {
            word.store(0, Relaxed);
        }
        for count in self.counts.iter().take(chunks) {
            count.store(0, Relaxed);
        }
        for byte in self.chunks.iter().take(chunks.div_ceil(8)) {
            byte.store(0, Relaxed);
        }
    }

    /// Claims a packet. True for one caller only, who then puts the packet's bytes in place.
    #[must_use]
    pub fn claim(&self, packet: u32) -> bool {
        let bit = 1 << (packet % u64::BITS);
        self.claimed
            .get((packet / u64::BITS) as usize)
            .is_some_and(|word| word.fetch_or(bit, Relaxed) & bit == 0)
    }

    /// Reports that a claimed packet of `chunk`, which has `packets` packets, is in place.
    /// True if it was the chunk's last.
    pub fn land(&self, packet: u32, chunk: u32, packets: u32) -> bool {
        let (Some(word), Some(count), Some(byte)) = (
            self.landed.get((packet / u64::BITS) as usize),
            self.counts.get(chunk as usize),
            self.chunks.get((chunk / 8) as usize),
        ) else {
            return false;
        };
        word.fetch_or(1 << (packet % u64::BITS), Release);
        if count.fetch_add(1, AcqRel) + 1 != packets {
            return false;
        }
        byte.fetch_or(1 << (chunk % 8), Release);
        true
    }

    /// Returns true if all bytes of `chunk` are in place.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> bool {
        self.chunks.get((chunk / 8) as usize).is_some_and(|byte| byte.load(Acquire) & 1 << (chunk % 8) != 0)
    }

    /// Returns true if `packet` is in place.
    #[must_use]
    pub fn packet(&self, packet: u32) -> bool {
        self.landed
            .get((packet / u64::BITS) as usize)
            .is_some_and(|word| word.load(Acquire) & 1 << (packet % u64::BITS) != 0)
    }

    /// The live bytes of the chunk bitmap: chunk `i` is bit `i mod 8` of byte `i / 8`.
    #[cfg(not(feature = "loom"))]
    pub(crate) fn live(&self) -> &Arc<[AtomicU8]> {
        &self.chunks
    }
}
