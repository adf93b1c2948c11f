//! A hash table that is only ever asked for one key at a time.

#[expect(
    clippy::disallowed_types,
    reason = "wrapped so that it cannot be iterated: its order never shows"
)]
use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map without iteration, so that nothing depends on its order.
///
/// The hasher is the standard, keyed one: keys come from the network.
#[derive(Debug)]
pub(crate) struct Lookup<K, V> {
    #[expect(clippy::disallowed_types, reason = "never iterated")]
    map: HashMap<K, V>,
}

/// In a snapshot it is a sorted list.
impl<K: Ord + Serialize, V: Serialize> Serialize for Lookup<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries: Vec<_> = self.map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.serialize(serializer)
    }
}

impl<'de, K: Eq + Hash + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Lookup<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(Self { map: entries.into_iter().collect() })
    }
}

impl<K: Eq + Hash, V: Copy> Lookup<K, V> {
    pub(crate) fn new() -> Self {
        Self { map: Default::default() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key).copied()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.map.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }
}
