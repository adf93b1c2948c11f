//! Flows whose requester is on our LAN: the near halves.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use config::MAX_CLASSES;
use reliability::message::{Insert, Pages, Reassembly};
use roce::flow::near::{Deliver, Near, NearConfig, Standing, Verdict, Why};
use roce::ip::{Addressing, headroom};
use roce::pairing::FlowKey;
use roce::wire::{Opcode, Packet, PathMtu, Psn, Qpn};
use slotmap::SlotMap;

use crate::Settings;
use crate::classes::{Choice, Classes, traffic};
use crate::coming::Coming;
use crate::congestion::{Notified, unmarked};
use crate::context::{Context, REORDER, reorder_buffer};
use crate::lookup::Lookup;
use crate::memory::{Remembered, Stood};
use crate::pool::Buf;
use crate::record::{FlowId, Head, Reason};
use crate::relief::Load;
use crate::senders::{Claim, Urgency};
use crate::stats::LanDrop;
use crate::timers::Timers;
use crate::withheld::{Lists, Withheld};

slotmap::new_key_type! {
    pub(crate) struct NearKey;
}

/// One flow at its requester's side.
struct NearFlow {
    near: Near,
    id: FlowId,
    /// As the requester's packets have it.
    addressing: Addressing,
    target_qpn: Qpn,
    requester_qpn: Option<Qpn>,
    choice: Choice,
    /// What the last request was judged by, where a class is for messages of some size.
    judged: u64,
    /// Requests carried so far: the next one's sequence number.
    requests: u32,
    coming: Coming,
    /// What a class's stream was told to expect of this flow.
    expected: Claim,
    /// The peer has answered, so it knows the address.
    opened: bool,
    last_psn: Psn,
    /// PSNs that the last request consumes, at most: many for a READ.
    last_span: u32,
    /// When anything last came, for whatever it was worth.
    last_activity: Instant,
    /// When a new request was last carried, or a response last came.
    last_progress: Instant,
    responses: Reassembly<Buf>,
    /// Bytes of the responses that wait in it.
    waiting: usize,
    /// Responses are not kept any more: there was no room for them, and the flow has failed.
    deaf: bool,
    armed: Option<Instant>,
    /// In `ready`.
    queued: bool,
    /// Where in `withheld`.
    withheld: Lists,
    /// Its connection is being taken down: forget it as soon as nothing is outstanding.
    ending: bool,
    notified: Notified,
}

impl NearFlow {
    fn key(&self) -> FlowKey {
        FlowKey { requester: self.addressing.src, target: self.addressing.dst, target_qpn: self.target_qpn }
    }

    /// The class of a message of so many bytes. What is told about the flow is a message of none.
    fn class_of(&mut self, size: u64, classes: &Classes) -> usize {
        let (addressing, target_qpn) = (self.addressing, self.target_qpn);
        classes.choose(&mut self.choice, || traffic(&addressing, target_qpn.get()), size)
    }

    fn remembered(&self) -> Option<Remembered> {
        Some(Remembered {
            requester: self.addressing.src,
            target: self.addressing.dst,
            target_qpn: self.target_qpn,
            requester_qpn: self.requester_qpn?,
            psn: self.last_psn,
            stood: Stood::Near,
        })
    }

    /// Where packets to the requester go: the same port both ways, as Soft-RoCE and mlx5 have it.
    fn reply_addressing(&self) -> Addressing {
        let Addressing { src, dst, tclass, .. } = self.addressing;
        Addressing { src: dst, dst: src, tclass: unmarked(tclass), ttl: TTL, ..self.addressing }
    }

    /// Queue-pair numbers are reused, and the packets say so only indirectly: by the source port, which on Soft-RoCE and mlx5
    /// follows from both numbers, or by a PSN that no packet of this flow can have. Where nothing says so, the target must.
    fn life(&self, addressing: &Addressing, packet: &Packet<'_>, now: Instant) -> Life {
        if self.addressing.src_port != addressing.src_port {
            return Life::Other;
        }
        let ahead = packet.bth.psn.distance(self.last_psn);
        let is_far = ahead < -FAR || ahead > FAR.saturating_add_unsigned(self.last_span);
        if is_far && packet.bth.opcode.starts_message() && self.is_strange(packet.bth.psn) {
            return Life::Other;
        }
        if self.near.doubts(packet, now) { Life::Doubtful } else { Life::Same }
    }

