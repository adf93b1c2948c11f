//! Restores the order of one flow's records.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Slots per page, and so bits per word of the bitmap.
const PAGE: u32 = 64;
/// Sequence numbers modulo 2^32 make so many pages.
const NUMBERS: u32 = u32::MAX / PAGE + 1;

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Insert {
    /// It is already here, and waits for an earlier one.
    #[error("the record is already here")]
    Duplicate,
    /// It was released before: it belongs to an earlier generation of its slot.
    #[error("the record was released before")]
    Late,
    /// It lies beyond the window, i.e. its slot still belongs to an earlier generation.
    #[error("the record lies beyond the window")]
    BeyondWindow,
    /// All [`Pages`] are taken.
    #[error("no room for records that wait")]
    NoRoom,
}

/// Releases records in the order of their sequence numbers, each as soon as all before it were
/// released.
///
/// The message bitmap: one bit and one slot per record of a window. A slot serves many generations
/// of sequence numbers, one after the other; a record of an earlier one is told by its distance
/// from the next to be released, so it is never taken for a new one. Sequence numbers wrap.
///
/// # Contract
/// Every call gets the same [`Pages`]. Call [`Reassembly::clear`] before dropping it, or its pages
/// count as taken for ever.
///
/// # Bounds
/// At most `window` records are held; one beyond is refused with [`Insert::BeyondWindow`]. While
/// nothing is out of order, no slot is needed; with a gap, the records that wait are held in pages
/// of 64 slots, each of which goes back to the [`Pages`] as soon as it is empty. If there is none
/// left a record is refused with [`Insert::NoRoom`].
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Reassembly<T> {
    /// The next record to be released.
    next: u32,
    window: u32,
    /// The record `next`, if it is here.
    head: Option<T>,
    /// Pages that hold something, in order, each with its number: `sequence / 64`.
    pages: Numbered<T>,
    held: usize,
}

/// Pages in order. Most flows never have any, and then there is no memory for them.
#[derive(Debug)]
struct Numbered<T>(Option<Box<Pile<T>>>);

type Pile<T> = VecDeque<(u32, Box<Page<T>>)>;

impl<T> Numbered<T> {
    fn pile(&self) -> Option<&Pile<T>> {
        self.0.as_deref()
    }

    fn pile_mut(&mut self) -> Option<&mut Pile<T>> {
        self.0.as_deref_mut()
    }
}

impl<T: Serialize> Serialize for Numbered<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.pile() {
            Some(pile) => pile.serialize(serializer),
            None => Pile::<T>::new().serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Numbered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pile = Pile::deserialize(deserializer)?;
        Ok(Self((!pile.is_empty()).then(|| Box::new(pile))))
    }
}

/// Memory for the records of many [`Reassembly`]s that wait for earlier ones.
///
/// # Bounds
/// Pages of no more than `limit` bytes in all are handed out, and some are kept for reuse: at
/// steady state nothing is allocated.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
pub struct Pages<T> {
    #[serde(skip)]
    spare: Vec<Box<Page<T>>>,
    taken: usize,
    most: usize,
}

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(bound(serialize = "T: serde::Serialize", deserialize = "T: serde::Deserialize<'de>"))]
struct Page<T> {
    /// Which slots are taken.
    bits: u64,
    #[serde_as(as = "[_; PAGE as usize]")]
    slots: [Option<T>; PAGE as usize],
}

/// Pages at hand whatever the limit, so that one that is set too low does not stop a flow at its
/// first gap.
const LEAST: usize = 16;
/// Emptied pages kept for reuse: what 16384 records need.
const SPARE: usize = 256;
/// Places for pages that an empty [`Reassembly`] keeps.
const KEEP: usize = 16;

