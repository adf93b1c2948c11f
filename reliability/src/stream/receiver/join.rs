//! Joins the pieces of records that were cut.

use std::collections::VecDeque;

use super::ReceiverConfig;
use crate::pool::Pool;
use crate::stream::wire::Fragment;

/// Cut records are numbered in a row, so the incomplete ones stand in a queue by number.
///
/// Every packet is accepted once, hence every piece comes once, and the sum of lengths tells when a record is whole. An honest
/// sender cuts at most one record per packet boundary, so the queue stays within the window; beyond it, or beyond
/// `join_buffer`, the oldest record is given up.
#[derive(Debug)]
pub(super) struct Joins {
    entries: VecDeque<Entry>,
    /// Number of the first entry's record.
    first: u32,
    pool: Pool,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
    abandoned: u64,
}

#[derive(Debug, Default)]
struct Entry {
    bytes: Vec<u8>,
    received: u32,
    /// The newest packet that brought a piece.
    newest: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unseen,
    Open,
    Done,
}

impl Joins {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            pool: Pool::new(config.window),
            bytes: 0,
            max_entries: 2 * config.window + 2,
            max_bytes: config.join_buffer.saturating_add(2 * config.max_record),
            abandoned: 0,
        }
    }

    /// Gives back the memory that no record needs now.
    pub(super) fn release_spare(&mut self) {
        self.pool.release();
        self.entries.shrink_to_fit();
    }

    /// Records given up so far.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned
    }

    pub(super) fn add(&mut self, fragment: &Fragment<'_>, sequence: u64, deliver: &mut impl FnMut(&[u8])) {
        let distance = fragment.id.wrapping_sub(self.first);
        if distance > u32::MAX / 2 {
            return; // A record given up earlier.
        }
        let index = self.make_room(distance as usize);
        while self.entries.len() <= index {
            self.entries.push_back(Entry::default());
        }
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        if entry.state == State::Done {
            return;
        }
        if entry.state == State::Unseen {
            entry.bytes = self.pool.take();
            entry.state = State::Open;
        }
        let before = entry.bytes.len();
        entry.insert(fragment, sequence);
        self.bytes += entry.bytes.len() - before;
        if entry.received >= fragment.total {
            deliver(&entry.bytes);
            let bytes = std::mem::take(&mut entry.bytes);
            entry.state = State::Done;
            self.bytes -= bytes.len();
            self.pool.give(bytes);
        }
        self.settle();
        while self.bytes > self.max_bytes {
            self.drop_front();
        }
    }

    /// Gives up the records whose pieces all lie below `low`: nothing more of them can come.
    pub(super) fn expire(&mut self, low: u64) {
        let gone = |entry: &Entry| entry.state != State::Unseen && entry.newest < low;
        // Records of which nothing came at all are gone if a later one is.
        while let Some(index) = self.entries.iter().take(2).position(gone) {
            for _ in 0..=index {
                self.drop_front();
            }
        }
        self.settle();
    }

    /// Keeps the queue within its bound; the place of the entry at `distance` afterwards.
    fn make_room(&mut self, mut distance: usize) -> usize {
        while distance >= self.max_entries {
            if self.entries.is_empty() {
                self.first = self.first.wrapping_add((distance - self.max_entries + 1) as u32);
                return self.max_entries - 1;
            }
            self.drop_front();
            distance -= 1;
        }
        distance
    }

    fn settle(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.state == State::Done) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        self.first = self.first.wrapping_add(1);
        self.abandoned += u64::from(entry.state != State::Done);
        self.bytes -= entry.bytes.len();
        self.pool.give(entry.bytes);
    }
}

impl Entry {
    fn insert(&mut self, fragment: &Fragment<'_>, sequence: u64) {
        self.newest = self.newest.max(sequence);
        self.received = self.received.saturating_add(fragment.bytes.len() as u32);
        let offset = fragment.offset as usize;
        let end = offset + fragment.bytes.len();
        if offset == self.bytes.len() {
            self.bytes.extend_from_slice(fragment.bytes);
            return;
        }
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        if let Some(place) = self.bytes.get_mut(offset..end) {
            place.copy_from_slice(fragment.bytes);
        }
    }
}
