//! Requester side: the flows as they are read from a snapshot.

use std::sync::Arc;

use super::NearSide;
use crate::Settings;

impl NearSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self, settings: &Settings) {
        let config = self.config(settings);
        for flow in self.flows.values_mut() {
            flow.near.share(Arc::clone(&config), Arc::clone(&self.counters));
        }
    }
}
