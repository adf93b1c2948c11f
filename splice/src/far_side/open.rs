//! Responder side: flows that begin: with a first request, or to end a target's queue pair that the
//! peer remembers.

use std::sync::Arc;
use std::time::Duration;

use roce::flow::far::{Far, FarConfig};
use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Qpn};
use transport::Urgency;

use super::{Asking, FarFlow, FarKey, FarSide};
use crate::classes::traffic;
use crate::congestion::capable;
use crate::context::Context;
use crate::failures::{By, FlowFailure};
use crate::lan_queue::TTL;
use crate::openings::FlowOpening;
use crate::reclaimer::host_share;
use crate::record::{FlowId, Head, Opening, Reason};
use crate::short::{Headers, Known};
use crate::stale_flows::{FlowSide, StaleFlow};

impl FarSide {
    /// The flow that a request is of, if there is one or it opens one.
    pub(super) fn find_or_open(
        &mut self,
        id: FlowId,
        seq: u32,
        opens: &Opening,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) -> Option<FarKey> {
        if let Some(slot) = self.by_id.get(&id) {
            return Some(slot);
        }
        if self.closed.contains(&id) {
            ctx.stats.late_records += 1;
            return None;
        }
        let Opening::Full(addressing) = opens else {
            // Ended here, which its requester's gateway has not heard yet. If that still has the
            // flow it must not wait for an answer.
            ctx.stats.late_records += 1;
            // Another member may have had the flow.
            let reason = if ctx.settings.is_member { ctx.no_place() } else { Reason::UnknownFlow };
            // Without it the near half gives up waiting, in its time.
            ctx.reply(&Head::Fail { flow: id, reason });
            return None;
        };
        let Ok(packet) = Packet::parse(body) else {
            ctx.stats.bad_records += 1;
            return None;
        };
        if self.is_outdated(id, addressing, &packet) {
            ctx.stats.late_records += 1;
            return None;
        }
        match self.open(id, seq, addressing, &packet, ctx) {
            Ok(slot) => Some(slot),
            Err(reason) => {
                Self::refuse(id, reason, addressing, packet.bth.dest_qp, ctx);
                None
            }
        }
    }

    fn open(
        &mut self,
        id: FlowId,
        seq: u32,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<FarKey, Reason> {
        if !ctx.settings.is_for_here(addressing) {
            ctx.stats.bad_records += 1;
            return Err(Reason::Protocol);
        }
        let key =
            FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: packet.bth.dest_qp };
        let config = self.config.take(far_config(ctx));
        let other = self.by_key.get(&key).and_then(|slot| Some((slot, self.flows.get(slot)?)));
        let (mut far, is_new) = match other {
            Some((_, before)) => (before.far.anew(config, ctx.now), before.asking.unheard.is_some()),
            None if self.stopping => return Err(Reason::Stopping),
            None => (Far::new(config, Arc::clone(&self.counters), ctx.now), true),
        };
        if let Some((other, _)) = other {
            // What takes its place needs no other.
            self.close(other, ctx);
        } else if !self.make_room(key.requester, ctx) {
            return Err(Reason::NoPlace);
        }
        let requester_qpn = ctx.pairings.open(key, ctx.now).map_err(|_| Reason::NoPlace)?;
        let _ = ctx.pairings.take_first_psn(&key);
        if let Some(terms) = ctx.pairings.terms(&key) {
            far.set_terms(&terms);
        }
        let speaks = Addressing { ttl: TTL, tclass: capable(addressing.tclass), ..*addressing };
        let slot = self.flows.insert(Box::new(FarFlow {
            headers: Headers { came: Some(Known::new(&packet.bth, seq)), ..Headers::default() },
            requester_qpn,
            asking: Asking { asks: requester_qpn.is_none(), ..Asking::new(None) },
            choice: ctx.classes.choice(&traffic(addressing, packet.bth.dest_qp.get())),
            ..FarFlow::new(far, id, speaks, packet.bth.dest_qp, packet.bth.psn, ctx.now)
        }));
        // One that goes on with what its target has had of another stays. So does one that begins
        // amid a message, unless what comes has overtaken the beginning.
        if is_new && (seq > 0 || packet.bth.opcode.starts_message()) {
            self.enter_unheard(slot);
        }
        self.by_id.insert(id, slot);
        self.by_key.insert(key, slot);
        self.hosts.join(key.requester);
        ctx.stats.far_opened += 1;
        ctx.openings.push(&FlowOpening::new(FlowSide::Far, &key, requester_qpn));
        Ok(slot)
    }

