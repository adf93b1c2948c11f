//! Requester side: the bytes that the flows to one target host have on their way together, so that
//! the gateway there can hold them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::flow::far::MAX_PACKET;
use roce::unheard::{Room, Unheard};
use roce::wire::Packet;
use slotmap::SlotMap;

use super::{NearKey, NearSide, Places};
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
    /// Those of flows that it has never answered.
    #[serde(skip)]
    unheard: usize,
    /// These flows, which give way.
    #[serde(skip)]
    waiting: Unheard<Waiting>,
    /// Flows whose mid-message ACKs are withheld for its sake, or whose packets found no room. Who
    /// has waited for longest comes first.
    withheld: VecDeque<NearKey>,
    /// Requesters whose flows contend for its room.
    #[serde(skip)]
    contenders: usize,
    /// Flows that it has answered and that have nothing on their way, since a packet found no room.
    #[serde(skip)]
    hungry: usize,
    /// Until then room is left to flows that it has never answered: one of them found none.
    #[serde(skip)]
    reserved_until: Option<Instant>,
}

/// A flow with bytes on their way to a target that has never answered it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) flow: NearKey,
    /// When the first of them went.
    pub(super) since: Instant,
}

/// Counts the bytes that a requester's flows have on their way to a target.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Share {
    target: HostKey,
    requester: IpAddr,
    flows: usize,
    bytes: usize,
    /// Those of flows that the target has never answered.
    #[serde(skip)]
    unheard: usize,
    /// Flows that it has answered, and that have bytes on their way, or found no room for any. A
    /// flow of a snapshot counts as soon as it sends.
    #[serde(skip)]
    contending: usize,
}

impl Share {
    /// A flow contends for room, or does so no more.
    fn contend(&mut self, target: &mut Target, before: bool, now: bool) {
        let was_one = self.contending > 0;
        self.contending = (self.contending + usize::from(now)).saturating_sub(usize::from(before));
        let is_one = self.contending > 0;
        target.contenders = target.contenders + usize::from(is_one) - usize::from(was_one);
    }
}

/// The target hosts of all near flows, and the requesters' shares of each.
///
/// A requester may have [`ALPHA`] times as much on its way to a target as is free of the target's
/// limit: whatever one sends, another finds room.
///
/// At the limit flows give way that the target has never answered ([`Unheard`]). For one that it
/// has answered they do where they have more than a [part](UNHEARD_PART) of the limit. For another
/// one they do after a [time](crate::Settings::grace); if its requester has [much](MUCH_PART)
/// there, it is its requester's own that does. So whoever invents source addresses keeps nobody's
/// flows from a target for longer. Where nothing gives way, the packet is dropped.
///
/// Whoever is answered takes what it left at once again, and who found no room would find none for
/// ever. So while a flow without anything on its way waits for room, another one that has its share
/// leaves some: an equal part of its requester's equal part. Flows that the target has never
/// answered have a packet each, and their requester's equal part of what gives way to nobody. If
/// they had more, those that try again at the same intervals would give way to each other's rounds.
///
/// Bound: as many as flows.
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

/// How long room is left to flows that a target has never answered after one found none. A
/// requester sends its first packets again within that.
const RESERVED_FOR: Duration = Duration::from_secs(1);

/// Part of the limit, as a divisor, that flows which a target has never answered may have without
/// giving way to those that it has.
const UNHEARD_PART: usize = 8;
/// Part of the limit, as a divisor, beyond which a requester's flows that a target has never
/// answered take nobody else's place.
const MUCH_PART: usize = 64;

impl Targets {
    pub(super) fn new() -> Self {
        Self {
            targets: SlotMap::with_key(),
            shares: SlotMap::with_key(),
            by_address: Lookup::new(),
            by_hosts: Lookup::new(),
        }
    }

    /// Returns a requester's share, and the target that it is of.
    fn both(&self, key: TargetKey) -> Option<(&Share, &Target)> {
        let share = self.shares.get(key)?;
        Some((share, self.targets.get(share.target)?))
    }

