//! The common part of the vector kernels: the walk over rows and columns. Each kernel adds only its
//! instructions.
#![expect(unsafe_code, reason = "vector loads and stores go through pointers")]

use crate::{
    Engine,
    engine::kernel::Portable,
    engine::{Source, check_rows, clear_rows},
};

/// A kernel's instructions. Its functions are always inlined into the kernel's `block`, the one
/// place where the compiler is told that the processor has them.
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
    /// Rows per such pass, at most 8: as many as still gain from sharing the sources' loads. A few
    /// coefficients may have to be read anew each time.
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

    /// [`add_to_row`] compiled with the kernel's instructions.
    ///
    /// # Safety
    ///
    /// As for `add_to_row`.
    unsafe fn row<const FRESH: bool>(sources: &[Source<'_>], dst: &mut [u8], stride: usize);

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

/// Bytes of each source and row that are worked on before the next rows get their turn: few enough
/// for all of it to stay in the fastest cache. Under Miri so few that its short tests see more than
/// one tile.
const TILE: usize = if cfg!(miri) { 128 } else { 2048 };

/// [`Engine::mul_add_sources`], or [`Engine::mul_sources`] if `FRESH`: whole batches in one pass
/// over the rows as far as all of their packets reach, the rest packet by packet.
///
/// # Safety
///
/// The processor has the instructions of `V`.
pub(super) unsafe fn add_sources<V: Vector, const FRESH: bool>(
    sources: &[Source<'_>],
    dst: &mut [u8],
    stride: usize,
) {
    if sources.first().is_some_and(|source| source.coefs.len() == 1) {
        // SAFETY: the instructions are the caller's promise.
        return unsafe { V::row::<FRESH>(sources, dst, stride) };
    }
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

/// [`add_sources`] for a single row, inlined into one function for all batches: what one costs
/// besides its bytes would tell.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn add_to_row<V: Vector, const S: usize, const FRESH: bool>(
    sources: &[Source<'_>],
    dst: &mut [u8],
    stride: usize,
) {
    let (batches, rest) = sources.as_chunks::<S>();
    // Bytes of the row that hold a sum.
    let mut filled = if FRESH { 0 } else { usize::MAX };
    for batch in batches {
        let (mut common, mut longest) = (usize::MAX, 0);
        for source in batch {
            assert!(source.coefs.len() == 1, "sources for unequal numbers of rows");
            common = common.min(source.bytes.len());
            longest = longest.max(source.bytes.len());
        }
        assert!(longest <= stride && longest <= dst.len(), "rows do not fit");
        let common = if common < V::WIDTH { 0 } else { common };
        let fresh = filled == 0;
        if fresh {
            filled = common;
        }
        if filled < longest {
            dst.get_mut(filled..longest).unwrap_or_default().fill(0);
            filled = longest;
        }
        if common > 0 {
            let mut coefs = [[0]; S];
            let mut parts: [&[u8]; S] = [&[]; S];
            for ((coef, part), source) in coefs.iter_mut().zip(&mut parts).zip(batch) {
                *coef = source.coefs.first_chunk().copied().unwrap_or_default();
                *part = source.bytes.get(..common).unwrap_or_default();
            }
            // SAFETY: every part has `common` bytes, at least `WIDTH`, for which `dst` was found to
            // have room; the instructions are the caller's promise.
            unsafe {
                match fresh {
                    true => add_batch::<V, 1, S, true>(coefs, parts, dst, stride),
                    false => add_batch::<V, 1, S, false>(coefs, parts, dst, stride),
                }
            }
        }
        if common < longest {
            // SAFETY: the instructions are the caller's promise.
            unsafe { add_rest::<V>(batch, common, dst, stride) }
        }
    }
    assert!(rest.iter().all(|source| source.coefs.len() == 1), "sources for unequal numbers of rows");
    let longest = rest.iter().map(|source| source.bytes.len()).max().unwrap_or(0);
    if let Some(unfilled) = dst.get_mut(filled..longest) {
        unfilled.fill(0);
    }
    // SAFETY: as above.
    unsafe { add_rest::<V>(rest, 0, dst, stride) }
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
        if let (Ok(sources), 4) = (<&[Source<'_>; 4]>::try_from(sources), V::BATCH) {
            add_alike::<V, 4, FRESH>(sources, dst, stride)
        } else if let (Ok(sources), 2) = (<&[Source<'_>; 2]>::try_from(sources), V::BATCH) {
            add_alike::<V, 2, FRESH>(sources, dst, stride)
        } else {
            0
        }
    }
}

/// Adds the bytes of the sources from `begin` on, one source after the other.
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

/// As far as all sources reach, in whole registers; how far that is, is returned. Sources for
/// unequal numbers of rows are left alone.
///
/// # Safety
///
/// The processor has the instructions of `V`.
unsafe fn add_alike<V: Vector, const S: usize, const FRESH: bool>(
    sources: &[Source<'_>; S],
    dst: &mut [u8],
    stride: usize,
) -> usize {
    let rows = sources.iter().map(|source| source.coefs.len()).max().unwrap_or(0);
    let common = sources.iter().map(|source| source.bytes.len()).min().unwrap_or(0);
    if common < V::WIDTH || sources.iter().any(|source| source.coefs.len() != rows) {
        return 0;
    }
    for source in sources {
        check_rows(source.coefs, source.bytes, dst, stride);
    }
    // What takes a single pass needs no tiles.
    let tile = if rows > V::BATCH_ROWS { TILE } else { common };
    let mut begin = 0;
    while begin < common {
        // What is too short for a register joins the tile before it.
        let end = if common - begin < tile + V::WIDTH { common } else { begin + tile };
        let mut parts: [&[u8]; S] = [&[]; S];
        for (part, source) in parts.iter_mut().zip(sources) {
            *part = source.bytes.get(begin..end).unwrap_or_default();
        }
        let mut first = 0;
        while first < rows {
            let Some(dst) = dst.get_mut(first * stride + begin..) else { return common };
            macro_rules! by_number_of_rows {
                ($($rows:literal)*) => {
                    match V::BATCH_ROWS.min(rows - first) {
                        $($rows => {
                            let mut coefs = [[0; $rows]; S];
                            for (to, source) in coefs.iter_mut().zip(sources) {
                                if let Some(from) = source.coefs.get(first..).and_then(|from| from.first_chunk()) {
                                    *to = *from;
                                }
                            }
                            // SAFETY: `check_rows` found all rows to fit, and every part is as long
                            // as every other, at least `WIDTH`.
                            unsafe { V::batch::<$rows, S, FRESH>(coefs, parts, dst, stride) }
                        })*
                        _ => {}
                    }
                };
            }
            by_number_of_rows!(1 2 3 4 5 6 7 8);
            first += V::BATCH_ROWS;
        }
        begin = end;
    }
    common
}

/// Adds `coefs[s][r] * sources[s]` for every `s` to row `r`, which begins at `r * stride`, or to
/// zero if `FRESH`.
///
/// # Safety
///
/// Every source has the same length, at least `WIDTH`; each of the `R` rows has room for it; the
/// processor has the instructions of `V`.
#[inline(always)]
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
    let whole = len - len % V::WIDTH;
    let last = len - V::WIDTH;
    // SAFETY: the instructions are the caller's promise; `last + WIDTH` is `len`, which every
    // source and every row has.
    unsafe {
        // A last register reaches back over bytes that have their sums by then, and makes those
        // anew from what stood there before.
        let mut before = [V::zero(); R];
        if whole < len {
            for (row, before) in before.iter_mut().enumerate() {
                *before = V::load(to.add(row * stride + last));
            }
        }
        let mut at = 0;
        while at < whole {
            add_column::<V, R, S, FRESH>(&ready, &sources, to, stride, at);
            at += V::WIDTH;
        }
        if whole < len {
            for (row, before) in before.into_iter().enumerate() {
                V::store(before, to.add(row * stride + last));
            }
            add_column::<V, R, S, FRESH>(&ready, &sources, to, stride, last);
        }
    }
}

/// [`add_batch`] for the `WIDTH` bytes from `at` on.
///
/// # Safety
///
/// Every source and every row has these bytes; the processor has the instructions of `V`.
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "constants below the arrays' constant lengths, checked by the compiler"
)]
unsafe fn add_column<V: Vector, const R: usize, const S: usize, const FRESH: bool>(
    coefs: &[[V::Coef; R]; S],
    sources: &[*const u8; S],
    to: *mut u8,
    stride: usize,
    at: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut loaded = [V::source(sources[0].add(at)); S];
        for (loaded, source) in loaded.iter_mut().zip(sources) {
            *loaded = V::source(source.add(at));
        }
        for row in 0..R {
            let cell = to.add(row * stride + at);
            let mut sum = if FRESH { V::zero() } else { V::load(cell) };
            for (coefs, source) in coefs.iter().zip(loaded) {
                sum = V::add_product(sum, coefs[row], source);
            }
            V::store(sum, cell);
        }
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
                        // SAFETY: `check_rows` found the rows to fit; the instructions are the
                        // caller's promise.
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
