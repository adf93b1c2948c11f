//! Parity bodies kept byte by byte side by side, for engines without vectors.

use std::fmt;

use crate::engine::kernel::{LANES, Products, transposed};
use crate::rows::Rows;

/// Sums of which eight rows share a word: byte `r` of word `i` is byte `i` of row `r`.
///
/// What a table gives for one source byte is then added as it is, with one load and one store for
/// all eight rows, and nothing is transposed before the rows are asked for
/// ([`store`](Self::store)): once in a block instead of once in a packet.
#[derive(Default)]
pub(crate) struct Interleaved {
    /// Group after group of eight rows, `body` words each.
    words: Vec<u64>,
    body: usize,
}

impl Interleaved {
    /// Zero sums for `rows` rows of up to `body` bytes.
    pub(crate) fn new(rows: usize, body: usize) -> Self {
        Self { words: vec![0; rows.div_ceil(LANES) * body], body }
    }

    /// Sets the first `len` bytes of every row to zero.
    pub(crate) fn clear(&mut self, len: usize) {
        for group in self.words.chunks_mut(self.body.max(1)) {
            group.iter_mut().take(len).for_each(|word| *word = 0);
        }
    }

    /// Adds `coefs[r]` times `packet` to row `r`, for every coefficient.
    pub(crate) fn add(&mut self, coefs: &[u8], packet: &[u8]) {
        for (coefs, group) in coefs.chunks(LANES).zip(self.words.chunks_mut(self.body.max(1))) {
            let products = Products::new(coefs);
            group.iter_mut().zip(packet).for_each(|(sum, &byte)| *sum ^= products.of(byte));
        }
    }

    /// Writes the first `len` bytes of every row to `rows`.
    pub(crate) fn store(&self, rows: &mut Rows, len: usize) {
        for (index, group) in self.words.chunks(self.body.max(1)).enumerate() {
            let group = group.get(..len).unwrap_or(group);
            for (step, words) in group.chunks(LANES).enumerate() {
                let mut square = [0; LANES];
                square.iter_mut().zip(words).for_each(|(to, &word)| *to = word);
                for (lane, word) in transposed(square).into_iter().enumerate() {
                    rows.set(index * LANES + lane, step * LANES, word.to_le_bytes());
                }
            }
        }
    }
}

impl fmt::Debug for Interleaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interleaved({} words)", self.words.len())
    }
}