    /// Neither expected nor seen.
    fn is_strange(&self, psn: Psn) -> bool {
        matches!(self.near.classify(psn), Standing::Ahead | Standing::Duplicate { recent: false })
    }

    fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        let deadline = self.deadline(settings);
        Some(self.near.next_timeout().map_or(deadline, |at| at.min(deadline)))
    }

    /// Tells the class's stream what is still to come of the message under way: what its requester may send without waiting for its target,
    /// or nothing if the flow has failed.
    fn expect(&mut self, ctx: &mut Context<'_>) {
        let room = ctx.settings.flow_buffer.saturating_sub(self.near.outstanding_bytes());
        let coming = usize::try_from(self.coming.bytes()).unwrap_or(usize::MAX);
        let bytes = if self.near.is_failed() { 0 } else { coming.min(room) };
        let class = self.class_of(self.judged, ctx.classes);
        ctx.senders.expect(class, &mut self.expected, bytes);
    }

    /// Until when the flow may go without progress: what comes and changes nothing keeps none alive. One with something on its way waits for longer
    /// than its target is given, the far half being the first to judge; while its requester tries, for as long as the link may be cut, too.
    fn deadline(&self, settings: &Settings) -> Instant {
        let given = settings.target_dead + settings.rnr;
        match (self.near.is_idle(), self.ending) {
            (true, true) => self.last_progress,
            (true, false) => self.last_progress + settings.idle_flow,
            (false, _) => {
                let stuck = settings.idle_flow.max(given).max(STUCK);
                (self.last_activity + given).min(self.last_progress + stuck)
            }
        }
    }
}

/// The least time in which a flow without progress is stuck: some packets that a stream sends again may be lost as well, and it does so every ten
/// seconds only when the link was cut for long.
const STUCK: Duration = Duration::from_secs(60);

/// The least time in which a queue pair is destroyed and made anew at both ends.
const REMAKE: Duration = Duration::from_millis(1);

/// How long a failed flow goes on answering: some retries of any requester.
const REFUSE_FOR: Duration = Duration::from_secs(10);

/// PSNs between two request packets of one queue pair: no NIC has so many under way, so it is in a new life, whatever the old one still waits
/// for.
const FAR: i32 = 1 << 18;

/// What packets made here start with; relayed ones lose one hop.
pub(crate) const TTL: u8 = 64;

/// Which life of its queue pair a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// The one its flow knows.
    Same,
    /// That or another: only the target can tell.
    Doubtful,
    Other,
}

fn near_config(settings: &Settings) -> NearConfig {
    NearConfig {
        mid_ack_limit: settings.flow_buffer / 4,
        hard_limit: settings.flow_buffer,
        linger: REFUSE_FOR,
        // They have to agree on it across the link as well.
        settle: (settings.rtt / 2).max(REMAKE),
        ..NearConfig::default()
    }
}

/// All near flows of a gateway. Bound: `settings.flows`; a request that would open one more is dropped and counted.
pub(crate) struct NearSide {
    flows: SlotMap<NearKey, NearFlow>,
    by_key: Lookup<FlowKey, NearKey>,
    by_id: Lookup<FlowId, NearKey>,
    next_id: u32,
    timers: Timers<NearKey>,
    /// Where responses wait for earlier ones.
    pages: Pages<Buf>,
    /// Flows that may have something to send to their requester.
    ready: VecDeque<NearKey>,
    /// Flows told to withhold mid-message ACKs, to be told otherwise when their class's stream has drained.
    withheld: Withheld<NearKey>,
    /// Refuse new flows: the gateway is stopping.
    closed: bool,
}

