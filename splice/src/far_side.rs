//! Flows whose target is on our LAN: the far halves.

use std::collections::VecDeque;
use std::time::Instant;

use config::MAX_CLASSES;
use reliability::message::{Insert, Pages, Reassembly};
use roce::flow::far::{Failure, Far, FarConfig, Refused, Verdict, Why};
use roce::ip::{Addressing, headroom};
use roce::pairing::{FlowKey, Hosts, Match, Response, source_port};
use roce::wire::{Opcode, Packet, PathMtu, Psn, Qpn};
use slotmap::SlotMap;

use crate::Settings;
use crate::classes::{Choice, Classes, traffic};
use crate::congestion::{Notified, unmarked};
use crate::context::{Context, REORDER, reorder_buffer};
use crate::lookup::Lookup;
use crate::memory::{Remembered, Stood};
use crate::near_side::TTL;
use crate::pool::Buf;
use crate::record::{FlowId, Head, Reason};
use crate::relief::{Load, host_share};
use crate::senders::{Claim, Urgency};
use crate::stats::LanDrop;
use crate::timers::Timers;
use crate::withheld::{Lists, Withheld};

slotmap::new_key_type! {
    pub(crate) struct FarKey;
}

/// A request and whether it is a READ to run again.
struct Request {
    packet: Buf,
    replay: bool,
}

/// Loss on a LAN is rare, and mostly shows by a gap; a target that serves other queue pairs first is common, and a READ that it gets
/// twice it answers twice.
const RTO_MIN: std::time::Duration = std::time::Duration::from_millis(50);

/// Bytes of a packet inside a message at the smallest path MTU: shorter ones come one to a message, of which a requester has few under way.
const LEAST_PACKET: usize = 256;

/// Flows remembered that were over before all of their requests had come: what overtakes a record lies within a round trip.
const CLOSED: usize = 256;

/// One flow at its target's side.
struct FarFlow {
    far: Far<Buf>,
    id: FlowId,
    /// As the requester sent it: this gateway speaks in the requester's name.
    addressing: Addressing,
    target_qpn: Qpn,
    requester_qpn: Option<Qpn>,
    choice: Choice,
    /// Of the READ that the target was asked for last, or is to be next. Those under way at one time are of one class.
    asked: u64,
    requests: Reassembly<Request>,
    /// Bytes of the requests that wait in it.
    waiting: usize,
    /// Responses carried so far: the next one's sequence number.
    responses: u32,
    last_psn: Psn,
    /// The last request was in the midst of a message.
    amid_message: bool,
    last_activity: Instant,
    armed: Option<Instant>,
    queued: bool,
    /// Where in `withheld`.
    withheld: Lists,
    /// In `others_turn`.
    awaits_turn: bool,
    /// Room kept in a class's stream for what the target was asked for.
    kept: Claim,
    notified: Notified,
    /// The peer has forgotten it: nothing is relayed any more, and it goes as soon as it is dead or idle.
    orphaned: bool,
}

impl FarFlow {
    fn key(&self) -> FlowKey {
        FlowKey { requester: self.addressing.src, target: self.addressing.dst, target_qpn: self.target_qpn }
    }

    fn is_idle(&self) -> bool {
        self.far.is_idle() && self.waiting == 0
    }

    /// The class of a message of so many bytes. What is told about the flow is a message of none.
    fn class_of(&mut self, size: u64, classes: &Classes) -> usize {
        let (addressing, target_qpn) = (self.addressing, self.target_qpn);
        classes.choose(&mut self.choice, || traffic(&addressing, target_qpn.get()), size)
    }

    /// The class of a response. One to a READ is part of what the READ asked for; any other has no length.
    fn class_of_response(&mut self, packet: &Packet<'_>, classes: &Classes) -> usize {
        let size = match packet.payload {
            [] => 0,
            _ if classes.are_by_size() => self.far.read_length(packet.bth.psn).map_or(self.asked, u64::from),
            _ => self.asked,
        };
        self.class_of(size, classes)
    }

    fn remembered(&self) -> Option<Remembered> {
        Some(Remembered {
            requester: self.addressing.src,
            target: self.addressing.dst,
            target_qpn: self.target_qpn,
            requester_qpn: self.requester_qpn?,
            psn: self.last_psn,
            stood: Stood::Far,
        })
    }

