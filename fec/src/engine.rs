//! The slice kernels, behind one trait, and their choice at run time.

pub(crate) mod kernel;

use std::fmt::Debug;

/// A packet and its factors in several rows: it adds `coefs[r] * bytes` to row `r`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source<'a> {
    /// One per row.
    pub coefs: &'a [u8],
    /// The packet.
    pub bytes: &'a [u8],
}

/// Most sources that any engine sums up in one pass.
pub(crate) const MAX_BATCH: usize = 4;

/// Multiply-and-accumulate over GF(2^8) (polynomial 0x11D) on byte slices: one implementation per
/// instruction set, all giving the same bytes.
///
/// # Panics
///
/// Slices that do not fit each other are a bug of the caller, and panic; lengths never come from
/// the network unchecked.
pub trait Engine: Debug + Send + Sync {
    /// A short stable name, e.g. `gfni-avx512`.
    fn name(&self) -> &'static str;

    /// Returns true if an encoder should keep the bytes of its sums side by side, eight rows in a
    /// word, instead of row by row. That is faster where one table look-up gives the products for
    /// eight rows. It does not change what comes out.
    fn interleaves(&self) -> bool {
        false
    }

    /// How many sources are best handed to [`mul_add_sources`](Self::mul_add_sources) together, 1
    /// to 4: what limits the wider engines is reading and writing the rows, and that is done once
    /// for all of them.
    fn batch(&self) -> usize {
        1
    }

    /// `dst[b] += coef * src[b]` for every byte; both of the same length.
    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]);

    /// One source into several destinations in one pass: row `r` of `dst`, which begins at
    /// `r * stride`, gets `coefs[r] * src` added to its first `src.len()` bytes.
    /// `src.len() <= stride`; the last row may end with the slice.
    fn mul_add_rows(&self, coefs: &[u8], src: &[u8], dst: &mut [u8], stride: usize) {
        check_rows(coefs, src, dst, stride);
        if src.is_empty() {
            return;
        }
        for (&coef, row) in coefs.iter().zip(dst.chunks_mut(stride)) {
            if let Some(row) = row.get_mut(..src.len()) {
                self.mul_add(coef, src, row);
            }
        }
    }

    /// [`mul_add_rows`](Self::mul_add_rows) of each source, whatever their lengths; all have
    /// equally many coefficients. A multiple of a [`batch`](Self::batch) is best.
    fn mul_add_sources(&self, sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        for source in sources {
            self.mul_add_rows(source.coefs, source.bytes, dst, stride);
        }
    }

    /// [`mul_add_sources`](Self::mul_add_sources) to zeros, whatever the rows hold, of as many
    /// bytes as the longest source has.
    fn mul_sources(&self, sources: &[Source<'_>], dst: &mut [u8], stride: usize) {
        clear_rows(sources, 0, dst, stride);
        self.mul_add_sources(sources, dst, stride);
    }
}

/// [`Engine::batch`], within what the callers have room for.
pub(crate) fn batch(engine: &dyn Engine) -> usize {
    engine.batch().clamp(1, MAX_BATCH)
}

/// The fastest engine this processor has.
pub fn detect() -> &'static dyn Engine {
    kernel::available().next().unwrap_or(&kernel::Portable)
}

/// Every engine this processor has, fastest first; `portable` is always the last.
pub fn available() -> impl Iterator<Item = &'static dyn Engine> {
    kernel::available()
}

/// The names of all engines compiled in, whether or not this processor has them.
pub const NAMES: &[&str] = kernel::NAMES;

/// The contract of [`Engine::mul_add_rows`], on which the kernels' safety rests.
pub(crate) fn check_rows(coefs: &[u8], src: &[u8], dst: &[u8], stride: usize) {
    if let Some(before_last) = coefs.len().checked_sub(1) {
        let end = before_last.checked_mul(stride).and_then(|begin| begin.checked_add(src.len()));
        assert!(src.len() <= stride && end.is_some_and(|end| end <= dst.len()), "rows do not fit");
    }
}

/// Sets the rows of the sources to zero, from `begin` on, as far as the longest source reaches.
pub(crate) fn clear_rows(sources: &[Source<'_>], begin: usize, dst: &mut [u8], stride: usize) {
    let rows = sources.iter().map(|source| source.coefs.len()).max().unwrap_or(0);
    let end = sources.iter().map(|source| source.bytes.len()).max().unwrap_or(0);
    for row in dst.chunks_mut(stride.max(1)).take(rows) {
        if let Some(row) = row.get_mut(begin..end) {
            row.fill(0);
        }
    }
}
