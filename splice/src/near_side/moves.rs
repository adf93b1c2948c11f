//! Requester side: flows of two hosts that go on by another member of the peer's site.
//!
//! Rule: `docs/protocol.md#rule-moved`.

use roce::pairing::FlowKey;

use super::{NearKey, NearSide};
use crate::context::Context;
use crate::named_flow::read_flow;
use crate::retention::{Moved, Revival};
use crate::stale_flows::{FlowSide, StaleFlow};

/// Flows on their way to another gateway of this thread.
#[derive(Debug, Default)]
pub(crate) struct Released {
    pub(crate) flows: Vec<StaleFlow>,
    /// Requests that are retained of them, and of flows whose requesters have not come yet.
    retained: Vec<(FlowKey, Moved)>,
}

impl NearSide {
    /// Forgets the flows that are meant, and says nothing to their requesters. Returns those whose
    /// requesters may go on, with what is retained of them.
    pub(crate) fn release(&mut self, is_meant: impl Fn(&FlowKey) -> bool, ctx: &mut Context<'_>) -> Released {
        let meant = self.flows.iter().filter(|(_, flow)| is_meant(&flow.key()));
        let slots: Vec<_> = meant.map(|(slot, _)| slot).collect();
        let mut released = Released::default();
        for slot in slots {
            if let Some(flow) = self.flows.get(slot).filter(|flow| !flow.near.is_failed()) {
                // For whoever asks the target, it is as if the peer had told of it.
                let side = |flow| StaleFlow { side: FlowSide::Far, ..flow };
                released.flows.extend(flow.remembered().map(side));
                self.tell_closed(slot, ctx);
                released.retained.extend(self.take_retained(slot, ctx));
            }
            self.close(slot, ctx);
        }
        // Their requesters may not have come since they were moved here.
        let orphans = ctx.retention.as_mut().map(|retention| retention.take_orphans(is_meant));
        released.retained.extend(orphans.into_iter().flatten());
        released
    }

    /// The gateway that the flow leaves is to forget its half: it may still be there.
    fn tell_closed(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if self.by_id.get(&flow.id) == Some(slot) && flow.requests > 0 {
            flow.tell_closed(ctx);
        }
    }

    /// Takes out what is retained of a flow, with what this process knows of its target.
    fn take_retained(&mut self, slot: NearKey, ctx: &mut Context<'_>) -> Option<(FlowKey, Moved)> {
        self.strand(slot, ctx);
        let flow = self.flows.get_mut(slot)?;
        flow.take_revival(ctx);
        let (key, addressing) = (flow.key(), flow.addressing);
        let retention = ctx.retention.as_mut().filter(|_| !flow.run.is_empty())?;
        Some((key, retention.take_out(std::mem::take(&mut flow.run), &key, addressing)?))
    }

    /// Takes in flows that another gateway of this thread has released, until requesters come.
    pub(crate) fn adopt(&mut self, released: Released, ctx: &mut Context<'_>) {
        let until = ctx.now + ctx.settings.linger.max(ctx.settings.idle_flow);
        if let Some(retention) = ctx.retention.as_mut() {
            for (key, moved) in released.retained {
                let group = ctx.settings.grouping.group(key.requester);
                retention.take_in(key, &moved, group, until);
            }
        }
        for flow in released.flows {
            self.await_requester(flow, ctx);
        }
    }

    /// The peer names a flow of which it knows none of our requests any more: its requester may go
    /// on in the midst of a message.
    pub(crate) fn handle_lives(&mut self, body: &[u8], ctx: &mut Context<'_>) {
        let Some(flow) = read_flow(body).filter(|flow| ctx.settings.may_remember(flow)) else {
            ctx.stats.bad_records += 1;
            return;
        };
        self.await_requester(flow, ctx);
    }

    /// The same of a flow that is known to be one between hosts here and there.
    pub(crate) fn await_requester(&mut self, flow: StaleFlow, ctx: &mut Context<'_>) {
        let until = ctx.now + ctx.settings.linger.max(ctx.settings.idle_flow);
        let Some(slot) = self.by_key.get(&flow.key()) else {
            return ctx.stale_flows.await_requester(flow, until);
        };
        let known = self.flows.get(slot);
        if known.is_some_and(|known| known.near.is_failed() || known.run.revival.is_some()) {
            return;
        }
        self.strand(slot, ctx);
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.revive(Revival::default(), ctx);
        }
    }
}
