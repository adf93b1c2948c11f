//! Shift and add on 64-bit words, in safe code: for processors without the instructions that the other kernels need, and above all for
//! emulated ones, where memory accesses are dear, and byte shuffles and vectors dearer (`netem-tests/lab`).

use crate::Engine;
use crate::engine::check_rows;

/// `coef * x` is the sum of `x * 2^b` over the bits `b` of `coef`. The doublings of eight source bytes are made once, stay in registers, and
/// serve all rows.
#[derive(Debug)]
pub(crate) struct Shift;

const WORD: usize = 8;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

impl Shift {
    pub(crate) const NAME: &str = "shift";
}

impl Engine for Shift {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "slices of different length");
        match coef {
            0 => {}
            1 => dst.iter_mut().zip(src).for_each(|(sum, byte)| *sum ^= byte),
            _ => self.mul_add_rows(&[coef], src, dst, src.len()),
        }
    }

    fn mul_add_rows(&self, coefs: &[u8], src: &[u8], dst: &mut [u8], stride: usize) {
        check_rows(coefs, src, dst, stride);
        if src.is_empty() {
            return;
        }
        if coefs.iter().all(|coef| *coef <= 1) {
            // XOR codes: nothing to double.
            for (&coef, row) in coefs.iter().zip(dst.chunks_mut(stride)) {
                if let Some(row) = row.get_mut(..src.len()) {
                    self.mul_add(coef, src, row);
                }
            }
            return;
        }
        let (words, rest) = src.as_chunks::<WORD>();
        for (index, word) in words.iter().enumerate() {
            add_word(coefs, *word, dst, stride, index * WORD);
        }
        let tail = words.len() * WORD;
        for (offset, byte) in rest.iter().enumerate() {
            add_byte(coefs, *byte, dst, stride, tail + offset);
        }
    }
}

/// Adds the multiples of eight bytes to each row at `offset`.
fn add_word(coefs: &[u8], word: [u8; WORD], dst: &mut [u8], stride: usize, offset: usize) {
    let doublings = doublings(u64::from_le_bytes(word));
    let mut at = offset;
    for &coef in coefs {
        let Some(cell) = dst.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<WORD>) else { return };
        *cell = (u64::from_le_bytes(*cell) ^ times(coef, &doublings)).to_le_bytes();
        at += stride;
    }
}

fn add_byte(coefs: &[u8], byte: u8, dst: &mut [u8], stride: usize, offset: usize) {
    let doublings = doublings(u64::from(byte));
    let mut at = offset;
    for &coef in coefs {
        let Some(cell) = dst.get_mut(at) else { return };
        let [product, ..] = times(coef, &doublings).to_le_bytes();
        *cell ^= product;
        at += stride;
    }
}

#[inline]
fn doublings(word: u64) -> [u64; 8] {
    let mut doublings = [word; 8];
    let mut last = word;
    for doubling in doublings.iter_mut().skip(1) {
        // Each byte by itself; the polynomial 0x11D is taken off again where one overflows.
        let overflow = last >> 7 & LOW_BITS;
        last = ((last & !(LOW_BITS << 7)) << 1) ^ (overflow * 0x1d);
        *doubling = last;
    }
    doublings
}

#[inline]
fn times(coef: u8, doublings: &[u64; 8]) -> u64 {
    let mut product = 0;
    for (bit, doubling) in doublings.iter().enumerate() {
        // No branch: each would end a block of an emulator's translation.
        product ^= doubling & u64::from(coef >> bit & 1).wrapping_neg();
    }
    product
}
