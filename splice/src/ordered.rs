//! The order of packets that are not terminated and want one: UC, and transports that are not
//! understood.
//!
//! Streams deliver in any order, and a UC responder gives a message up at the first packet that is
//! not the next. So the gateway at the sender's side numbers the packets for each queue pair, and
//! the one at the receiver's side releases them in that order.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use reliability::message::{Insert, Pages, Reassembly};
use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::Packet;
use slotmap::SlotMap;
use transport::Senders;

use crate::Settings;
use crate::congestion::{Notified, without_mark};
use crate::context::{Context, REORDER};
use crate::hosts::Hosts;
use crate::lookup::Lookup;
use crate::pool::Buf;
use crate::record::FlowId;
use crate::settings::reorder_buffer;
use crate::stalest::Stalest;
use crate::stats::LanDrop;
use crate::timers::Timers;
use crate::uc_admission::UcAdmission;

slotmap::new_key_type! {
    pub(crate) struct OutKey;
    pub(crate) struct InKey;
}

/// Numbers what goes to the peer.
///
/// It takes whole messages of UC ([`UcAdmission`]), and tells those who send what waits for long to
/// slow down, where connection management has said who they are.
///
/// Bound: `settings.flows` queue pairs, and each sender's share of these ([`Hosts`]). For a further
/// one that is forgotten to which nothing went for longest ([`Stalest`]): it is numbered anew when
/// something does. If there is none, packets for further ones are not numbered, and taken one by
/// one. One that nothing went to for `settings.idle_flow` is forgotten.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Numbering {
    flows: SlotMap<OutKey, Numbered>,
    by_key: Lookup<FlowKey, OutKey>,
    hosts: Hosts,
    next_id: u32,
    timers: Timers<OutKey>,
    #[serde(skip)]
    stalest: Stalest<OutKey>,
}

#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct Numbered {
    key: FlowKey,
    id: FlowId,
    next: u32,
    whole: UcAdmission,
    notified: Notified,
    #[serde_as(as = "snapshot::At")]
    last: Instant,
    #[serde_as(as = "Option<snapshot::At>")]
    armed: Option<Instant>,
}

impl Numbered {
    fn deadline(&self, settings: &Settings) -> Instant {
        let wait = if self.whole.awaits() { ABANDONED.min(settings.idle_flow) } else { settings.idle_flow };
        self.last + wait
    }
}

/// A message of which nothing has come for so long does not go on.
const ABANDONED: Duration = Duration::from_secs(1);

impl Numbering {
    pub(crate) fn new() -> Self {
        let (flows, by_key, hosts) = (SlotMap::with_key(), Lookup::new(), Hosts::default());
        Self { flows, by_key, hosts, next_id: 0, timers: Timers::new(), stalest: Stalest::default() }
    }

    /// The number of the next packet to a queue pair, which [`Numbering::sent`] uses up.
    pub(crate) fn next(&mut self, key: FlowKey, ctx: &mut Context<'_>) -> Option<(OutKey, FlowId, u32)> {
        let slot = match self.by_key.get(&key) {
            Some(slot) => slot,
            None if !self.make_room(key.requester, ctx) => return None,
            None => self.open(key, ctx.now),
        };
        let flow = self.flows.get_mut(slot)?;
        flow.last = ctx.now;
        let until = flow.deadline(ctx.settings);
        self.timers.arm(&mut flow.armed, Some(until), slot);
        Some((slot, flow.id, flow.next))
    }