    /// Tells the class's stream what the target is still to bring.
    fn keep_room(&mut self, ctx: &mut Context<'_>) {
        let class = self.class_of(self.asked, ctx.classes);
        ctx.senders.await_responses(class, &mut self.kept, self.far.awaited());
    }

    /// Tells the far half for how much READ data there is room; `false` if that depends on what it has been asked for already, in another class.
    fn give_room(&mut self, ctx: &mut Context<'_>) -> bool {
        // The class of what was asked for may have got other streams since.
        self.keep_room(ctx);
        let next = self.far.next_read_length().map_or(self.asked, u64::from);
        let class = self.class_of(next, ctx.classes);
        let may_join = ctx.senders.may_join(class, &self.kept);
        if may_join {
            self.asked = next;
        }
        self.far.set_room(if may_join { ctx.senders.read_room(class) } else { 0 });
        may_join
    }

    fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        if self.far.is_dead() {
            return Some(self.last_activity);
        }
        let idle = self.last_activity + settings.idle_flow * 2;
        Some(self.far.next_timeout().map_or(idle, |at| at.min(idle)))
    }
}

/// All far flows of a gateway. Bound: `settings.flows`; a request that would open one more is answered with `Fail`.
pub(crate) struct FarSide {
    flows: SlotMap<FarKey, FarFlow>,
    by_id: Lookup<FlowId, FarKey>,
    by_key: Lookup<FlowKey, FarKey>,
    timers: Timers<FarKey>,
    /// Where requests wait for earlier ones.
    pages: Pages<Request>,
    /// Flows that may have something to send to their target.
    ready: VecDeque<FarKey>,
    /// Flows that wait for room in their class's stream to send a READ. Each in its turn gets on by one.
    withheld: Withheld<FarKey>,
    /// Unpaired flows that may not send since it is another's turn.
    others_turn: Vec<FarKey>,
    /// Flows that were over before all of their requests had come, the youngest last.
    closed: VecDeque<FlowId>,
    /// Refuse new flows: the gateway is stopping.
    stopping: bool,
}

impl FarSide {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            pages: Pages::new(reorder_buffer(settings)),
            flows: SlotMap::with_key(),
            by_id: Lookup::new(),
            by_key: Lookup::new(),
            timers: Timers::new(),
            ready: VecDeque::new(),
            withheld: Withheld::new(),
            others_turn: Vec::new(),
            closed: VecDeque::new(),
            stopping: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Take no new flow from now on.
    pub(crate) fn close_door(&mut self) {
        self.stopping = true;
    }

    /// Whether no target is in the midst of a message, or owes an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flows.values().all(|flow| flow.is_idle() && !flow.amid_message || flow.far.is_dead())
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Memory in which requests wait for earlier ones: in use, and with what is kept for reuse.
    pub(crate) fn reorder_bytes(&self) -> [usize; 2] {
        [self.pages.bytes_in_use(), self.pages.bytes()]
    }

