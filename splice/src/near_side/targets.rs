//! Requester side: the bytes that the flows to one target host have on their way together, so that
//! the gateway there can hold them.

use std::net::IpAddr;

use slotmap::SlotMap;

use super::{NearKey, NearSide};
use crate::context::Context;
use crate::lookup::Lookup;
use crate::reclaimer::host_share;

slotmap::new_key_type! {
    /// One requester's share of a target.
    pub(super) struct TargetKey;
    struct HostKey;
}

/// A host that flows go to.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Target {
    address: IpAddr,
    shares: usize,
    /// Bytes that it has not answered yet: at most so much can its gateway have to hold.
    bytes: usize,
    /// Flows whose mid-message ACKs are withheld for its sake.
    withheld: Vec<NearKey>,
}

/// Counts the bytes that a requester's flows have on their way to a target.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Share {
    target: HostKey,
    requester: IpAddr,
    flows: usize,
    bytes: usize,
}

/// The target hosts of all near flows, and the requesters' shares of each.
///
/// A requester may have [`ALPHA`] times as much on its way to a target as is free of the target's
/// limit: whatever one sends, another finds room. Bound: as many as flows.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Targets {
    targets: SlotMap<HostKey, Target>,
    shares: SlotMap<TargetKey, Share>,
    by_address: Lookup<IpAddr, HostKey>,
    by_hosts: Lookup<(IpAddr, IpAddr), TargetKey>,
}

/// Bytes that a requester may have on their way to a target for each that is free. One that heeds
/// nothing then stays below the limit from which on all are slowed.
const ALPHA: usize = 5;

impl Targets {
    pub(super) fn new() -> Self {
        Self {
            targets: SlotMap::with_key(),
            shares: SlotMap::with_key(),
            by_address: Lookup::new(),
            by_hosts: Lookup::new(),
        }
    }

    /// A flow of this requester begins.
    pub(super) fn join(&mut self, address: IpAddr, requester: IpAddr) -> TargetKey {
        let key = match self.by_hosts.get(&(address, requester)) {
            Some(key) => key,
            None => self.open(address, requester),
        };
        if let Some(share) = self.shares.get_mut(key) {
            share.flows += 1;
        }
        key
    }

    fn open(&mut self, address: IpAddr, requester: IpAddr) -> TargetKey {
        let target = self.by_address.get(&address).unwrap_or_else(|| {
            let target = Target { address, shares: 0, bytes: 0, withheld: Vec::new() };
            let key = self.targets.insert(target);
            self.by_address.insert(address, key);
            key
        });
        if let Some(target) = self.targets.get_mut(target) {
            target.shares += 1;
        }
        let key = self.shares.insert(Share { target, requester, flows: 0, bytes: 0 });
        self.by_hosts.insert((address, requester), key);
        key
    }

    /// A flow is gone, which had so much counted.
    pub(super) fn leave(&mut self, key: TargetKey, flow: NearKey, mut counted: u32) {
        self.count(key, &mut counted, 0);
        let Some(share) = self.shares.get_mut(key) else { return };
        share.flows -= 1;
        let (host, requester, is_over) = (share.target, share.requester, share.flows == 0);
        let Some(target) = self.targets.get_mut(host) else { return };
        target.withheld.retain(|other| *other != flow);
        if is_over {
            target.shares -= 1;
            self.by_hosts.remove(&(target.address, requester));
            self.shares.remove(key);
            if target.shares == 0 {
                self.by_address.remove(&target.address);
                self.targets.remove(host);
            }
        }
    }

    /// A flow has so much outstanding now.
    pub(super) fn count(&mut self, key: TargetKey, counted: &mut u32, now: usize) {
        let Some(share) = self.shares.get_mut(key) else { return };
        let Some(target) = self.targets.get_mut(share.target) else { return };
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        for bytes in [&mut share.bytes, &mut target.bytes] {
            *bytes = *bytes - *counted as usize + now as usize;
        }
        *counted = now;
    }

    /// Returns what counts as on its way to the target for one more packet of this requester's: all
    /// there is, and its own part of it once more, [`ALPHA`] to one.
    pub(super) fn bytes(&self, key: TargetKey) -> usize {
        let Some(share) = self.shares.get(key) else { return 0 };
        self.targets.get(share.target).map_or(0, |target| target.bytes) + share.bytes / ALPHA
    }

    /// The flow's mid-message ACKs are withheld, and it is on nobody's list yet.
    pub(super) fn withhold(&mut self, key: TargetKey, flow: NearKey) {
        let target = self.shares.get(key).and_then(|share| self.targets.get_mut(share.target));
        if let Some(target) = target {
            target.withheld.push(flow);
        }
    }

    fn release(&mut self, key: TargetKey) -> Option<NearKey> {
        let share = self.shares.get(key)?;
        self.targets.get_mut(share.target)?.withheld.pop()
    }
}

/// Beyond that, requesters get no ACKs inside messages. `total_buffer` is taken to be the peer's as
/// well.
pub(super) fn soft_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 4 * 3
}

/// Beyond that, requests are dropped: just below what the peer's gateway lets the flows to one
/// target hold, before it ends them.
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
            flow.places.awaits_target = false;
            let class = flow.class_of(flow.demand.judged.into(), ctx.classes);
            if ctx.senders.has_headroom(class) {
                flow.near.set_writable(true, ctx.now);
                self.touch(slot);
            } else {
                self.withheld.add(slot, &mut flow.places.withheld, class);
            }
        }
    }
}
