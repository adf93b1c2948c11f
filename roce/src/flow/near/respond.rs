//! Requester side: responses that the far side relays from the target.

use std::time::Instant;

use super::due::Say;
use super::ring::Ring;
use super::rnr::Rnr;
use super::{Deliver, Near, later};
use crate::flow::horizon::NEARBY;
use crate::flow::rewritten::RewrittenPacket;
use crate::wire::{Aeth, Bth, Ext, Kind, Nak, Opcode, Packet, Place, Psn, RnrTimer, Syndrome};

impl Near {
    /// A response record from the far side, in order, or one that [may
    /// overtake](Near::may_overtake).
    pub fn handle_response(&mut self, packet: &Packet<'_>, now: Instant) -> Deliver {
        if !self.is_started() || self.is_failed() {
            return self.odd();
        }
        let psn = packet.bth.psn;
        if self.is_outstanding(psn) && self.is_fresh(packet, now) {
            self.target.note_answered(now);
        }
        match (packet.bth.opcode.kind(), packet.ext) {
            (Kind::ReadResponse, ext) => self.handle_data(packet, ext.aeth().copied(), now),
            (Kind::AtomicAcknowledge, Ext::AtomicAck(aeth, _)) => self.handle_data(packet, Some(aeth), now),
            (Kind::Acknowledge, Ext::Aeth(aeth)) => {
                match aeth.syndrome {
                    Syndrome::Ack { .. } => self.handle_ack(psn, aeth, now),
                    Syndrome::Rnr { timer } => self.handle_rnr(psn, aeth.msn, timer, now),
                    Syndrome::Nak(Nak::PsnSequence) => self.rewind(psn, now),
                    Syndrome::Nak(_) | Syndrome::Reserved(_) => self.handle_fatal(psn, aeth, now),
                }
                Deliver::Absorbed
            }
            _ => self.odd(),
        }
    }

