//! Packet buffers, reused: at steady state the data path allocates nothing.

use std::cell::RefCell;
use std::rc::Rc;

/// A bounded store of packet buffers. A [`Buf`] goes back to its pool when dropped.
///
/// At the bound [`Pool::copy`] answers `None`, and the caller says what that means (a flow ends with
/// [`crate::record::Reason::NoRoom`]); nothing waits. Those who hold most give way before it comes to that (`crate::relief`). A pool
/// belongs to one data-plane thread.
#[derive(Clone, Debug)]
pub struct Pool(Rc<RefCell<Store>>);

#[derive(Debug)]
struct Store {
    free: Vec<Vec<u8>>,
    /// Bytes in buffers handed out.
    used: usize,
    /// Buffers handed out.
    count: usize,
    limit: usize,
}

/// Buffers kept for reuse beyond which a returned one is freed: 4096 of about 4 KiB.
const KEEP: usize = 4096;

impl Pool {
    /// A pool that hands out at most `limit` bytes at a time.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Rc::new(RefCell::new(Store { free: Vec::new(), used: 0, count: 0, limit })))
    }

    /// A buffer holding a copy of `bytes`, or `None` at the bound.
    #[must_use]
    pub fn copy(&self, bytes: &[u8]) -> Option<Buf> {
        self.concat(&[bytes])
    }

    /// A buffer holding a copy of `parts`, one after the other, or `None` at the bound.
    #[must_use]
    pub fn concat(&self, parts: &[&[u8]]) -> Option<Buf> {
        let mut store = self.0.borrow_mut();
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if store.used + len > store.limit {
            return None;
        }
        let mut data = if len == 0 { Vec::new() } else { store.free.pop().unwrap_or_default() };
        data.clear();
        for part in parts {
            data.extend_from_slice(part);
        }
        store.used += len;
        store.count += 1;
        Some(Buf { data, pool: Rc::clone(&self.0) })
    }

    /// Bytes in buffers handed out.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        self.0.borrow().used
    }

    /// Buffers handed out.
    #[must_use]
    pub fn buffers_in_use(&self) -> usize {
        self.0.borrow().count
    }
}

/// One packet's bytes.
#[derive(Debug)]
pub struct Buf {
    data: Vec<u8>,
    pool: Rc<RefCell<Store>>,
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let mut store = self.pool.borrow_mut();
        store.used -= self.data.len();
        store.count -= 1;
        if store.free.len() < KEEP && self.data.capacity() > 0 {
            store.free.push(std::mem::take(&mut self.data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_reused_and_no_longer_counted() {
        let pool = Pool::new(8);
        let first = pool.copy(b"12345678").unwrap();
        assert!(pool.copy(b"9").is_none());
        assert_eq!((pool.bytes_in_use(), pool.buffers_in_use()), (8, 1));
        let address = first.as_ref().as_ptr();
        drop(first);
        let second = pool.copy(b"abc").unwrap();
        assert_eq!((second.as_ref().as_ptr(), second.as_ref()), (address, &b"abc"[..]));
        assert_eq!((pool.bytes_in_use(), pool.buffers_in_use()), (3, 1));
    }
}
