//! Packet buffers, reused: at steady state the data path allocates nothing.

use std::cell::RefCell;
use std::rc::Rc;

use reliability::shelf::Shelf;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use snapshot::{Beside, LOOK, Packet};

/// A bounded store of packet buffers. A [`Buf`] goes back to its pool when dropped.
///
/// Buffers count by their capacity, which exceeds the packet by a sixteenth at most (32 bytes at
/// least), and those kept for reuse count as well. There are no more of them than one for each
/// `EACH` bytes, so that what small ones cost where they wait is bounded as well. At either bound
/// [`Pool::copy`] answers `None`, and the caller says what that means (a flow ends with
/// [`crate::record::Reason::NoRoom`]); nothing waits. Those who hold most give way before it comes
/// to that (`crate::relief`). A pool belongs to one data-plane thread.
#[derive(Clone, Debug)]
pub struct Pool(Rc<RefCell<Store>>);

#[derive(Debug)]
struct Store {
    free: Shelf,
    /// Bytes of the buffers handed out.
    used: usize,
    /// Buffers handed out.
    count: usize,
    limit: usize,
    /// Buffers handed out at most.
    most: usize,
}

/// Bytes of the pool to a buffer, at least.
pub(crate) const EACH: usize = 256;
const LEAST_BUFFERS: usize = 4096;

impl Pool {
    /// A pool of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let most = (limit / EACH).max(LEAST_BUFFERS);
        Self(Rc::new(RefCell::new(Store { free: Shelf::new(), used: 0, count: 0, limit, most })))
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
        let mut data = Vec::new();
        if store.count >= store.most {
            return None;
        }
        if len > 0 {
            let used = store.used + Shelf::size_for(len);
            let room = store.limit.checked_sub(used)?;
            data = store.free.take(len);
            if store.free.bytes() > room {
                store.free.shrink(room);
            }
            store.used = used;
        }
        for part in parts {
            data.extend_from_slice(part);
        }
        store.count += 1;
        Some(Buf { data: data.into(), pool: Rc::clone(&self.0) })
    }

    /// A buffer of a packet that was read: a copy, or what stays in another process's memory. That
    /// counts as a copy would. `None` at the bound.
    fn adopt(&self, packet: Packet) -> Option<Buf> {
        if packet.capacity().is_some() {
            return self.copy(&packet);
        }
        let mut store = self.0.borrow_mut();
        let used = store.used + Shelf::size_for(packet.len());
        if store.count >= store.most || used > store.limit {
            return None;
        }
        store.count += 1;
        store.used = used;
        Some(Buf { data: packet, pool: Rc::clone(&self.0) })
    }

    /// Bytes of the buffers handed out.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        self.0.borrow().used
    }

    /// Buffers handed out.
    #[must_use]
    pub fn buffers_in_use(&self) -> usize {
        self.0.borrow().count
    }

    /// Bytes of all buffers, handed out or kept for reuse.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let store = self.0.borrow();
        store.used + store.free.bytes()
    }
}

thread_local! {
    /// The pool of the snapshot that is being read.
    static READING: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

impl Pool {
    /// Has buffers that are read from a snapshot meanwhile be of this pool.
    pub(crate) fn while_reading<T>(&self, read: impl FnOnce() -> T) -> T {
        READING.set(Some(self.clone()));
        let result = read();
        READING.set(None);
        result
    }
}

impl Serialize for Buf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.data.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Buf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let packet = Packet::deserialize(deserializer)?;
        let buffer = READING.with_borrow(|pool| pool.as_ref().and_then(|pool| pool.adopt(packet)));
        buffer.ok_or_else(|| D::Error::custom("no room in the packet buffers"))
    }
}

/// One packet's bytes.
#[derive(Debug)]
pub struct Buf {
    data: Packet,
    pool: Rc<RefCell<Store>>,
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Buf {
    /// Copies it ahead of a snapshot. Returns the bytes copied.
    pub(crate) fn copy_ahead(&mut self, to: &mut Beside) -> usize {
        self.data.copy_ahead(to)
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let mut store = self.pool.borrow_mut();
        store.count -= 1;
        store.used -= self.data.capacity().unwrap_or_else(|| Shelf::size_for(self.data.len()));
        let data = std::mem::take(&mut self.data).into_buffer();
        let room = store.limit.saturating_sub(store.used);
        store.free.give(data);
        if store.free.bytes() > room {
            store.free.shrink(room);
        }
    }
}

/// Copies packets ahead of a snapshot, as far as `budget` goes, which is lessened by that. Returns
/// true once it has come to all of them.
pub(crate) fn copy_all<'a>(
    packets: impl Iterator<Item = &'a mut Buf>,
    to: &mut Beside,
    budget: &mut usize,
) -> bool {
    *budget = budget.saturating_sub(LOOK);
    for packet in packets {
        let copied = packet.copy_ahead(to);
        if copied > 0 {
            *budget = budget.saturating_sub(LOOK + copied);
            if *budget == 0 {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_reused_and_no_longer_counted() {
        let pool = Pool::new(64);
        let first = pool.copy(b"12345678").unwrap();
        let other = pool.copy(b"9").unwrap();
        assert!(pool.copy(b"0").is_none());
        assert_eq!((pool.bytes_in_use(), pool.buffers_in_use()), (64, 2));
        let address = first.as_ref().as_ptr();
        drop(first);
        let second = pool.copy(b"abc").unwrap();
        assert_eq!((second.as_ref().as_ptr(), second.as_ref()), (address, &b"abc"[..]));
        assert_eq!((pool.bytes_in_use(), pool.buffers_in_use()), (64, 2));
        drop((second, other));
        assert_eq!((pool.bytes_in_use(), pool.buffers_in_use()), (0, 0));
    }

    #[test]
    fn what_is_kept_for_reuse_counts_and_makes_way() {
        const LIMIT: usize = 1 << 20;
        let pool = Pool::new(LIMIT);
        let measured = allocation_counter::measure(|| {
            for len in [60_000, 20, 9000, 300, 60_000, 20] {
                let held: Vec<_> = std::iter::from_fn(|| pool.copy(&vec![1; len])).collect();
                assert!(
                    held.len() * len > LIMIT / 4 || held.len() == LIMIT / EACH,
                    "{} of {len}",
                    held.len()
                );
                assert!(pool.bytes() <= LIMIT, "{}", pool.bytes());
                drop(held);
                assert!(pool.bytes() <= LIMIT, "{}", pool.bytes());
            }
        });
        // And the handles to them.
        assert!(measured.bytes_max < 3 * LIMIT as u64, "{}", measured.bytes_max);
    }
}
