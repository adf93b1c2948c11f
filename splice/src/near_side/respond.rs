//! Requester side: responses of the peer and its targets, and whom they are for.

use reliability::message::Insert;
use roce::flow::near::Deliver;
use roce::pairing::FlowKey;
use roce::wire::{Aeth, BTH_LEN, Bth, Nak, Opcode, Packet, Qpn, Syndrome};

use super::{Delivered, NearFlow, NearKey, NearSide};
use crate::context::Context;
use crate::failures::{By, Cause};
use crate::pool::Buf;
use crate::record::{FlowId, Reason};
use crate::short::Known;
use crate::stale_flows::{Came, StaleFlow};

/// Longest response without payload: BTH, AETH and what an atomic returns.
const ANSWER: usize = BTH_LEN + Aeth::LEN + 8;

impl NearFlow {
    /// Restores the packet of a response record with a short header, to `room`: in one piece, which
    /// is the second, if it is no longer than an answer without payload. Otherwise the first piece
    /// is the BTH. `None`: it is none, or too little is known of the flow.
    fn restore<'a>(&self, body: &'a [u8], seq: u32, room: &'a mut [u8; ANSWER]) -> Option<[&'a [u8]; 2]> {
        let (bth, rest) = self.headers.came?.restore(body, seq)?;
        let (head, tail) = room.split_first_chunk_mut::<BTH_LEN>()?;
        *head = bth;
        match tail.get_mut(..rest.len()) {
            Some(tail) => tail.copy_from_slice(rest),
            None => return Some([room.get(..BTH_LEN)?, rest]),
        }
        Some([&[], room.get(..BTH_LEN + rest.len())?])
    }
}

impl NearSide {
    /// A response record from the peer, in any order.
    pub(crate) fn handle_response(
        &mut self,
        id: FlowId,
        seq: u32,
        is_short: bool,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let Some(slot) = self.by_id.get(&id) else {
            ctx.stats.late_records += 1;
            return;
        };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let mut room = [0; ANSWER];
        let parts = if is_short { flow.restore(body, seq, &mut room) } else { Some([&[][..], body]) };
        let Some([front, back]) = parts else {
            ctx.stats.bad_records += 1;
            return;
        };
        self.take_response(slot, seq, [front, back], ctx);
    }

    /// The same, as a packet in two pieces, of which the first is empty or the BTH.
    fn take_response(&mut self, slot: NearKey, seq: u32, [front, back]: [&[u8]; 2], ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        // In one piece, as every ACK is.
        let whole = Some(back).filter(|_| front.is_empty());
        if flow.early.deaf {
            ctx.stats.late_records += 1;
            if let Some(Ok(packet)) = whole.map(Packet::parse) {
                Self::meet(flow, packet.bth.dest_qp, ctx);
            }
            return self.touch(slot);
        }
        // Else it would pass for what was taken at once.
        ctx.stats.bad_records += u64::from(whole == Some(&[]));
        let ack = whole.filter(|body| Opcode::of(body) == Some(Opcode::Acknowledge));
        let early = ack.and_then(|body| Packet::parse(body).ok()).filter(|ack| flow.near.may_overtake(ack));
        // Of what is taken at once only the place is kept.
        let kept: &[&[u8]] = if early.is_some() { &[] } else { &[front, back] };
        let Some(copy) = ctx.pool.concat(kept) else {
            return self.evict(slot, ctx);
        };
        match flow.early.insert(seq, copy, &mut self.pages) {
            Ok(()) => {}
            // More has overtaken a response than can wait for it: without this one nothing would
            // ever follow.
            Err(Insert::NoRoom | Insert::BeyondWindow) => return self.evict(slot, ctx),
            // It came along with a message, or that copy has come now.
            Err(Insert::Duplicate | Insert::Late) => return,
        }
        flow.headers.sent.answered = true;
        if flow.headers.came.is_none() {
            let bth = back.first_chunk().and_then(|bth| Bth::parse(bth).ok());
            flow.headers.came = bth.map(|bth| Known::new(&bth, seq));
        }
        flow.last_activity = ctx.now;
        flow.last_progress = ctx.now;
        if let Some(packet) = early {
            Self::meet(flow, packet.bth.dest_qp, ctx);
            flow.near.handle_response(&packet, ctx.now);
        }
        while let Some(response) = flow.early.pop(&mut self.pages) {
            if response.as_ref().is_empty() {
                continue;
            }
            if let Err(reason) = Self::deliver(slot, flow, response, ctx) {
                return self.give_up(slot, reason, ctx);
            }
        }
        let timed = flow.demand.timing.complete(flow.near.done(), ctx.now);
        if let Some((class, time)) = timed.filter(|_| !flow.near.is_failed()) {
            ctx.senders.note_completion(class, time);
        }
        let target = flow.places.target;
        self.touch(slot);
        self.release_target(target, ctx);
    }

