//! Responder side: the flows as they are read from a snapshot.

use std::sync::Arc;

use super::FarSide;

impl FarSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self) {
        for flow in self.flows.values_mut() {
            flow.far.share(|config| self.config.take(config), Arc::clone(&self.counters));
        }
    }
}
