//! Responder side: responses from the target.

use std::time::Instant;

use super::read::{self, aeth_for};
use super::window::Advance;
use super::{Failure, Far, NEARBY, RewrittenPacket, State, Verdict, Why};
use crate::pairing::Word;
use crate::wire::{Aeth, Bth, Ext, Kind, Nak, Opcode, Packet, Psn, Syndrome, Transport};

impl<B: AsRef<[u8]>> Far<B> {
    /// A packet from the target.
    pub fn handle_response(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let verdict = self.judge(packet, now);
        match verdict {
            Verdict::Relay(_) => self.stats.relayed.one(),
            Verdict::Drop(Why::Mismatch) => self.stats.mismatched_responses.one(),
            Verdict::Drop(_) => self.stats.useless_responses.one(),
            Verdict::Absorbed => {}
        }
        verdict
    }

    fn judge(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let opcode = packet.bth.opcode;
        if opcode.transport() != Transport::Rc || !opcode.is_response() {
            return Verdict::Drop(Why::NotAResponse);
        }
        match &mut self.state {
            State::Fresh => return Verdict::Drop(Why::Unexpected),
            State::Over { .. } => return Verdict::Drop(Why::Dead),
            State::Aborting { abort, .. } => {
                let outcome = abort.handle_response(packet, now);
                self.peers.note_response(&packet.bth);
                self.finish_abort(outcome, Some(packet.bth.psn));
                return Verdict::Absorbed;
            }
            State::Open | State::Rewinding | State::Refusing => {}
        }
        self.last_activity = now;
        self.silence.note_heard(now);
        self.rtt.heard();
        if self.is_of_another_incarnation(packet) {
            return Verdict::Drop(Why::Unexpected);
        }
        self.peers.note_response(&packet.bth);
        let (una, counted, granted) = (self.window.una(), self.said.msn(), self.said.credits());
        if let Some(aeth) = packet.ext.aeth().filter(|_| self.is_current(packet.bth.psn)) {
            self.said.hear(*aeth);
        }
        let verdict = match (opcode.kind(), packet.ext) {
            (Kind::ReadResponse | Kind::AtomicAcknowledge, _) => self.handle_answer(packet, now),
            (_, Ext::Aeth(aeth)) => {
                let more = aeth.syndrome.grants_more_than(granted);
                self.handle_acknowledge(packet, self.said.corrected(aeth), more, now)
            }
            _ => Verdict::Drop(Why::NotAResponse),
        };
        if self.window.una() == una && self.said.is_confirmed() {
            // A count that comes with no progress proves nothing.
            self.said.set_msn(counted);
        }
        verdict
    }

