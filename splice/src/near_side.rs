//! Requester side: flows whose requester is on our LAN: the near halves.

mod answered;
mod debts;
mod end;
mod flow;
mod heard;
mod held;
mod keep_alive;
pub(crate) mod moves;
mod open;
mod patience;
mod resend;
mod respond;
mod restore;
mod retain;
mod revival;
mod targets;
mod timing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::debts::Account;
use self::heard::Heard;
use self::held::Grants;
use self::patience::Observed;
pub use self::patience::Patience;
use self::resend::{Budget, Kept};
use keep_alive::KeepAliveBudget;
use reliability::message::{Insert, Pages, Reassembly};
use roce::flow::near::{Near, NearConfig, NearCounters, NearStats, Verdict, Why};
use roce::ip::{Addressing, headroom};
use roce::pairing::FlowKey;
use roce::unheard::{Ticket, Unheard};
use roce::wire::{Packet, Psn, Qpn};
use slotmap::SlotMap;
use targets::{TargetKey, Targets, Waiting};
use timing::Timing;
use transport::{Reservation, Urgency};

use crate::Settings;
use crate::back_pressure::{BackPressureQueue, Lists};
use crate::classes::{Choice, Classes};
use crate::coming::Coming;
use crate::congestion::Notified;
use crate::context::{Context, REORDER};
use crate::flow_report::FlowReport;
use crate::hosts::Hosts;
use crate::lan_queue::{Delivered, NearKey, TTL};
use crate::lookup::Lookup;
use crate::pool::Buf;
use crate::reclaimer::Load;
use crate::record::{FlowId, Head, Opening, Reason};
use crate::renewals::Renewal;
use crate::retention::Run;
use crate::settings::reorder_buffer;
use crate::shared::Shared;
use crate::short::Headers;
use crate::stale_flows::StaleFlow;
use crate::stats::LanDrop;
use crate::timers::Timers;

/// One flow at its requester's side.
#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct NearFlow {
    near: Near,
    id: FlowId,
    /// As the requester's packets have it.
    addressing: Addressing,
    target_qpn: Qpn,
    requester_qpn: Option<Qpn>,
    #[serde(skip)]
    choice: Choice,
    demand: Demand,
    /// Requests carried so far: the next one's sequence number.
    requests: u32,
    headers: Headers,
    /// How often the peer was told whether to ask about what is outstanding: odd if it is not to.
    suspended: u32,
    last_psn: Psn,
    /// When anything last came, for whatever it was worth.
    #[serde_as(as = "snapshot::At")]
    last_activity: Instant,
    /// When a new request was last carried, or a response last came.
    #[serde_as(as = "snapshot::At")]
    last_progress: Instant,
    early: Early,
    /// Responses of READs that were passed on lately. Most flows have none.
    kept: Option<Box<Kept>>,
    #[serde_as(as = "Option<snapshot::At>")]
    armed: Option<Instant>,
    places: Places,
    /// Requests that outlive the process.
    #[serde(skip)]
    run: Run,
    marks: Marks,
    notified: Notified,
}

/// Responses that came before those that they follow.
#[derive(serde::Serialize, serde::Deserialize)]
struct Early {
    responses: Reassembly<Buf>,
    /// Bytes that wait in it; of more than 4 GiB, as many.
    bytes: u32,
    /// None are kept any more: there was no room for them, and the flow has failed.
    deaf: bool,
}

impl Early {
    fn new() -> Early {
        Early { responses: Reassembly::new(0, REORDER), bytes: 0, deaf: false }
    }

    fn insert(&mut self, seq: u32, response: Buf, pages: &mut Pages<Buf>) -> Result<(), Insert> {
        let bytes = response.as_ref().len() as u32;
        self.responses.insert(seq, response, pages)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Returns the next response, once all before it have come.
    fn pop(&mut self, pages: &mut Pages<Buf>) -> Option<Buf> {
        let response = self.responses.pop(pages)?;
        self.bytes = self.bytes.saturating_sub(response.as_ref().len() as u32);
        Some(response)
    }

    fn clear(&mut self, pages: &mut Pages<Buf>) {
        self.responses.clear(pages);
        self.bytes = 0;
    }
}

/// Marks of a flow. A snapshot has the first.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Marks {
    /// Its connection is being taken down: forget it as soon as nothing is outstanding.
    ending: bool,
    /// Its host was known to be there once.
    #[serde(skip)]
    is_proven: bool,
    /// Who is charged for it in `heard`. One that was answered counts there.
    #[serde(skip)]
    account: Account,
}