    fn both_mut(&mut self, key: TargetKey) -> Option<(&mut Share, &mut Target)> {
        let share = self.shares.get_mut(key)?;
        let target = self.targets.get_mut(share.target)?;
        Some((share, target))
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
            let target = Target {
                address,
                shares: 0,
                bytes: 0,
                unheard: 0,
                waiting: Unheard::default(),
                withheld: VecDeque::new(),
                contenders: 0,
                hungry: 0,
                reserved_until: None,
            };
            let key = self.targets.insert(target);
            self.by_address.insert(address, key);
            key
        });
        if let Some(target) = self.targets.get_mut(target) {
            target.shares += 1;
        }
        let key =
            self.shares.insert(Share { target, requester, flows: 0, bytes: 0, unheard: 0, contending: 0 });
        self.by_hosts.insert((address, requester), key);
        key
    }

    /// A flow is gone that has nothing counted any more.
    pub(super) fn leave(&mut self, places: &Places, flow: NearKey) {
        let key = places.target;
        let Some((share, target)) = self.both_mut(key) else { return };
        share.flows -= 1;
        target.hungry -= usize::from(places.is_hungry);
        share.contend(target, places.is_hungry, false);
        target.withheld.retain(|other| *other != flow);
        if share.flows > 0 {
            return;
        }
        target.shares -= 1;
        let (host, hosts, is_last) = (share.target, (target.address, share.requester), target.shares == 0);
        self.by_hosts.remove(&hosts);
        self.shares.remove(key);
        if is_last {
            self.by_address.remove(&hosts.0);
            self.targets.remove(host);
        }
    }

    /// A flow has so much outstanding now.
    pub(super) fn count(&mut self, places: &mut Places, now: usize, waiting: Waiting) {
        let Some((share, target)) = self.both_mut(places.target) else { return };
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut places.counted, now);
        let recount = |bytes: &mut usize| *bytes = *bytes - before as usize + now as usize;
        [&mut share.bytes, &mut target.bytes].into_iter().for_each(recount);
        let was_hungry = places.is_hungry;
        if now > 0 && std::mem::take(&mut places.is_hungry) {
            target.hungry -= 1;
        }
        let Some(ticket) = places.unheard else {
            return share.contend(target, before > 0 || was_hungry, now > 0 || places.is_hungry);
        };
        [&mut share.unheard, &mut target.unheard].into_iter().for_each(recount);
        match (before, now) {
            (0, 1..) => target.waiting.enter_as(ticket, share.requester, waiting),
            (1.., 0) => target.waiting.remove(share.requester, ticket),
            _ => {}
        }
    }

    /// The flow may give way from now on, with what it has outstanding.
    pub(super) fn enter_unheard(&mut self, places: &Places, waiting: Waiting) {
        let (Some(ticket), 1..) = (places.unheard, places.counted) else { return };
        let Some((share, target)) = self.both_mut(places.target) else { return };
        share.unheard += places.counted as usize;
        target.unheard += places.counted as usize;
        share.contend(target, true, false);
        target.waiting.enter_as(ticket, share.requester, waiting);
    }

    /// The flow does not give way any more.
    pub(super) fn leave_unheard(&mut self, places: &Places) {
        let (Some(ticket), 1..) = (places.unheard, places.counted) else { return };
        let Some((share, target)) = self.both_mut(places.target) else { return };
        share.unheard -= places.counted as usize;
        target.unheard -= places.counted as usize;
        share.contend(target, false, true);
        target.waiting.remove(share.requester, ticket);
    }

    /// Returns what counts as on its way to the target for one more packet of this requester's: all
    /// there is, and its own part of it once more, [`ALPHA`] to one.
    fn all(&self, key: TargetKey) -> usize {
        self.both(key).map_or(0, |(share, target)| target.bytes + share.bytes / ALPHA)
    }

    /// The same without what gives way.
    fn lasting(&self, key: TargetKey) -> usize {
        self.both(key).map_or(0, |(share, target)| {
            target.bytes - target.unheard + (share.bytes - share.unheard) / ALPHA
        })
    }

    /// Tells whether the flow may have ACKs inside messages, with so many bytes more.
    pub(super) fn keeps_up(&self, places: &Places, len: usize, total_buffer: usize) -> bool {
        let all = places.unheard.is_some();
        let bytes = if all { self.all(places.target) } else { self.lasting(places.target) };
        bytes + len <= soft_limit(total_buffer)
    }

    /// A packet of the flow's found no room.
    pub(super) fn refuse(&mut self, places: &mut Places, now: Instant) {
        let Some((share, target)) = self.both_mut(places.target) else { return };
        if places.unheard.is_some() {
            target.reserved_until = Some(now + RESERVED_FOR);
        } else if places.counted == 0 && !std::mem::replace(&mut places.is_hungry, true) {
            target.hungry += 1;
            share.contend(target, false, true);
        }
    }

    /// Returns how much may be on its way to a flow's target if the flow has so many bytes of that.
    /// While others find no room, a flow that has its share leaves them some.
    fn limit(&self, places: &Places, bytes: usize, total_buffer: usize, now: Instant) -> usize {
        let Some((share, target)) = self.both(places.target) else { return 0 };
        let is_short = target.hungry > 0 || target.reserved_until.is_some_and(|until| now < until);
        let own = || match places.unheard {
            None => soft_limit(total_buffer) / (target.contenders.max(1) * share.contending.max(1)),
            // What is left of its host's part of what gives way to nobody.
            Some(_) => {
                let part = hard_limit(total_buffer) / UNHEARD_PART / target.shares.max(1);
                part.saturating_sub(share.unheard) + places.counted as usize
            }
        };
        if is_short && bytes > own().max(MAX_PACKET) {
            short_limit(total_buffer)
        } else {
            hard_limit(total_buffer)
        }
    }

    /// Tells whether the flow may have so many bytes more on their way.
    fn room_for(
        &self,
        (flow, places): (NearKey, &Places),
        len: usize,
        limit: usize,
        is_old: impl Fn(&Waiting) -> bool,
    ) -> Room<NearKey> {
        if self.all(places.target) + len <= limit {
            return Room::Free;
        }
        let Some((share, target)) = self.both(places.target) else { return Room::None };
        let next = target.waiting.next_to_go();
        let loser = match places.unheard {
            None if self.lasting(places.target) + len > limit => None,
            None if target.unheard > limit / UNHEARD_PART => next,
            None => None,
            Some(_) if share.unheard > limit / MUCH_PART => {
                target.waiting.oldest(share.requester).filter(is_old)
            }
            Some(_) => next.filter(is_old),
        };
        let loser = loser.map(|loser| loser.flow).filter(|loser| *loser != flow);
        loser.map_or(Room::None, Room::InPlaceOf)
    }

    /// The flow's mid-message ACKs are withheld, and it is on nobody's list yet.
    pub(super) fn withhold(&mut self, key: TargetKey, flow: NearKey) {
        if let Some((_, target)) = self.both_mut(key) {
            target.withheld.push_back(flow);
        }
    }

    fn release(&mut self, key: TargetKey) -> Option<NearKey> {
        self.both_mut(key)?.1.withheld.pop_front()
    }
}