    /// A request record from the peer, in any order.
    pub(crate) fn handle_request(
        &mut self,
        id: FlowId,
        seq: u32,
        replay: bool,
        open: Option<Addressing>,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let Ok(packet) = Packet::parse(body) else {
            ctx.stats.bad_records += 1;
            return;
        };
        let slot = match (self.by_id.get(&id), open) {
            (Some(slot), _) => slot,
            (None, _) if self.closed.contains(&id) => {
                ctx.stats.late_records += 1;
                return;
            }
            (None, Some(addressing)) if self.is_outdated(id, &addressing, &packet) => {
                ctx.stats.late_records += 1;
                return;
            }
            (None, Some(addressing)) => match self.open(id, &addressing, &packet, ctx) {
                Ok(slot) => slot,
                Err(reason) => return Self::refuse(id, reason, &addressing, packet.bth.dest_qp, ctx),
            },
            (None, None) => {
                // Ended here, which its requester's gateway has not heard yet. If that still has the flow it must not wait for an answer.
                ctx.stats.late_records += 1;
                let head = Head::Fail { flow: id, reason: Reason::UnknownFlow };
                // Without room the near half gives up waiting, in its time.
                let _ = ctx.senders.push(0, Urgency::Prompt, &head, [&[], &[]], ctx.now);
                return;
            }
        };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.orphaned || flow.far.is_ending() {
            ctx.stats.late_records += 1;
            return;
        }
        let Some(copy) = ctx.pool.copy(body) else {
            return self.give_up(slot, Reason::NoRoom, ctx);
        };
        match flow.requests.insert(seq, Request { packet: copy, replay }, &mut self.pages) {
            Ok(()) => flow.waiting += body.len(),
            // More has overtaken a request than can wait for it: without this one nothing would ever follow.
            Err(Insert::NoRoom | Insert::BeyondWindow) => return self.give_up(slot, Reason::NoRoom, ctx),
            Err(Insert::Duplicate | Insert::Late) => {
                ctx.stats.bad_records += 1;
                return;
            }
        }
        flow.last_activity = ctx.now;
        while let Some(Request { packet, replay }) = flow.requests.pop(&mut self.pages) {
            flow.waiting -= packet.as_ref().len();
            if replay {
                flow.far.handle_replay(packet, ctx.now);
                continue;
            }
            let mut asked = None;
            if let Ok(parsed) = Packet::parse(packet.as_ref()) {
                let is_read = parsed.bth.opcode == Opcode::ReadRequest;
                asked = parsed.ext.reth().filter(|_| is_read).map(|reth| reth.dma_length);
                flow.last_psn = parsed.bth.psn;
                flow.amid_message = !parsed.bth.opcode.ends_message();
                if !ctx.settings.fits_lan(&flow.addressing, parsed.bytes.len()) {
                    // The requester is told by the far half, which may first have to find out who that is.
                    ctx.stats.lan_too_long += 1;
                    ctx.stats.fail(Reason::TooLong);
                    flow.far.refuse(&parsed, ctx.now);
                    break;
                }
            }
            match flow.far.handle_request(packet, ctx.now) {
                Ok(()) => {
                    // What a READ asks for goes out from here.
                    if let Some(length) = asked {
                        let class = flow.class_of(length.into(), ctx.classes);
                        ctx.senders.note_message(class, length.into());
                    }
                }
                Err(Refused::Full) => return self.give_up(slot, Reason::NoRoom, ctx),
                Err(_) => return self.give_up(slot, Reason::Protocol, ctx),
            }
        }
        self.touch(slot, ctx);
    }

