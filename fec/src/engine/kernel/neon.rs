//! 16 bytes by two table look-ups, one per nibble: TBL on NEON registers, which every aarch64 has.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use std::arch::{
    aarch64::{uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8},
    is_aarch64_feature_detected,
};

use super::{
    Portable, tables,
    vector::{Vector, add_batch, add_block, add_rows, add_sources, add_to_row, padded},
};
use crate::{Engine, Source};

/// Exists only where its instructions do.
#[derive(Debug)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) const NAME: &str = "neon";

    pub(crate) fn get() -> Option<&'static dyn Engine> {
        static THE: Neon = Neon(());
        let has = is_aarch64_feature_detected!("neon");
        has.then_some(&THE)
    }
}

impl Engine for Neon {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "slices of different length");
        if coef == 1 {
            // A plain XOR needs no tables, and the compiler vectorises it by itself.
            return Portable.mul_add(coef, src, dst);
        }
        self.mul_add_rows(&[coef], src, dst, src.len());
    }

    fn mul_add_rows(&self, coefs: &[u8], src: &[u8], dst: &mut [u8], stride: usize) {
        // SAFETY: this value exists only where `get` found the instructions.
        unsafe { add_rows::<Self>(coefs, src, dst, stride) }
    }

    fn batch(&self) -> usize {
        <Self as Vector>::BATCH
    }

    fn mul_add_sources(&self, sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        // SAFETY: as above.
        unsafe { add_sources::<Self, false>(sources, dst, stride) }
    }

    fn mul_sources(&self, sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        // SAFETY: as above.
        unsafe { add_sources::<Self, true>(sources, dst, stride) }
    }
}

/// Something for the low nibble of every byte, and something for the high.
#[derive(Clone, Copy)]
pub(super) struct ByNibble {
    low: uint8x16_t,
    high: uint8x16_t,
}

impl Vector for Neon {
    const WIDTH: usize = 16;
    const ROWS: usize = 8;
    const BATCH: usize = 4;
    const BATCH_ROWS: usize = 2;
    type Coef = ByNibble;
    type Source = ByNibble;
    type Sum = uint8x16_t;

    #[inline(always)]
    unsafe fn coef(coef: u8) -> ByNibble {
        let [low, high] = tables::nibbles(coef);
        // SAFETY: the caller's promise, here and below; the tables are 16 bytes each.
        unsafe { ByNibble { low: vld1q_u8(low.as_ptr()), high: vld1q_u8(high.as_ptr()) } }
    }

    #[inline(always)]
    unsafe fn source(from: *const u8) -> ByNibble {
        // SAFETY: as above.
        unsafe {
            let bytes = vld1q_u8(from);
            ByNibble { low: vandq_u8(bytes, vdupq_n_u8(0x0F)), high: vshrq_n_u8::<4>(bytes) }
        }
    }

    #[inline(always)]
    unsafe fn source_of(rest: &[u8]) -> ByNibble {
        // SAFETY: as above.
        unsafe { Self::source(padded::<16>(rest).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: uint8x16_t, coef: ByNibble, source: ByNibble) -> uint8x16_t {
        // SAFETY: as above.
        unsafe {
            let low = vqtbl1q_u8(coef.low, source.low);
            let high = vqtbl1q_u8(coef.high, source.high);
            veorq_u8(sum, veorq_u8(low, high))
        }
    }

    #[inline(always)]
    unsafe fn zero() -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vdupq_n_u8(0) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    unsafe fn store(sum: uint8x16_t, to: *mut u8) {
        // SAFETY: as above.
        unsafe { vst1q_u8(to, sum) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn block<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { add_block::<Self, R>(coefs, src, dst, stride) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn row<const FRESH: bool>(sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { add_to_row::<Self, { <Self as Vector>::BATCH }, FRESH>(sources, dst, stride) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn batch<const R: usize, const S: usize, const FRESH: bool>(
        coefs: [[u8; R]; S],
        sources: [&[u8]; S],
        dst: &mut [u8],
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { add_batch::<Self, R, S, FRESH>(coefs, sources, dst, stride) }
    }
}
