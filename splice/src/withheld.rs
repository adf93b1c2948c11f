//! Flows that are held back until their class's stream has drained.

use std::collections::VecDeque;

use config::MAX_CLASSES;

/// Flows in lists, one for each class. A flow whose messages take several classes may stand in several lists, in each of them once.
///
/// Bound: as many entries as there are flows, in each list.
#[derive(Debug)]
pub(crate) struct Withheld<K> {
    lists: [VecDeque<K>; MAX_CLASSES],
}

/// In which lists a flow stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lists(u8);

impl Lists {
    /// The flow was taken from the class's list.
    pub(crate) fn leave(&mut self, class: usize) {
        self.0 &= !bit(class);
    }
}

impl<K: Copy> Withheld<K> {
    pub(crate) fn new() -> Self {
        Self { lists: Default::default() }
    }

    /// Puts a flow on the class's list, unless it stands there.
    pub(crate) fn add(&mut self, key: K, lists: &mut Lists, class: usize) {
        if lists.0 & bit(class) == 0
            && let Some(list) = self.lists.get_mut(class)
        {
            lists.0 |= bit(class);
            list.push_back(key);
        }
    }

    /// Takes the flow that has been on the class's list for longest; the owner has it [leave](Lists::leave).
    pub(crate) fn pop(&mut self, class: usize) -> Option<K> {
        self.lists.get_mut(class)?.pop_front()
    }

    /// Takes all from all lists, one that stands in several as often; the owner clears their [`Lists`].
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = K> + '_ {
        self.lists.iter_mut().flat_map(|list| list.drain(..))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(VecDeque::is_empty)
    }
}

fn bit(class: usize) -> u8 {
    1u8.checked_shl(class as u32).unwrap_or(0)
}
