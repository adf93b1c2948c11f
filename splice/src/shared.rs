//! Configurations that flows share.

use std::sync::Arc;

/// The newest of a kind of flow. As long as the next one is the same, so is its memory.
#[derive(Debug)]
pub(crate) struct Shared<C>(Arc<C>);

impl<C: Default + PartialEq> Default for Shared<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Default + PartialEq> Shared<C> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the newest.
    ///
    /// For each packet it is borrowed: counting one more owner is an atomic operation, and waits
    /// until all that was copied before has left the store buffer.
    pub(crate) fn newest(&self) -> &Arc<C> {
        &self.0
    }

    /// Takes `config` for the newest.
    pub(crate) fn renew(&mut self, config: C) {
        if *self.0 != config {
            self.0 = Arc::new(config);
        }
    }

    /// For a flow that begins with `config`.
    pub(crate) fn take(&mut self, config: C) -> Arc<C> {
        self.renew(config);
        Arc::clone(&self.0)
    }
}
