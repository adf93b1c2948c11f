//! What the vector kernels have in common: the walk over rows and columns. Each kernel adds only its instructions.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use crate::{
    Engine,
    engine::{Source, check_rows, clear_rows},
    kernel::Portable,
};

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
    /// Sources per pass over the rows: 2 or 4.
    const BATCH: usize;
    /// Rows per such pass, at most 8: as many as still gain from sharing the sources' loads. A few coefficients may have to be read anew each time.
    const BATCH_ROWS: usize;
    /// A coefficient, ready to multiply by.
    type Coef: Copy;
    /// `WIDTH` bytes, ready to be multiplied.
    type Source: Copy;
    /// `WIDTH` bytes of a row.
    type Sum: Copy;

    unsafe fn coef(coef: u8) -> Self::Coef;

    /// # Safety
    ///
    /// `WIDTH` bytes can be read.
    unsafe fn source(from: *const u8) -> Self::Source;

    /// Fewer than `WIDTH` bytes, and zeros.
    unsafe fn source_of(rest: &[u8]) -> Self::Source;

    /// `sum + coef * source`.
    unsafe fn add_product(sum: Self::Sum, coef: Self::Coef, source: Self::Source) -> Self::Sum;

    unsafe fn zero() -> Self::Sum;

    /// # Safety
    ///
    /// `WIDTH` bytes can be read.
    unsafe fn load(from: *const u8) -> Self::Sum;

    /// # Safety
    ///
    /// `WIDTH` bytes can be written.
    unsafe fn store(sum: Self::Sum, to: *mut u8);

    /// [`add_block`] compiled with the kernel's instructions.
    ///
    /// # Safety
    ///
    /// As for `add_block`.
    unsafe fn block<const R: usize>(coefs: [u8; R], src: &[u8], dst: &mut [u8], stride: usize);

    /// [`add_batch`] compiled with the kernel's instructions.
    ///
    /// # Safety
    ///
    /// As for `add_batch`.
    unsafe fn batch<const R: usize, const S: usize, const FRESH: bool>(
        coefs: [[u8; R]; S],
        sources: [&[u8]; S],
        dst: &mut [u8],
        stride: usize,
    );
}

/// Bytes of each source and row that are worked on before the next rows get their turn: few enough for all of it to stay in the fastest cache.
/// Under Miri so few that its short tests see more than one tile.
const TILE: usize = if cfg!(miri) { 128 } else { 2048 };