impl NearSide {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            pages: Pages::new(reorder_buffer(settings)),
            flows: SlotMap::with_key(),
            by_key: Lookup::new(),
            by_id: Lookup::new(),
            next_id: 0,
            timers: Timers::new(),
            ready: VecDeque::new(),
            withheld: Withheld::new(),
            closed: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Memory in which responses wait for earlier ones: in use, and with what is kept for reuse.
    pub(crate) fn reorder_bytes(&self) -> [usize; 2] {
        [self.pages.bytes_in_use(), self.pages.bytes()]
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
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.last_activity = ctx.now;
        flow.notified.note(addressing, flow.requester_qpn, ctx);
        flow.judged = flow.coming.size_with(packet);
        let class = flow.class_of(flow.judged, ctx.classes);
        // One that failed asks for none, and refuses while there is no session, too.
        if !flow.near.is_failed() && !ctx.senders.has_room(class, packet.bytes.len()) {
            return ctx.stats.drop_lan(LanDrop::NoRoom);
        }
        let writable = ctx.senders.has_headroom(class);
        flow.near.set_writable(writable);
        if !writable {
            self.withheld.add(slot, &mut flow.withheld, class);
        }
        let had_failed = flow.near.is_failed();
        let carried = match flow.near.handle_request(packet, ctx.now) {
            Verdict::Forward => Self::carry(flow, class, packet, false, ctx),
            Verdict::Replay => Self::carry(flow, class, packet, true, ctx),
            Verdict::Drop(why) => {
                ctx.stats.drop_lan(reason(why));
                true
            }
        };
        if !carried {
            // has_room said yes a moment ago; the record is gone, and with it the flow's order.
            return self.give_up(slot, Reason::NoRoom, ctx);
        }
        if flow.near.is_failed() && !had_failed {
            // On its own account: the requester will not go back to a gap, so the target must not wait for the rest.
            return self.give_up(slot, Reason::Protocol, ctx);
        }
        self.touch(slot, ctx);
    }

    /// Pushes the next request record; `false` if there was no room.
    fn carry(
        flow: &mut NearFlow,
        class: usize,
        packet: &Packet<'_>,
        replay: bool,
        ctx: &mut Context<'_>,
    ) -> bool {
        let open = (!flow.opened).then_some(flow.addressing);
        let head = Head::Request { flow: flow.id, seq: flow.requests, replay, open };
        if ctx.senders.push(class, Urgency::Bulk, &head, [packet.bytes, &[]], ctx.now).is_err() {
            return false;
        }
        flow.requests = flow.requests.wrapping_add(1);
        if replay {
            ctx.stats.replays += 1;
        } else {
            flow.last_progress = ctx.now;
            flow.last_psn = packet.bth.psn;
            flow.last_span = longest_span(packet);
            ctx.stats.requests += 1;
            if let Some(size) = flow.coming.follow(packet) {
                ctx.senders.note_message(class, size);
            }
            flow.expect(ctx);
        }
        true
    }

