//! Responder side: flows whose target is on our LAN: the far halves.

mod asked;
mod end;
mod flow;
mod held;
pub(crate) mod moves;
mod open;
mod ready;
mod respond;
mod restore;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use reliability::message::{Insert, Pages, Reassembly};
use roce::flow::far::{Far, FarConfig, FarCounters, FarStats};
use roce::ip::{Addressing, headroom};
use roce::pairing::FlowKey;
use roce::unheard::{Ticket, Unheard};
use roce::wire::{Opcode, Packet, Psn, Qpn};
use slotmap::SlotMap;
use transport::{Reservation, Urgency};

use crate::Settings;
use crate::back_pressure::{BackPressureQueue, Lists};
use crate::classes::{Choice, Classes};
use crate::congestion::Notified;
use crate::context::Context;
use crate::flow_report::FlowReport;
use crate::hosts::Hosts;
use crate::lookup::Lookup;
use crate::near_side::NearSide;
use crate::pool::Buf;
use crate::reclaimer::Load;
use crate::record::{FlowId, Head, Opening, Reason};
use crate::renewals::Renewals;
use crate::settings::reorder_buffer;
use crate::shared::Shared;
use crate::short::Headers;
use crate::stale_flows::StaleFlow;
use crate::timers::Timers;
use ready::{Line, Ready};

slotmap::new_key_type! {
    pub(crate) struct FarKey;
}

/// How a request is to go to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct How {
    /// Beside those in sequence: its requester sends it again.
    pub(crate) replay: bool,
    /// Its target may have another partner by now ([`Far::note_rest`]).
    /// Rule: `docs/protocol.md#rule-rested`.
    pub(crate) rested: bool,
}

/// A request that waits for earlier ones.
#[derive(serde::Serialize, serde::Deserialize)]
struct Request {
    packet: Buf,
    how: How,
}

/// Whose turn it is to ask a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The flow's, or it needs none.
    Own,
    Others,
    /// The flow has nothing to ask.
    Nothing,
}

/// The last request that came.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Last {
    psn: Psn,
    /// It was in the midst of a message.
    is_amid_message: bool,
    /// The flows in the other direction that had been renewed before it. After a snapshot there are
    /// none.
    #[serde(skip)]
    came_after: Renewals,
}

/// One flow at its target's side.
#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct FarFlow {
    far: Far<Buf>,
    id: FlowId,
    /// As the requester sent it: this gateway speaks in the requester's name.
    addressing: Addressing,
    target_qpn: Qpn,
    requester_qpn: Option<Qpn>,
    headers: Headers,
    #[serde(skip)]
    choice: Choice,
    /// The length of the READ that the target was asked for last, or is to be next. Those under way
    /// at one time are of one class.
    asked: u64,
    requests: Reassembly<Request>,
    /// Bytes of the requests that wait in it.
    waiting: usize,
    /// Responses carried so far: the next one's sequence number.
    responses: u32,
    last: Last,
    #[serde_as(as = "snapshot::At")]
    last_activity: Instant,
    #[serde_as(as = "Option<snapshot::At>")]
    armed: Option<Instant>,
    /// Where in `ready`.
    #[serde(with = "ready::is_queued")]
    queued: Option<Line>,
    /// Where in `withheld`.
    withheld: Lists,
    asking: Asking,
    /// Room kept in a class's stream for what the target was asked for.
    kept: Reservation,
    notified: Notified,
    /// The peer has forgotten it: nothing is relayed any more. It is being ended, or the peer's
    /// process is another one, whose next request of this flow opens another in its place.
    orphaned: bool,
}

/// Questions of a flow to its target, and whether it may ask.
#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct Asking {
    /// It asks the pairings before it sends anything: its requester is not known, or may be another
    /// one by now.
    asks: bool,
    /// When it last sent anything to its target.
    #[serde_as(as = "Option<snapshot::At>")]
    spoke: Option<Instant>,
    /// When it last did so without asking for its turn.
    #[serde_as(as = "Option<snapshot::At>")]
    spoke_freely: Option<Instant>,
    /// In `flying`.
    is_flying: bool,
    /// The last count with which the peer said whether to ask about what is outstanding.
    suspended: u32,
    /// The requester of a flow of which nothing but that is known. If it is another one by now, the
    /// target's queue pair has another life.
    expects: Option<Qpn>,
    /// Its place in `unheard`.
    #[serde(skip)]
    unheard: Option<Ticket>,
}

