//! Eight products per table look-up, in safe code: for processors without the instructions that the
//! other kernels need, and for emulated ones, where byte shuffles and wide vectors are dearer than
//! memory (`netem-tests/lab`).

use crate::Engine;
use crate::engine::check_rows;
use crate::gf;

/// SIMD within a register: a table gives, for each byte that there is, its products with the
/// coefficients of up to eight rows, side by side in one word. An encoder keeps its sums like that,
/// too ([`Interleaved`](crate::interleaved::Interleaved)); where rows are asked for, eight source
/// bytes make eight such words, which are transposed into a word for each row.
#[derive(Debug)]
pub(crate) struct Swar;

/// Bytes of a word: as many rows per pass, and as many source bytes per step.
pub(crate) const LANES: usize = 8;

/// Byte `r` of entry `x` is the product of `x` with the coefficient of row `r`.
pub(crate) struct Products([u64; 256]);

impl Swar {
    pub(crate) const NAME: &str = "swar";
}

impl Engine for Swar {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn interleaves(&self) -> bool {
        true
    }

    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "slices of different length");
        match coef {
            0 => {}
            1 => dst.iter_mut().zip(src).for_each(|(sum, byte)| *sum ^= byte),
            _ => add_row(&Products::new(&[coef]), src, dst),
        }
    }

    fn mul_add_rows(&self, coefs: &[u8], src: &[u8], dst: &mut [u8], stride: usize) {
        check_rows(coefs, src, dst, stride);
        if src.is_empty() {
            return;
        }
        // XOR codes have nothing to multiply, and one row nothing to transpose.
        if coefs.len() == 1 || coefs.iter().all(|coef| *coef <= 1) {
            for (&coef, row) in coefs.iter().zip(dst.chunks_mut(stride)) {
                if let Some(row) = row.get_mut(..src.len()) {
                    self.mul_add(coef, src, row);
                }
            }
            return;
        }
        for (coefs, dst) in coefs.chunks(LANES).zip(dst.chunks_mut(LANES * stride)) {
            macro_rules! by_number_of_rows {
                ($($rows:literal)*) => {
                    match coefs.len() {
                        $($rows => if let Ok(coefs) = <[u8; $rows]>::try_from(coefs) {
                            add_rows(coefs, src, dst, stride);
                        },)*
                        _ => {}
                    }
                };
            }
            by_number_of_rows!(1 2 3 4 5 6 7 8);
        }
    }
}

/// Adds the multiples of `src` to at most eight rows; how many is a constant, for the sake of
/// straight code.
fn add_rows<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize) {
    let products = Products::new(&coefs);
    let (words, rest) = src.as_chunks::<LANES>();
    for (index, word) in words.iter().enumerate() {
        let multiples = transposed(products.of_all(u64::from_le_bytes(*word)));
        let mut at = index * LANES;
        for multiple in multiples.iter().take(R) {
            let Some(cell) = dst.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<LANES>) else { return };
            *cell = (u64::from_le_bytes(*cell) ^ multiple).to_le_bytes();
            at += stride;
        }
    }
    for (offset, &byte) in rest.iter().enumerate() {
        let mut at = words.len() * LANES + offset;
        for product in products.of(byte).to_le_bytes().iter().take(R) {
            let Some(cell) = dst.get_mut(at) else { return };
            *cell ^= product;
            at += stride;
        }
    }
}

/// Adds the multiple of `src` to one row of the same length.
fn add_row(products: &Products, src: &[u8], dst: &mut [u8]) {
    for (sum, &byte) in dst.iter_mut().zip(src) {
        *sum ^= products.of(byte).to_le_bytes()[0];
    }
}

impl Products {
    /// For up to eight coefficients; rows beyond them are zero.
    pub(crate) fn new(coefs: &[u8]) -> Self {
        let mut table = [0; 256];
        for bit in 0..8 {
            let power = 1 << bit;
            let mut column = [0; LANES];
            column.iter_mut().zip(coefs).for_each(|(product, &coef)| *product = gf::mul(coef, power));
            let column = u64::from_le_bytes(column);
            // A byte is the sum of its highest bit and a smaller byte, and so are its products.
            let (smaller, larger) = table.split_at_mut(usize::from(power));
            larger.iter_mut().zip(smaller).for_each(|(sum, part)| *sum = *part ^ column);
        }
        Self(table)
    }

    /// The products of eight bytes.
    #[inline(always)]
    fn of_all(&self, word: u64) -> [u64; LANES] {
        let mut products = [0; LANES];
        for (lane, product) in products.iter_mut().enumerate() {
            *product = self.of((word >> (8 * lane)) as u8);
        }
        products
    }

    /// The products of one byte, row by row.
    #[inline(always)]
    pub(crate) fn of(&self, byte: u8) -> u64 {
        self.0.get(usize::from(byte)).copied().unwrap_or_default()
    }
}

/// Byte `i` of word `j` becomes byte `j` of word `i`: quarters, then pairs, then bytes change
/// places.
#[inline(always)]
pub(crate) fn transposed(mut words: [u64; LANES]) -> [u64; LANES] {
    words = exchanged::<4>(words, 0x0000_0000_FFFF_FFFF);
    words = exchanged::<2>(words, 0x0000_FFFF_0000_FFFF);
    exchanged::<1>(words, 0x00FF_00FF_00FF_00FF)
}

/// Exchanges the upper `GAP` bytes of every `2 * GAP` of word `i` with the lower ones of word
/// `i + GAP`; `lower` has the latter's bits.
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "`at` has no bit `GAP` set and is below `LANES`, so `at + GAP` is too"
)]
fn exchanged<const GAP: usize>(mut words: [u64; LANES], lower: u64) -> [u64; LANES] {
    for at in (0..LANES).filter(|at| at & GAP == 0) {
        let change = ((words[at] >> (8 * GAP)) ^ words[at + GAP]) & lower;
        words[at + GAP] ^= change;
        words[at] ^= change << (8 * GAP);
    }
    words
}
