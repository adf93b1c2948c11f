//! A hash table that is only ever asked for one key at a time.

#[expect(
    clippy::disallowed_types,
    reason = "wrapped so that it cannot be iterated: its order never shows"
)]
use std::collections::HashMap;
use std::hash::Hash;

/// A map without iteration, so that nothing depends on its order.
///
/// The hasher is the standard, keyed one: keys come from the network.
#[derive(Debug)]
pub(crate) struct Lookup<K, V> {
    #[expect(clippy::disallowed_types, reason = "never iterated")]
    map: HashMap<K, V>,
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