    /// Makes room for one more of this sender's. That another one is forgotten costs nobody
    /// anything: nothing of it is on its way.
    fn make_room(&mut self, sender: IpAddr, ctx: &mut Context<'_>) -> bool {
        if self.hosts.may_join(sender, self.flows.len(), ctx.settings.flows) {
            return true;
        }
        let flows = &self.flows;
        let last_use = |slot| flows.get(slot).map(|flow: &Numbered| flow.last);
        let Some(slot) = self.stalest.take(last_use, ctx.settings.grace(), ctx.now) else { return false };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.whole.abandon(ctx.settings.grouping.other(flow.key.requester), ctx.senders);
        }
        self.remove(slot);
        true
    }

    fn remove(&mut self, slot: OutKey) {
        let Some(flow) = self.flows.remove(slot) else { return };
        self.by_key.remove(&flow.key);
        self.hosts.leave(flow.key.requester);
        self.timers.left(self.flows.len());
    }

    /// Puts queue pairs in the order in which they give way: a snapshot does not tell.
    pub(crate) fn order(&mut self) {
        self.stalest = Stalest::of(self.flows.iter().map(|(slot, flow)| (slot, flow.last)));
    }

    fn open(&mut self, key: FlowKey, now: Instant) -> OutKey {
        let id = FlowId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let (whole, notified) = (UcAdmission::default(), Notified::default());
        let slot = self.flows.insert(Numbered { key, id, next: 0, whole, notified, last: now, armed: None });
        self.by_key.insert(key, slot);
        self.hosts.join(key.requester);
        let flows = &self.flows;
        self.stalest.enter(slot, now, flows.len(), |slot| flows.contains_key(slot));
        slot
    }

    /// Admits the next packet, which is of UC, to be carried in this class, or drops it. A mark
    /// that its sender was told of is taken off it, or its receiver's NIC would tell it once more.
    pub(crate) fn admit(
        &mut self,
        slot: OutKey,
        class: usize,
        addressing: &mut Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<(), LanDrop> {
        let Some(flow) = self.flows.get_mut(slot) else { return Ok(()) };
        let sender = ctx.pairings.partner(&flow.key);
        flow.notified.note(addressing, &packet.bth, sender, ctx);
        if ctx.settings.notify_backlog && !packet.payload.is_empty() && ctx.senders.marks(class) {
            ctx.stats.backlog_marked += 1;
            flow.notified.tell(addressing, &packet.bth, sender, ctx);
        }
        if sender.is_some() {
            addressing.tclass = without_mark(addressing.tclass);
        }
        let taken = flow.whole.take(class, ctx.settings.grouping.other(addressing.src), packet, ctx);
        let until = flow.deadline(ctx.settings);
        self.timers.arm(&mut flow.armed, Some(until), slot);
        taken
    }

    /// Notes that a packet that was admitted could not be carried.
    pub(crate) fn cut(&mut self, slot: OutKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.whole.cut(ctx.settings.grouping.other(flow.key.requester), ctx);
        }
    }

    pub(crate) fn sent(&mut self, slot: OutKey) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.next = flow.next.wrapping_add(1);
        }
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, settings: &Settings, senders: &mut Senders, now: Instant) {
        self.timers.begin_round(now);
        while let Some((at, slot)) = self.timers.next_due() {
            let Some(flow) = self.flows.get_mut(slot).filter(|flow| flow.armed == Some(at)) else { continue };
            flow.armed = None;
            if flow.whole.awaits() && now >= flow.deadline(settings) {
                flow.whole.abandon(settings.grouping.other(flow.key.requester), senders);
            }
            let until = flow.deadline(settings);
            if now < until {
                self.timers.arm(&mut flow.armed, Some(until), slot);
            } else {
                self.remove(slot);
            }
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }
}

/// How long a packet waits for earlier ones, beyond what [`ROUND_TRIPS`] take: a stream repairs
/// what it can in less, and what it cannot is lost to its receiver, which knows what to do about
/// it.
const PATIENCE: Duration = Duration::from_secs(1);
const ROUND_TRIPS: u32 = 8;

/// Restores the order of what the peer numbered.
///
/// A packet that an earlier one is missing for waits, for a second and eight round trips at
/// most. Then what is missing counts as lost, and is dropped should it come.
///
/// # Bounds
/// `settings.flows` queue pairs. For a further one that is forgotten for which nothing came for
/// longest ([`Stalest`]); if there is none, its packets are released as they come. An eighth of
/// `settings.total_buffer` for what waits, and as much again of [`Pages`]: at either bound the
/// queue pair that would need more waits no longer. One that nothing came for in twice
/// `settings.idle_flow` is forgotten.
///
/// Rule: `docs/protocol.md#rule-ordered-wait`.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Ordering {
    flows: SlotMap<InKey, Ordered>,
    by_id: Lookup<FlowId, InKey>,
    timers: Timers<InKey>,
    pages: Pages<(Addressing, Buf)>,
    /// Bytes that wait, of all queue pairs.
    waiting: usize,
    #[serde(skip)]
    stalest: Stalest<InKey>,
}

#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct Ordered {
    id: FlowId,
    packets: Reassembly<(Addressing, Buf)>,
    /// Since when the next packet is missing.
    #[serde_as(as = "Option<snapshot::At>")]
    stuck: Option<Instant>,
    #[serde_as(as = "snapshot::At")]
    last: Instant,
    #[serde_as(as = "Option<snapshot::At>")]
    armed: Option<Instant>,
}

impl Ordered {
    fn is_ahead(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.packets.next()).cast_signed() > 0
    }

    fn deadline(&self, settings: &Settings) -> Instant {
        match self.stuck {
            Some(since) => since + PATIENCE + settings.rtt * ROUND_TRIPS,
            None => self.last + settings.idle_flow * 2,
        }
    }
}

