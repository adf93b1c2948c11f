//! Joins the pieces of records that were cut.

use std::collections::VecDeque;

use super::ReceiverConfig;
use crate::shelf::Shelf;
use crate::stream::wire::Fragment;

/// Incomplete cut records by number: that of the packet in which they begin.
///
/// Every packet is accepted once, hence every piece comes once, and the sum of lengths tells when a
/// record is whole. All pieces of a record state its length alike: what states another is dropped.
///
/// # Bounds
/// Everything that is held counts, also what is kept for reuse: buffers by their capacity, and the
/// pages of the table. Beyond the bound spare memory goes first, then the oldest records are given
/// up. An honest sender cuts at most one record per packet boundary, so its records begin within
/// two windows and the longest record; beyond that the oldest are given up, too.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Joins {
    /// Sorted by their numbers, counted from `first`; none is empty.
    pages: VecDeque<(u64, Box<Page>)>,
    /// Records with lower numbers are over.
    first: u64,
    #[expect(clippy::vec_box, reason = "pages move between here and the queue as they are")]
    #[serde(skip)]
    spare: Vec<Box<Page>>,
    #[serde(skip)]
    shelf: Shelf,
    /// Bytes of the records' buffers.
    bytes: usize,
    /// Records lie no further apart by their numbers.
    most_apart: u64,
    max_bytes: usize,
    abandoned: u64,
    /// Pieces that contradict others of their record.
    contradictions: u64,
    /// Pieces of records that are over.
    late: u64,
}

/// Records whose numbers differ in the low bits alone.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Page {
    /// Which ones are open.
    bits: u64,
    #[serde_as(as = "[_; PAGE as usize]")]
    entries: [Entry; PAGE as usize],
}

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Entry {
    /// As far as pieces came, with zeros where one is missing. Its capacity is the whole record's
    /// from the first piece on.
    #[serde_as(as = "serde_with::Bytes")]
    bytes: Vec<u8>,
    /// Length of the whole record.
    total: u32,
    received: u32,
    /// The newest packet that brought a piece.
    newest: u64,
}

const PAGE: u64 = 64;
/// The least that a packet has of a record which goes on in another, but for the first one and the
/// last one.
const LEAST_PIECE: usize = 128;
/// Bytes of a page, with its place in the queue.
const PAGE_BYTES: usize = size_of::<Page>() + 2 * size_of::<(u64, Box<Page>)>();
/// Emptied pages kept for reuse.
const SPARE: usize = 64;

