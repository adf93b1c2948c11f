//! Responder side: requests of a flow to its target while its requester is not known, or may be
//! another one by now, and those sent before.

use std::time::{Duration, Instant};

use super::abort::Abort;
use super::read::Progress;
use super::{Failure, Far, NEARBY, State};
use crate::pairing::{Rival, Span, Word};
use crate::wire::{Kind, Packet, Psn};

/// READ data that a question may ask for and still be repeated within its turn, in bytes: what a
/// LAN of 10 Gbit/s carries in about 50 us, far less than the shortest time after which it is.
const MOST_REPEATED: usize = 64 << 10;

impl<B: AsRef<[u8]>> Far<B> {
    /// The PSNs that [`poll_transmit`](Far::poll_transmit) would ask about now. `None`: it has
    /// nothing to send.
    pub fn next_ask(&self, now: Instant) -> Option<Span> {
        match &self.state {
            State::Fresh | State::Over { .. } => return None,
            State::Aborting { abort, .. } => return abort.next_ask(),
            State::Open | State::Rewinding | State::Refusing => {}
        }
        if matches!(self.state, State::Refusing) && self.window.is_empty() {
            return Some(Abort::span(self.window.una()));
        }
        if self.is_held(now) {
            return None;
        }
        let bytes = self.replays.next_bytes(self.came.mtu, self.config.piece());
        if let Some((kind, read)) =
            self.replays.next().filter(|_| bytes.is_some_and(|bytes| bytes <= self.room))
        {
            return Some(self.span(kind, read));
        }
        if self.is_not_ready(now) {
            return None;
        }
        let entry = self.window.unsent(0).filter(|_| self.may_send(0))?;
        Some(self.span(entry.kind, &entry.read))
    }

    fn span(&self, kind: Kind, read: &Progress) -> Span {
        Span::of(read.start, read.most_psns(kind, self.came.mtu)).of_kind(kind)
    }

    /// Says of the next request that all before it was answered. Its requester may be in another
    /// incarnation since, with another target. Then the target's word is not taken for this flow's
    /// where it may be another's.
    pub fn note_rest(&mut self) {
        if self.window.is_empty() && self.replays.is_empty() {
            self.said.note_rest();
        }
    }

    /// Returns true while the target has not spoken since a rest.
    pub fn has_rested(&self) -> bool {
        self.said.is_rested()
    }

    /// Goes back to what was sent and not answered, to send it again when the flow may: its turn to
    /// ask was in vain.
    pub fn take_back(&mut self, now: Instant) {
        if self.is_open() && self.window.in_flight() > 0 {
            self.silence.count(now);
            self.rtt.spoil();
            self.go_back(now);
            self.judge_silence();
        } else if let State::Aborting { abort, .. } = &mut self.state {
            abort.take_back();
        }
    }

    /// Sends once more what has no answer: its turn to ask goes on, and a packet may be lost. READs
    /// of more than [`MOST_REPEATED`] are left out, since their answers take longer than others.
    pub fn repeat(&mut self, now: Instant) {
        if self.is_open() && self.window.in_flight() > 0 && self.window.awaited() <= MOST_REPEATED {
            self.rtt.spoil();
            self.go_back(now);
        }
    }

    /// The target may have answered so. What was sent goes out once more, to be answered once more.
    pub fn ask_again(&mut self, packet: &Packet<'_>, now: Instant) {
        if !self.is_open() {
            return;
        }
        let to = packet.bth.psn.next();
        let is_ack = packet.ext.aeth().is_some_and(|aeth| aeth.syndrome.is_ack());
        if is_ack && (1..=NEARBY).contains(&to.distance(self.window.high())) {
            self.said.note_beyond(to);
        }
        self.rtt.spoil();
        self.go_back(now);
    }

    /// Returns whether the PSN that the target names lies little before all that was sent, of which
    /// it has answered nothing. If so, it waits for what only the requester can bring.
    pub fn note_before_all(&mut self, psn: Psn) -> bool {
        let is_before = self.is_before_all(psn);
        if is_before {
            self.excuse.set_awaits_earlier(true);
            self.came.note_expected(psn);
        }
        is_before
    }

    /// Returns whether the target, asked again about a request that it had answered, expects an
    /// earlier one. Then it is in its next incarnation.
    pub fn has_returned(&self, expected: Psn) -> bool {
        self.is_open() && expected.is_before(self.window.una()) && self.replays.is_ahead_of(expected)
    }

    fn is_before_all(&self, psn: Psn) -> bool {
        let is_open = self.is_open();
        is_open && !self.said.is_confirmed() && self.came.is_little_before(psn)
    }

    /// Says whether the requester may be in another incarnation than what is outstanding
    /// ([`is_contradicted`](crate::flow::Near::is_contradicted)). While that is so nothing of it is
    /// sent, and what is run again is sent once. The target's silence does not count.
    pub fn suspend(&mut self, is_suspended: bool) {
        self.excuse.set_suspended(is_suspended);
    }

    /// The flow may ask again. Where it was not answered before, the time since then counts as
    /// silence.
    pub fn resume(&mut self, now: Instant) {
        let waits = self.is_open() && self.window.in_flight() == 0;
        if waits && !self.silence.total().is_zero() {
            self.silence.count(now);
            self.silence.restart_timer(now);
            self.judge_silence();
        }
    }

