//! Dispatches records received from the peer.

use roce::cm::Mad;
use roce::ip::Addressing;
use roce::wire::{Packet, Qpn, Transport};

use crate::context::Context;
use crate::far_side::{FarSide, How};
use crate::near_side::NearSide;
use crate::ordered::Ordering;
use crate::record::Head;

/// One record from the peer.
pub(crate) fn handle_record(
    record: &[u8],
    near: &mut NearSide,
    far: &mut FarSide,
    ordering: &mut Ordering,
    ctx: &mut Context<'_>,
) {
    let Ok((head, body)) = Head::parse(record) else {
        ctx.stats.bad_records += 1;
        return;
    };
    match head {
        Head::Request { flow, seq, replay, rested, opens } => {
            far.handle_request(flow, seq, How { replay, rested }, opens, body, ctx);
        }
        Head::Response { flow, seq, is_short } => {
            near.handle_response(flow, seq, is_short, body, ctx);
        }
        Head::Datagram(addressing) => deliver_datagram(addressing, body, ctx),
        Head::Ordered { flow, seq, addressing } => {
            // One too long for the LAN takes its turn, and is dropped when that comes.
            if may_pass(&addressing, body, ctx) {
                ctx.came.note(&addressing, ctx.now);
                ordering.handle(flow, seq, addressing, body, ctx);
            }
        }
        Head::Abort { flow, reason } => far.handle_abort(flow, reason, ctx),
        Head::Fail { flow, reason } => near.handle_fail(flow, reason, ctx),
        Head::Close { flow, requests } => far.handle_close(flow, requests, ctx),
        Head::Retry { flow } => far.handle_retry(flow, ctx),
        Head::Suspend { flow, count } => far.handle_suspend(flow, count, ctx),
        Head::Idle { flow } => near.handle_idle(flow, ctx),
        Head::Word | Head::HandedOver | Head::Lives => handle_members(head, body, near, ctx),
    }
}

/// A record between members of sites.
fn handle_members(head: Head, body: &[u8], near: &mut NearSide, ctx: &mut Context<'_>) {
    let Some(members) = ctx.members else {
        ctx.stats.bad_records += 1;
        return;
    };
    match head {
        // Those of another site have hosts of their own.
        Head::HandedOver if !ctx.settings.remote.is_empty() => ctx.stats.bad_records += 1,
        Head::HandedOver => members.push_frame(ctx.pool.copy(body)),
        Head::Lives => near.handle_lives(body, ctx),
        _ => members.push_word(body),
    }
}

/// Connection management names both queue pairs of a connection long before its first request.
pub(crate) fn note_connection(addressing: &Addressing, packet: &Packet<'_>, ctx: &mut Context<'_>) {
    if let Some(mad) = Mad::parse(packet) {
        ctx.pairings.handle_cm(addressing.src, addressing.dst, &mad.message, ctx.now);
    }
}

/// The transport of RC in an opcode's top three bits.
pub(crate) const RC: u8 = 0;

/// Returns true if a packet that is not terminated may go to the LAN. One of RC would come past
/// what is known of its flow.
///
/// Rule: `docs/protocol.md#rule-carried-transport`.
fn may_pass(addressing: &Addressing, body: &[u8], ctx: &mut Context<'_>) -> bool {
    let is_carried = body.first().is_some_and(|opcode| opcode >> 5 != RC);
    let passes = is_carried && ctx.settings.is_for_here(addressing);
    ctx.stats.bad_records += u64::from(!passes);
    passes
}

fn deliver_datagram(addressing: Addressing, body: &[u8], ctx: &mut Context<'_>) {
    let packet = Packet::parse(body).ok();
    let is_to_group =
        packet.is_some_and(|packet| packet.is_multicast()) && ctx.settings.is_for_group(&addressing);
    if !is_to_group && !may_pass(&addressing, body, ctx) {
        return;
    }
    if !ctx.settings.fits_lan(&addressing, body.len()) {
        ctx.stats.lan_too_long += 1;
        return;
    }
    if let Some(packet) = packet {
        note_connection(&addressing, &packet, ctx);
    }
    // To the programs, not to those who manage them or tell of congestion.
    let is_payload = packet.is_none_or(|packet| {
        packet.bth.opcode.transport() != Transport::Cnp && packet.bth.dest_qp != Qpn::GSI
    });
    if is_payload {
        ctx.came.note(&addressing, ctx.now);
    }
    match ctx.pool.copy(body) {
        Some(copy) => ctx.lan.push(addressing, copy),
        None => ctx.lan.dropped += 1,
    }
}
