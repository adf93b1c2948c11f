//! Flows that are held back until their class's stream has drained.

use std::collections::VecDeque;

use config::MAX_CLASSES;

/// Flows in lists, one for each class. A flow whose messages take several classes may stand in
/// several lists, in each of them once.
///
/// Bound: as many entries as there are flows, in each list; in all of them together, half as many
/// again and [`SPARE`] of flows that are gone.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct BackPressureQueue<K> {
    lists: [VecDeque<K>; MAX_CLASSES],
    /// Lists with entries, a bit for each. It is asked with every packet, and mostly there are
    /// none.
    occupied: u32,
    /// Entries of flows that are gone, at most.
    stale: usize,
}

/// Fewer entries are not worth looking through.
const SPARE: usize = 64;

/// In which lists a flow stands.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Lists(u32);

impl Lists {
    /// Returns true if the flow stands on any list.
    pub(crate) fn is_any(self) -> bool {
        self.0 != 0
    }

    /// The flow was taken from the class's list.
    pub(crate) fn leave(&mut self, class: usize) {
        self.0 &= !bit(class);
    }
}

impl<K: Copy> BackPressureQueue<K> {
    pub(crate) fn new() -> Self {
        Self { lists: Default::default(), occupied: 0, stale: 0 }
    }

    /// Puts a flow on the class's list, unless it stands there.
    pub(crate) fn add(&mut self, key: K, lists: &mut Lists, class: usize) {
        if lists.0 & bit(class) == 0
            && let Some(list) = self.lists.get_mut(class)
        {
            lists.0 |= bit(class);
            self.occupied |= bit(class);
            list.push_back(key);
        }
    }

    /// Puts back a flow that was taken from the class's list, in its place.
    pub(crate) fn add_first(&mut self, key: K, lists: &mut Lists, class: usize) {
        if let Some(list) = self.lists.get_mut(class) {
            lists.0 |= bit(class);
            self.occupied |= bit(class);
            list.push_front(key);
        }
    }

    /// A flow is gone that stands on these lists. Now and then all entries are looked through for
    /// those that are still `there`.
    pub(crate) fn forget(&mut self, lists: Lists, there: impl Fn(K) -> bool) {
        self.stale += lists.0.count_ones() as usize;
        let entries: usize = self.lists.iter().map(VecDeque::len).sum();
        if self.stale > entries / 3 + SPARE {
            self.lists.iter_mut().for_each(|list| list.retain(|key| there(*key)));
            self.stale = 0;
            let occupied = self.lists.iter().enumerate().filter(|(_, list)| !list.is_empty());
            self.occupied = occupied.fold(0, |occupied, (class, _)| occupied | bit(class));
        }
    }

    /// Takes the flow that has been on the class's list for longest; the owner has it
    /// [leave](Lists::leave).
    pub(crate) fn pop(&mut self, class: usize) -> Option<K> {
        let list = self.lists.get_mut(class)?;
        let key = list.pop_front();
        if list.is_empty() {
            self.occupied &= !bit(class);
        }
        key
    }

    /// Takes all from all lists, one that stands in several as often; the owner clears their
    /// [`Lists`].
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = K> + '_ {
        self.occupied = 0;
        self.lists.iter_mut().flat_map(|list| list.drain(..))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.occupied == 0
    }
}

fn bit(class: usize) -> u32 {
    1u32.checked_shl(class as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_are_gone_do_not_pile_up() {
        let mut withheld = BackPressureQueue::new();
        let mut longest = 0;
        for key in 0..10_000 {
            let mut lists = Lists::default();
            withheld.add(key, &mut lists, 0);
            withheld.add(key, &mut lists, 3);
            withheld.add(key, &mut lists, 3);
            // Every tenth stays.
            if key % 10 != 0 {
                withheld.forget(lists, |key: u32| key.is_multiple_of(10));
            }
            longest = longest.max(withheld.lists[3].len());
        }
        let entries = withheld.lists.each_ref().map(VecDeque::len);
        assert!((1000..=1500 + SPARE).contains(&longest), "{longest}");
        assert_eq!((entries[1], entries[0]), (0, entries[3]));
        let left: Vec<u32> =
            std::iter::from_fn(|| withheld.pop(0)).filter(|key| key.is_multiple_of(10)).collect();
        assert!(left.into_iter().eq((0..10_000).step_by(10)), "all that are there, in their order");
    }

    #[test]
    fn it_is_empty_when_all_lists_are() {
        let mut withheld = BackPressureQueue::new();
        let mut lists = Lists::default();
        withheld.add(1, &mut lists, 0);
        withheld.add_first(1, &mut lists, MAX_CLASSES - 1);
        assert_eq!((withheld.pop(0), withheld.is_empty()), (Some(1), false));
        assert_eq!((withheld.pop(MAX_CLASSES - 1), withheld.is_empty()), (Some(1), true));
        withheld.add(2, &mut Lists::default(), 5);
        assert_eq!((withheld.drain().count(), withheld.is_empty()), (1, true));
        withheld.add(3, &mut Lists::default(), 5);
        for _ in 0..=2 * SPARE {
            withheld.forget(Lists(1), |_| false);
        }
        assert!(withheld.is_empty(), "all of them are gone");
    }
}