impl Asking {
    fn new(expects: Option<Qpn>) -> Asking {
        Asking {
            asks: true,
            spoke: None,
            spoke_freely: None,
            is_flying: false,
            suspended: 0,
            expects,
            unheard: None,
        }
    }
}

/// All far flows of a gateway. Bound: `settings.flows`, and each requester's share of them
/// ([`Hosts`]); for one more a flow is forgotten whose target has never spoken ([`Unheard`]), and
/// if there is none the request is. The requester's gateway hears of either.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct FarSide {
    /// Each by itself, so that a table that doubles moves none of them.
    flows: SlotMap<FarKey, Box<FarFlow>>,
    #[serde(skip)]
    config: Shared<FarConfig>,
    #[serde(skip)]
    counters: Arc<FarCounters>,
    by_id: Lookup<FlowId, FarKey>,
    by_key: Lookup<FlowKey, FarKey>,
    timers: Timers<FarKey>,
    /// Where requests wait for earlier ones.
    pages: Pages<Request>,
    /// Flows that may have something to send to their target.
    ready: Ready,
    /// Flows that wait for room in their class's stream to send a READ. Each in its turn gets on by
    /// one.
    withheld: BackPressureQueue<FarKey>,
    /// Those that have sent something and may have no answer yet.
    flying: Vec<FarKey>,
    /// Flows that were over before all of their requests had come, the youngest last.
    closed: VecDeque<FlowId>,
    /// Flows that give way when there are as many as there may be.
    #[serde(skip)]
    unheard: Unheard<FarKey>,
    /// Flows of each requester.
    hosts: Hosts,
    /// Last packets of messages that have gone to their targets, repetitions included.
    handed_over: u64,
    /// Refuse new flows: the gateway is stopping.
    stopping: bool,
}