    /// A request of a flow of an earlier session that this gateway, restarted, does not know: a flow is opened for it that has failed. Which PSN
    /// to refuse it finds out; a NAK for just any that comes would acknowledge what is before it.
    fn open_doomed(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NearKey> {
        let requester_qpn = ctx.memory.doomed(key, packet.bth.psn)?;
        let near = Near::new(near_config(ctx.settings), ctx.now);
        let slot = self.open(key, addressing, packet, near, ctx);
        let flow = self.flows.get_mut(slot)?;
        flow.requester_qpn = Some(requester_qpn);
        flow.near.pair(requester_qpn);
        flow.near.fail(ctx.now);
        ctx.stats.doomed += 1;
        Some(slot)
    }

    fn find_or_open(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NearKey> {
        let mut anew = None;
        if let Some(slot) = self.by_key.get(&key)
            && let Some(flow) = self.flows.get(slot)
        {
            match flow.life(addressing, packet, ctx.now) {
                Life::Same => return Some(slot),
                // A new flow would get nowhere, and this one has failed.
                Life::Doubtful if !ctx.senders.is_up() => return Some(slot),
                Life::Doubtful => anew = Some(flow.near.anew(near_config(ctx.settings), packet, ctx.now)),
                Life::Other => {}
            }
            ctx.stats.replaced += 1;
            self.close(slot, ctx);
        }
        if !ctx.senders.is_up() || (self.closed && anew.is_none()) {
            ctx.stats.drop_lan(LanDrop::NoSession);
            return None;
        }
        if self.flows.len() >= ctx.settings.flows {
            ctx.stats.drop_lan(LanDrop::TooManyFlows);
            return None;
        }
        let near = if let Some(near) = anew {
            near
        } else {
            if let Some(slot) = self.open_doomed(key, addressing, packet, ctx) {
                return Some(slot);
            }
            if !packet.bth.opcode.starts_message() {
                ctx.stats.drop_lan(LanDrop::Orphan);
                return None;
            }
            Near::new(near_config(ctx.settings), ctx.now)
        };
        let Ok(requester_qpn) = ctx.pairings.open(key, addressing.src_port, ctx.now) else {
            ctx.stats.drop_lan(LanDrop::TooManyFlows);
            return None;
        };
        let slot = self.open(key, addressing, packet, near, ctx);
        if let Some(requester_qpn) = requester_qpn {
            self.pair(&key, requester_qpn, ctx);
        }
        Some(slot)
    }

    fn open(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        near: Near,
        ctx: &mut Context<'_>,
    ) -> NearKey {
        let id = FlowId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let slot = self.flows.insert(NearFlow {
            near,
            id,
            addressing: *addressing,
            target_qpn: key.target_qpn,
            requester_qpn: None,
            choice: ctx.classes.choice(&traffic(addressing, key.target_qpn.get())),
            judged: 0,
            requests: 0,
            coming: Coming::default(),
            expected: Claim::default(),
            opened: false,
            last_psn: packet.bth.psn,
            last_span: 1,
            last_activity: ctx.now,
            last_progress: ctx.now,
            responses: Reassembly::new(0, REORDER),
            waiting: 0,
            deaf: false,
            armed: None,
            queued: false,
            withheld: Lists::default(),
            ending: false,
            notified: Notified::default(),
        });
        self.by_key.insert(key, slot);
        self.by_id.insert(id, slot);
        ctx.stats.near_opened += 1;
        slot
    }

    /// A response record from the peer, in any order.
    pub(crate) fn handle_response(&mut self, id: FlowId, seq: u32, body: &[u8], ctx: &mut Context<'_>) {
        let Some(slot) = self.by_id.get(&id) else {
            ctx.stats.late_records += 1;
            return;
        };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.deaf {
            ctx.stats.late_records += 1;
            if let Ok(packet) = Packet::parse(body) {
                Self::meet(flow, packet.bth.dest_qp, ctx);
            }
            return self.touch(slot, ctx);
        }
        let Some(copy) = ctx.pool.copy(body) else {
            return self.shed(slot, ctx);
        };
        match flow.responses.insert(seq, copy, &mut self.pages) {
            Ok(()) => flow.waiting += body.len(),
            // More has overtaken a response than can wait for it: without this one nothing would ever follow.
            Err(Insert::NoRoom | Insert::BeyondWindow) => return self.shed(slot, ctx),
            Err(Insert::Duplicate | Insert::Late) => {
                ctx.stats.bad_records += 1;
                return;
            }
        }
        flow.opened = true;
        flow.last_activity = ctx.now;
        flow.last_progress = ctx.now;
        while let Some(response) = flow.responses.pop(&mut self.pages) {
            flow.waiting -= response.as_ref().len();
            if !Self::deliver(flow, response, ctx) {
                return self.give_up(slot, Reason::TooLong, ctx);
            }
        }
        self.touch(slot, ctx);
    }

    /// The flow's requester is now known.
    pub(crate) fn pair(&mut self, key: &FlowKey, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.requester_qpn = Some(requester_qpn);
            flow.near.pair(requester_qpn);
            ctx.stats.paired += 1;
        }
        self.touch(slot, ctx);
    }

    /// One of the flow's queue pairs now belongs to another connection.
    pub(crate) fn supersede(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_key.get(key) {
            ctx.stats.replaced += 1;
            self.close(slot, ctx);
        }
    }

    /// The flow's connection is being taken down. What is outstanding is still seen to its end.
    pub(crate) fn end(&mut self, key: &FlowKey, ctx: &Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.ending = true;
        }
        self.touch(slot, ctx);
    }

    /// Whether there is such a flow, so that what the peer remembers of it is no news.
    pub(crate) fn knows(&self, flow: &Remembered) -> bool {
        let key = flow.key();
        self.by_key.get(&key).is_some()
    }

    /// The peer learned a flow's requester in an earlier session and could not say so any more: now the requester can be refused.
    pub(crate) fn acquaint(&mut self, remembered: &Remembered, ctx: &mut Context<'_>) {
        let key = remembered.key();
        let Some(flow) = self.by_key.get(&key).and_then(|slot| self.flows.get(slot)) else { return };
        let near_by = flow.last_psn.distance(remembered.psn).abs() <= FAR;
        if near_by && flow.requester_qpn.is_none() {
            self.pair(&key, remembered.requester_qpn, ctx);
        }
    }

