//! What targets answer, and which flow that is for.

use roce::flow::far::{Verdict, Why};
use roce::ip::Addressing;
use roce::pairing::{FlowKey, Hosts, Match, Response};
use roce::wire::{Packet, Qpn};

use super::{FarFlow, FarKey, FarSide};
use crate::answers::Connection;
use crate::context::Context;
use crate::record::{Head, Reason};
use crate::senders::Urgency;
use crate::stats::LanDrop;

impl FarSide {
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
        let head = Head::Response { flow: flow.id, seq: flow.responses };
        if ctx.senders.push(class, urgency, &head, parts, ctx.now).is_err() {
            return false;
        }
        if let (Urgency::Prompt, Some(requester_qpn)) = (urgency, flow.requester_qpn) {
            let Addressing { src, dst, .. } = flow.addressing;
            let connection = Connection { here: (dst, flow.target_qpn), there: (src, requester_qpn) };
            ctx.answers.note(connection, flow.id, flow.responses, parts, ctx.now);
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
}

fn reason(why: Why) -> LanDrop {
    match why {
        Why::NotAResponse => LanDrop::Opcode,
        Why::Unexpected | Why::Ahead | Why::Mismatch => LanDrop::OutOfSequence,
        Why::Duplicate => LanDrop::Duplicate,
        Why::Dead => LanDrop::Failed,
    }
}