impl FarSide {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            pages: Pages::new(reorder_buffer(settings)),
            flows: SlotMap::with_key(),
            config: Shared::new(),
            counters: Arc::default(),
            by_id: Lookup::new(),
            by_key: Lookup::new(),
            timers: Timers::new(),
            ready: Ready::new(),
            withheld: BackPressureQueue::new(),
            flying: Vec::new(),
            closed: VecDeque::new(),
            unheard: Unheard::default(),
            hosts: Hosts::default(),
            handed_over: 0,
            stopping: false,
        }
    }

    /// A request record from the peer, in any order.
    pub(crate) fn handle_request(
        &mut self,
        id: FlowId,
        seq: u32,
        how: How,
        opens: Opening,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let Some(slot) = self.find_or_open(id, seq, &opens, body, ctx) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.orphaned || flow.far.is_ending() {
            ctx.stats.late_records += 1;
            return;
        }
        // Its requester's gateway has had a response.
        flow.headers.sent.answered |= !matches!(opens, Opening::Full(_));
        let restored =
            (opens == Opening::Short).then(|| flow.headers.came.and_then(|known| known.restore(body, seq)));
        let copy = match &restored {
            None => ctx.pool.copy(body),
            Some(Some((bth, rest))) => ctx.pool.concat(&[bth, rest]),
            Some(None) => {
                ctx.stats.bad_records += 1;
                return;
            }
        };
        let Some(copy) = copy else {
            return self.give_up(slot, Reason::NoRoom, ctx);
        };
        if Packet::parse(copy.as_ref()).is_err() {
            ctx.stats.bad_records += 1;
            return;
        }
        let len = copy.as_ref().len();
        match flow.requests.insert(seq, Request { packet: copy, how }, &mut self.pages) {
            Ok(()) => flow.waiting += len,
            // More has overtaken a request than can wait for it: without this one nothing would
            // ever follow.
            Err(Insert::NoRoom | Insert::BeyondWindow) => return self.give_up(slot, Reason::NoRoom, ctx),
            Err(Insert::Duplicate | Insert::Late) => {
                ctx.stats.bad_records += 1;
                return;
            }
        }
        (flow.last_activity, flow.last.came_after) = (ctx.now, *ctx.renewals);
        match flow.hand_over(&mut self.pages, ctx) {
            Ok(()) => self.touch(slot, ctx),
            Err(reason) => self.give_up(slot, reason, ctx),
        }
    }

    /// The requester tries again what its target was not ready for.
    pub(crate) fn handle_retry(&mut self, id: FlowId, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_id.get(&id) else {
            // Its requester's gateway is about to hear that it is over.
            ctx.stats.late_records += 1;
            return;
        };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.last_activity = ctx.now;
            flow.far.retry();
        }
        self.touch(slot, ctx);
    }

    /// The requester's gateway says whether what is outstanding may be nobody's any more. Its words
    /// may come in any order, and the one with the highest count is the last.
    ///
    /// Rule: `docs/protocol.md#rule-suspend`.
    pub(crate) fn handle_suspend(&mut self, id: FlowId, count: u32, ctx: &mut Context<'_>) {
        let Some((slot, flow)) = self.by_id.get(&id).and_then(|slot| Some((slot, self.flows.get_mut(slot)?)))
        else {
            ctx.stats.late_records += 1;
            return;
        };
        if count.wrapping_sub(flow.asking.suspended).cast_signed() > 0 {
            flow.asking.suspended = count;
            flow.far.suspend(count % 2 == 1);
            self.touch(slot, ctx);
        }
    }

    /// Something has come for the flow, or it was time: [`FarSide::poll`] sees to it, and arms its
    /// timer once for all that came until then.
    fn touch(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if let Some(reply) = flow.far.poll_response() {
            let class = flow.class_of(0, ctx.classes);
            if !Self::relay(flow, class, Urgency::Prompt, [reply.as_ref(), &[]], ctx) {
                // Without it the requester waits for what will not come.
                return self.give_up(slot, Reason::NoRoom, ctx);
            }
        }
        flow.keep_room(ctx);
        if flow.asking.unheard.is_some() && !flow.is_unheard() {
            self.unheard.leave(flow.addressing.src, &mut flow.asking.unheard);
        }
        self.queue(slot, ctx.settings);
    }

    /// The flow may have something to send.
    fn queue(&mut self, slot: FarKey, settings: &Settings) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let line = Line::of(flow.asking.asks, flow.addressing.src, settings.grouping);
        // One whose requester has become known does not stay behind those that ask.
        if flow.queued != Some(line) && flow.queued != Some(Line::Known) {
            flow.queued = Some(line);
            self.ready.push(line, slot);
        }
    }

    /// The next packet for a target, written to `out` from the BTH on, where [`headroom`] says that
    /// it starts.
    pub(crate) fn poll(&mut self, out: &mut [u8], ctx: &mut Context<'_>) -> Option<(Addressing, usize)> {
        loop {
            while let Some((line, slot)) = self.ready.front() {
                if let Some(sent) = self.poll_flow(slot, line, out, ctx) {
                    self.ready.note_sent(line);
                    return Some(sent);
                }
                self.ready.pop(line);
            }
            if !self.release_withheld(ctx) {
                return None;
            }
        }
    }

    fn poll_flow(
        &mut self,
        slot: FarKey,
        line: Line,
        out: &mut [u8],
        ctx: &mut Context<'_>,
    ) -> Option<(Addressing, usize)> {
        let flow = self.flows.get_mut(slot).filter(|flow| flow.queued == Some(line))?;
        let may_join = flow.give_room(ctx);
        // While it is not known which of several flows a response would answer, only one of them
        // may ask.
        let turn = if flow.asking.asks { flow.turn(ctx) } else { Turn::Own };
        let room = out.get_mut(headroom(&flow.addressing)..).unwrap_or_default();
        if turn == Turn::Own
            && let Some(len) = match flow.asking.asks {
                true => flow.far.poll_question(ctx.now, room),
                false => flow.far.poll_transmit(ctx.now, room),
            }
        {
            flow.asking.spoke = Some(ctx.now);
            if !flow.asking.asks {
                flow.asking.spoke_freely = flow.asking.spoke;
            }
            flow.keep_room(ctx);
            self.handed_over += u64::from(Opcode::of(room).is_some_and(Opcode::ends_message));
            let addressing = flow.addressing;
            if !std::mem::replace(&mut flow.asking.is_flying, true) {
                self.fly(slot, ctx.now);
            }
            return Some((addressing, len));
        }
        flow.queued = None;
        // What it has been asked for comes, and with that it gets on.
        if turn != Turn::Others && may_join && flow.far.awaits_room() {
            let class = flow.class_of(flow.asked, ctx.classes);
            self.withheld.add(slot, &mut flow.withheld, class);
        }
        let at = flow.next_timeout(ctx.settings);
        self.timers.arm(&mut flow.armed, at, slot);
        None
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, near: &NearSide, ctx: &mut Context<'_>) {
        self.timers.begin_round(ctx.now);
        while let Some((at, slot)) = self.timers.next_due() {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            if flow.armed != Some(at) {
                continue;
            }
            flow.armed = None;
            if flow.far.is_at_rnr() {
                flow.look_for_renewal(near, ctx);
            }
            flow.far.handle_timeout(ctx.now);
            if !flow.asking.asks && flow.far.is_unheard() {
                flow.asking.asks = true;
                ctx.pairings.ask_anew(&flow.key());
            }
            let is_stale = ctx.now >= flow.last_activity + ctx.settings.idle_flow * 2;
            if is_stale && flow.orphaned {
                self.end_orphan(slot, ctx);
                continue;
            }
            if is_stale {
                flow.last_activity = ctx.now;
            }
            // While the session is parked nobody can be asked.
            if is_stale && !ctx.is_parked() {
                // Only the requester's gateway knows how long a flow may be idle, or how long the
                // rest of a message may take: what is forgotten here alone is lost to its
                // requester, which a link that is cut keeps silent, too.
                let head = Head::Idle { flow: flow.id };
                let class = flow.class_of(0, ctx.classes);
                let _ = ctx.push(class, Urgency::Prompt, &head, [&[], &[]]);
            }
            self.touch(slot, ctx);
            if let Some(failure) = self.flows.get(slot).and_then(|flow| flow.far.failure()) {
                self.remove_failed(slot, failure, ctx);
            }
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }

    /// Each flow as it stands.
    pub(crate) fn reports<'a>(
        &'a self,
        classes: &'a Classes,
        is_parked: bool,
    ) -> impl Iterator<Item = FlowReport> + 'a {
        self.flows.values().map(move |flow| flow.report(classes, is_parked))
    }

    /// The paired flows, for the peer to remember: those that failed, too, since the peer may end
    /// before it hears of it.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = StaleFlow> + '_ {
        self.flows.values().filter_map(|flow| flow.remembered())
    }

    /// Returns true if this is one of them.
    pub(crate) fn remembers(&self, flow: &StaleFlow) -> bool {
        let known = self.by_key.get(&flow.key()).and_then(|slot| self.flows.get(slot));
        known.is_some_and(|known| known.requester_qpn == Some(flow.requester_qpn))
    }

    /// Returns the bytes that each flow holds in packet buffers.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load<FarKey>> + '_ {
        let load = |flow: FarKey, far: &FarFlow| {
            let held = far.far.buffered_bytes() + far.waiting;
            Load { host: far.addressing.dst, held, is_unheard: far.asking.unheard.is_some(), flow }
        };
        self.flows.iter().map(move |(key, flow)| load(key, flow)).filter(|load| load.held > 0)
    }

    /// Take no new flow from now on.
    pub(crate) fn stop_accepting(&mut self) {
        self.stopping = true;
    }

    /// Returns true if no target is in the midst of a message, or owes an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flows.values().all(|flow| flow.is_idle() && !flow.last.is_amid_message || flow.far.is_dead())
    }

    /// Returns the counts of all flows there have been.
    pub(crate) fn counted(&self) -> FarStats {
        self.counters.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn handed_over(&self) -> u64 {
        self.handed_over
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Memory in which requests wait for earlier ones: in use, and with what is kept for reuse.
    pub(crate) fn reorder_bytes(&self) -> [usize; 2] {
        [self.pages.bytes_in_use(), self.pages.bytes()]
    }
}
