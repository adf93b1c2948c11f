//! The two bitmaps of a receive slot: one bit a packet, and one a chunk.

use crate::shape::Shape;
use crate::sync::{AcqRel, Acquire, AtomicU8, AtomicU32, AtomicU64, Relaxed, Release};

/// Packet bits and chunk bits of one slot, for workers that know nothing of each other.
///
/// A worker claims a packet, puts its bytes in place, and reports that it landed.
/// The worker whose packet was its chunk's last missing one sets the chunk's bit.
///
/// ```text
/// claim:  old = claimed.fetch_or(bit, Relaxed)         the bit was set: a duplicate, stop
/// land:   word = landed.fetch_or(bit, AcqRel) | bit     all of the chunk in this word is there:
///         count.fetch_add(1, AcqRel) + 1 == words      if the chunk has several words
///         chunks.fetch_or(bit, Release)                by the one who found it whole
/// read:   chunks.load(Acquire)                         before the payload is touched
/// ```
pub struct Bitmaps {
    claimed: Box<[AtomicU64]>,
    landed: Box<[AtomicU64]>,
    /// Words of each chunk that are whole, for chunks of several words.
    counts: Box<[AtomicU32]>,
    chunks: Box<[AtomicU8]>,
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

    /// Reports that a claimed packet of a buffer of `bytes` bytes is in place.
    /// Returns its chunk if it was the chunk's last.
    pub fn land(&self, shape: &Shape, packet: u32, bytes: u32) -> Option<u32> {
        let chunk = shape.chunk_of(packet);
        let packets = shape.packets_of(chunk, bytes);
        let first = chunk * shape.packets_per_chunk();
        // The part of the chunk in this packet's word: all of it, or a word of a larger one.
        let word = packet / u64::BITS * u64::BITS;
        let from = first.max(word) - word;
        let to = (first + packets).min(word + u64::BITS).checked_sub(word)?;
        let part = u64::MAX.checked_shl(from)? & u64::MAX.checked_shr(u64::BITS - to)?;
        let bit = 1 << (packet - word);
        let landed = self.landed.get((word / u64::BITS) as usize)?.fetch_or(bit, AcqRel) | bit;
        if landed & part != part {
            return None;
        }
        let words = packets.div_ceil(u64::BITS);
        let count = self.counts.get(chunk as usize)?;
        if words > 1 && count.fetch_add(1, AcqRel) + 1 != words {
            return None;
        }
        self.chunks.get((chunk / 8) as usize)?.fetch_or(1 << (chunk % 8), Release);
        Some(chunk)
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

    /// Returns how many of the first `packets` packets are in place.
    #[must_use]
    pub fn arrived(&self, packets: u32) -> u32 {
        let words = packets.div_ceil(u64::BITS) as usize;
        self.landed.iter().take(words).map(|word| word.load(Acquire).count_ones()).sum()
    }

    /// Returns the first live byte of the chunk bitmap: chunk `i` is bit `i mod 8` of byte `i / 8`.
    #[cfg(not(feature = "loom"))]
    pub(crate) fn live(&self) -> Option<&AtomicU8> {
        self.chunks.first()
    }
}