impl Joins {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        Self {
            pages: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
            shelf: Shelf::new(),
            bytes: 0,
            most_apart: (2 * config.window + config.max_record / LEAST_PIECE + 2) as u64,
            max_bytes: config.join_buffer,
            abandoned: 0,
            contradictions: 0,
            late: 0,
        }
    }

    /// Changes how much may be held. What is beyond goes with the next piece.
    pub(super) fn set_bound(&mut self, bytes: usize) {
        self.max_bytes = bytes;
    }

    /// Bytes held, with what is kept for reuse.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.shelf.bytes() + (self.pages.len() + self.spare.len()) * PAGE_BYTES
    }

    /// Has room for the whole of each open record, also of those that were read from a snapshot.
    pub(super) fn make_whole(&mut self) {
        self.bytes = 0;
        for (_, page) in &mut self.pages {
            let open = page.bits;
            let is_open = |(bit, _): &(usize, &mut Entry)| open >> *bit & 1 == 1;
            for (_, entry) in page.entries.iter_mut().enumerate().filter(is_open) {
                let mut whole = self.shelf.take(entry.total as usize);
                whole.extend_from_slice(&entry.bytes);
                self.bytes += whole.capacity();
                entry.bytes = whole;
            }
        }
    }

    /// Gives back the memory that no record needs now.
    pub(super) fn release_spare(&mut self) {
        self.shelf.shrink(0);
        self.spare = Vec::new();
        self.pages.shrink_to_fit();
    }

    /// Records given up so far.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Pieces dropped because they contradict others of their record.
    pub(super) fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// Pieces dropped because their record had been given up.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    pub(super) fn add(&mut self, fragment: &Fragment<'_>, sequence: u64, deliver: &mut impl FnMut(&[u8])) {
        let Some(distance) = fragment.record.checked_sub(self.first) else {
            self.late += 1;
            return;
        };
        self.make_room(distance);
        let Some(index) = self.find_or_open(fragment) else { return };
        let bit = fragment.record % PAGE;
        let Some((_, page)) = self.pages.get_mut(index) else { return };
        let Some(entry) = page.entries.get_mut(bit as usize) else { return };
        if entry.total != fragment.total {
            self.contradictions += 1;
            return;
        }
        entry.insert(fragment, sequence);
        if entry.received >= fragment.total {
            deliver(&entry.bytes);
            self.close(index, bit);
        }
        self.enforce_bound();
    }

    /// Gives up the records whose pieces all lie below `low`: nothing more of them can come.
    pub(super) fn expire(&mut self, low: u64) {
        while let Some((bit, page)) = self.front()
            && page.entries.get(bit as usize).is_some_and(|entry| entry.newest < low)
        {
            self.give_up_first();
        }
    }

    /// Keeps the numbers of the open records within their bound.
    fn make_room(&mut self, distance: u64) {
        let Some(excess) = distance.checked_sub(self.most_apart).map(|excess| excess + 1) else { return };
        let first = self.first + excess;
        while let Some((bit, _)) = self.front()
            && self.pages.front().is_some_and(|(number, _)| number * PAGE + bit < first)
        {
            self.give_up_first();
        }
        self.first = first;
    }

    /// The page that has this piece's record, which is open from now on.
    fn find_or_open(&mut self, fragment: &Fragment<'_>) -> Option<usize> {
        let number = fragment.record / PAGE;
        let index = match self.find(number) {
            Ok(index) => index,
            Err(index) => {
                let fresh = || Box::new(Page { bits: 0, entries: [const { Entry::new() }; PAGE as usize] });
                let page = self.spare.pop().unwrap_or_else(fresh);
                self.pages.insert(index, (number, page));
                index
            }
        };
        let (_, page) = self.pages.get_mut(index)?;
        let bit = fragment.record % PAGE;
        if page.bits >> bit & 1 == 0 {
            page.bits |= 1 << bit;
            let entry = page.entries.get_mut(bit as usize)?;
            let bytes = self.shelf.take(fragment.total as usize);
            self.bytes += bytes.capacity();
            *entry = Entry { bytes, total: fragment.total, ..Entry::new() };
        }
        Some(index)
    }

    /// The place of the page with this number, or the one where it belongs.
    fn find(&self, wanted: u64) -> Result<usize, usize> {
        // Most pieces belong to the newest records.
        match self.pages.back() {
            Some((last, _)) if *last == wanted => Ok(self.pages.len() - 1),
            Some((last, _)) if *last < wanted => Err(self.pages.len()),
            _ => self.pages.binary_search_by_key(&wanted, |(number, _)| *number),
        }
    }

    /// The oldest open record.
    fn front(&self) -> Option<(u64, &Page)> {
        let (_, page) = self.pages.front()?;
        Some((u64::from(page.bits.trailing_zeros()).min(PAGE - 1), page))
    }

    fn give_up_first(&mut self) {
        let Some((bit, _)) = self.front() else { return };
        if let Some((number, _)) = self.pages.front() {
            self.first = number * PAGE + bit + 1;
        }
        self.abandoned += 1;
        self.close(0, bit);
    }

    /// The record is over.
    fn close(&mut self, index: usize, bit: u64) {
        let Some((_, page)) = self.pages.get_mut(index) else { return };
        page.bits &= !(1 << bit);
        if let Some(entry) = page.entries.get_mut(bit as usize) {
            let bytes = std::mem::take(&mut entry.bytes);
            self.bytes -= bytes.capacity();
            self.shelf.give(bytes);
        }
        if page.bits == 0
            && let Some((_, page)) = self.pages.remove(index)
            && self.spare.len() < SPARE
        {
            self.spare.push(page);
        }
    }

    fn enforce_bound(&mut self) {
        while self.memory() > self.max_bytes {
            let others = self.memory() - self.shelf.bytes();
            self.shelf.shrink(self.max_bytes.saturating_sub(others));
            if self.memory() <= self.max_bytes || self.pages.is_empty() && self.spare.is_empty() {
                return;
            }
            if self.spare.pop().is_none() {
                self.give_up_first();
            }
        }
    }
}

impl Entry {
    const fn new() -> Self {
        Self { bytes: Vec::new(), total: 0, received: 0, newest: 0 }
    }

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
