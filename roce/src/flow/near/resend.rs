//! Requester side: READ responses given to the requester once more, from what the owner has kept of
//! them.

use std::time::{Duration, Instant};

use super::Near;
use crate::flow::rewritten::RewrittenPacket;
use crate::wire::{Bth, Ext, Kind, Opcode, Packet, Psn};

/// Responses that a repeated READ asks for and that were passed on before: those from `from` on,
/// up to and without `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend {
    /// The PSN of the repeated READ, and of the first response.
    pub from: Psn,
    /// The PSN after the last response that was passed on.
    pub to: Psn,
    /// None of them may have been passed on before.
    pub since: Instant,
}

impl Near {
    /// Returns how long an owner keeps READ responses that it has passed on: two of the longest LAN
    /// turns, but no more than a sixteenth of the round trip between the sites.
    #[must_use]
    pub fn resend_for(&self) -> Duration {
        (2 * self.config.lan_turn).min(self.config.rtt / 16)
    }

    /// Returns since when a response may have been passed on that is given once more: for two LAN
    /// turns as measured. In that time a requester notices that it missed one that a later one
    /// overtook, and asks again. While it may be in another incarnation, only what the target has
    /// answered after that.
    fn resend_since(&self, now: Instant) -> Option<Instant> {
        let since = now.checked_sub((2 * self.lan_turn()).min(self.resend_for()))?;
        let doubted = self.doubted_since().map(|at| at + Duration::from_nanos(1));
        Some(doubted.map_or(since, |at| at.max(since)))
    }

    /// Counts how often the requester began anew with nothing outstanding. Responses that were
    /// passed on before that are given to nobody any more.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.requester.window()
    }

    /// Returns which responses answer a READ that comes again. If the owner has kept all of them in
    /// this [`window`](Near::window), and passed on none before [`Resend::since`], it gives them
    /// once more. Otherwise it hands the packet in as any other.
    ///
    /// It is a request that was passed on: PSN, length, key and address are those of a READ, or of
    /// its rest. And the requester has had something outstanding ever since it was given the
    /// responses. So its queue pair cannot have been reset meanwhile without requests under way,
    /// and without gateways late responses might reach its next incarnation just as well.
    #[must_use]
    pub fn resend(&self, packet: &Packet<'_>, now: Instant) -> Option<Resend> {
        let psn = packet.bth.psn;
        let is_waiting = !self.ring.is_empty() || !self.replays.is_empty();
        let is_known = !self.is_unproven() && !self.is_failed() && self.requester.qpn.is_some();
        let is_open = is_known && !self.local && is_waiting;
        // Before what is asked of the target once more it can take nothing.
        let is_read = packet.bth.opcode.kind() == Kind::Read;
        if !is_read || !is_open || self.replays.lie_before(psn) {
            return None;
        }
        let end = self.ring.passed_on(packet, self.seen.mtu())?;
        let to = self.replays.next_of(psn).filter(|next| next.is_before(end)).unwrap_or(end);
        let since = self.resend_since(now)?;
        to.is_after(psn).then_some(Resend { from: psn, to, since })
    }

    /// Returns how a response of a READ stands that is being passed on; `None` for any other.
    #[must_use]
    pub fn data(&self, packet: &Packet<'_>) -> Option<Data> {
        if packet.bth.opcode.kind() != Kind::ReadResponse || self.is_failed() {
            return None;
        }
        Some(if packet.bth.psn.next() == self.ring.done() { Data::Fresh } else { Data::Again })
    }

    /// Tells how a kept response goes to the requester once more. The first that answers a READ is
    /// its First or Only one, whichever it was before.
    #[must_use]
    pub fn pass_again(&self, packet: &Packet<'_>, is_first: bool) -> RewrittenPacket {
        let ends = matches!(packet.bth.opcode, Opcode::ReadResponseLast | Opcode::ReadResponseOnly);
        let opcode = match (is_first, ends) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, true) => Opcode::ReadResponseLast,
            (false, false) => Opcode::ReadResponseMiddle,
        };
        if opcode == packet.bth.opcode {
            return RewrittenPacket::unchanged(packet);
        }
        let known = match packet.ext {
            Ext::Aeth(aeth) => aeth,
            _ => self.target.aeth(),
        };
        let aeth = (opcode != Opcode::ReadResponseMiddle).then_some(known);
        RewrittenPacket::rewritten(packet, Bth { opcode, ..packet.bth }, aeth)
    }

    /// The requester was given these responses once more.
    pub fn note_resent(&mut self, resent: Resend, now: Instant) {
        let responses = resent.to.distance(resent.from).max(0).unsigned_abs();
        self.stats.resent.add(responses.into());
        self.note_impatience(resent.from, now);
        self.replays.end_restart();
        self.note_heard(now);
        self.told.note(now);
        self.keepalive.note_spoken(now);
    }

    /// The requester asks for something: if nothing was outstanding, it may be in another
    /// incarnation since.
    pub(super) fn note_window(&mut self) {
        if self.ring.is_empty() && self.replays.is_empty() {
            self.requester.begin_window();
        }
    }
}

/// How a READ response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Data {
    /// It answers what is outstanding.
    Fresh,
    /// The target was asked for it again.
    Again,
}
