//! Requester side: flows of two hosts that go on by another member of the peer's site.
//!
//! Rule: `docs/protocol.md#rule-moved`.

use roce::pairing::FlowKey;

use super::NearSide;
use crate::context::Context;
use crate::named_flow::read_flow;
use crate::retention::Revival;
use crate::stale_flows::{FlowSide, StaleFlow};

impl NearSide {
    /// Forgets the flows that are meant, and says nothing to their requesters. Returns those whose
    /// requesters may go on.
    pub(crate) fn release(
        &mut self,
        is_meant: impl Fn(&FlowKey) -> bool,
        ctx: &mut Context<'_>,
    ) -> Vec<StaleFlow> {
        let meant = self.flows.iter().filter(|(_, flow)| is_meant(&flow.key()));
        let slots: Vec<_> = meant.map(|(slot, _)| slot).collect();
        let mut released = Vec::new();
        for slot in slots {
            let flow = self.flows.get(slot).filter(|flow| !flow.near.is_failed());
            // For whoever asks the target, it is as if the peer had told of it.
            let side = |flow| StaleFlow { side: FlowSide::Far, ..flow };
            released.extend(flow.and_then(|flow| flow.remembered()).map(side));
            self.close(slot, ctx);
        }
        released
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