/// [`Engine::mul_add_sources`], or [`Engine::mul_sources`] if `FRESH`: whole batches in one pass over the rows as far as all of their packets
/// reach, the rest packet by packet.
///
/// # Safety
///
/// The processor has the instructions of `V`.
pub(super) unsafe fn add_sources<V: Vector, const FRESH: bool>(
    sources: &[Source<'_>],
    dst: &mut [u8],
    stride: usize,
) {
    let (first, further) = sources.split_at(if FRESH { V::BATCH.min(sources.len()) } else { 0 });
    if FRESH {
        // SAFETY: the instructions are the caller's promise, here and below.
        let done = unsafe { add_common::<V, true>(first, dst, stride) };
        clear_rows(sources, done, dst, stride);
        // SAFETY: as above.
        unsafe { add_rest::<V>(first, done, dst, stride) }
    }
    for sources in further.chunks(V::BATCH) {
        // SAFETY: as above.
        unsafe {
            let done = add_common::<V, false>(sources, dst, stride);
            add_rest::<V>(sources, done, dst, stride);
        }
    }
}

/// A whole batch, as far as all of its sources reach; how far that is, is returned.
///
/// # Safety
///
/// The processor has the instructions of `V`.
unsafe fn add_common<V: Vector, const FRESH: bool>(
    sources: &[Source<'_>],
    dst: &mut [u8],
    stride: usize,
) -> usize {
    // SAFETY: the instructions are the caller's promise.
    unsafe {
        if let (Ok(&[a, b, c, d]), 4) = (<&[Source<'_>; 4]>::try_from(sources), V::BATCH) {
            add_alike::<V, 4, FRESH>([a, b, c, d], dst, stride)
        } else if let (Ok(&[a, b]), 2) = (<&[Source<'_>; 2]>::try_from(sources), V::BATCH) {
            add_alike::<V, 2, FRESH>([a, b], dst, stride)
        } else {
            0
        }
    }
}

/// What the sources have from `begin` on, one after the other.
///
/// # Safety
///
/// The processor has the instructions of `V`.
unsafe fn add_rest<V: Vector>(sources: &[Source<'_>], begin: usize, dst: &mut [u8], stride: usize) {
    for source in sources.iter().filter(|source| source.bytes.len() > begin) {
        if let (Some(rest), Some(dst)) = (source.bytes.get(begin..), dst.get_mut(begin..)) {
            // SAFETY: the instructions are the caller's promise.
            unsafe { add_rows::<V>(source.coefs, rest, dst, stride) }
        }
    }
}

/// As far as all sources reach, in whole registers; how far that is, is returned. Sources for unequal numbers of rows are left alone.
///
/// # Safety
///
/// The processor has the instructions of `V`.
unsafe fn add_alike<V: Vector, const S: usize, const FRESH: bool>(
    sources: [Source<'_>; S],
    dst: &mut [u8],
    stride: usize,
) -> usize {
    let rows = sources.iter().map(|source| source.coefs.len()).max().unwrap_or(0);
    let common = sources.iter().map(|source| source.bytes.len()).min().unwrap_or(0);
    let common = common - common % V::WIDTH;
    if common == 0 || sources.iter().any(|source| source.coefs.len() != rows) {
        return 0;
    }
    for source in &sources {
        check_rows(source.coefs, source.bytes, dst, stride);
    }
    // What takes a single pass needs no tiles.
    let tile = if rows > V::BATCH_ROWS { TILE } else { common };
    for begin in (0..common).step_by(tile) {
        let end = common.min(begin + tile);
        let mut parts: [&[u8]; S] = [&[]; S];
        for (part, source) in parts.iter_mut().zip(&sources) {
            *part = source.bytes.get(begin..end).unwrap_or_default();
        }
        for first in (0..rows).step_by(V::BATCH_ROWS) {
            let Some(dst) = dst.get_mut(first * stride + begin..) else { return common };
            macro_rules! by_number_of_rows {
                ($($rows:literal)*) => {
                    match V::BATCH_ROWS.min(rows - first) {
                        $($rows => {
                            let mut coefs = [[0; $rows]; S];
                            for (to, source) in coefs.iter_mut().zip(&sources) {
                                if let Some(from) = source.coefs.get(first..).and_then(|from| from.first_chunk()) {
                                    *to = *from;
                                }
                            }
                            // SAFETY: `check_rows` found all rows to fit, and every part is as long as every other, a multiple of `WIDTH`.
                            unsafe { V::batch::<$rows, S, FRESH>(coefs, parts, dst, stride) }
                        })*
                        _ => {}
                    }
                };
            }
            by_number_of_rows!(1 2 3 4 5 6 7 8);
        }
    }
    common
}

/// Adds `coefs[s][r] * sources[s]` for every `s` to row `r`, which begins at `r * stride`, or to zero if `FRESH`.
///
/// # Safety
///
/// Every source has the same length, a multiple of `WIDTH`; each of the `R` rows has room for it; the processor has the instructions of `V`.
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "constants below the arrays' constant lengths, checked by the compiler"
)]
pub(super) unsafe fn add_batch<V: Vector, const R: usize, const S: usize, const FRESH: bool>(
    coefs: [[u8; R]; S],
    sources: [&[u8]; S],
    dst: &mut [u8],
    stride: usize,
) {
    // Loops, not `map`; see `add_block`.
    // SAFETY: the instructions are the caller's promise.
    let mut ready = [[unsafe { V::coef(0) }; R]; S];
    for (ready, coefs) in ready.iter_mut().zip(&coefs) {
        for (ready, &coef) in ready.iter_mut().zip(coefs) {
            // SAFETY: as above.
            *ready = unsafe { V::coef(coef) };
        }
    }
    let to = dst.as_mut_ptr();
    let len = sources.first().map_or(0, |source| source.len());
    let sources = sources.map(<[u8]>::as_ptr);
    let mut at = 0;
    while at < len {
        // SAFETY: `at + WIDTH <= len`, which every source and every row has.
        unsafe {
            let mut loaded = [V::source(sources[0].add(at)); S];
            for (loaded, source) in loaded.iter_mut().zip(sources) {
                *loaded = V::source(source.add(at));
            }
            for row in 0..R {
                let cell = to.add(row * stride + at);
                let mut sum = if FRESH { V::zero() } else { V::load(cell) };
                for (coefs, source) in ready.iter().zip(loaded) {
                    sum = V::add_product(sum, coefs[row], source);
                }
                V::store(sum, cell);
            }
        }
        at += V::WIDTH;
    }
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
                let cell = to.add(row * stride + at);
                V::store(V::add_product(V::load(cell), coef, source), cell);
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
            unsafe { V::store(V::add_product(V::load(to.as_ptr()), ready, source), to.as_mut_ptr()) }
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