    /// Returns the PSNs sent since the flow began, or within any time that an answer may take.
    /// `None`: nothing.
    pub fn has_asked(&self) -> Option<Span> {
        if let State::Aborting { abort, .. } = &self.state {
            return Some(abort.asked());
        }
        let count = self.window.high().distance(self.came.first());
        u32::try_from(count).ok().filter(|count| *count > 0).map(|count| Span::of(self.came.first(), count))
    }

    /// Requests that were sent are about to be forgotten.
    pub(super) fn note_going_back(&mut self) {
        if let Some(sent) = self.has_sent() {
            self.came.note_sent(sent);
        }
    }

    /// Returns the PSN before which all was sent, if anything was. The target may have said that it
    /// has more.
    pub(super) fn has_sent(&self) -> Option<Psn> {
        let high = self.window.high();
        let is_any = !matches!(self.state, State::Fresh) && high != self.came.first();
        self.beyond().or(Some(high)).filter(|_| is_any)
    }

    /// Says whether the requester's gateway is cut off: nothing comes from there. If its target
    /// waits for what only the requester can bring, its silence counts for nothing then.
    pub fn set_cut_off(&mut self, cut_off: bool, now: Instant) {
        if self.is_excused() && !cut_off {
            self.still_answers(now);
        }
        self.excuse.set_cut_off(cut_off);
    }

    /// Nobody looked for this much time up to now. It is not the target's silence, and no retry was
    /// due in it.
    pub fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.silence.leave_out(pause, now);
    }

    /// Returns true if the target's silence counts for nothing.
    pub(super) fn is_excused(&self) -> bool {
        self.excuse.holds() && !self.said.is_confirmed()
    }

    pub(super) fn is_target_dead(&self) -> bool {
        self.silence.total() >= self.config.target_dead_after && !self.is_excused()
    }

    fn judge_silence(&mut self) {
        if self.is_target_dead() {
            self.fail(Failure::TargetSilent);
        }
    }

    /// The target has not answered for two timeouts. One that is to be put in error is asked a few
    /// times in any case.
    pub fn is_unheard(&self) -> bool {
        let is_silent = self.rtt.is_silent() || self.replays.is_unheard();
        self.is_open() && is_silent
    }

    /// The target has never spoken to this flow.
    pub fn has_heard_nothing(&self) -> bool {
        !self.said.is_confirmed()
    }

    /// Whatever was sent has its answer.
    pub fn is_answered(&self) -> bool {
        match &self.state {
            State::Aborting { abort, .. } => !abort.is_waiting(),
            _ => self.window.una() == self.window.high() && self.replays.is_empty(),
        }
    }

    /// Something was sent, and has no answer of any kind.
    pub fn has_out(&self) -> bool {
        match &self.state {
            State::Aborting { abort, .. } => abort.is_waiting(),
            _ => self.window.in_flight() > 0 || self.replays.is_running(),
        }
    }

    /// The target has not answered what was sent last for a timeout.
    pub fn is_overdue(&self) -> bool {
        self.rtt.is_overdue()
    }

    /// This PSN was sent, and neither acknowledged nor answered, and what was sent can be answered
    /// so.
    pub fn awaits(&self, psn: Psn, word: Word) -> bool {
        if let State::Aborting { abort, .. } = &self.state {
            return abort.awaits(psn);
        }
        self.awaits_besides_repeats(psn, word) || self.replays.awaits(psn, word)
    }

    fn awaits_besides_repeats(&self, psn: Psn, word: Word) -> bool {
        let kinds: &[Kind] = match word {
            Word::Ack | Word::SequenceNak | Word::NotReady | Word::Refusal => {
                let waits = !psn.is_before(self.window.una()) && psn.is_before(self.window.high());
                let says_again = word == Word::Ack && self.beyond() == Some(psn.next());
                return waits || says_again;
            }
            Word::Read => &[Kind::Read, Kind::Flush, Kind::AtomicWrite],
            Word::Atomic => &[Kind::Atomic],
        };
        self.window.has_asked(psn, kinds, self.came.mtu)
    }

    /// How a response with this PSN, which is another flow's by all else, may answer what was sent
    /// here and has no answer. `None`: it does not.
    pub fn rivals(&self, psn: Psn, word: Word) -> Option<Rival> {
        if self.is_open() && !self.awaits_besides_repeats(psn, word) {
            return self.replays.rivals(psn, word);
        }
        self.awaits(psn, word).then_some(Rival::Here)
    }

    /// The PSN before which the target says that it has everything, if that is more than was sent.
    /// It was the target's word before what was sent reached it, and is none any more.
    pub(super) fn beyond(&self) -> Option<Psn> {
        self.said.beyond().filter(|to| to.is_after(self.window.high()))
    }

    /// The target may be heard with this PSN once more, if it was asked a moment ago.
    pub fn may_hear_again(&self, psn: Psn) -> bool {
        let was_sent = !psn.is_before(self.came.first()) && psn.is_before(self.window.high());
        was_sent || matches!(self.state, State::Aborting { .. })
    }

    /// The target says, unasked, that it has room for more, which was not known.
    pub fn is_news(&self, packet: &Packet<'_>) -> bool {
        let granted = packet.ext.aeth().filter(|aeth| aeth.syndrome.grants_more_than(self.said.credits()));
        granted.is_some() && self.is_where_it_stands(packet.bth.psn)
    }
}