    /// Whether the peer has replaced this flow by another one of the same queue pair, whose requests overtook this one.
    fn is_outdated(&self, id: FlowId, addressing: &Addressing, packet: &Packet<'_>) -> bool {
        let key =
            FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: packet.bth.dest_qp };
        let Some(slot) = self.by_key.get(&key) else { return false };
        let Some(other) = self.flows.get(slot) else { return false };
        // Identifiers ascend within a session, and a flow of an earlier session has none that counts.
        self.by_id.get(&other.id) == Some(slot) && other.id.0.wrapping_sub(id.0).cast_signed() > 0
    }

    fn refuse(id: FlowId, reason: Reason, addressing: &Addressing, target_qpn: Qpn, ctx: &mut Context<'_>) {
        ctx.stats.fail(reason);
        let class = ctx.classes.classify(&traffic(addressing, target_qpn.get()), Some(0));
        // Without room the requester's own retry brings the next request, and with it the next refusal.
        let _ =
            ctx.senders.push(class, Urgency::Prompt, &Head::Fail { flow: id, reason }, [&[], &[]], ctx.now);
    }

    fn open(
        &mut self,
        id: FlowId,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<FarKey, Reason> {
        if !ctx.settings.is_remote(addressing.src) || ctx.settings.is_remote(addressing.dst) {
            ctx.stats.bad_records += 1;
            return Err(Reason::Protocol);
        }
        let key =
            FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: packet.bth.dest_qp };
        let config = FarConfig {
            target_dead_after: ctx.settings.target_dead,
            rnr_limit: ctx.settings.rnr,
            read_piece: u32::try_from(ctx.senders.read_piece()).unwrap_or(u32::MAX),
            rto_initial: RTO_MIN * 2,
            rto_min: RTO_MIN,
            // Whoever holds most gives way before that. What a flow may have under way is the peer's to say, and here only memory bounds it.
            max_buffered: host_share(ctx.settings.total_buffer),
            max_packets: host_share(ctx.settings.total_buffer) / LEAST_PACKET,
            ..FarConfig::default()
        };
        let other = self.by_key.get(&key);
        let far = match other.and_then(|slot| self.flows.get(slot)) {
            Some(before) => before.far.anew(config, ctx.now),
            None if self.stopping => return Err(Reason::Stopping),
            None => Far::new(config, ctx.now),
        };
        if let Some(other) = other {
            self.close(other, ctx);
        }
        if self.flows.len() >= ctx.settings.flows {
            return Err(Reason::NoRoom);
        }
        let requester_qpn =
            ctx.pairings.open(key, addressing.src_port, ctx.now).map_err(|_| Reason::NoRoom)?;
        let slot = self.flows.insert(FarFlow {
            far,
            id,
            addressing: Addressing { ttl: TTL, tclass: unmarked(addressing.tclass), ..*addressing },
            target_qpn: packet.bth.dest_qp,
            requester_qpn,
            choice: ctx.classes.choice(&traffic(addressing, packet.bth.dest_qp.get())),
            asked: 0,
            requests: Reassembly::new(0, REORDER),
            waiting: 0,
            responses: 0,
            last_psn: packet.bth.psn,
            amid_message: false,
            last_activity: ctx.now,
            armed: None,
            queued: false,
            withheld: Lists::default(),
            awaits_turn: false,
            kept: Claim::default(),
            notified: Notified::default(),
            orphaned: false,
        });
        self.by_id.insert(id, slot);
        self.by_key.insert(key, slot);
        ctx.stats.far_opened += 1;
        Ok(slot)
    }

    /// A response packet from the LAN.
    pub(crate) fn handle_response(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) {
        let Some(slot) = self.find(addressing, packet, ctx) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.last_activity = ctx.now;
        flow.notified.note(addressing, Some(flow.target_qpn), ctx);
        let urgency = if packet.payload.is_empty() { Urgency::Prompt } else { Urgency::Bulk };
        let class = flow.class_of_response(packet, ctx.classes);
        if !ctx.senders.holds(class, &flow.kept) {
            // It was asked for under an earlier policy.
            flow.keep_room(ctx);
        }
        let has_room = ctx.senders.has_room_for_response(class, urgency, packet.bytes.len());
        // Of one that the peer has forgotten nothing is relayed.
        if !has_room && !flow.orphaned {
            // None that was asked for, unless a target answers long after its time.
            ctx.stats.drop_lan(LanDrop::NoRoom);
            flow.far.handle_dropped(ctx.now);
            return self.touch(slot, ctx);
        }
        match flow.far.handle_response(packet, ctx.now) {
            Verdict::Relay(passed) => {
                if !Self::relay(flow, class, urgency, passed.parts(packet.bytes), ctx) {
                    return self.give_up(slot, Reason::NoRoom, ctx);
                }
            }
            Verdict::Absorbed => {}
            Verdict::Drop(why) => ctx.stats.drop_lan(reason(why)),
        }
        self.touch(slot, ctx);
    }

    /// Pushes the next response record; `false` if there was no room.
    fn relay(
        flow: &mut FarFlow,
        class: usize,
        urgency: Urgency,
        parts: [&[u8]; 2],
        ctx: &mut Context<'_>,
    ) -> bool {
        if flow.orphaned {
            return true;
        }
        let head = Head::Response { flow: flow.id, seq: flow.responses };
        if ctx.senders.push(class, urgency, &head, parts, ctx.now).is_err() {
            return false;
        }
        flow.responses = flow.responses.wrapping_add(1);
        ctx.stats.responses += 1;
        true
    }

    fn find(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<FarKey> {
        let response = Response {
            hosts: Hosts { requester: addressing.dst, target: addressing.src },
            requester_qpn: packet.bth.dest_qp,
            src_port: addressing.src_port,
            psn: packet.bth.psn,
        };
        let why = match ctx.pairings.handle_response(&response, ctx.now) {
            Match::Known(key) => return self.by_key.get(&key),
            Match::Paired(key) => {
                self.pair(&key, packet.bth.dest_qp, ctx);
                return self.by_key.get(&key);
            }
            Match::Ambiguous => LanDrop::Ambiguous,
            Match::Unknown => LanDrop::Unpaired,
        };
        ctx.stats.drop_lan(why);
        None
    }

    /// The flow's requester is now known.
    pub(crate) fn pair(&mut self, key: &FlowKey, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.requester_qpn = Some(requester_qpn);
            ctx.stats.paired += 1;
        }
        self.touch(slot, ctx);
        // And with that the turn may have passed on.
        self.kick_unpaired();
    }

    /// One of the flow's queue pairs now belongs to another connection.
    pub(crate) fn supersede(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_key.get(key) {
            ctx.stats.replaced += 1;
            self.close(slot, ctx);
        }
    }

    /// The requester's gateway gave the flow up: let the target's program see it.
    pub(crate) fn handle_abort(&mut self, id: FlowId, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_id.get(&id) {
            self.abort(slot, ctx);
        }
    }

    /// The requester's gateway has forgotten the flow, which had so many requests: it was idle, or its queue pair has begun another life.
    pub(crate) fn handle_close(&mut self, id: FlowId, requests: u32, ctx: &mut Context<'_>) {
        let slot = self.by_id.get(&id);
        let flow = slot.and_then(|slot| self.flows.get(slot));
        let missing = requests.wrapping_sub(flow.map_or(0, |flow| flow.requests.next())).cast_signed() > 0;
        if missing {
            // This went ahead of them.
            if self.closed.len() >= CLOSED {
                self.closed.pop_front();
            }
            self.closed.push_back(id);
        }
        let Some((slot, flow)) = slot.zip(flow) else {
            ctx.stats.late_records += 1;
            return;
        };
        let key = flow.key();
        // The pairing of a connection that goes on in its other direction stays.
        if !missing && flow.is_idle() && ctx.pairings.is_open_both_ways(&key) {
            ctx.pairings.release(&key, ctx.now);
            self.by_key.remove(&key);
        }
        self.close(slot, ctx);
    }

    fn give_up(&mut self, slot: FarKey, reason: Reason, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        ctx.stats.fail(reason);
        let head = Head::Fail { flow: flow.id, reason };
        let class = flow.class_of(0, ctx.classes);
        // Without room the near half gives up waiting, in its time.
        let _ = ctx.senders.push(class, Urgency::Prompt, &head, [&[], &[]], ctx.now);
        self.abort(slot, ctx);
    }

    fn abort(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.orphaned = true;
            flow.requests.clear(&mut self.pages);
            flow.waiting = 0;
            flow.far.abort(ctx.now);
            self.touch(slot, ctx);
        }
    }

    /// What each flow holds in packet buffers.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load<FarKey>> + '_ {
        let load = |(flow, far): (FarKey, &FarFlow)| {
            let held = far.far.buffered_bytes() + far.waiting;
            Load { host: far.addressing.dst, held, flow }
        };
        self.flows.iter().map(load).filter(|load| load.held > 0)
    }

    /// Ends a flow because others need what it holds.
    pub(crate) fn shed(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        self.give_up(slot, Reason::NoRoom, ctx);
    }

    /// The paired flows, for the peer to remember: those that failed, too, since the peer may end before it hears of it.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = Remembered> + '_ {
        self.flows.values().filter_map(FarFlow::remembered)
    }

    /// The session is over: every target's program is to see it.
    pub(crate) fn fail_all(&mut self, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            let Some(flow) = self.flows.get(slot) else { continue };
            if let Some(remembered) = flow.remembered() {
                ctx.memory.remember(remembered, ctx.now + ctx.settings.linger);
            }
            ctx.stats.session_failed += 1;
            self.by_id.remove(&flow.id);
            self.abort(slot, ctx);
        }
        self.closed.clear();
    }

    /// The peer remembers a flow to one of our targets that this gateway, restarted, does not know: end it for the target.
    pub(crate) fn poison(&mut self, flow: &Remembered, ctx: &mut Context<'_>) {
        let key = flow.key();
        if self.by_key.get(&key).is_some() || self.flows.len() >= ctx.settings.flows {
            return;
        }
        let src_port = source_port(flow.requester_qpn, flow.target_qpn);
        ctx.pairings.learn(key, flow.requester_qpn, ctx.now);
        if ctx.pairings.open(key, src_port, ctx.now).is_err() {
            return;
        }
        let config = FarConfig { target_dead_after: ctx.settings.target_dead, ..FarConfig::default() };
        let slot = self.flows.insert(FarFlow {
            far: Far::abort_unknown(config, flow.target_qpn, DEFAULT_PKEY, flow.psn, ctx.now),
            // Not of this session: no record names it, so it is in no table of identifiers.
            id: FlowId(u32::MAX),
            addressing: Addressing { src: flow.requester, dst: flow.target, src_port, tclass: 0, ttl: TTL },
            target_qpn: flow.target_qpn,
            requester_qpn: Some(flow.requester_qpn),
            choice: Choice::default(),
            asked: 0,
            requests: Reassembly::new(0, REORDER),
            waiting: 0,
            responses: 0,
            last_psn: flow.psn,
            amid_message: false,
            last_activity: ctx.now,
            armed: None,
            queued: false,
            withheld: Lists::default(),
            awaits_turn: false,
            kept: Claim::default(),
            notified: Notified::default(),
            orphaned: true,
        });
        self.by_key.insert(key, slot);
        self.touch(slot, ctx);
    }

    /// The next packet for a target, written to `out` from the BTH on, where [`headroom`] says that it starts.
    pub(crate) fn poll(&mut self, out: &mut [u8], ctx: &mut Context<'_>) -> Option<(Addressing, usize)> {
        loop {
            while let Some(&slot) = self.ready.front() {
                if let Some(sent) = self.poll_flow(slot, out, ctx) {
                    return Some(sent);
                }
                self.ready.pop_front();
            }
            if !self.release_withheld(ctx) {
                return None;
            }
        }
    }

    fn poll_flow(
        &mut self,
        slot: FarKey,
        out: &mut [u8],
        ctx: &mut Context<'_>,
    ) -> Option<(Addressing, usize)> {
        let flow = self.flows.get_mut(slot)?;
        // While it is not known which of several flows a response would answer, only one of them may ask.
        let may_send = flow.requester_qpn.is_some() || ctx.pairings.may_send(&flow.key());
        let room = out.get_mut(headroom(&flow.addressing)..).unwrap_or_default();
        let may_join = flow.give_room(ctx);
        if may_send && let Some(len) = flow.far.poll_transmit(ctx.now, room) {
            flow.keep_room(ctx);
            if flow.requester_qpn.is_none()
                && let Some(Ok(packet)) = room.get(..len).map(Packet::parse)
            {
                ctx.pairings.sent(&flow.key(), packet.bth.psn, longest_span(&packet, flow.far.mtu()));
            }
            return Some((flow.addressing, len));
        }
        flow.queued = false;
        if !may_send && !std::mem::replace(&mut flow.awaits_turn, true) {
            self.others_turn.push(slot);
        }
        // What it has been asked for comes, and with that it gets on.
        if may_send && may_join && flow.far.awaits_room() {
            let class = flow.class_of(flow.asked, ctx.classes);
            self.withheld.add(slot, &mut flow.withheld, class);
        }
        let at = flow.next_timeout(ctx.settings);
        self.timers.arm(&mut flow.armed, at, slot);
        None
    }

    /// Where a stream has drained, the flow that has waited longest for that may send its READ.
    fn release_withheld(&mut self, ctx: &Context<'_>) -> bool {
        let piece = ctx.senders.read_piece();
        for class in 0..MAX_CLASSES {
            while ctx.senders.read_room(class) >= piece
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.withheld.leave(class);
                // If its next READ takes another class by now, it comes to stand on that one's list.
                if !flow.queued {
                    flow.queued = true;
                    self.ready.push_back(slot);
                    return true;
                }
            }
        }
        false
    }

    /// The classes are others now: whoever waits for room asks anew. All others come to theirs with their next packet.
    pub(crate) fn reclassify(&mut self) {
        for slot in self.withheld.drain() {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            flow.withheld = Lists::default();
            if !std::mem::replace(&mut flow.queued, true) {
                self.ready.push_back(slot);
            }
        }
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
            flow.far.handle_timeout(ctx.now);
            let stale = ctx.now >= flow.last_activity + ctx.settings.idle_flow * 2;
            if stale && flow.orphaned {
                self.close(slot, ctx);
                continue;
            }
            if stale && flow.far.is_inside() {
                flow.last_activity = ctx.now;
                // The rest of the message will not come: its program must not wait for it.
                self.give_up(slot, Reason::RequesterGone, ctx);
            } else if stale {
                flow.last_activity = ctx.now;
                // Only the requester's gateway knows how long a flow may be idle: what is forgotten here alone is lost to its requester.
                let head = Head::Idle { flow: flow.id };
                let class = flow.class_of(0, ctx.classes);
                let _ = ctx.senders.push(class, Urgency::Prompt, &head, [&[], &[]], ctx.now);
            }
            self.touch(slot, ctx);
            if let Some(failure) = self.flows.get(slot).and_then(|flow| flow.far.failure()) {
                self.bury(slot, failure, ctx);
            }
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }

    /// Whose turn it is to send may have changed.
    pub(crate) fn kick_unpaired(&mut self) {
        for slot in self.others_turn.drain(..) {
            if let Some(flow) = self.flows.get_mut(slot) {
                flow.awaits_turn = false;
                if !std::mem::replace(&mut flow.queued, true) {
                    self.ready.push_back(slot);
                }
            }
        }
    }

    /// The flow is over. A target that was only silent may wake up to half a message: its program is told, too.
    fn bury(&mut self, slot: FarKey, failure: Failure, ctx: &mut Context<'_>) {
        match failure {
            Failure::TargetSilent | Failure::RnrExhausted => {
                ctx.stats.fail(Reason::TargetDead);
                self.abort(slot, ctx);
            }
            Failure::Refused(_) | Failure::Aborted | Failure::AbortUnanswered => self.close(slot, ctx),
        }
    }

    fn close(&mut self, slot: FarKey, ctx: &mut Context<'_>) {
        let Some(mut flow) = self.flows.remove(slot) else { return };
        flow.requests.clear(&mut self.pages);
        self.withheld.forget(flow.withheld, |key| self.flows.contains_key(key));
        ctx.senders.await_responses(0, &mut flow.kept, 0);
        if let Some(remembered) = flow.remembered().filter(|_| flow.far.is_dead()) {
            ctx.memory.remember(remembered, ctx.now + ctx.settings.linger);
        }
        if self.by_id.get(&flow.id) == Some(slot) {
            self.by_id.remove(&flow.id);
        }
        let key = flow.key();
        if self.by_key.get(&key) == Some(slot) {
            self.by_key.remove(&key);
            ctx.pairings.forget(&key, ctx.now);
        }
    }

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
        if !flow.queued {
            flow.queued = true;
            self.ready.push_back(slot);
        }
        let at = flow.next_timeout(ctx.settings);
        self.timers.arm(&mut flow.armed, at, slot);
    }
}

/// What a request consumes of PSNs, at most while the path MTU is unknown.
fn longest_span(packet: &Packet<'_>, mtu: Option<u32>) -> u32 {
    let mtu = mtu.and_then(|mtu| PathMtu::from_bytes(mtu as usize)).unwrap_or(PathMtu::B256);
    match packet.ext.reth() {
        Some(reth) if packet.bth.opcode == Opcode::ReadRequest => mtu.psn_span(reth.dma_length),
        _ => 1,
    }
}

fn reason(why: Why) -> LanDrop {
    match why {
        Why::NotAResponse => LanDrop::Opcode,
        Why::Unexpected | Why::Ahead | Why::Mismatch => LanDrop::OutOfSequence,
        Why::Duplicate => LanDrop::Duplicate,
        Why::Dead => LanDrop::Failed,
    }
}

/// What every subnet without partitions uses, and RoCE always.
const DEFAULT_PKEY: u16 = 0xffff;
