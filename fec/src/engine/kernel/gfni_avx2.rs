//! 32 bytes per instruction: GFNI on AVX registers, for processors with GFNI and no AVX-512.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use super::{
    tables,
    vector::{Vector, add_batch, add_block, add_rows, add_sources, add_to_row, padded},
};
use crate::{Engine, Source};

/// Exists only where its instructions do.
#[derive(Debug)]
pub(crate) struct GfniAvx2(());

impl GfniAvx2 {
    pub(crate) const NAME: &str = "gfni-avx2";

    pub(crate) fn get() -> Option<&'static dyn Engine> {
        static THE: GfniAvx2 = GfniAvx2(());
        let has = is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2");
        has.then_some(&THE)
    }
}

impl Engine for GfniAvx2 {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "slices of different length");
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

impl Vector for GfniAvx2 {
    const WIDTH: usize = 32;
    const ROWS: usize = 8;
    const BATCH: usize = 4;
    const BATCH_ROWS: usize = 2;
    type Coef = __m256i;
    type Source = __m256i;
    type Sum = __m256i;

    #[inline(always)]
    unsafe fn coef(coef: u8) -> __m256i {
        // SAFETY: the caller's promise, here and below.
        unsafe { _mm256_set1_epi64x(tables::matrix(coef)) }
    }

    #[inline(always)]
    unsafe fn source(from: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn source_of(rest: &[u8]) -> __m256i {
        // SAFETY: as above.
        unsafe { Self::source(padded::<32>(rest).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: __m256i, coef: __m256i, source: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(sum, _mm256_gf2p8affine_epi64_epi8::<0>(source, coef)) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(sum: __m256i, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), sum) }
    }

    #[target_feature(enable = "gfni,avx2")]
    unsafe fn block<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { add_block::<Self, R>(coefs, src, dst, stride) }
    }

    #[target_feature(enable = "gfni,avx2")]
    unsafe fn row<const FRESH: bool>(sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { add_to_row::<Self, { <Self as Vector>::BATCH }, FRESH>(sources, dst, stride) }
    }

    #[target_feature(enable = "gfni,avx2")]
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