    /// Passes the next response on. An error says why the flow has failed, or has to: the LAN does
    /// not carry the response, or there is no room for what the target asks for.
    fn deliver(
        slot: NearKey,
        flow: &mut NearFlow,
        response: Buf,
        ctx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        let Ok(packet) = Packet::parse(response.as_ref()) else {
            ctx.stats.bad_records += 1;
            return Ok(());
        };
        Self::meet(flow, packet.bth.dest_qp, ctx);
        let addressing = flow.reply_addressing();
        if !ctx.settings.fits_lan(&addressing, packet.bytes.len()) && !flow.near.is_failed() {
            ctx.stats.lan_too_long += 1;
            flow.near.fail_at(packet.bth.psn, ctx.now);
            return Err(Reason::TooLong);
        }
        let syndrome = packet.ext.aeth().map(|aeth| aeth.syndrome);
        if syndrome == Some(Syndrome::TARGET_SILENT) && Self::refuse_doomed(flow, ctx) {
            return Ok(());
        }
        let is_silent = syndrome == Some(Syndrome::TARGET_SILENT);
        let had_failed = flow.near.is_failed();
        if is_silent && !had_failed && flow.run.revival.is_some() {
            // It may know nothing of what is asked, since a process has ended.
            flow.end_in_error(Reason::TargetDead.into(), By::Peer, ctx);
            return Ok(());
        }
        let passed = flow.near.handle_response(&packet, ctx.now);
        if flow.near.is_failed() && !had_failed {
            if syndrome == Some(Syndrome::Nak(Nak::PsnSequence)) {
                // On its own account: the requester does not go back to what the target expects.
                return Err(Reason::Protocol);
            }
            let cause = if is_silent { Reason::TargetDead.into() } else { Cause::Nak };
            ctx.stats.unrestored += u64::from(flow.take_revival(ctx).is_some());
            ctx.fail(flow.failure((cause, By::Peer), ctx.classes));
        }
        let Deliver::Emit(passed) = passed else {
            let msn = packet.ext.aeth().map_or(0, |aeth| aeth.msn);
            return if flow.supply(msn, ctx).is_break() { Err(Reason::NoRoom) } else { Ok(()) };
        };
        let psn = packet.bth.psn;
        let window = flow.near.window();
        let delivered = flow.near.data(&packet).map(|data| Delivered { slot, psn, data, window });
        if passed.is_verbatim() {
            ctx.lan.push_delivered(addressing, response, delivered);
            return Ok(());
        }
        match ctx.pool.concat(&passed.parts(response.as_ref())) {
            Some(rewritten) => ctx.lan.push_delivered(addressing, rewritten, delivered),
            // The requester asks again, as after any loss on its LAN.
            None => ctx.lan.dropped += 1,
        }
        Ok(())
    }

    /// The target of a flow that the peer remembered answers nothing: as the peer put it in error,
    /// its requester is refused, at once or after what is left of the silence. Returns whether it
    /// is so.
    fn refuse_doomed(flow: &mut NearFlow, ctx: &mut Context<'_>) -> bool {
        if flow.requester_qpn.is_some() || flow.near.is_failed() {
            return false;
        }
        let came = Came { src_port: flow.addressing.src_port, psn: flow.last_psn, starts: true };
        let Some(doomed) = ctx.stale_flows.doomed(&flow.key(), &came) else { return false };
        flow.pair(doomed.flow.requester_qpn);
        let class = flow.class_of(flow.demand.judged.into(), ctx.classes);
        if doomed.meets_silence(ctx.classes, class, ctx.now) {
            ctx.stats.silenced += 1;
            flow.near.fall_silent_until(doomed.silent_until, ctx.now);
        } else {
            ctx.stats.doomed += 1;
            flow.near.fail(ctx.now);
        }
        true
    }

    /// A response names the flow's requester. A failure of a target that never spoke names none.
    fn meet(flow: &mut NearFlow, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        if requester_qpn != Qpn::new(0) && flow.requester_qpn != Some(requester_qpn) {
            flow.pair(requester_qpn);
            ctx.stale_flows.spare(&flow.key());
            ctx.stats.paired += 1;
        }
    }

    /// The flow's requester is now known.
    pub(crate) fn pair(&mut self, key: &FlowKey, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.pair(requester_qpn);
            ctx.stats.paired += 1;
        }
        self.touch(slot);
    }

    /// The peer learned a flow's requester in an earlier session and could not say so any more: now
    /// the requester can be refused.
    pub(crate) fn acquaint(&mut self, remembered: &StaleFlow, ctx: &mut Context<'_>) {
        let key = remembered.key();
        let Some(flow) = self.by_key.get(&key).and_then(|slot| self.flows.get(slot)) else { return };
        let is_its = flow.addressing.src_port == remembered.src_port
            && flow.last_psn.distance(remembered.psn).abs() <= NEARBY;
        if is_its && flow.requester_qpn.is_none() {
            self.pair(&key, remembered.requester_qpn, ctx);
        }
    }
}

/// PSNs between what the peer remembers, which may be some tenths of a second old, and what has
/// come since.
const NEARBY: i32 = 1 << 18;