    /// `more`: it grants more receives than were granted before.
    fn handle_acknowledge(&mut self, packet: &Packet<'_>, aeth: Aeth, more: bool, now: Instant) -> Verdict {
        if aeth.syndrome.is_ack() && self.replays.acknowledged(packet.bth.psn) {
            return self.handle_ack_again(packet, aeth, now);
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } if more && self.is_where_it_stands(packet.bth.psn) => {
                self.owe(aeth, now);
                Verdict::Absorbed
            }
            Syndrome::Ack { .. } => self.handle_ack(packet, aeth, now),
            Syndrome::Rnr { timer } => self.handle_rnr(packet, aeth, timer, now),
            Syndrome::Nak(Nak::PsnSequence) => self.handle_sequence_nak(packet.bth.psn, packet, aeth, now),
            Syndrome::Nak(_) | Syndrome::Reserved(_) => self.handle_fatal(packet, aeth, now),
        }
    }

    /// Returns whether an ACK names requests that its target cannot have had: it has counted fewer
    /// messages than are complete with them, or fewer than before. It is in another incarnation.
    ///
    /// An MSN is 0 where a queue pair begins, and counts what is complete (IBA volume 1, 9.7.7.1).
    /// Soft-RoCE acknowledges a duplicate by the last PSN that was no READ's, and keeps that over a
    /// reset (`rxe_resp.c`, `ack_psn`).
    pub fn is_of_another_incarnation(&self, packet: &Packet<'_>) -> bool {
        let (Kind::Acknowledge, Ext::Aeth(aeth)) = (packet.bth.opcode.kind(), packet.ext) else {
            return false;
        };
        let to = packet.bth.psn.next();
        if !self.is_open() || !aeth.syndrome.is_ack() || !to.is_after(self.window.una()) {
            return false;
        }
        let completed = self.window.completed_by(to);
        let begun_anew = i64::from(aeth.msn) >= completed;
        if !self.said.is_confirmed() {
            return !begun_anew;
        }
        // The last count may include a message that is not acknowledged yet, but none beyond what
        // the target was not ready for.
        let goes_on = self.said.counted_since(aeth.msn) >= if self.rnr.is_some() { completed } else { 0 };
        !(goes_on || self.said.is_rested() && begun_anew)
    }

    /// Returns whether this PSN is about what was sent and not acknowledged before, or the last of
    /// that.
    fn is_current(&self, psn: Psn) -> bool {
        !psn.next().is_before(self.window.una()) && !psn.is_after(self.window.high())
    }

    /// Returns true if an ACK of this PSN says nothing but what was said before.
    pub(super) fn is_where_it_stands(&self, psn: Psn) -> bool {
        let una = self.window.una();
        self.said.is_confirmed() && psn.next() == una && !self.relay.to().is_after(una)
    }

    /// The answer to a SEND or WRITE that was run again: the requester hears of it whether or not
    /// it is news here.
    fn handle_ack_again(&mut self, packet: &Packet<'_>, aeth: Aeth, now: Instant) -> Verdict {
        self.silence.end();
        match self.handle_ack(packet, aeth, now) {
            Verdict::Drop(Why::Duplicate) => Verdict::Relay(readdressed(packet, packet.bth.psn, aeth)),
            verdict => verdict,
        }
    }

    fn handle_ack(&mut self, packet: &Packet<'_>, aeth: Aeth, now: Instant) -> Verdict {
        let to = packet.bth.psn.next();
        if !to.is_after(self.window.una()) {
            return Verdict::Drop(Why::Duplicate);
        }
        let beyond = to.distance(self.window.high());
        if beyond > NEARBY {
            return Verdict::Drop(Why::Unexpected);
        }
        if beyond > 0 && !self.said.note_beyond(to) {
            // Another incarnation's answer may come late. Asked again, a target says the same
            // again.
            self.rtt.spoil();
            self.go_back(now);
            return Verdict::Absorbed;
        }
        self.came.note_expected(to);
        // Beyond what was sent: the target had all this before this gateway came to be.
        let to = if beyond > 0 { self.window.high() } else { to };
        let advance = self.acknowledged(to, now);
        if advance.blocked {
            self.lost_answer(now);
        } else if beyond > 0 {
            // As the target says it: the message at hand may have its end there.
            self.relay.tell(to);
            return Verdict::Relay(readdressed(packet, packet.bth.psn, positive(aeth)));
        }
        self.relay_progress(packet, advance, aeth, now)
    }

    /// The target has executed everything before `to`, which lies within what was sent.
    pub(super) fn acknowledged(&mut self, to: Psn, now: Instant) -> Advance {
        let advance = self.window.advance(to);
        if advance.moved {
            self.progressed(now);
        }
        advance
    }

    fn progressed(&mut self, now: Instant) {
        self.said.confirm();
        self.rtt.progressed(self.window.una(), now);
        self.silence.restart_timer(now);
        self.silence.end();
        self.rnr = None;
        self.came.follow(self.window.una());
    }

    /// Relays an acknowledgement of everything before the oldest unacknowledged PSN, if that is
    /// news worth a record.
    pub(super) fn relay_progress(
        &mut self,
        packet: &Packet<'_>,
        advance: Advance,
        aeth: Aeth,
        now: Instant,
    ) -> Verdict {
        let una = self.window.una();
        let news = una.distance(self.relay.to());
        // While an answer is missing the MSN may count what it belongs to; that answer will
        // acknowledge this progress too.
        if news <= 0 || advance.blocked {
            return Verdict::Absorbed;
        }
        let first_word = self.relay.to() == self.came.first();
        // While the target is not ready there is nothing that would relay it late.
        let may_wait = !advance.completed && !first_word && self.rnr.is_none();
        if may_wait && news.unsigned_abs() < self.config.relay_every {
            self.stats.coalesced.one();
            self.owe(aeth, now);
            return Verdict::Absorbed;
        }
        self.relay.tell(una);
        Verdict::Relay(readdressed(packet, una.prev(), positive(aeth)))
    }

    /// To be relayed in a while, with all that is acknowledged by then.
    fn owe(&mut self, aeth: Aeth, now: Instant) {
        self.relay.owe(positive(aeth), now);
    }

    fn handle_sequence_nak(&mut self, psn: Psn, packet: &Packet<'_>, aeth: Aeth, now: Instant) -> Verdict {
        self.stats.sequence_naks.one();
        if self.note_before_all(psn) || self.is_elsewhere(psn) || self.has_returned(psn) {
            // The requester's first packets may never have reached the near side. It knows, and
            // comes back to this PSN if it has sent it. Or it is in another incarnation, too.
            return Verdict::Relay(RewrittenPacket::unchanged(packet));
        }
        if psn.is_before(self.window.una()) {
            return Verdict::Drop(Why::Duplicate);
        }
        if psn.is_after(self.window.high()) {
            return Verdict::Drop(Why::Unexpected);
        }
        self.said.confirm();
        self.came.note_expected(psn);
        let advance = self.acknowledged(psn, now);
        self.go_back(now);
        self.relay_progress(packet, advance, aeth, now)
    }

    /// Returns whether a target that expects this PSN is in another incarnation than what was sent.
    /// No word of that one, however late, is about anything so far away.
    fn is_elsewhere(&self, psn: Psn) -> bool {
        psn.distance(self.window.una()) < -NEARBY || psn.distance(self.window.high()) > NEARBY
    }

    fn handle_fatal(&mut self, packet: &Packet<'_>, aeth: Aeth, now: Instant) -> Verdict {
        let psn = packet.bth.psn;
        self.stats.fatal_naks.one();
        // Reserved, and among gateways it has another meaning.
        if aeth.syndrome == Syndrome::TARGET_SILENT {
            return Verdict::Drop(Why::Unexpected);
        }
        let was_sent = !psn.is_before(self.window.una()) && psn.is_before(self.window.high());
        if !was_sent && !self.replays.awaits(psn, Word::Refusal) {
            return Verdict::Drop(Why::Unexpected);
        }
        self.acknowledged(psn, now);
        let una = self.window.una();
        self.end(Failure::Refused(aeth.syndrome));
        self.said.confirm();
        // What runs again lies before all that is acknowledged. The target has said nothing beyond.
        let refused = if psn.is_before(una) { psn } else { una };
        Verdict::Relay(readdressed(packet, refused, aeth))
    }

    /// A READ or atomic response.
    fn handle_answer(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let psn = packet.bth.psn;
        let awaited = self.window.awaiting().map(|entry| entry.read.next());
        if awaited == Some(psn) {
            // It may be the next of a replay as well.
            self.replays.take(packet, &mut self.came.mtu, self.config.piece(), now);
            return self.take_answer(packet, now);
        }
        if let Some(opcode) = self.replays.take(packet, &mut self.came.mtu, self.config.piece(), now) {
            self.silence.end();
            return self.relay_as(packet, opcode);
        }
        if self.replays.is_gap(psn) {
            self.stats.response_gaps.one();
            self.replays.retry();
            return Verdict::Drop(Why::Ahead);
        }
        match awaited {
            Some(next) if psn.is_after(next) => {
                self.lost_answer(now);
                Verdict::Drop(Why::Ahead)
            }
            _ => {
                // What is asked for again comes from further back.
                self.replays.note_duplicate(psn, now);
                if self.window.awaiting().is_some_and(|entry| entry.read.is_behind(psn)) {
                    self.still_answers(now);
                }
                Verdict::Drop(Why::Duplicate)
            }
        }
    }

    fn take_answer(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let psn = packet.bth.psn;
        let Some(entry) = self.window.awaiting() else {
            return Verdict::Drop(Why::Unexpected);
        };
        let (kind, start) = (entry.kind, entry.psn());
        let (mut read, mut mtu) = (entry.read, self.came.mtu);
        let Some(taken) = read::take(kind, &mut read, packet, &mut mtu, self.config.piece()) else {
            return Verdict::Drop(Why::Mismatch);
        };
        self.came.mtu = mtu;
        self.said.note_surplus(u32::from(taken.surplus));
        self.window.advance(start);
        self.window.answered(read);
        let odd_cut = mtu.known().and_then(|mtu| read.odd_cut(self.config.piece(), mtu));
        self.came.note_odd_cut(odd_cut);
        if taken.learnt || kind == Kind::Read && read.answered == 1 {
            self.settle_spans();
        }
        if taken.complete {
            self.window.complete();
        }
        self.recovering = false;
        self.progressed(now);
        self.relay.tell(psn.next());
        self.relay_as(packet, taken.opcode)
    }

    /// The oldest entry, a READ, has its first response: its span is known.
    fn settle_spans(&mut self) {
        let second = self.window.second();
        let Some(head) = self.window.head_mut() else {
            return;
        };
        if let Some(span) = self.came.mtu.span(head.read.length) {
            head.read.span = span;
        }
        let (known, end) = (head.read.span != 0, head.read.end());
        match second {
            None => {
                self.came.horizon.revise(self.came.mtu);
            }
            Some(psn) if known && psn != end => {
                self.rewind_to(end);
            }
            Some(_) => {}
        }
    }

    /// The answer to a READ or atomic was lost: ask again, once, from there.
    fn lost_answer(&mut self, now: Instant) {
        if self.recovering {
            return;
        }
        self.window.note_gap();
        self.stats.response_gaps.one();
        self.rtt.spoil();
        self.go_back(now);
        self.recovering = true;
    }

    fn relay_as(&self, packet: &Packet<'_>, opcode: Opcode) -> Verdict {
        let said = self.said.aeth();
        let aeth = aeth_for(opcode, packet, said).map(|aeth| self.said.corrected(aeth));
        if opcode == packet.bth.opcode && aeth.as_ref() == packet.ext.aeth() {
            return Verdict::Relay(RewrittenPacket::unchanged(packet));
        }
        let bth = Bth { opcode, ..packet.bth };
        Verdict::Relay(RewrittenPacket::rewritten(packet, bth, aeth))
    }
}

/// As an acknowledgement.
fn positive(aeth: Aeth) -> Aeth {
    let syndrome = if aeth.syndrome.is_ack() { aeth.syndrome } else { Syndrome::ACK };
    Aeth { syndrome, ..aeth }
}

pub(super) fn readdressed(packet: &Packet<'_>, psn: Psn, aeth: Aeth) -> RewrittenPacket {
    if psn == packet.bth.psn && packet.ext == Ext::Aeth(aeth) {
        return RewrittenPacket::unchanged(packet);
    }
    let bth = Bth { psn, ..packet.bth };
    RewrittenPacket::rewritten(packet, bth, Some(aeth))
}