    /// Returns true unless this is what a target that was not ready said a while ago, or what it
    /// said before the far half can have heard of the last request that does not fit. Such a word
    /// proves nothing about what the requester has sent since. It confirms nothing either if the
    /// requester has been told more already.
    fn is_fresh(&self, packet: &Packet<'_>, now: Instant) -> bool {
        match packet.ext.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::WAIT_OVER) => false,
            Some(Syndrome::Rnr { .. }) if !packet.bth.psn.is_before(self.told.to()) => {
                self.doubted_since().is_none_or(|since| now >= since + self.config.rtt)
            }
            _ => true,
        }
    }

    /// Returns true if a response record may be handed in although earlier ones are missing: an ACK
    /// behind nothing but SENDs and WRITEs, while nothing is run again. It acknowledges those
    /// before as well, so what it overtook is odd then, but for an RNR NAK beyond it, which still
    /// counts.
    pub fn may_overtake(&self, packet: &Packet<'_>) -> bool {
        let says_ack = matches!(packet.ext, Ext::Aeth(aeth) if aeth.syndrome.is_ack());
        let is_ack = packet.bth.opcode.kind() == Kind::Acknowledge && says_ack;
        let psn = packet.bth.psn;
        let is_open = !self.is_unproven() && !self.is_failed() && self.replays.is_empty();
        is_open && is_ack && self.is_outstanding(psn) && self.ring.is_plain_to(psn)
    }

    fn odd(&mut self) -> Deliver {
        self.stats.odd_responses.one();
        Deliver::Absorbed
    }

    /// Returns true if `psn` has been forwarded and is not acknowledged by the target.
    fn is_outstanding(&self, psn: Psn) -> bool {
        let open = !self.seen.is_exact();
        !psn.is_before(self.ring.done()) && (open || psn.is_before(self.seen.floor()))
    }

    /// Returns whether `psn` lies beyond all that was forwarded, but not far: the flow began with
    /// repeats, and the target had more before.
    fn is_beyond(&self, psn: Psn) -> bool {
        let floor = self.seen.floor();
        let is_near = (1..=NEARBY).contains(&psn.next().distance(floor));
        // An answer that is still to come acknowledges what is before it.
        is_near && self.seen.is_exact() && self.ring.is_plain_to(floor)
    }

    fn handle_ack(&mut self, psn: Psn, aeth: Aeth, now: Instant) {
        self.note_answer(psn);
        if self.is_outstanding(psn) {
            self.target.hear(aeth);
            self.target_acknowledged(psn.next(), aeth.msn, now);
        } else if self.is_beyond(psn) {
            self.target.hear(aeth);
            self.target_acknowledged(self.seen.floor(), aeth.msn, now);
            // The target has the end of the message, too. Its requester may never send that again.
            self.ring = Ring::at(self.seen.floor());
            self.due.add(Say::Ack);
        } else if self.grants_more(psn, aeth.syndrome) {
            self.target.hear(aeth);
            self.due.add(Say::Duplicate);
        } else if self.has_answer() {
            self.target.hear(aeth);
            self.note_returned(psn.next());
            self.note_another_answered(psn);
            if !psn.next().is_before(self.told.to()) {
                // It stands where the requester was told that it does.
                self.prove();
                self.forget_strange();
            }
            self.note_told_again(psn);
        } else {
            self.odd();
        }
    }

    /// Returns true if the target says by itself that it has room for more.
    fn grants_more(&self, psn: Psn, syndrome: Syndrome) -> bool {
        !self.is_unproven()
            && psn.next() == self.ring.done()
            && syndrome.grants_more_than(self.target.aeth().syndrome)
    }

    /// The target has executed everything before `to`.
    fn target_acknowledged(&mut self, to: Psn, msn: u32, now: Instant) {
        let (is_first, before) = (self.is_unproven(), self.ring.len());
        self.prove();
        self.target.rnr = None;
        self.target.set_msn(msn);
        // Where the target alone acknowledges, its requester hears of each of its words.
        let is_alone = self.ring.has_unretained();
        let completed = self.ring.advance(to);
        if is_first {
            self.note_first_count(msn, before - self.ring.len());
        }
        let ready = self.bound().distance(self.told.to());
        let is_due = completed || is_alone || self.told.is_awaited();
        if ready > 0 && (is_due || ready.unsigned_abs() >= self.config.ack_every) {
            self.due.add(Say::Ack);
        }
        self.resume(now);
    }

    /// Room again after packets were dropped for want of it, or the first word from the target
    /// after a gap: have the requester go on.
    fn resume(&mut self, now: Instant) {
        if self.gap.take_unsaid() {
            self.say_where_to_go_on(now);
        }
        let Some(blocked) = self.gap.blocked() else { return };
        let roomy = self.ring.bytes() <= self.config.hard_limit / 2
            && self.ring.len() <= self.config.max_messages / 2
            && self.has_psns_for(blocked);
        if roomy && self.is_proven() {
            self.gap.unblock();
            self.say_where_to_go_on(now);
        }
    }

    fn handle_rnr(&mut self, psn: Psn, msn: u32, timer: RnrTimer, now: Instant) {
        if !self.is_outstanding(psn) {
            self.odd();
            return;
        }
        self.target_acknowledged(psn, msn, now);
        self.target.rnr = Some(Box::new(Rnr::new(psn, timer)));
    }

    fn handle_fatal(&mut self, psn: Psn, aeth: Aeth, now: Instant) {
        if aeth.syndrome == Syndrome::TARGET_SILENT {
            // The far half's word. Where the target stands it need not know, and this flow may have
            // begun anew before that.
            return self.fall_silent(now);
        }
        if psn.is_before(self.told.to()) && self.is_asked_from(psn) {
            // It refuses what it was asked again, and names no PSN beyond that.
            self.prove();
            return self.fail_from(psn, aeth.syndrome, now);
        }
        if !psn.is_before(self.told.to()) {
            self.prove();
        }
        if self.is_outstanding(psn) {
            self.target_acknowledged(psn, aeth.msn, now);
        }
        self.fail_with(aeth.syndrome, now);
    }

    /// As [`fail`](Near::fail), because the response with this PSN, in order, cannot be given to
    /// the requester. Whatever it answers, all before is done.
    pub fn fail_at(&mut self, psn: Psn, now: Instant) {
        if self.is_started() && !self.is_failed() {
            let syndrome = Syndrome::Nak(Nak::RemoteOperation);
            self.handle_fatal(psn, Aeth { syndrome, msn: self.target.aeth().msn }, now);
        }
    }

    /// The far side starts over from `psn`: the target expects an earlier PSN than our first, or a
    /// READ's span was misjudged.
    fn rewind(&mut self, psn: Psn, now: Instant) {
        // A PSN at or beyond a first PSN not confirmed is old news: the requester went back itself,
        // and the far side follows that.
        let unproven = self.is_unproven();
        let at_start = unproven && (-NEARBY..0).contains(&psn.distance(self.told.to()));
        let inside = !unproven
            && !psn.is_before(later(self.told.to(), self.ring.done()))
            && psn.is_before(self.seen.floor());
        if !at_start && !inside {
            self.note_elsewhere(psn);
            if self.is_asked_beyond(psn) {
                self.note_returned(psn);
            }
            self.odd();
            return;
        }
        if at_start {
            return self.hint(psn, now);
        }
        self.stats.rewinds.one();
        self.count_lost(psn, now);
        self.ring.truncate(psn);
        self.seen.go_back_to(psn);
        self.prove();
        self.told.note_refusal(now);
        self.seen.place();
        self.gap.unblock();
        self.say_where_to_go_on(now);
    }

    fn handle_data(&mut self, packet: &Packet<'_>, aeth: Option<Aeth>, now: Instant) -> Deliver {
        let (psn, place) = (packet.bth.psn, packet.bth.opcode.place());
        let last = matches!(place, Place::Last | Place::Only);
        if !self.is_outstanding(psn) {
            if !self.replays.answer(psn, last, now) {
                return self.odd();
            }
            self.note_another_answered(psn);
            let deliver = self.emit(packet, now);
            if last {
                self.note_answered_again(psn);
            }
            return deliver;
        }
        if !self.ring.awaits(psn) {
            self.note_strange_answer(psn);
            return self.odd();
        }
        let (is_first, before) = (self.is_unproven(), self.ring.len());
        self.ring.advance(psn);
        if self.ring.is_reading() {
            // First: a READ's span may turn out longer than a wrong hint made it.
            self.learn_mtu(packet);
        }
        if self.ring.answer(psn, last).is_none() {
            return self.odd();
        }
        self.prove();
        if let Some(aeth) = aeth {
            self.target.hear(aeth);
            if is_first && last {
                self.note_first_count(aeth.msn, before - self.ring.len());
            }
        }
        self.replays.answer(psn, last, now);
        self.tell(psn.next(), now);
        self.told.note_data();
        self.forget_unanswered();
        self.due.remove(Say::Duplicate);
        // What is done locally behind it was held up by it.
        self.due.add_if(Say::Ack, self.ring.is_ahead());
        self.resume(now);
        self.emit(packet, now)
    }

    /// Learns from a packet of either direction, in order or not.
    pub(super) fn learn_mtu(&mut self, packet: &Packet<'_>) {
        if let Some(span) = self.seen.learn_mtu(packet) {
            self.ring.settle_read(span);
            self.seen.count();
        }
    }

    fn emit(&mut self, packet: &Packet<'_>, now: Instant) -> Deliver {
        self.stats.responses.one();
        self.told.note(now);
        if packet.bth.opcode.starts_message() {
            self.replays.begin_answer(packet.bth.psn);
        }
        if !self.replays.is_restart(packet.bth.psn) {
            return Deliver::Emit(RewrittenPacket::unchanged(packet));
        }
        self.replays.end_restart();
        let fresh = self.target.aeth();
        let (opcode, aeth) = match packet.bth.opcode {
            Opcode::ReadResponseMiddle => (Opcode::ReadResponseFirst, fresh),
            Opcode::ReadResponseLast => {
                (Opcode::ReadResponseOnly, packet.ext.aeth().copied().unwrap_or(fresh))
            }
            _ => return Deliver::Emit(RewrittenPacket::unchanged(packet)),
        };
        let bth = Bth { opcode, ..packet.bth };
        Deliver::Emit(RewrittenPacket::rewritten(packet, bth, Some(aeth)))
    }
}
