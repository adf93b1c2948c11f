//! What the flows to one target host have on their way together, so that the gateway there can hold it.

use std::net::IpAddr;

use slotmap::SlotMap;

use super::{NearKey, NearSide};
use crate::context::Context;
use crate::lookup::Lookup;
use crate::relief::host_share;

slotmap::new_key_type! {
    pub(super) struct TargetKey;
}

/// A host that flows go to.
#[derive(Debug)]
struct Target {
    address: IpAddr,
    flows: usize,
    /// What it has not answered yet: at most so much can its gateway have to hold.
    bytes: usize,
    /// Flows whose mid-message ACKs are withheld for its sake.
    withheld: Vec<NearKey>,
}

/// The target hosts of all near flows. Bound: as many as flows.
#[derive(Debug)]
pub(super) struct Targets {
    targets: SlotMap<TargetKey, Target>,
    by_address: Lookup<IpAddr, TargetKey>,
}

impl Targets {
    pub(super) fn new() -> Self {
        Self { targets: SlotMap::with_key(), by_address: Lookup::new() }
    }

    /// A flow begins.
    pub(super) fn join(&mut self, address: IpAddr) -> TargetKey {
        let key = self.by_address.get(&address).unwrap_or_else(|| {
            let target = Target { address, flows: 0, bytes: 0, withheld: Vec::new() };
            let key = self.targets.insert(target);
            self.by_address.insert(address, key);
            key
        });
        if let Some(target) = self.targets.get_mut(key) {
            target.flows += 1;
        }
        key
    }

    /// A flow is gone, which had so much counted.
    pub(super) fn leave(&mut self, key: TargetKey, flow: NearKey, mut counted: u32) {
        self.count(key, &mut counted, 0);
        let Some(target) = self.targets.get_mut(key) else { return };
        target.withheld.retain(|other| *other != flow);
        target.flows -= 1;
        if target.flows == 0 {
            self.by_address.remove(&target.address);
            self.targets.remove(key);
        }
    }

    /// A flow has so much outstanding now.
    pub(super) fn count(&mut self, key: TargetKey, counted: &mut u32, now: usize) {
        let Some(target) = self.targets.get_mut(key) else { return };
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        target.bytes = target.bytes - *counted as usize + now as usize;
        *counted = now;
    }

    pub(super) fn bytes(&self, key: TargetKey) -> usize {
        self.targets.get(key).map_or(0, |target| target.bytes)
    }

    /// The flow's mid-message ACKs are withheld, and it is on nobody's list yet.
    pub(super) fn withhold(&mut self, key: TargetKey, flow: NearKey) {
        if let Some(target) = self.targets.get_mut(key) {
            target.withheld.push(flow);
        }
    }

    fn release(&mut self, key: TargetKey) -> Option<NearKey> {
        self.targets.get_mut(key)?.withheld.pop()
    }
}

/// Beyond that, requesters get no ACKs inside messages. `total_buffer` is taken to be the peer's as well.
pub(super) fn soft_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 4 * 3
}

/// Beyond that, requests are dropped: just below what the peer's gateway lets the flows to one target hold, before it ends them.
pub(super) fn hard_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 8 * 7
}

impl NearSide {
    /// The target of this flow may have answered: those that go there as well may have ACKs again.
    pub(super) fn release_target(&mut self, key: TargetKey, ctx: &mut Context<'_>) {
        let limit = soft_limit(ctx.settings.total_buffer);
        while self.targets.bytes(key) <= limit
            && let Some(slot) = self.targets.release(key)
        {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            flow.awaits_target = false;
            let class = flow.class_of(flow.judged.into(), ctx.classes);
            if ctx.senders.has_headroom(class) {
                flow.near.set_writable(true, ctx.now);
                self.touch(slot, ctx);
            } else {
                self.withheld.add(slot, &mut flow.withheld, class);
            }
        }
    }
}