impl Ordering {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            flows: SlotMap::with_key(),
            by_id: Lookup::new(),
            timers: Timers::new(),
            pages: Pages::new(reorder_buffer(settings)),
            waiting: 0,
            stalest: Stalest::default(),
        }
    }

    /// Takes a packet from the peer and releases what is in order to the LAN.
    pub(crate) fn handle(
        &mut self,
        id: FlowId,
        seq: u32,
        addressing: Addressing,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let Some(packet) = ctx.pool.copy(body) else {
            ctx.lan.dropped += 1;
            return;
        };
        let Some(slot) = self.find_or_open(id, ctx) else { return ctx.lan.push(addressing, packet) };
        let full = self.waiting + body.len() > reorder_buffer(ctx.settings);
        if full && self.flows.get(slot).is_some_and(|flow| flow.is_ahead(seq)) {
            self.hurry(slot, Some(seq), ctx);
        }
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.last = ctx.now;
        match flow.packets.insert(seq, (addressing, packet), &mut self.pages) {
            Ok(()) => {
                self.waiting += body.len();
                self.release(slot, ctx);
            }
            Err(Insert::Duplicate | Insert::Late) => ctx.stats.late_records += 1,
            Err(Insert::NoRoom | Insert::BeyondWindow) => {
                ctx.lan.dropped += 1;
                self.hurry(slot, Some(seq.wrapping_add(1)), ctx);
            }
        }
        self.touch(slot, ctx);
    }

    fn find_or_open(&mut self, id: FlowId, ctx: &Context<'_>) -> Option<InKey> {
        let known = self.by_id.get(&id);
        if known.is_some() {
            return known;
        }
        if self.flows.len() >= ctx.settings.flows {
            self.forget_stalest(ctx)?;
        }
        let packets = Reassembly::new(0, REORDER);
        let slot = self.flows.insert(Ordered { id, packets, stuck: None, last: ctx.now, armed: None });
        self.by_id.insert(id, slot);
        let flows = &self.flows;
        self.stalest.enter(slot, ctx.now, flows.len(), |slot| flows.contains_key(slot));
        Some(slot)
    }

    /// Forgets the queue pair for which nothing came for longest. While something waits, more is to
    /// come.
    fn forget_stalest(&mut self, ctx: &Context<'_>) -> Option<()> {
        let flows = &self.flows;
        let last_use = |slot| {
            let flow: &Ordered = flows.get(slot)?;
            Some(flow.stuck.map_or(flow.last, |_| ctx.now))
        };
        let slot = self.stalest.take(last_use, ctx.settings.grace(), ctx.now)?;
        self.remove(slot);
        Some(())
    }

    fn remove(&mut self, slot: InKey) {
        let Some(flow) = self.flows.remove(slot) else { return };
        self.by_id.remove(&flow.id);
        self.timers.left(self.flows.len());
    }

    /// Puts queue pairs in the order in which they give way: a snapshot does not tell.
    pub(crate) fn order(&mut self) {
        self.stalest = Stalest::of(self.flows.iter().map(|(slot, flow)| (slot, flow.last)));
    }

    /// To the LAN with what is in order.
    fn release(&mut self, slot: InKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let mut moved = false;
        while let Some((addressing, packet)) = flow.packets.pop(&mut self.pages) {
            moved = true;
            self.waiting -= packet.as_ref().len();
            ctx.lan.push(addressing, packet);
        }
        if flow.packets.is_empty() {
            flow.stuck = None;
        } else if moved {
            flow.stuck = Some(ctx.now);
        } else {
            flow.stuck.get_or_insert(ctx.now);
        }
    }

    /// To the LAN with all that waits; what is missing counts as lost. `next` is expected after it,
    /// or else what follows the last one.
    fn hurry(&mut self, slot: InKey, next: Option<u32>, ctx: &mut Context<'_>) {
        while let Some(flow) = self.flows.get_mut(slot) {
            if flow.packets.skip(&mut self.pages) > 0 {
                self.release(slot, ctx);
                continue;
            }
            if let Some(next) = next {
                flow.packets = Reassembly::new(next, REORDER);
            }
            return;
        }
    }

    /// Sees to it that the queue pair's time comes.
    fn touch(&mut self, slot: InKey, ctx: &Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            let at = flow.deadline(ctx.settings);
            self.timers.arm(&mut flow.armed, Some(at), slot);
        }
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Memory in which packets wait for earlier ones: in use, and with what is kept for reuse.
    pub(crate) fn reorder_bytes(&self) -> [usize; 2] {
        [self.pages.bytes_in_use(), self.pages.bytes()]
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        self.timers.begin_round(ctx.now);
        while let Some((at, slot)) = self.timers.next_due() {
            let Some(flow) = self.flows.get_mut(slot).filter(|flow| flow.armed == Some(at)) else { continue };
            flow.armed = None;
            let is_due = ctx.now >= flow.deadline(ctx.settings);
            if is_due && flow.stuck.is_none() {
                self.remove(slot);
                continue;
            }
            if is_due {
                self.hurry(slot, None, ctx);
            }
            self.touch(slot, ctx);
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }
}