    /// A response names the flow's requester. A failure of a target that never spoke names none.
    fn meet(flow: &mut NearFlow, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        if requester_qpn != Qpn::new(0) && flow.requester_qpn != Some(requester_qpn) {
            flow.requester_qpn = Some(requester_qpn);
            flow.near.pair(requester_qpn);
            ctx.pairings.learn(flow.key(), requester_qpn, ctx.now);
            ctx.stats.paired += 1;
        }
    }

    /// Passes the next response on; `false` if the LAN does not carry it, and the flow has failed.
    fn deliver(flow: &mut NearFlow, response: Buf, ctx: &mut Context<'_>) -> bool {
        let Ok(packet) = Packet::parse(response.as_ref()) else {
            ctx.stats.bad_records += 1;
            return true;
        };
        Self::meet(flow, packet.bth.dest_qp, ctx);
        let addressing = flow.reply_addressing();
        if !ctx.settings.fits_lan(&addressing, packet.bytes.len()) && !flow.near.is_failed() {
            ctx.stats.lan_too_long += 1;
            flow.near.fail_at(packet.bth.psn, ctx.now);
            return false;
        }
        let Deliver::Emit(passed) = flow.near.handle_response(&packet, ctx.now) else { return true };
        if passed.is_verbatim() {
            ctx.lan.push(addressing, response);
            return true;
        }
        match ctx.pool.concat(&passed.parts(response.as_ref())) {
            Some(rewritten) => ctx.lan.push(addressing, rewritten),
            // The requester asks again, as after any loss on its LAN.
            None => ctx.lan.dropped += 1,
        }
        true
    }

    /// The peer gave the flow up.
    pub(crate) fn handle_fail(&mut self, id: FlowId, reason: Reason, ctx: &mut Context<'_>) {
        if let Some(slot) = self.by_id.get(&id) {
            ctx.stats.fail(reason);
            if let Some(flow) = self.flows.get_mut(slot) {
                flow.near.fail(ctx.now);
                flow.expect(ctx);
            }
            self.touch(slot, ctx);
        }
    }

    /// The peer has heard nothing of the flow for long.
    pub(crate) fn handle_idle(&mut self, id: FlowId, ctx: &mut Context<'_>) {
        if self.by_id.get(&id).is_none() {
            let head = Head::Close { flow: id, requests: 0 };
            // Without room it asks again.
            let _ = ctx.senders.push(0, Urgency::Prompt, &head, [&[], &[]], ctx.now);
        }
    }

    fn give_up(&mut self, slot: NearKey, reason: Reason, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        ctx.stats.fail(reason);
        flow.near.fail(ctx.now);
        flow.expect(ctx);
        let head = Head::Abort { flow: flow.id, reason };
        let class = flow.class_of(0, ctx.classes);
        // Should there be no room even for this, the far half asks when it has been idle for long.
        let _ = ctx.senders.push(class, Urgency::Prompt, &head, [&[], &[]], ctx.now);
        self.touch(slot, ctx);
    }

