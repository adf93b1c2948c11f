//! Responder side: the flows as they are read from a snapshot.

use std::sync::Arc;

use super::FarSide;
use crate::Settings;
use crate::hosts::Grouping;

impl FarSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self, settings: &Settings) {
        self.grouping = Grouping::new(settings.host_key);
        for flow in self.flows.values_mut() {
            flow.far.share(|config| self.config.take(config), Arc::clone(&self.counters));
        }
    }

    /// Puts flows whose targets have not spoken in the order in which they may give way.
    pub(crate) fn order(&mut self) {
        let mut slots: Vec<_> = self.flows.iter().map(|(slot, flow)| (flow.last_activity, slot)).collect();
        slots.sort_by_key(|(last_activity, _)| *last_activity);
        slots.into_iter().for_each(|(_, slot)| self.enter_unheard(slot));
    }
}
