//! Requester side: the flows as they are read from a snapshot.

use std::sync::Arc;

use snapshot::Beside;

use super::{NearKey, NearSide};
use crate::Settings;
use crate::pool::copy_all;

impl NearSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self, settings: &Settings) {
        self.heard.set_grouping(settings.grouping);
        let config = self.config(settings);
        for flow in self.flows.values_mut() {
            flow.near.share(Arc::clone(&config), Arc::clone(&self.counters));
        }
        let flows = self.flows.values().map(Box::as_ref);
        self.budget.regroup(flows, settings.grouping);
    }

    /// Returns all flows.
    pub(crate) fn keys(&self) -> Vec<NearKey> {
        self.flows.keys().collect()
    }

    /// Copies a flow's responses ahead of a snapshot: those that wait, and those that were passed
    /// on. Returns true once it has come to all of them.
    pub(crate) fn copy_ahead(&mut self, slot: NearKey, to: &mut Beside, budget: &mut usize) -> bool {
        let Some(flow) = self.flows.get_mut(slot) else { return true };
        let kept = flow.kept.iter_mut().flat_map(|kept| kept.packets_mut());
        copy_all(flow.early.responses.iter_mut().chain(kept), to, budget)
    }

    /// Puts flows whose targets have not spoken in the order in which they may give way, and counts
    /// the others.
    pub(crate) fn order(&mut self) {
        let mut slots: Vec<_> = self.flows.iter().map(|(slot, flow)| (flow.id.0, slot)).collect();
        // Numbers come round after 2^32 flows.
        slots.sort_by_key(|(id, _)| id.wrapping_sub(self.next_id));
        for (_, slot) in slots {
            self.enter_unheard(slot);
            if let Some(flow) = self.flows.get_mut(slot) {
                Self::note_heard(&mut self.heard, flow);
            }
        }
    }
}
