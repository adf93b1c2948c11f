//! Flows that wait for room in their class's stream to send a READ, or for their turn to send anything.

use config::MAX_CLASSES;

use super::FarSide;
use crate::context::Context;
use crate::withheld::Lists;

impl FarSide {
    /// Where a stream has drained, the flow that has waited longest for that may send its READ.
    pub(super) fn release_withheld(&mut self, ctx: &Context<'_>) -> bool {
        let piece = ctx.senders.read_piece();
        for class in 0..MAX_CLASSES {
            while ctx.senders.read_room(class) >= piece
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.withheld.leave(class);
                // If its next READ takes another class by now, it comes to stand on that one's list.
                if !flow.queued {
                    flow.queued = true;
                    self.ready.push_back(slot);
                    return true;
                }
            }
        }
        false
    }

    /// The classes are others now: whoever waits for room asks anew. All others come to theirs with their next packet.
    pub(crate) fn reclassify(&mut self) {
        for slot in self.withheld.drain() {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            flow.withheld = Lists::default();
            if !std::mem::replace(&mut flow.queued, true) {
                self.ready.push_back(slot);
            }
        }
    }

    /// Whose turn it is to send may have changed.
    pub(crate) fn kick_unpaired(&mut self) {
        for slot in self.others_turn.drain(..) {
            if let Some(flow) = self.flows.get_mut(slot) {
                flow.awaits_turn = false;
                if !std::mem::replace(&mut flow.queued, true) {
                    self.ready.push_back(slot);
                }
            }
        }
    }
}
