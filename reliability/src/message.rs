//! Restores the order of one flow's records.

/// Slots per page, and so bits per word of the bitmap.
const PAGE: u32 = 64;

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
}

/// Releases records in the order of their sequence numbers, each as soon as all before it were released.
///
/// The message bitmap: one bit and one slot per record of a window. A slot serves many generations of sequence numbers, one after
/// the other; a record of an earlier one is told by its distance from the next to be released, so it is never taken for a new one.
/// Sequence numbers wrap.
///
/// # Bounds
/// At most `window` records are held; one beyond is refused with [`Insert::BeyondWindow`]. While nothing is out of order, no slot
/// is allocated: pages of 64 slots come with the first gap. Emptied pages are kept, at most as many as the window has.
#[derive(Debug)]
pub struct Reassembly<T> {
    /// The next record to be released.
    next: u32,
    window: u32,
    /// The record `next`, if it is here.
    head: Option<T>,
    /// Ring of pages; page `sequence / 64 % len`. Empty until the first gap.
    pages: Vec<Page<T>>,
    held: usize,
}

#[derive(Debug)]
struct Page<T> {
    /// Which slots are taken.
    bits: u64,
    /// `sequence / 64` of the records in it.
    generation: u32,
    slots: Vec<Option<T>>,
}

impl<T> Reassembly<T> {
    /// Expects the record `first` and takes up to `window` (at most 2^24) records from the next one to be released on.
    #[must_use]
    pub fn new(first: u32, window: u32) -> Self {
        Self { next: first, window: window.clamp(1, 1 << 24), head: None, pages: Vec::new(), held: 0 }
    }

    /// Takes a record.
    ///
    /// # Errors
    /// [`Insert`] says why it was dropped.
    pub fn insert(&mut self, sequence: u32, record: T) -> Result<(), Insert> {
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
            self.store(sequence, record)?;
        }
        self.held += 1;
        Ok(())
    }

    /// The next record in order, if it is here.
    pub fn pop(&mut self) -> Option<T> {
        let record = self.head.take()?;
        self.held -= 1;
        self.next = self.next.wrapping_add(1);
        self.head = self.fetch(self.next);
        Some(record)
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

    /// Whether the record is held.
    #[must_use]
    pub fn contains(&self, sequence: u32) -> bool {
        if sequence == self.next {
            return self.head.is_some();
        }
        let page = self.pages.get(self.index(sequence));
        page.is_some_and(|page| page.generation == sequence / PAGE && page.bits >> (sequence % PAGE) & 1 == 1)
    }

    fn store(&mut self, sequence: u32, record: T) -> Result<(), Insert> {
        if self.pages.is_empty() {
            // One page more than the window, since it may begin within a page; a power of two, so that the ring stays
            // continuous where sequence numbers wrap.
            let pages = (self.window.div_ceil(PAGE) + 1).next_power_of_two();
            self.pages.resize_with(pages as usize, Page::default);
        }
        let index = self.index(sequence);
        let Some(page) = self.pages.get_mut(index) else {
            return Err(Insert::BeyondWindow);
        };
        if page.slots.is_empty() {
            page.slots.resize_with(PAGE as usize, || None);
        }
        let generation = sequence / PAGE;
        if page.bits == 0 {
            page.generation = generation;
        }
        debug_assert_eq!(page.generation, generation, "the window is shorter than the ring");
        match page.slots.get_mut((sequence % PAGE) as usize) {
            Some(slot @ None) => *slot = Some(record),
            _ => return Err(Insert::Duplicate),
        }
        page.bits |= 1 << (sequence % PAGE);
        Ok(())
    }

    fn fetch(&mut self, sequence: u32) -> Option<T> {
        let index = self.index(sequence);
        let page = self.pages.get_mut(index)?;
        if page.bits >> (sequence % PAGE) & 1 == 0 || page.generation != sequence / PAGE {
            return None;
        }
        page.bits &= !(1 << (sequence % PAGE));
        page.slots.get_mut((sequence % PAGE) as usize)?.take()
    }

    fn index(&self, sequence: u32) -> usize {
        (sequence / PAGE) as usize & self.pages.len().saturating_sub(1)
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { bits: 0, generation: 0, slots: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_in_order_need_no_slots() {
        let mut flow = Reassembly::new(u32::MAX - 1, 8);
        for s in 0..10_u32 {
            flow.insert(s.wrapping_sub(2), s).unwrap();
            assert_eq!(flow.pop(), Some(s));
        }
        assert_eq!(flow.pop(), None);
        assert!(flow.pages.is_empty());
    }

    #[test]
    fn a_gap_holds_back_what_follows_and_no_more() {
        let mut flow = Reassembly::new(0, 8);
        flow.insert(0, 'a').unwrap();
        flow.insert(2, 'c').unwrap();
        flow.insert(3, 'd').unwrap();
        assert_eq!((flow.pop(), flow.pop(), flow.held()), (Some('a'), None, 2));
        assert!(flow.contains(2) && !flow.contains(1));
        flow.insert(1, 'b').unwrap();
        assert_eq!((flow.pop(), flow.pop(), flow.pop(), flow.pop()), (Some('b'), Some('c'), Some('d'), None));
        assert!(flow.is_empty());
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let mut flow = Reassembly::new(10, 4);
        flow.insert(10, ()).unwrap();
        flow.insert(12, ()).unwrap();
        assert_eq!(flow.insert(10, ()), Err(Insert::Duplicate));
        assert_eq!(flow.insert(12, ()), Err(Insert::Duplicate));
        assert_eq!(flow.insert(9, ()), Err(Insert::Late));
        assert_eq!(flow.insert(14, ()), Err(Insert::BeyondWindow));
        flow.pop();
        flow.insert(14, ()).unwrap();
        assert_eq!(flow.insert(10, ()), Err(Insert::Late));
    }

    proptest! {
        /// Any arrival order within the window, with copies, comes out once and in order.
        #[test]
        fn order_is_restored(first: u32, window in 1_u32..300, steps in proptest::collection::vec(any::<u32>(), 1..600)) {
            let mut flow = Reassembly::new(first, window);
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
                prop_assert_eq!(flow.insert(first.wrapping_add(sequence), sequence), expected);
                if step & 0x100 != 0 {
                    while held.remove(&next) {
                        prop_assert_eq!(flow.pop(), Some(next));
                        next += 1;
                    }
                    prop_assert_eq!(flow.pop(), None);
                }
                prop_assert_eq!(flow.held(), held.len());
                prop_assert_eq!(flow.next(), first.wrapping_add(next));
            }
        }
    }
}
