//! Requester side: the flows as they are read from a snapshot.

use std::sync::Arc;

use super::NearSide;
use crate::Settings;
use crate::hosts::Grouping;

impl NearSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self, settings: &Settings) {
        let config = self.config(settings);
        for flow in self.flows.values_mut() {
            flow.near.share(Arc::clone(&config), Arc::clone(&self.counters));
        }
        let flows = self.flows.values().map(Box::as_ref);
        self.budget.regroup(flows, Grouping::new(settings.host_key));
    }

    /// Puts flows whose targets have not spoken in the order in which they may give way.
    pub(crate) fn order(&mut self) {
        let mut slots: Vec<_> = self.flows.iter().map(|(slot, flow)| (flow.id.0, slot)).collect();
        // Numbers come round after 2^32 flows.
        slots.sort_by_key(|(id, _)| id.wrapping_sub(self.next_id));
        slots.into_iter().for_each(|(_, slot)| self.enter_unheard(slot));
    }
}