    /// What each flow holds in packet buffers.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load<NearKey>> + '_ {
        let load =
            |(flow, near): (NearKey, &NearFlow)| Load { host: near.addressing.src, held: near.waiting, flow };
        self.flows.iter().map(load).filter(|load| load.held > 0)
    }

    /// Ends a flow because there is no room for what it waits for, or because others need what it holds.
    pub(crate) fn shed(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.responses.clear(&mut self.pages);
            flow.waiting = 0;
            flow.deaf = true;
        }
        self.give_up(slot, Reason::NoRoom, ctx);
    }

    /// The session is over: every flow ends in an error.
    pub(crate) fn fail_all(&mut self, ctx: &mut Context<'_>) {
        let slots: Vec<_> = self.flows.keys().collect();
        for slot in slots {
            if let Some(flow) = self.flows.get_mut(slot) {
                if let Some(remembered) = flow.remembered() {
                    ctx.memory.remember(remembered, ctx.now + ctx.settings.linger);
                }
                flow.near.fail(ctx.now);
                flow.expect(ctx);
                ctx.stats.session_failed += 1;
                flow.responses.clear(&mut self.pages);
                flow.waiting = 0;
                self.by_id.remove(&flow.id);
            }
            self.touch(slot, ctx);
        }
    }

    /// The paired flows, for the peer to remember.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = Remembered> + '_ {
        self.flows.values().filter_map(NearFlow::remembered)
    }

    /// Take no new flow from now on.
    pub(crate) fn close_door(&mut self) {
        self.closed = true;
    }

    /// Whether no requester waits for anything.
    pub(crate) fn is_quiet(&self) -> bool {
        self.flows.values().all(|flow| flow.near.is_idle() || flow.near.is_dead())
    }

    /// A stream has drained: mid-message ACKs may flow again.
    pub(crate) fn release_withheld(&mut self, ctx: &mut Context<'_>) {
        for class in 0..MAX_CLASSES {
            while ctx.senders.has_headroom(class)
                && let Some(slot) = self.withheld.pop(class)
            {
                let Some(flow) = self.flows.get_mut(slot) else { continue };
                flow.withheld.leave(class);
                // Its messages may take another class by now, on whose list it stands if it has to.
                if flow.class_of(flow.judged, ctx.classes) == class {
                    flow.near.set_writable(true);
                    self.touch(slot, ctx);
                }
            }
        }
    }

    /// The classes are others now: whoever is held back waits for the stream of the one that its last request would take now. All others come to
    /// theirs with their next packet.
    pub(crate) fn reclassify(&mut self, ctx: &mut Context<'_>) {
        let held: Vec<NearKey> = self.withheld.drain().collect();
        for slot in &held {
            if let Some(flow) = self.flows.get_mut(*slot) {
                flow.withheld = Lists::default();
            }
        }
        for slot in held {
            let Some(flow) = self.flows.get_mut(slot) else { continue };
            let class = flow.class_of(flow.judged, ctx.classes);
            self.withheld.add(slot, &mut flow.withheld, class);
        }
        self.release_withheld(ctx);
    }

    pub(crate) fn has_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// The next ACK or NAK for a requester, written to `out` from the BTH on, where [`headroom`] says that it starts.
    pub(crate) fn poll(&mut self, out: &mut [u8], ctx: &Context<'_>) -> Option<(Addressing, usize)> {
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
                flow.queued = false;
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
            flow.near.handle_timeout(ctx.now);
            let stale = ctx.now >= flow.deadline(ctx.settings);
            if flow.near.is_dead() || (stale && flow.near.is_idle()) {
                ctx.stats.idle_closed += u64::from(!flow.near.is_dead());
                self.close(slot, ctx);
            } else if stale {
                // Stuck in the middle of a message, or waiting for a peer that never answers: not for ever.
                (flow.last_activity, flow.last_progress) = (ctx.now, ctx.now);
                self.give_up(slot, Reason::RequesterGone, ctx);
            } else {
                self.touch(slot, ctx);
            }
        }
        let flows = &self.flows;
        self.timers.sweep(flows.len(), |at, slot| flows.get(slot).is_some_and(|flow| flow.armed == Some(at)));
    }

    /// Forgets the flow here and at the peer.
    fn close(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let Some(mut flow) = self.flows.remove(slot) else { return };
        flow.responses.clear(&mut self.pages);
        self.withheld.forget(flow.withheld, |key| self.flows.contains_key(key));
        ctx.senders.expect(0, &mut flow.expected, 0);
        let key = flow.key();
        if self.by_key.get(&key) == Some(slot) {
            self.by_key.remove(&key);
            ctx.pairings.release(&key, ctx.now);
        }
        if self.by_id.remove(&flow.id).is_some() && flow.requests > 0 {
            let head = Head::Close { flow: flow.id, requests: flow.requests };
            let class = flow.class_of(0, ctx.classes);
            // Without room the far half asks when it has been idle for long.
            let _ = ctx.senders.push(class, Urgency::Prompt, &head, [&[], &[]], ctx.now);
        }
    }

    fn touch(&mut self, slot: NearKey, ctx: &Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if !flow.queued {
            flow.queued = true;
            self.ready.push_back(slot);
        }
        let at = flow.next_timeout(ctx.settings);
        self.timers.arm(&mut flow.armed, at, slot);
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

/// What a request consumes of PSNs with the smallest path MTU.
fn longest_span(packet: &Packet<'_>) -> u32 {
    match packet.ext.reth() {
        Some(reth) if packet.bth.opcode == Opcode::ReadRequest => PathMtu::B256.psn_span(reth.dma_length),
        _ => 1,
    }
}
