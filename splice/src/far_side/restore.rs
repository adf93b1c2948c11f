//! Responder side: the flows as they are read from a snapshot.

use std::sync::Arc;

use snapshot::Beside;

use super::{FarKey, FarSide};
use crate::pool::copy_all;

impl FarSide {
    /// Has flows share what they share.
    pub(crate) fn restore(&mut self) {
        for flow in self.flows.values_mut() {
            flow.far.share(|config| self.config.take(config), Arc::clone(&self.counters));
        }
    }

    /// Returns all flows.
    pub(crate) fn keys(&self) -> Vec<FarKey> {
        self.flows.keys().collect()
    }

    /// Copies a flow's requests ahead of a snapshot. Returns true once it has come to all of them.
    pub(crate) fn copy_ahead(&mut self, slot: FarKey, to: &mut Beside, budget: &mut usize) -> bool {
        let Some(flow) = self.flows.get_mut(slot) else { return true };
        let early = flow.requests.iter_mut().map(|request| &mut request.packet);
        copy_all(flow.far.packets_mut().chain(early), to, budget)
    }

    /// Puts flows whose targets have not spoken in the order in which they may give way.
    pub(crate) fn order(&mut self) {
        let mut slots: Vec<_> = self.flows.iter().map(|(slot, flow)| (flow.last_activity, slot)).collect();
        slots.sort_by_key(|(last_activity, _)| *last_activity);
        slots.into_iter().for_each(|(_, slot)| self.enter_unheard(slot));
    }
}