/// Beyond that, requesters get no ACKs inside messages. `total_buffer` is taken to be the peer's as
/// well.
fn soft_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 4 * 3
}

/// Beyond that, requests are dropped: just below what the peer's gateway lets the flows to one
/// target hold, before it ends them.
fn hard_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 8 * 7
}

/// Beyond that, while others find no room, packets of flows that have their share are dropped.
fn short_limit(total_buffer: usize) -> usize {
    host_share(total_buffer) / 8 * 5
}

/// Flows that give way for one packet at most. Each has been opened by a packet.
const LOOKS: usize = 64;

impl NearSide {
    /// Tells whether a flow may have one more packet on its way to its target. What the target has
    /// never answered gives way for it, as if its packets had been lost.
    pub(super) fn make_way(&mut self, slot: NearKey, packet: &Packet<'_>, ctx: &mut Context<'_>) -> bool {
        let total_buffer = ctx.settings.total_buffer;
        let (now, grace) = (ctx.now, ctx.settings.grace());
        let is_old = |waiting: &Waiting| now.saturating_duration_since(waiting.since) >= grace;
        for _ in 0..LOOKS {
            let Some(flow) = self.flows.get_mut(slot) else { return false };
            // What the flow had is forgotten where it begins earlier.
            let begins_earlier = flow.near.begins_after(packet.bth.psn);
            let counted = if begins_earlier { 0 } else { flow.places.counted as usize };
            let len = packet.bytes.len().saturating_sub(flow.places.counted as usize - counted);
            let limit = self.targets.limit(&flow.places, counted + packet.bytes.len(), total_buffer, now);
            match self.targets.room_for((slot, &flow.places), len, limit, is_old) {
                Room::Free => return true,
                Room::InPlaceOf(other) => {
                    ctx.stats.evicted += 1;
                    self.close(other, ctx);
                }
                Room::None => {
                    self.targets.refuse(&mut flow.places, now);
                    return false;
                }
            }
        }
        false
    }