impl<T> Pages<T> {
    /// Memory of `limit` bytes at most, and 16 pages at least.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { spare: Vec::new(), taken: 0, most: (limit / size_of::<Page<T>>()).max(LEAST) }
    }

    /// Bytes of memory held, what is kept for reuse included; not what the records themselves own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.taken + self.spare.len()) * size_of::<Page<T>>()
    }

    /// Bytes of it in which records wait.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        self.taken * size_of::<Page<T>>()
    }

    fn take(&mut self) -> Option<Box<Page<T>>> {
        if self.taken >= self.most {
            return None;
        }
        self.taken += 1;
        let fresh = || Box::new(Page { bits: 0, slots: [const { None }; PAGE as usize] });
        Some(self.spare.pop().unwrap_or_else(fresh))
    }

    /// Takes an emptied page back.
    fn give(&mut self, page: Box<Page<T>>) {
        self.taken -= 1;
        if self.spare.len() < SPARE {
            self.spare.push(page);
        }
    }
}

impl<T> Reassembly<T> {
    /// Expects the record `first` and takes up to `window` (at most 2^24) records from the next one
    /// to be released on.
    #[must_use]
    pub fn new(first: u32, window: u32) -> Self {
        Self { next: first, window: window.clamp(1, 1 << 24), head: None, pages: Numbered(None), held: 0 }
    }

    /// Takes a record.
    ///
    /// # Errors
    /// [`Insert`] says why it was dropped.
    pub fn insert(&mut self, sequence: u32, record: T, pages: &mut Pages<T>) -> Result<(), Insert> {
        let distance = sequence.wrapping_sub(self.next);
        if distance > u32::MAX / 2 {
            return Err(Insert::Late);
        }
        if distance >= self.window {
            return Err(Insert::BeyondWindow);
        }
        if distance == 0 {
            if self.head.is_some() {
                return Err(Insert::Duplicate);
            }
            self.head = Some(record);
        } else {
            self.store(sequence, record, pages)?;
        }
        self.held += 1;
        Ok(())
    }

    /// The next record in order, if it is here.
    pub fn pop(&mut self, pages: &mut Pages<T>) -> Option<T> {
        let record = self.head.take()?;
        self.held -= 1;
        self.next = self.next.wrapping_add(1);
        self.head = self.fetch(self.next, pages);
        Some(record)
    }

    /// Gives up what is missing before the first record held, so that [`Reassembly::pop`] returns
    /// that one; how many records are given up: none if the next one is here, or nothing is held.
    pub fn skip(&mut self, pages: &mut Pages<T>) -> u32 {
        if self.head.is_some() {
            return 0;
        }
        let Some((number, page)) = self.pages.pile().and_then(VecDeque::front) else { return 0 };
        let first = (number * PAGE).wrapping_add(page.bits.trailing_zeros());
        let missing = first.wrapping_sub(self.next);
        self.next = first;
        self.head = self.fetch(first, pages);
        missing
    }

    /// Drops the records held. They count as not received.
    pub fn clear(&mut self, pages: &mut Pages<T>) {
        self.head = None;
        self.held = 0;
        for (_, mut page) in self.pages.pile_mut().into_iter().flat_map(|pile| pile.drain(..)) {
            page.bits = 0;
            page.slots.fill_with(|| None);
            pages.give(page);
        }
        self.trim();
    }

