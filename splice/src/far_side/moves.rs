//! Responder side: flows of two hosts that go on by another member of the peer's site.
//!
//! Rule: `docs/protocol.md#rule-moved`.

use std::sync::Arc;

use roce::pairing::FlowKey;
use transport::{Reservation, Urgency};

use super::{Asking, FarFlow, FarKey, FarSide};
use crate::back_pressure::Lists;
use crate::classes::traffic;
use crate::context::Context;
use crate::far_side::open::far_config;
use crate::named_flow::write_flow;
use crate::record::{FlowId, Head};
use crate::stale_flows::StaleFlow;

/// A far half that is in no table.
pub(crate) struct Moving {
    flow: Box<FarFlow>,
    /// The flow as its requester's gateway is to know it.
    named: Option<StaleFlow>,
}

impl FarSide {
    /// Takes the flows that are meant out of all tables. They have what came in order.
    pub(crate) fn release(
        &mut self,
        is_meant: impl Fn(&FlowKey) -> bool,
        ctx: &mut Context<'_>,
    ) -> Vec<Moving> {
        let meant = self.flows.iter().filter(|(_, flow)| is_meant(&flow.key()));
        let slots: Vec<_> = meant.map(|(slot, _)| slot).collect();
        slots.into_iter().filter_map(|slot| self.release_one(slot, ctx)).collect()
    }

    fn release_one(&mut self, slot: FarKey, ctx: &mut Context<'_>) -> Option<Moving> {
        // Its requester's gateway is not to wait for answers, nor to send what follows.
        self.tell_no_place(slot, ctx);
        let flow = self.take_out(slot, None, ctx)?;
        let named = flow.remembered().filter(|flow| flow.lives);
        (!flow.far.is_dead()).then_some(Moving { flow, named })
    }

    /// Takes in flows of another table. Their targets get what has come in order, and no record
    /// names them. The peer hears of those that have not ended, so that their requesters may go on.
    pub(crate) fn adopt(&mut self, moving: Vec<Moving>, ctx: &mut Context<'_>) {
        for Moving { flow, named } in moving {
            let key = flow.key();
            // A request that came by the new way is later than all that this one has.
            let is_free = self.by_key.get(&key).is_none() && self.make_room(key.requester, ctx);
            if is_free && ctx.pairings.open(key, ctx.now).is_ok() {
                self.put_in(flow, ctx);
            }
            if let Some(named) = named {
                // Without room the requester's next packet begins no flow, and it repeats.
                let _ = ctx.push(0, Urgency::Prompt, &Head::Lives, [&write_flow(&named), &[]]);
            }
        }
    }

    fn put_in(&mut self, mut flow: Box<FarFlow>, ctx: &mut Context<'_>) {
        let key = flow.key();
        // No record names it, so it is in no table of identifiers.
        flow.id = FlowId(u32::MAX);
        flow.orphaned = true;
        flow.asking = Asking::new(flow.requester_qpn.take());
        (flow.armed, flow.queued, flow.withheld) = (None, None, Lists::default());
        flow.kept = Reservation::default();
        flow.choice = ctx.classes.choice(&traffic(&flow.addressing, key.target_qpn.get()));
        flow.last_activity = ctx.now;
        let config = far_config(ctx);
        flow.far.share(|_| self.config.take(config), Arc::clone(&self.counters));
        flow.far.set_cut_off(false, ctx.now);
        let slot = self.flows.insert(flow);
        self.by_key.insert(key, slot);
        self.hosts.join(key.requester);
        self.touch(slot, ctx);
    }
}
