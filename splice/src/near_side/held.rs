//! Flows whose mid-message ACKs are withheld until their class's stream has drained.

use config::MAX_CLASSES;

use super::{NearKey, NearSide};
use crate::context::Context;
use crate::withheld::Lists;

impl NearSide {
    pub(crate) fn has_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// A stream has drained: mid-message ACKs may flow again.
    pub(crate) fn release_withheld(&mut self, ctx: &mut Context<'_>) {
        for class in 0..MAX_CLASSES {
            while ctx.senders.has_headroom(class)
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.withheld.leave(class);
                // Its messages may take another class by now, on whose list it stands if it has to.
                if flow.class_of(flow.judged.into(), ctx.classes) == class && !flow.awaits_target {
                    flow.near.set_writable(true, ctx.now);
                    self.touch(slot, ctx);
                }
            }
        }
    }

    /// The classes are others now: whoever is held back waits for the stream of the one that its last request would take now. All others come to
    /// theirs with their next packet.
    pub(crate) fn reclassify(&mut self, ctx: &mut Context<'_>) {
        let held: Vec<NearKey> = self.withheld.drain().collect();
        for slot in &held {
            if let Some(flow) = self.flows.get_mut(*slot) {
                flow.withheld = Lists::default();
            }
        }
        for slot in held {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            let class = flow.class_of(flow.judged.into(), ctx.classes);
            self.withheld.add(slot, &mut flow.withheld, class);
        }
        self.release_withheld(ctx);
    }
}
