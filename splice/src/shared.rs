//! Configurations that flows share.

use std::sync::Arc;

/// The newest of a kind of flow. As long as the next one is the same, so is its memory.
#[derive(Debug)]
pub(crate) struct Shared<C>(Arc<C>);

impl<C: Default + PartialEq> Shared<C> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the newest.
    pub(crate) fn newest(&self) -> Arc<C> {
        Arc::clone(&self.0)
    }

    /// For a flow that begins with `config`.
    pub(crate) fn take(&mut self, config: C) -> Arc<C> {
        if *self.0 != config {
            self.0 = Arc::new(config);
        }
        Arc::clone(&self.0)
    }
}
