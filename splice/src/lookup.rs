//! A hash table that is only ever asked for one key at a time.

use std::cell::Cell;
#[expect(
    clippy::disallowed_types,
    reason = "wrapped so that it cannot be iterated: its order never shows"
)]
use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map without iteration, so that nothing depends on its order.
///
/// The hasher is the standard, keyed one: keys come from the network. What was found last is found
/// again without it, since packets of a flow come several in a row.
#[derive(Debug)]
pub(crate) struct Lookup<K: Copy, V: Copy> {
    #[expect(clippy::disallowed_types, reason = "never iterated")]
    map: HashMap<K, V>,
    latest: Cell<Option<(K, V)>>,
}

/// In a snapshot it is a sorted list.
impl<K: Copy + Ord + Serialize, V: Copy + Serialize> Serialize for Lookup<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries: Vec<_> = self.map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.serialize(serializer)
    }
}

impl<'de, K, V> Deserialize<'de> for Lookup<K, V>
where
    K: Copy + Eq + Hash + Deserialize<'de>,
    V: Copy + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(Self { map: entries.into_iter().collect(), latest: Cell::default() })
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Lookup<K, V> {
    pub(crate) fn new() -> Self {
        Self { map: Default::default(), latest: Cell::default() }
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        if let Some((latest, value)) = self.latest.get()
            && latest == *key
        {
            return Some(value);
        }
        let found = self.map.get(key).copied()?;
        self.latest.set(Some((*key, found)));
        Some(found)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.latest.set(None);
        self.map.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.latest.set(None);
        self.map.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_last_is_gone_or_another_when_the_table_says_so() {
        let mut lookup = Lookup::new();
        lookup.insert(1, 'a');
        assert_eq!([lookup.get(&1), lookup.get(&1), lookup.get(&2)], [Some('a'), Some('a'), None]);
        lookup.insert(1, 'b');
        assert_eq!(lookup.get(&1), Some('b'));
        lookup.insert(2, 'c');
        assert_eq!([lookup.get(&1), lookup.get(&2), lookup.get(&1)], [Some('b'), Some('c'), Some('b')]);
        lookup.remove(&1);
        assert_eq!([lookup.get(&1), lookup.get(&2)], [None, Some('c')]);
    }
}
