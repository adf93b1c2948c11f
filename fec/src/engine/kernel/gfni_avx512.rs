//! 64 bytes per instruction: GFNI on AVX-512 registers, tails under a mask.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use std::arch::x86_64::{
    __m512i, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::{
    gfni_avx2::GfniAvx2,
    tables,
    vector::{Vector, add_batch, add_block, add_rows, add_sources},
};
use crate::{Engine, Source};

/// Exists only where its instructions do.
#[derive(Debug)]
pub(crate) struct GfniAvx512(());

impl GfniAvx512 {
    pub(crate) const NAME: &str = "gfni-avx512";

    pub(crate) fn get() -> Option<&'static dyn Engine> {
        static THE: GfniAvx512 = GfniAvx512(());
        let has = is_x86_feature_detected!("gfni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw");
        has.then_some(&THE)
    }
}

impl Engine for GfniAvx512 {
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

impl Vector for GfniAvx512 {
    const WIDTH: usize = 64;
    const ROWS: usize = 8;
    const BATCH: usize = 4;
    const BATCH_ROWS: usize = 8;
    type Coef = __m512i;
    type Source = __m512i;
    type Sum = __m512i;

    #[inline(always)]
    unsafe fn coef(coef: u8) -> __m512i {
        // SAFETY: the caller's promise, here and below.
        unsafe { _mm512_set1_epi64(tables::matrix(coef)) }
    }

    #[inline(always)]
    unsafe fn source(from: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn source_of(rest: &[u8]) -> __m512i {
        let mask = !u64::MAX.unbounded_shl(u32::try_from(rest.len()).unwrap_or(u32::MAX));
        // SAFETY: as above; the mask confines the access to `rest`.
        unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: __m512i, coef: __m512i, source: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(source, coef)) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(sum: __m512i, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), sum) }
    }

    #[target_feature(enable = "gfni,avx512f,avx512bw")]
    unsafe fn block<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { add_block::<Self, R>(coefs, src, dst, stride) }
    }

    /// For one row the caches limit, and half as wide loads cross half as many cache lines where
    /// packets are not aligned.
    unsafe fn row<const FRESH: bool>(sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        // SAFETY: the caller's promise, and AVX-512 has the narrower instructions as well.
        unsafe { GfniAvx2::row::<FRESH>(sources, dst, stride) }
    }

    #[target_feature(enable = "gfni,avx512f,avx512bw")]
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