/// Load that a flow brings, to be judged by its classes, and how long that takes.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Demand {
    /// The size that the last request was judged by, where a class is for messages of some size.
    judged: u32,
    coming: Coming,
    /// The bytes that a class's stream was told to expect of this flow.
    expected: Reservation,
    timing: Timing,
    observed: Observed,
}

/// The lists of [`NearSide`] that a flow is in, and where it stands among others.
#[derive(serde::Serialize, serde::Deserialize)]
struct Places {
    /// In `ready`.
    queued: bool,
    /// In `failed`.
    is_listed: bool,
    /// Where in `withheld`.
    withheld: Lists,
    target: TargetKey,
    /// The bytes outstanding, as counted there.
    counted: u32,
    /// On the target's list: its mid-message ACKs are withheld until that has answered more.
    awaits_target: bool,
    /// The last packet that found no room.
    #[serde(skip)]
    refused: Option<Psn>,
    /// It has nothing on its way there, since a packet found no room.
    #[serde(skip)]
    is_hungry: bool,
    /// Its place in `unheard`.
    #[serde(skip)]
    unheard: Option<Ticket>,
    /// Its place among flows that took another one's place, if it did.
    #[serde(skip)]
    renewal: Option<Renewal>,
}

impl Places {
    fn new(target: TargetKey) -> Places {
        let withheld = Lists::default();
        Places {
            queued: false,
            is_listed: false,
            withheld,
            target,
            counted: 0,
            awaits_target: false,
            refused: None,
            is_hungry: false,
            unheard: None,
            renewal: None,
        }
    }
}

/// All near flows of a gateway. Bound: `settings.flows`, and each requester's share of them
/// ([`Hosts`]); for one more the flow is forgotten that failed first, or else one whose target
/// has never spoken ([`Unheard`]), and if there is none the request is dropped. Either is counted.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct NearSide {
    /// Each by itself, so that a table that doubles moves none of them.
    flows: SlotMap<NearKey, Box<NearFlow>>,
    #[serde(skip)]
    config: Shared<NearConfig>,
    /// The round trip that `config` was made for.
    #[serde(skip)]
    config_rtt: Option<Duration>,
    #[serde(skip)]
    counters: Arc<NearCounters>,
    by_key: Lookup<FlowKey, NearKey>,
    by_id: Lookup<FlowId, NearKey>,
    next_id: u32,
    timers: Timers<NearKey>,
    /// For keeping requesters waiting.
    words: KeepAliveBudget,
    /// Where responses wait for earlier ones.
    pages: Pages<Buf>,
    /// Flows that may have something to send to their requester.
    ready: VecDeque<NearKey>,
    /// Flows told to withhold mid-message ACKs, to be told otherwise when their class's stream has
    /// drained.
    withheld: BackPressureQueue<NearKey>,
    targets: Targets,
    /// Flows of each requester.
    hosts: Hosts,
    grants: Grants,
    /// Bound on the responses that flows keep after passing them on.
    budget: Budget,
    /// Flows that failed and may still be there, in that order.
    failed: VecDeque<NearKey>,
    /// Flows that give way when there are as many as there may be.
    #[serde(skip)]
    unheard: Unheard<NearKey>,
    #[serde(skip)]
    heard: Heard,
    /// Refuse new flows: the gateway is stopping.
    closed: bool,
}

