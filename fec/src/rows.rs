//! Reusable storage for the symbols a code is accumulating: parity, syndromes, recovered packets.

use std::fmt;

use crate::{Engine, PARITY_OVERHEAD, Source, gf};

/// Width of the widest vector register, and of a cache line.
const LINE: usize = 64;

/// The first two bytes of a symbol: its packet's length.
pub(crate) type Header = [u8; PARITY_OVERHEAD];

/// A number of symbols, each with its body on cache lines of its own so that kernels store whole
/// lines.
///
/// Headers are kept apart until [`symbol`](Self::symbol) puts one before its body: by columns, one
/// coefficient times all rows, they are two short kernel calls instead of a cache line touched per
/// row and packet.
#[derive(Default)]
pub(crate) struct Rows {
    /// Each row's first header byte.
    high: Vec<u8>,
    /// Each row's second header byte.
    low: Vec<u8>,
    storage: Vec<u8>,
    /// Where row 0's body begins in `storage`; its header has the two bytes before.
    base: usize,
    stride: usize,
    /// Bytes of every body that hold its sum. What stands beyond counts as zero, but is not cleared
    /// until something is added to it.
    filled: usize,
}

impl Rows {
    /// Makes room for `rows` symbols with bodies of up to `body` bytes, all zero.
    /// Allocates only when this is more than ever before.
    pub(crate) fn prepare(&mut self, rows: usize, body: usize) {
        // An odd number of lines, at least one of them for the header, keeps rows from sharing
        // cache sets.
        let stride = (body.next_multiple_of(LINE) + LINE) | LINE;
        let needed = rows * stride + LINE;
        if needed > self.storage.len() {
            self.storage = vec![0; needed];
        }
        self.base = self.storage.as_ptr().align_offset(LINE).min(LINE) + LINE;
        self.stride = stride;
        self.high.resize(rows, 0);
        self.low.resize(rows, 0);
        self.clear();
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        self.high.capacity() + self.low.capacity() + self.storage.capacity()
    }

    /// Sets every row to zero.
    pub(crate) fn clear(&mut self) {
        self.high.fill(0);
        self.low.fill(0);
        self.filled = 0;
    }

    /// Sets eight bytes of a row's body, from `at` on. Nothing happens beyond the rows there are,
    /// or beyond a row's whole lines.
    pub(crate) fn set(&mut self, row: usize, at: usize, bytes: [u8; 8]) {
        let (Some(begin), true) = (self.begin(row), at + bytes.len() <= self.stride) else { return };
        if let Some(to) = self.storage.get_mut(begin + at..).and_then(<[u8]>::first_chunk_mut) {
            *to = bytes;
        }
    }

    /// Sets a row to a header and a body. All rows are to be set so, to bodies of the same length,
    /// before anything is added to one.
    pub(crate) fn load(&mut self, row: usize, header: Header, body: &[u8]) {
        let [high, low] = header;
        if let (Some(to_high), Some(to_low)) = (self.high.get_mut(row), self.low.get_mut(row)) {
            (*to_high, *to_low) = (high, low);
        }
        if let Some(to) = self.body_mut(row, body.len()) {
            to.copy_from_slice(body);
            self.filled = body.len();
        }
    }

    /// Adds `coefs[r]` times this header to row `r`'s, for every coefficient; its body is left for
    /// [`add_bodies`](Self::add_bodies).
    pub(crate) fn add_header(&mut self, engine: &dyn Engine, coefs: &[u8], [high, low]: Header) {
        add_header_byte(engine, coefs, high, &mut self.high);
        add_header_byte(engine, coefs, low, &mut self.low);
    }

    /// Sets every row's header.
    pub(crate) fn set_headers(&mut self, [high, low]: Header) {
        self.high.fill(high);
        self.low.fill(low);
    }

    /// Adds the bodies of symbols, none longer than `longest`, to the rows; of the first to be
    /// added, one is that long.
    pub(crate) fn add_bodies(&mut self, engine: &dyn Engine, sources: &[Source<'_>], longest: usize) {
        let fresh = self.filled == 0;
        if fresh {
            self.filled = longest;
        } else {
            self.fill(longest);
        }
        match self.storage.get_mut(self.base..) {
            Some(bodies) if fresh => engine.mul_sources(sources, bodies, self.stride),
            Some(bodies) => engine.mul_add_sources(sources, bodies, self.stride),
            None => {}
        }
    }

    /// Adds the symbol of this header and body to one row.
    pub(crate) fn add_to(&mut self, engine: &dyn Engine, row: usize, header: Header, body: &[u8]) {
        for (byte, to) in header.into_iter().zip([&mut self.high, &mut self.low]) {
            if let Some(to) = to.get_mut(row) {
                *to ^= byte;
            }
        }
        self.fill(body.len());
        if let Some(to) = self.body_mut(row, body.len()) {
            engine.mul_add(1, body, to);
        }
    }

    /// A row's header.
    pub(crate) fn header(&self, row: usize) -> Option<Header> {
        Some([*self.high.get(row)?, *self.low.get(row)?])
    }

    /// The first `len` bytes of a row's body.
    pub(crate) fn body(&self, row: usize, len: usize) -> Option<&[u8]> {
        let begin = self.begin(row)?;
        self.storage.get(begin..begin.checked_add(len)?)
    }

    /// Writes the row's header, plus `more`, before its body, and returns both, with the body's
    /// first `len` bytes.
    pub(crate) fn symbol(&mut self, row: usize, len: usize, more: Header) -> Option<&[u8]> {
        let header = plus(self.header(row)?, more);
        let body = self.begin(row)?;
        let begin = body.checked_sub(PARITY_OVERHEAD)?;
        let symbol = self.storage.get_mut(begin..body.checked_add(len)?)?;
        *symbol.first_chunk_mut()? = header;
        Some(symbol)
    }

    /// Sets what was not filled of the first `len` bytes of each body to zero.
    fn fill(&mut self, len: usize) {
        let from = self.filled;
        if len <= from {
            return;
        }
        for row in 0..self.high.len() {
            if let Some(rest) = self.body_mut(row, len).and_then(|body| body.get_mut(from..)) {
                rest.fill(0);
            }
        }
        self.filled = len;
    }

    fn body_mut(&mut self, row: usize, len: usize) -> Option<&mut [u8]> {
        let begin = self.begin(row)?;
        self.storage.get_mut(begin..begin.checked_add(len)?)
    }

    fn begin(&self, row: usize) -> Option<usize> {
        (row < self.high.len()).then_some(self.base + row * self.stride)
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({} of {} bytes)", self.high.len(), self.stride)
    }
}

/// The header of a packet that was found to be no longer than [`MAX_PACKET`](crate::MAX_PACKET).
pub(crate) fn header(len: usize) -> Header {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// The sum of two headers.
pub(crate) fn plus([a, b]: Header, [c, d]: Header) -> Header {
    [a ^ c, b ^ d]
}

/// Adds `coefs[r] * byte` to `to[r]`. For a few rows, look-ups beat the vectors' set-up.
#[inline]
fn add_header_byte(engine: &dyn Engine, coefs: &[u8], byte: u8, to: &mut [u8]) {
    const FEW: usize = 8;
    if byte == 0 {
        return;
    }
    match to.get_mut(..coefs.len()) {
        Some(to) if to.len() > FEW => engine.mul_add(byte, coefs, to),
        _ => to.iter_mut().zip(coefs).for_each(|(to, &coef)| *to ^= gf::mul(byte, coef)),
    }
}