    /// Returns true if the peer has replaced this flow by another one of the same queue pair, whose
    /// requests overtook this one.
    pub(super) fn is_outdated(&self, id: FlowId, addressing: &Addressing, packet: &Packet<'_>) -> bool {
        let key =
            FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: packet.bth.dest_qp };
        let Some(slot) = self.by_key.get(&key) else { return false };
        let Some(other) = self.flows.get(slot) else { return false };
        // Identifiers ascend within a session, and a flow of an earlier session has none that
        // counts.
        self.by_id.get(&other.id) == Some(slot) && other.id.0.wrapping_sub(id.0).cast_signed() > 0
    }

    pub(super) fn refuse(
        id: FlowId,
        reason: Reason,
        addressing: &Addressing,
        target_qpn: Qpn,
        ctx: &mut Context<'_>,
    ) {
        let key = FlowKey { requester: addressing.src, target: addressing.dst, target_qpn };
        let class = ctx.classes.classify(&traffic(addressing, target_qpn.get()), Some(0));
        let reason = if reason == Reason::NoPlace {
            ctx.stats.evicted += 1;
            ctx.no_place()
        } else {
            ctx.fail(FlowFailure::new(FlowSide::Far, &key, None, (reason.into(), By::Us), class));
            reason
        };
        let head = Head::Fail { flow: id, reason };
        if reason == Reason::Protocol {
            // No honest peer is refused for that.
            return ctx.reply(&head);
        }
        // Without room the requester's own retry brings the next request, and with it the next
        // refusal.
        let _ = ctx.push(class, Urgency::Prompt, &head, [&[], &[]]);
    }

    /// The peer remembers a flow to one of our targets that this gateway, restarted, does not know:
    /// end it for the target. If its programs have made another connection by now they are through
    /// with this one. The target says whether its partner is another one; and a request that comes
    /// before it is told ends this.
    pub(crate) fn force_error(&mut self, flow: &StaleFlow, ctx: &mut Context<'_>) {
        let key = flow.key();
        if self.by_key.get(&key).is_some() || ctx.pairings.partner(&key).is_some() {
            return;
        }
        if !self.make_room(key.requester, ctx) || ctx.pairings.open(key, ctx.now).is_err() {
            return;
        }
        let src_port = flow.src_port;
        let config = FarConfig { target_dead_after: ctx.settings.target_dead, ..FarConfig::default() };
        let far = Far::abort_unknown(
            config,
            Arc::clone(&self.counters),
            flow.target_qpn,
            DEFAULT_PKEY,
            flow.psn,
            ctx.now,
        );
        // Not of this session: no record names it, so it is in no table of identifiers.
        let id = FlowId(u32::MAX);
        let speaks = Addressing { src: flow.requester, dst: flow.target, src_port, tclass: 0, ttl: TTL };
        let slot = self.flows.insert(Box::new(FarFlow {
            asking: Asking::new(Some(flow.requester_qpn)),
            orphaned: true,
            ..FarFlow::new(far, id, speaks, flow.target_qpn, flow.psn, ctx.now)
        }));
        self.by_key.insert(key, slot);
        self.hosts.join(key.requester);
        self.touch(slot, ctx);
    }
}

/// Loss on a LAN is rare, and mostly shows by a gap; a target that serves other queue pairs first
/// is common, and a READ that it gets twice it answers twice.
const RTO_MIN: Duration = Duration::from_millis(50);

/// Bytes of a packet inside a message at the smallest path MTU: shorter ones come one to a message,
/// of which a requester has few under way.
const LEAST_PACKET: usize = 256;

/// The partition key of every subnet without partitions, and of RoCE always.
const DEFAULT_PKEY: u16 = 0xffff;

/// The bounds of flows, and what targets are given.
pub(super) fn far_config(ctx: &Context<'_>) -> FarConfig {
    FarConfig {
        target_dead_after: ctx.settings.target_dead,
        read_piece: u32::try_from(ctx.senders.read_piece()).unwrap_or(u32::MAX),
        rto_initial: RTO_MIN * 2,
        rto_min: RTO_MIN,
        // Whoever holds most gives way before that. What a flow may have under way is the
        // peer's to say, and here only memory bounds it.
        max_buffered: host_share(ctx.settings.total_buffer),
        max_packets: host_share(ctx.settings.total_buffer) / LEAST_PACKET,
        // No requests come faster for long.
        line_rate: ctx.settings.rate / 8,
        ..FarConfig::default()
    }
}
