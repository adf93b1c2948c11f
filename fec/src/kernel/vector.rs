//! What the vector kernels have in common: the walk over rows and columns. Each kernel adds only its instructions.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use crate::{Engine, engine::check_rows, kernel::Portable};

/// A kernel's instructions. Its functions are always inlined into the kernel's `block`, the one place where the compiler is told that
/// the processor has them.
///
/// # Safety
///
/// Callers of any function promise that the processor has the instructions.
pub(super) trait Vector {
    /// Bytes per register.
    const WIDTH: usize;
    /// Rows per pass over the source: as many coefficients as fit into registers. At most 8.
    const ROWS: usize;
    /// A coefficient, ready to multiply by.
    type Coef: Copy;
    /// `WIDTH` bytes, ready to be multiplied.
    type Source: Copy;

    unsafe fn coef(coef: u8) -> Self::Coef;

    /// # Safety
    ///
    /// `WIDTH` bytes can be read.
    unsafe fn source(from: *const u8) -> Self::Source;

    /// Fewer than `WIDTH` bytes, and zeros.
    unsafe fn source_of(rest: &[u8]) -> Self::Source;

    /// `to += coef * source`.
    ///
    /// # Safety
    ///
    /// `WIDTH` bytes can be read and written.
    unsafe fn add_product(coef: Self::Coef, source: Self::Source, to: *mut u8);

    /// [`add_block`] compiled with the kernel's instructions.
    ///
    /// # Safety
    ///
    /// As for `add_block`.
    unsafe fn block<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize);
}

/// [`Engine::mul_add_rows`] by blocks of rows.
///
/// # Safety
///
/// The processor has the instructions of `V`.
pub(super) unsafe fn add_rows<V: Vector>(coefs: &[u8], src: &[u8], dst: &mut [u8], stride: usize) {
    check_rows(coefs, src, dst, stride);
    if src.is_empty() {
        return;
    }
    for (index, coefs) in coefs.chunks(V::ROWS).enumerate() {
        let Some(dst) = dst.get_mut(index * V::ROWS * stride..) else {
            return;
        };
        macro_rules! by_number_of_rows {
            ($($rows:literal)*) => {
                match coefs.len() {
                    $($rows => if let Ok(coefs) = <[u8; $rows]>::try_from(coefs) {
                        // SAFETY: `check_rows` found the rows to fit; the instructions are the caller's promise.
                        unsafe { V::block(coefs, src, dst, stride) }
                    },)*
                    _ => {}
                }
            };
        }
        by_number_of_rows!(1 2 3 4 5 6 7 8);
    }
}

/// Adds `coefs[r] * src` to the first `src.len()` bytes of row `r`, which begins at `r * stride`.
///
/// # Safety
///
/// `check_rows` accepted these arguments; the processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn add_block<V: Vector, const R: usize>(
    coefs: [u8; R],
    src: &[u8],
    dst: &mut [u8],
    stride: usize,
) {
    // A loop, not `map`, which would not be inlined and thus compiled without the instructions.
    // SAFETY: the instructions are the caller's promise.
    let mut ready = [unsafe { V::coef(0) }; R];
    for (ready, &coef) in ready.iter_mut().zip(&coefs) {
        // SAFETY: as above.
        *ready = unsafe { V::coef(coef) };
    }
    let from = src.as_ptr();
    let to = dst.as_mut_ptr();
    let whole = src.len() - src.len() % V::WIDTH;
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + WIDTH <= whole <= src.len()`, and every row has `src.len()` bytes in `dst`.
        unsafe {
            let source = V::source(from.add(at));
            for (row, &coef) in ready.iter().enumerate() {
                V::add_product(coef, source, to.add(row * stride + at));
            }
        }
        at += V::WIDTH;
    }
    let rest = src.get(whole..).unwrap_or_default();
    if rest.is_empty() {
        return;
    }
    // SAFETY: the instructions are the caller's promise.
    let source = unsafe { V::source_of(rest) };
    for (row, (&coef, &ready)) in coefs.iter().zip(&ready).enumerate() {
        let to = dst.get_mut(row * stride + whole..).unwrap_or_default();
        if to.len() >= V::WIDTH {
            // SAFETY: `to` is long enough. Beyond `rest` the source is zeros, which change nothing.
            unsafe { V::add_product(ready, source, to.as_mut_ptr()) }
        } else if let Some(to) = to.get_mut(..rest.len()) {
            add_last(coef, rest, to);
        }
    }
}

/// The rest of a row with no room for a register behind it. Out of line, to keep the kernels small.
#[cold]
#[inline(never)]
fn add_last(coef: u8, rest: &[u8], to: &mut [u8]) {
    Portable.mul_add(coef, rest, to);
}

/// At most `N` bytes, followed by zeros.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
    padded
}