impl NearSide {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            pages: Pages::new(reorder_buffer(settings)),
            flows: SlotMap::with_key(),
            config: Shared::new(),
            config_rtt: None,
            counters: Arc::default(),
            by_key: Lookup::new(),
            by_id: Lookup::new(),
            next_id: 0,
            timers: Timers::new(),
            words: KeepAliveBudget::default(),
            ready: VecDeque::new(),
            withheld: BackPressureQueue::new(),
            targets: Targets::new(),
            hosts: Hosts::default(),
            grants: Grants::default(),
            budget: Budget::new(settings.total_buffer),
            failed: VecDeque::new(),
            unheard: Unheard::default(),
            heard: Heard::new(settings.grouping),
            closed: false,
        }
    }

    /// A request packet from the LAN.
    pub(crate) fn handle_request(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) {
        let key =
            FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: packet.bth.dest_qp };
        let Some(slot) = self.find_or_open(key, addressing, packet, ctx) else { return };
        self.serve(slot, ctx);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let silence = flow.note_activity(ctx.now);
        flow.near.adopt(self.config.newest());
        flow.notified.note(addressing, &packet.bth, flow.requester_qpn, ctx);
        if flow.resend(packet, ctx) {
            return self.touch(slot);
        }
        let class = flow.judge(addressing, packet, ctx);
        if !self.has_room_for(slot, class, packet, ctx) {
            return self.drop_without_room(slot, class, packet, ctx);
        }
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let has_headroom = ctx.senders.has_headroom(class);
        let (len, total_buffer) = (packet.bytes.len(), ctx.settings.total_buffer);
        let target_keeps_up = self.targets.keeps_up(&flow.places, len, total_buffer);
        flow.near.set_writable(has_headroom && target_keeps_up, ctx.now);
        if !has_headroom {
            self.withheld.add(slot, &mut flow.places.withheld, class);
        }
        if !target_keeps_up && !std::mem::replace(&mut flow.places.awaits_target, true) {
            self.targets.withhold(flow.places.target, slot);
        }
        if packet.bth.opcode.starts_message() {
            flow.near.set_local(ctx.classes.completes_locally(class));
        }
        let had_failed = flow.near.is_failed();
        let verdict = flow.near.handle_request(packet, ctx.now);
        flow.demand.observed.note(&verdict, silence);
        let carried = match verdict {
            Verdict::Forward => {
                flow.note_port(addressing.src_port);
                flow.retain(class, packet, ctx);
                Self::carry(flow, class, packet, false, ctx)
            }
            Verdict::Replay => Self::carry(flow, class, packet, true, ctx),
            Verdict::Drop(why) => flow.leave_out(why, packet, ctx),
        } && flow.supply_again(packet.bth.psn, ctx).is_continue();
        if !carried {
            // has_room said yes a moment ago; the record is gone, and with it the flow's order.
            return self.give_up(slot, Reason::NoRoom, ctx);
        }
        if flow.near.is_failed() && !had_failed {
            // On its own account: the requester will not go back to a gap, so the target must not
            // wait for the rest.
            return self.give_up(slot, Reason::Protocol, ctx);
        }
        self.touch(slot);
    }

    /// Tells whether the flow may take this packet, and makes way for it.
    fn has_room_for(
        &mut self,
        slot: NearKey,
        class: usize,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(flow) = self.flows.get(slot) else { return false };
        // One that failed asks for none, and refuses while there is no session, too.
        if flow.near.is_failed() || flow.near.asks_no_room(packet, ctx.now) {
            return true;
        }
        // The target would expect what came before. A requester that goes back begins the flow.
        let is_early =
            !flow.near.is_started() && flow.places.refused.is_some_and(|last| last.is_before(packet.bth.psn));
        !is_early && ctx.senders.has_room(class, packet.bytes.len()) && self.make_way(slot, packet, ctx)
    }

    /// There is no room for this packet.
    fn drop_without_room(&mut self, slot: NearKey, class: usize, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        ctx.stats.drop_lan(LanDrop::NoRoom);
        flow.places.refused = Some(packet.bth.psn);
        let is_told = flow.near.pause(packet, ctx.now);
        // Who is not told that it is to wait is told to go on when there is room.
        flow.near.set_writable(false, ctx.now);
        if !ctx.senders.has_headroom(class) {
            self.withheld.add(slot, &mut flow.places.withheld, class);
        } else if !std::mem::replace(&mut flow.places.awaits_target, true) {
            self.targets.withhold(flow.places.target, slot);
        }
        if is_told {
            self.touch(slot);
        }
    }

    /// Pushes the next request record; `false` if there was no room.
    fn carry(
        flow: &mut NearFlow,
        class: usize,
        packet: &Packet<'_>,
        replay: bool,
        ctx: &mut Context<'_>,
    ) -> bool {
        if packet.bth.opcode.starts_message() && !replay {
            flow.answer_along(class, packet, ctx);
        }
        // Rule: `docs/protocol.md#rule-rested`.
        let rested = flow.near.is_rested();
        let seq = flow.requests;
        let short = flow.headers.sent.shorten([&[], packet.bytes], seq);
        let (opens, body) = match &short {
            Some((short, rest)) => (Opening::Short, [short.as_ref(), *rest]),
            None if flow.headers.sent.answered => (Opening::Known, [packet.bytes, &[]]),
            None => (Opening::Full(flow.addressing), [packet.bytes, &[]]),
        };
        let head = Head::Request { flow: flow.id, seq, replay, rested, opens };
        if ctx.push(class, Urgency::Bulk, &head, body).is_err() {
            return false;
        }
        flow.headers.sent.note([&[], packet.bytes], seq);
        flow.requests = flow.requests.wrapping_add(1);
        if replay {
            ctx.stats.replays += 1;
        } else {
            flow.last_progress = ctx.now;
            flow.last_psn = packet.bth.psn;
            ctx.stats.requests += 1;
            if let Some(size) = flow.demand.coming.follow(packet) {
                ctx.senders.note_message(class, size, flow.demand.coming.sent());
            }
            flow.demand.timing.follow(packet, class, flow.near.expected(), ctx.now);
            flow.expect(ctx);
        }
        true
    }

    /// Something has come for the flow, or it was time: [`NearSide::poll`] sees to it, and arms its
    /// timer once for all that came until then.
    fn touch(&mut self, slot: NearKey) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let outstanding = if flow.near.is_failed() { 0 } else { flow.near.outstanding_bytes() };
        if flow.places.unheard.is_some() && !flow.is_unheard() {
            self.targets.leave_unheard(&flow.places);
            self.unheard.leave(flow.addressing.src, &mut flow.places.unheard);
        }
        Self::note_heard(&mut self.heard, flow);
        let waiting = Waiting { flow: slot, since: flow.last_progress };
        self.targets.count(&mut flow.places, outstanding, waiting);
        if !flow.places.queued {
            flow.places.queued = true;
            self.ready.push_back(slot);
        }
        if flow.near.is_failed() && !std::mem::replace(&mut flow.places.is_listed, true) {
            self.list_failed(slot);
        }
    }

    /// The next ACK or NAK for a requester, written to `out` from the BTH on, where [`headroom`]
    /// says that it starts.
    pub(crate) fn poll(&mut self, out: &mut [u8], ctx: &mut Context<'_>) -> Option<(Addressing, usize)> {
        while let Some(&slot) = self.ready.front() {
            if let Some(flow) = self.flows.get_mut(slot) {
                if let Some(reply) = flow.near.poll_transmit(ctx.now) {
                    let bytes = reply.as_ref();
                    let addressing = flow.reply_addressing();
                    let room = out.get_mut(headroom(&addressing)..).unwrap_or_default();
                    if let Some(room) = room.get_mut(..bytes.len()) {
                        room.copy_from_slice(bytes);
                        return Some((addressing, bytes.len()));
                    }
                }
                if flow.near.is_over() {
                    self.succeed(slot, ctx);
                    continue;
                }
                if flow.near.wants_retry() {
                    flow.relay_retry(ctx);
                }
                flow.relay_contradiction(ctx);
                // Of a stranded flow it is not known what the target has.
                if self.by_id.get(&flow.id) == Some(slot) || flow.near.is_failed() {
                    flow.note_restored(ctx);
                    flow.release(ctx.retention);
                }
                flow.places.queued = false;
                let at = flow.next_timeout(ctx.settings);
                self.timers.arm(&mut flow.armed, at, slot);
            }
            self.ready.pop_front();
        }
        None
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        self.timers.begin_round(ctx.now);
        while let Some((at, slot)) = self.timers.next_due() {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            if flow.armed != Some(at) {
                continue;
            }
            flow.armed = None;
            self.spare_next_incarnation(slot, ctx.now);
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            if flow.near.may_put_off(ctx.now) && !self.words.take(ctx.now) {
                flow.near.put_off();
            }
            flow.near.handle_timeout(ctx.now);
            self.budget.expire(flow, ctx.settings.grouping, ctx.now);
            if flow.waits_in_vain_until().is_some_and(|end| end <= ctx.now) {
                flow.near.give_up_missing(ctx.now);
                self.give_up(slot, Reason::Protocol, ctx);
                continue;
            }
            let mut stale = ctx.now >= flow.deadline(ctx.settings);
            if stale && ctx.is_parked() && !flow.near.is_idle() && !flow.near.is_to_try_again() {
                // It waits for the session, whose own bound ends it.
                flow.excuse_wait(ctx.now);
                stale = false;
            }
            if flow.near.is_dead() || (stale && flow.near.is_idle()) {
                self.close_idle(slot, ctx);
            } else if stale && flow.near.is_to_try_again() {
                ctx.stats.rnr_given_up += 1;
                if flow.near.is_half_done() {
                    self.give_up(slot, Reason::RequesterGone, ctx);
                } else {
                    // What the target was not ready for it will not get, as if there were no
                    // gateways, and its queue pair is none the worse.
                    self.close(slot, ctx);
                }
            } else if stale {
                // Stuck in the middle of a message, or waiting for a peer that never answers: not
                // for ever.
                (flow.last_activity, flow.last_progress) = (ctx.now, ctx.now);
                self.give_up(slot, Reason::RequesterGone, ctx);
            } else {
                self.touch(slot);
            }
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }

    /// Returns true if there is such a flow, so that what the peer remembers of it is no news.
    pub(crate) fn knows(&self, flow: &StaleFlow) -> bool {
        let key = flow.key();
        self.by_key.get(&key).is_some()
    }

    /// Each flow as it stands.
    pub(crate) fn reports<'a>(
        &'a self,
        classes: &'a Classes,
        is_parked: bool,
    ) -> impl Iterator<Item = FlowReport> + 'a {
        self.flows.values().map(move |flow| flow.report(classes, is_parked))
    }

    /// The paired flows, for the peer to remember.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = StaleFlow> + '_ {
        self.flows.values().filter_map(|flow| flow.remembered())
    }

    /// Returns true if this is one of them.
    pub(crate) fn remembers(&self, flow: &StaleFlow) -> bool {
        let known = self.by_key.get(&flow.key()).and_then(|slot| self.flows.get(slot));
        known.is_some_and(|known| known.requester_qpn == Some(flow.requester_qpn))
    }

    /// Returns the bytes that each flow holds in packet buffers.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load<NearKey>> + '_ {
        let load = |flow: NearKey, near: &NearFlow| Load {
            host: near.addressing.src,
            held: near.early.bytes as usize,
            is_unheard: false,
            flow,
        };
        self.flows.iter().map(move |(key, flow)| load(key, flow)).filter(|load| load.held > 0)
    }

    /// Take no new flow from now on.
    pub(crate) fn stop_accepting(&mut self) {
        self.closed = true;
    }

    /// Returns true if no requester waits for anything.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flows.values().all(|flow| flow.near.is_idle() || flow.near.is_dead())
    }

    /// Returns the counts of all flows there have been.
    pub(crate) fn counted(&self) -> NearStats {
        self.counters.get()
    }

    pub(crate) fn has(&self, key: &FlowKey) -> bool {
        self.by_key.get(key).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn owing(&self) -> usize {
        self.flows.values().filter(|flow| flow.near.owes()).count()
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Memory in which responses wait for earlier ones: in use, and with what is kept for reuse.
    pub(crate) fn reorder_bytes(&self) -> [usize; 2] {
        [self.pages.bytes_in_use(), self.pages.bytes()]
    }
}

fn reason(why: Why) -> LanDrop {
    match why {
        Why::Orphan => LanDrop::Orphan,
        Why::Full => LanDrop::NoRoom,
        Why::Failed | Why::Dead => LanDrop::Failed,
        Why::Ahead | Why::Stale => LanDrop::OutOfSequence,
        Why::Duplicate | Why::Pending => LanDrop::Duplicate,
        Why::NotARequest => LanDrop::Opcode,
    }
}
