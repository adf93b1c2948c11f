//! Responder side: responses of targets, and which flow they are for.

use roce::flow::far::{Verdict, Why};
use roce::ip::Addressing;
use roce::pairing::{FlowKey, Hosts, Match, Response};
use roce::wire::{Packet, Qpn, Syndrome};
use transport::Urgency;

use super::asked::Asked;
use super::{FarFlow, FarKey, FarSide};
use crate::context::Context;
use crate::near_side::NearSide;
use crate::piggybacked_acks::Connection;
use crate::record::{Head, Reason};
use crate::stats::LanDrop;

impl FarSide {
    /// A response packet from the LAN.
    pub(crate) fn handle_response(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        near: &NearSide,
        ctx: &mut Context<'_>,
    ) {
        let Some(slot) = self.find(addressing, packet, ctx) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.last_activity = ctx.now;
        flow.notified.note(addressing, &packet.bth, Some(flow.target_qpn), ctx);
        if flow.far.is_news(packet) {
            // A copy of it is no answer to another flow.
            flow.asking.spoke = Some(ctx.now);
        }
        if packet.ext.aeth().is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Rnr { .. })) {
            // So is answered what was sent, and what came behind it is not.
            flow.asking.spoke_freely = None;
            flow.look_for_renewal(near, ctx);
        }
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

    /// The NIC of the flow's target has told of congestion.
    pub(crate) fn slow_down(&mut self, key: &FlowKey, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.far.slow_down(ctx.now);
        }
        self.touch(slot, ctx);
    }

    /// Pushes the next response record; `false` if there was no room.
    pub(super) fn relay(
        flow: &mut FarFlow,
        class: usize,
        urgency: Urgency,
        parts: [&[u8]; 2],
        ctx: &mut Context<'_>,
    ) -> bool {
        if flow.orphaned {
            return true;
        }
        let seq = flow.responses;
        let short = flow.headers.sent.shorten(parts, seq);
        let body = short.as_ref().map_or(parts, |(front, back)| [front.as_ref(), *back]);
        let is_short = short.is_some();
        if ctx.push(class, urgency, &Head::Response { flow: flow.id, seq, is_short }, body).is_err() {
            return false;
        }
        flow.headers.sent.note(parts, seq);
        if let (Urgency::Prompt, Some(requester_qpn)) = (urgency, flow.requester_qpn) {
            let Addressing { src, dst, .. } = flow.addressing;
            let connection = Connection { here: (dst, flow.target_qpn), there: (src, requester_qpn) };
            ctx.answers.note(connection, (flow.id, seq, is_short), body, ctx.now);
        }
        flow.responses = seq.wrapping_add(1);
        ctx.stats.responses += 1;
        true
    }

    fn find(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<FarKey> {
        let hosts = Hosts { requester: addressing.dst, target: addressing.src };
        let Some(response) = Response::of(hosts, packet) else {
            ctx.stats.drop_lan(LanDrop::Opcode);
            return None;
        };
        let Self { flows, by_key, flying, .. } = self;
        let mut asked = Asked { flows, by_key, flying, packet, word: response.word, now: ctx.now };
        let why = match ctx.pairings.handle_response(&response, &mut asked, ctx.now) {
            Match::Known(key) => {
                let slot = self.by_key.get(&key)?;
                if !self.flows.get(slot)?.is_another_targets(packet, &response, ctx) {
                    return Some(slot);
                }
                LanDrop::Ambiguous
            }
            Match::Paired(key) => {
                self.pair(&key, packet.bth.dest_qp, ctx);
                return self.by_key.get(&key);
            }
            Match::Again(key) => {
                self.ask_again(&key, packet, ctx);
                LanDrop::Ambiguous
            }
            Match::Hint(key) => {
                self.hint(&key, packet, ctx);
                LanDrop::Ambiguous
            }
            Match::Ambiguous => LanDrop::Ambiguous,
            Match::Unknown => LanDrop::Unpaired,
        };
        ctx.stats.drop_lan(why);
        None
    }

    /// The flow may have been answered so, and asks for the same answer again.
    fn ask_again(&mut self, key: &FlowKey, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.far.ask_again(packet, ctx.now);
        }
        self.touch(slot, ctx);
    }

    /// The flow's target may expect an earlier PSN. Its requester is asked: it goes back to what it
    /// has sent and heard nothing of, and to nothing else.
    fn hint(&mut self, key: &FlowKey, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot)
            && (flow.far.note_before_all(packet.bth.psn) || flow.far.has_returned(packet.bth.psn))
        {
            let class = flow.class_of(0, ctx.classes);
            // Without room the requester goes back by itself, in its time.
            Self::relay(flow, class, Urgency::Prompt, [packet.bytes, &[]], ctx);
        }
    }

    /// The flow's requester is now known.
    pub(crate) fn pair(&mut self, key: &FlowKey, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        let Some(slot) = self.by_key.get(key) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            if flow.asking.expects.is_some_and(|expected| expected != requester_qpn) {
                // The queue pair of before has another partner, who has nothing to do with the end
                // of the one of before.
                return self.close(slot, ctx);
            }
            let is_new = flow.requester_qpn.is_none();
            ctx.stats.paired += u64::from(flow.requester_qpn != Some(requester_qpn));
            (flow.requester_qpn, flow.asking.asks) = (Some(requester_qpn), false);
            if let Some(terms) = ctx.pairings.terms(key) {
                flow.far.set_terms(&terms);
            }
            if is_new && flow.orphaned && self.by_id.get(&flow.id) == Some(slot) {
                Self::introduce(flow, requester_qpn, ctx);
            }
        }
        self.touch(slot, ctx);
    }

    /// The flow is over, and only now has its target said who its requester is: the peer cannot
    /// refuse the requester without that.
    fn introduce(flow: &mut FarFlow, requester_qpn: Qpn, ctx: &mut Context<'_>) {
        let class = flow.class_of(0, ctx.classes);
        // No response of the flow follows, so none is short by what this one says.
        let head = Head::Response { flow: flow.id, seq: flow.responses, is_short: false };
        let reply = flow.far.introduction(requester_qpn);
        // Without room the requester meets silence.
        if ctx.push(class, Urgency::Prompt, &head, [reply.as_ref(), &[]]).is_ok() {
            flow.responses = flow.responses.wrapping_add(1);
        }
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
