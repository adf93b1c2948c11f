//! Responder side: flows that wait for room in their class's stream to send a READ, or for their
//! turn to send anything.

use config::MAX_CLASSES;
use roce::pairing::FlowKey;

use super::{FarKey, FarSide};
use crate::Settings;
use crate::back_pressure::Lists;
use crate::context::Context;

impl FarSide {
    /// Where a stream has drained, the flow that has waited longest for that may send its READ.
    pub(super) fn release_withheld(&mut self, ctx: &Context<'_>) -> bool {
        if self.withheld.is_empty() {
            return false;
        }
        let piece = ctx.senders.read_piece();
        for class in 0..MAX_CLASSES {
            while ctx.senders.read_room(class) >= piece
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.withheld.leave(class);
                // If its next READ takes another class by now, it comes to stand on that one's
                // list.
                if flow.queued.is_none() {
                    self.queue(slot, ctx.settings);
                    return true;
                }
            }
        }
        false
    }

    /// The classes are others now: whoever waits for room asks anew. All others come to theirs with
    /// their next packet.
    pub(crate) fn reclassify(&mut self, settings: &Settings) {
        let waiting: Vec<_> = self.withheld.drain().collect();
        for slot in waiting {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            flow.withheld = Lists::default();
            self.queue(slot, settings);
        }
    }

    /// The flow may ask its target, or ask for its turn again.
    pub(crate) fn take_turn(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.far.resume(ctx.now);
        }
        self.follow_turn(slot, ctx);
    }

    /// The flow's requester may have another partner by now.
    pub(crate) fn doubt(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_key.get(key)
            && let Some(flow) = self.flows.get_mut(slot)
        {
            flow.asking.asks = true;
        }
        self.end_turn(key, ctx);
    }

    /// The flow asks once more in its turn.
    pub(crate) fn repeat(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.far.repeat(ctx.now);
        }
        self.touch(slot, ctx);
    }

    /// The flow's turn is over, and its target has not answered.
    pub(crate) fn end_turn(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.far.take_back(ctx.now);
        }
        self.follow_turn(slot, ctx);
    }

    fn follow_turn(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        self.touch(slot, ctx);
        if let Some(failure) = self.flows.get(slot).and_then(|flow| flow.far.failure()) {
            self.remove_failed(slot, failure, ctx);
        }
    }
}
