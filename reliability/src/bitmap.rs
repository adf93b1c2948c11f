//! A bitmap over a sliding window of sequence numbers.

use bitvec::prelude::{BitSlice, BitVec, Lsb0};

/// Bits per word of storage; words are aligned to multiples of it in sequence-number space.
pub const WORD: u64 = 64;

/// A ring of bits, one per sequence number of a sliding window.
///
/// Sequence numbers are taken modulo the capacity, so the owner must clear what leaves the window
/// ([`Bitmap::clear`]) before its place is used again. Whole words stand aligned: bit `i` of
/// [`Bitmap::word`] is sequence `(s & !63) + i`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct Bitmap {
    bits: BitVec<u64, Lsb0>,
    mask: u64,
}

impl From<Bitmap> for Vec<u64> {
    fn from(bitmap: Bitmap) -> Self {
        bitmap.bits.into_vec()
    }
}

impl TryFrom<Vec<u64>> for Bitmap {
    type Error = &'static str;

    fn try_from(words: Vec<u64>) -> Result<Self, Self::Error> {
        if !words.len().is_power_of_two() {
            return Err("a bitmap whose words are no power of two");
        }
        Ok(Self { mask: words.len() as u64 - 1, bits: BitVec::from_vec(words) })
    }
}

impl Bitmap {
    /// All clear, with room for at least `capacity` consecutive sequence numbers plus the partial
    /// words at both ends.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let words = (capacity.div_ceil(64) + 1).next_power_of_two();
        Self { bits: BitVec::repeat(false, words * 64), mask: words as u64 - 1 }
    }

    /// Bits held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bits.len()
    }

    /// The storage: bit `s % capacity` belongs to sequence `s`.
    #[must_use]
    pub fn as_bits(&self) -> &BitSlice<u64, Lsb0> {
        &self.bits
    }

    /// The word in which `sequence` stands.
    #[must_use]
    pub fn word(&self, sequence: u64) -> u64 {
        let index = self.index(sequence);
        self.bits.as_raw_slice().get(index).copied().unwrap_or(0)
    }

    /// Returns true if the bit is set.
    #[must_use]
    pub fn get(&self, sequence: u64) -> bool {
        self.word(sequence) >> (sequence % WORD) & 1 == 1
    }

    /// Sets the bit; true if it was clear before.
    pub fn set(&mut self, sequence: u64) -> bool {
        let bit = 1 << (sequence % WORD);
        let word = self.word_mut(sequence);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Clears the bits `from..to`.
    pub fn clear(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let end = to.min((at | (WORD - 1)).saturating_add(1));
            *self.word_mut(at) &= !span(at, end);
            at = end;
        }
    }

    /// The first clear bit of `from..to`.
    #[must_use]
    pub fn first_clear(&self, from: u64, to: u64) -> Option<u64> {
        let mut at = from;
        while at < to {
            let end = to.min((at | (WORD - 1)).saturating_add(1));
            let clear = !self.word(at) & span(at, end);
            if clear != 0 {
                return Some((at & !(WORD - 1)) + u64::from(clear.trailing_zeros()));
            }
            at = end;
        }
        None
    }

    /// Clear bits in `from..to`.
    #[must_use]
    pub fn count_clear(&self, from: u64, to: u64) -> u64 {
        let mut at = from;
        let mut count = 0;
        while at < to {
            let end = to.min((at | (WORD - 1)).saturating_add(1));
            count += u64::from((!self.word(at) & span(at, end)).count_ones());
            at = end;
        }
        count
    }

    fn index(&self, sequence: u64) -> usize {
        ((sequence / WORD) & self.mask) as usize
    }

    #[expect(clippy::indexing_slicing, reason = "the index is masked to the storage's power-of-two length")]
    fn word_mut(&mut self, sequence: u64) -> &mut u64 {
        let index = self.index(sequence);
        &mut self.bits.as_raw_mut_slice()[index]
    }
}

/// The bits of `from..to` within one word; `from < to`, both of the same word (`to` may be its
/// end).
fn span(from: u64, to: u64) -> u64 {
    let below = !0 << (from % WORD);
    let above = match to % WORD {
        0 => !0,
        n => (1 << n) - 1,
    };
    below & above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_get_and_clear_across_words_and_the_ring_end() {
        let mut map = Bitmap::new(128);
        let start = map.capacity() as u64 - 3;
        for s in start..start + 130 {
            assert!(map.set(s), "{s} was clear");
            assert!(!map.set(s));
        }
        map.clear(start + 10, start + 75);
        for s in start..start + 130 {
            assert_eq!(map.get(s), !(start + 10..start + 75).contains(&s), "{s}");
        }
        assert_eq!(map.count_clear(start, start + 130), 65);
        assert_eq!(map.first_clear(start, start + 130), Some(start + 10));
        assert_eq!(map.first_clear(start + 75, start + 130), None);
        assert_eq!(map.as_bits().count_ones(), 65);
    }

    #[test]
    fn empty_ranges_touch_nothing() {
        let mut map = Bitmap::new(64);
        map.set(5);
        map.clear(5, 5);
        assert!(map.get(5));
        assert_eq!(map.first_clear(9, 9), None);
        assert_eq!(map.count_clear(9, 9), 0);
    }

    #[test]
    fn the_last_sequence_numbers_do_not_overflow() {
        let mut map = Bitmap::new(64);
        map.set(u64::MAX);
        map.clear(u64::MAX - 1, u64::MAX);
        assert!(map.get(u64::MAX));
    }
}