    /// The target of this flow may have answered: those that go there as well may have ACKs again.
    pub(super) fn release_target(&mut self, key: TargetKey, ctx: &mut Context<'_>) {
        let limit = soft_limit(ctx.settings.total_buffer);
        while self.targets.lasting(key) <= limit
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever has waited for longest goes on first: others cannot keep it waiting for ever.
    #[test]
    fn flows_go_on_in_the_order_in_which_they_waited() {
        let [requester, target] = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let mut targets = Targets::new();
        let key = targets.join(target, requester);
        let mut flows = SlotMap::with_key();
        let [first, second, third]: [NearKey; 3] = std::array::from_fn(|_| flows.insert(()));
        targets.withhold(key, first);
        targets.withhold(key, second);
        assert_eq!(targets.release(key), Some(first));
        targets.withhold(key, third);
        targets.withhold(key, first);
        let order: Vec<_> = std::iter::from_fn(|| targets.release(key)).collect();
        assert_eq!(order, [second, third, first]);
    }

    /// One that waits finds room, whatever those have that take what they left at once again.
    #[test]
    fn a_flow_that_has_its_share_leaves_room_to_one_that_waits() {
        const BUFFER: usize = 16 << 20;
        let now = crate::test_clock();
        let [first, second, target] = ["10.0.0.1", "10.0.0.2", "10.0.1.1"].map(|host| host.parse().unwrap());
        let mut targets = Targets::new();
        let mut flows = SlotMap::with_key();
        let mut places = [first, first, second].map(|host| Places::new(targets.join(target, host)));
        let slots: [NearKey; 3] = std::array::from_fn(|_| flows.insert(()));
        let waiting = |flow| Waiting { flow, since: now };
        let [busy, other, late] = &mut places;
        targets.count(busy, hard_limit(BUFFER), waiting(slots[0]));
        let limit = |targets: &Targets, places: &Places, bytes| targets.limit(places, bytes, BUFFER, now);
        assert_eq!(limit(&targets, busy, hard_limit(BUFFER)), hard_limit(BUFFER), "nobody waits");
        targets.refuse(late, now);
        // Two hosts, of which the first has one flow.
        assert_eq!(limit(&targets, busy, soft_limit(BUFFER) / 2), hard_limit(BUFFER));
        assert_eq!(limit(&targets, busy, soft_limit(BUFFER) / 2 + 1), short_limit(BUFFER));
        targets.refuse(other, now);
        assert_eq!(limit(&targets, busy, soft_limit(BUFFER) / 4 + 1), short_limit(BUFFER), "now it has two");
        for (place, slot) in [(other, slots[1]), (late, slots[2])] {
            targets.count(place, MAX_PACKET, waiting(slot));
        }
        assert_eq!(limit(&targets, busy, hard_limit(BUFFER)), hard_limit(BUFFER), "nobody waits any more");
        for (place, slot) in places.iter_mut().zip(slots) {
            targets.count(place, 0, waiting(slot));
            targets.leave(place, slot);
        }
        assert!(targets.targets.is_empty() && targets.shares.is_empty());
    }
}