    /// The records held, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let pile = self.pages.pile_mut().into_iter().flatten();
        let pages = pile.flat_map(|(_, page)| page.slots.iter_mut().flatten());
        self.head.iter_mut().chain(pages)
    }

    /// The sequence number that [`Reassembly::pop`] returns next.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Records held, in order or not.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Most records held at a time.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Returns true if the record is held.
    #[must_use]
    pub fn contains(&self, sequence: u32) -> bool {
        if sequence == self.next {
            return self.head.is_some();
        }
        let index = self.find(sequence).ok();
        let page = index.and_then(|index| self.pages.pile()?.get(index));
        page.is_some_and(|(_, page)| page.bits >> (sequence % PAGE) & 1 == 1)
    }

    fn store(&mut self, sequence: u32, record: T, pages: &mut Pages<T>) -> Result<(), Insert> {
        let found = self.find(sequence);
        let pile = self.pages.0.get_or_insert_default();
        let index = match found {
            Ok(index) => index,
            Err(index) => {
                let page = pages.take().ok_or(Insert::NoRoom)?;
                pile.insert(index, (sequence / PAGE, page));
                index
            }
        };
        let page = pile.get_mut(index).map(|(_, page)| page).ok_or(Insert::NoRoom)?;
        match page.slots.get_mut((sequence % PAGE) as usize) {
            Some(slot @ None) => *slot = Some(record),
            _ => return Err(Insert::Duplicate),
        }
        page.bits |= 1 << (sequence % PAGE);
        Ok(())
    }

    fn fetch(&mut self, sequence: u32, pages: &mut Pages<T>) -> Option<T> {
        let pile = self.pages.pile_mut()?;
        let (number, page) = pile.front_mut()?;
        if *number != sequence / PAGE {
            return None;
        }
        let record = page.slots.get_mut((sequence % PAGE) as usize)?.take()?;
        page.bits &= !(1 << (sequence % PAGE));
        if page.bits == 0
            && let Some((_, page)) = pile.pop_front()
        {
            pages.give(page);
            self.trim();
        }
        Some(record)
    }

    /// The place of the record's page, or the one where it belongs.
    fn find(&self, sequence: u32) -> Result<usize, usize> {
        let first = self.next / PAGE;
        let place = |number: u32| number.wrapping_sub(first) % NUMBERS;
        let wanted = place(sequence / PAGE);
        // Most records come behind all others.
        let Some(pile) = self.pages.pile() else { return Err(0) };
        match pile.back() {
            Some((last, _)) if place(*last) < wanted => Err(pile.len()),
            _ => pile.binary_search_by_key(&wanted, |(number, _)| place(*number)),
        }
    }

    /// A flow that had a long gap once gives its memory back.
    fn trim(&mut self) {
        if self.pages.pile().is_some_and(|pile| pile.is_empty() && pile.capacity() > KEEP) {
            self.pages = Numbered(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_in_order_need_no_slots() {
        let (mut flow, mut pages) = (Reassembly::new(u32::MAX - 1, 8), Pages::new(1 << 20));
        for s in 0..10_u32 {
            flow.insert(s.wrapping_sub(2), s, &mut pages).unwrap();
            assert_eq!(flow.pop(&mut pages), Some(s));
        }
        assert_eq!(flow.pop(&mut pages), None);
        assert_eq!(pages.bytes(), 0);
    }

    #[test]
    fn a_gap_holds_back_what_follows_and_no_more() {
        let (mut flow, mut pages) = (Reassembly::new(0, 8), Pages::new(1 << 20));
        for (sequence, record) in [(0, 'a'), (2, 'c'), (3, 'd')] {
            flow.insert(sequence, record, &mut pages).unwrap();
        }
        assert_eq!((flow.pop(&mut pages), flow.pop(&mut pages), flow.held()), (Some('a'), None, 2));
        assert!(flow.contains(2) && !flow.contains(1));
        flow.insert(1, 'b', &mut pages).unwrap();
        let rest = [(); 4].map(|()| flow.pop(&mut pages));
        assert_eq!(rest, [Some('b'), Some('c'), Some('d'), None]);
        assert!(flow.is_empty());
    }

    #[test]
    fn what_is_given_up_is_over() {
        let (mut flow, mut pages) = (Reassembly::new(u32::MAX - 10, 1 << 10), Pages::new(1 << 20));
        assert_eq!(flow.skip(&mut pages), 0);
        for (sequence, record) in [(u32::MAX - 10, 'a'), (u32::MAX, 'b'), (100, 'c'), (101, 'd')] {
            flow.insert(sequence, record, &mut pages).unwrap();
        }
        assert_eq!((flow.skip(&mut pages), flow.pop(&mut pages), flow.pop(&mut pages)), (0, Some('a'), None));
        assert_eq!((flow.skip(&mut pages), flow.pop(&mut pages), flow.pop(&mut pages)), (9, Some('b'), None));
        assert_eq!((flow.skip(&mut pages), flow.next(), flow.held()), (100, 100, 2));
        assert_eq!(flow.insert(99, 'e', &mut pages), Err(Insert::Late));
        assert_eq!((flow.pop(&mut pages), flow.pop(&mut pages)), (Some('c'), Some('d')));
        assert_eq!((flow.skip(&mut pages), pages.bytes_in_use()), (0, 0));
    }

    #[test]
    fn a_flow_that_has_caught_up_holds_nothing() {
        let mut pages = Pages::new(64 << 20);
        let mut flows: Vec<_> = (0..20).map(|_| Reassembly::new(u32::MAX - 5000, 1 << 16)).collect();
        for round in 0..3_u32 {
            for flow in &mut flows {
                let first = flow.next();
                for record in 1..30_000_u32 {
                    flow.insert(first.wrapping_add(record), [round; 10], &mut pages).unwrap();
                }
                assert!(pages.bytes_in_use() <= 30_000 / 64 * 3200, "{} bytes", pages.bytes_in_use());
                flow.insert(first, [round; 10], &mut pages).unwrap();
                assert_eq!(std::iter::from_fn(|| flow.pop(&mut pages)).count(), 30_000);
                assert!(flow.pages.pile().is_none_or(|pile| pile.capacity() <= KEEP));
            }
            assert_eq!(pages.bytes_in_use(), 0);
            assert!(pages.bytes() <= 1 << 20, "{} bytes kept for reuse", pages.bytes());
        }
    }

    #[test]
    fn without_pages_what_is_in_order_still_goes_on() {
        let mut pages = Pages::new(0);
        let (mut one, mut other) = (Reassembly::new(0, 1 << 20), Reassembly::new(0, 1 << 20));
        for page in 1..=16 {
            one.insert(64 * page, page, &mut pages).unwrap();
        }
        assert_eq!(one.insert(64 * 17, 17, &mut pages), Err(Insert::NoRoom));
        assert_eq!(other.insert(1, 1, &mut pages), Err(Insert::NoRoom));
        other.insert(0, 0, &mut pages).unwrap();
        assert_eq!(other.pop(&mut pages), Some(0));
        one.clear(&mut pages);
        assert_eq!((one.held(), one.pop(&mut pages), pages.bytes_in_use()), (0, None, 0));
        assert!(!one.contains(64));
        other.insert(2, 2, &mut pages).unwrap();
        assert!(other.contains(2));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let (mut flow, mut pages) = (Reassembly::new(10, 4), Pages::new(1 << 20));
        let expected = [
            (10, Ok(())),
            (12, Ok(())),
            (10, Err(Insert::Duplicate)),
            (12, Err(Insert::Duplicate)),
            (9, Err(Insert::Late)),
            (14, Err(Insert::BeyondWindow)),
        ];
        for (sequence, result) in expected {
            assert_eq!(flow.insert(sequence, (), &mut pages), result);
        }
        flow.pop(&mut pages);
        flow.insert(14, (), &mut pages).unwrap();
        assert_eq!(flow.insert(10, (), &mut pages), Err(Insert::Late));
    }

    proptest! {
        /// Any arrival order within the window, with copies, comes out once and in order.
        #[test]
        fn order_is_restored(first: u32, window in 1_u32..3000, steps in proptest::collection::vec(any::<u32>(), 1..600)) {
            let (mut flow, mut pages) = (Reassembly::new(first, window), Pages::new(1 << 20));
            let mut held = std::collections::BTreeSet::new();
            let mut next = 0_u32;
            for step in steps {
                // Mostly within the window, sometimes behind or beyond; often the very next.
                let sequence = match step % 4 {
                    0 => next,
                    1 => next.saturating_sub(step / 4 % 5),
                    _ => next + (step / 4) % (window + 2),
                };
                let expected = if sequence < next {
                    Err(Insert::Late)
                } else if sequence >= next + window {
                    Err(Insert::BeyondWindow)
                } else if held.insert(sequence) {
                    Ok(())
                } else {
                    Err(Insert::Duplicate)
                };
                prop_assert_eq!(flow.insert(first.wrapping_add(sequence), sequence, &mut pages), expected);
                if step & 0x100 != 0 {
                    while held.remove(&next) {
                        prop_assert_eq!(flow.pop(&mut pages), Some(next));
                        next += 1;
                    }
                    prop_assert_eq!(flow.pop(&mut pages), None);
                }
                prop_assert_eq!(flow.held(), held.len());
                prop_assert_eq!(pages.bytes_in_use() > 0, held.iter().any(|sequence| *sequence != next));
                prop_assert_eq!(flow.next(), first.wrapping_add(next));
            }
        }
    }
}
