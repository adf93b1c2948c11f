//! Requester side: which incarnation of its queue pair a request belongs to, and when only the
//! target can tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers::{Asked, Replays};
use super::back::Back;
use super::due::Due;
use super::owed::Owed;
use super::seen::Seen;
use super::strangers::Strangers;
use super::{Near, NearConfig, NearCounters, Proof, PsnPosition, State};
use crate::flow::horizon::{NEARBY, Order};
use crate::flow::rewritten::Style;
use crate::wire::{Packet, Psn};

/// Another request than the target has answered at its PSN.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Another {
    psn: Psn,
    /// Its message goes on.
    goes_on: bool,
}

/// Questions that only the target can answer. Most flows have none.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Questions {
    strangers: Option<Strangers>,
    pub(super) asked: Option<Asked>,
    /// The target may expect this PSN, which lies before the first. Whether it does the requester
    /// knows.
    pub(super) hinted: Option<Psn>,
    /// The requester is to hear of that.
    pub(super) is_hint_due: bool,
    /// From this PSN on the target was asked again for a READ or atomic, and has not answered. The
    /// requester may ask once more.
    pub(super) unanswered: Option<Psn>,
    /// The target is asked another request than it answered at its PSN.
    another: Option<Another>,
    /// It has answered that. So what is outstanding is of an incarnation that is over.
    is_over: bool,
    /// The target's next incarnation has the beginning of a message, and expects this PSN, which
    /// begins none.
    amid: Option<Psn>,
    /// The target expects this PSN, which is far from all that was sent.
    elsewhere: Option<Psn>,
    /// Asked about what it had answered, the target expects this PSN, which lies before others that
    /// it had acknowledged.
    returned: Option<Psn>,
    /// Where the requester went back to, before the first.
    back: Back,
}

/// Knowledge of the incarnation that the requester is in, and questions about it.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Incarnation {
    pub(super) questions: Option<Box<Questions>>,
    earlier: Option<Box<Earlier>>,
}

/// Knowledge from before this flow. Most flows have none.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Earlier {
    /// Targets of this and of earlier flows have named a PSN to which the requester does not go
    /// back.
    lost: Option<Lost>,
    /// Where the requester of the incarnation before goes on, if this flow began in its place.
    before: Option<Psn>,
    /// Where the requester goes on if this flow is its own: for a flow begun in this one's place.
    own: Option<Psn>,
    /// READs and atomics that this flow or one before carried, and knows no more.
    owed: Option<Owed>,
    /// Up to here this flow or one before carried messages that the target may be amid. Version 1
    /// of snapshots does not know of it.
    #[serde(skip)]
    amid: Option<Psn>,
    /// Others send in the requester's name. Version 1 of snapshots does not know of it.
    #[serde(skip)]
    is_imitated: bool,
    /// None of it is a target's word: that has spoken of no flow before. Version 1 of snapshots
    /// does not know of it.
    #[serde(skip)]
    is_unheard: bool,
}

impl Incarnation {
    pub(super) fn forget_questions(&mut self) {
        self.questions = None;
    }

    /// The incarnation of a flow that takes the place of another one.
    fn after(earlier: Earlier) -> Incarnation {
        let Earlier { lost, before, own, owed, amid, is_imitated, is_unheard: _ } = &earlier;
        let is_any = lost.is_some()
            || owed.is_some()
            || amid.is_some()
            || *is_imitated
            || [before, own].into_iter().any(Option::is_some);
        Incarnation { questions: None, earlier: is_any.then(|| Box::new(earlier)) }
    }

    pub(super) fn is_known_from_before(&self) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| !earlier.is_unheard)
    }

    pub(super) fn owed(&self) -> Option<&Owed> {
        self.earlier.as_ref()?.owed.as_ref()
    }

    pub(super) fn set_owed(&mut self, owed: Option<Owed>) {
        if owed.is_some() || self.earlier.is_some() {
            self.earlier.get_or_insert_default().owed = owed;
        }
    }

    /// The PSN before the first that the target has named.
    pub(super) fn hinted(&self) -> Option<Psn> {
        self.questions.as_ref()?.hinted
    }

    pub(super) fn amid(&self) -> Option<Psn> {
        self.earlier.as_ref()?.amid
    }

    pub(super) fn set_amid(&mut self, amid: Option<Psn>) {
        if amid.is_some() || self.earlier.is_some() {
            self.earlier.get_or_insert_default().amid = amid;
        }
    }

    /// Settles something that is owed, if anything is.
    pub(super) fn settle_owed(&mut self, settle: impl FnOnce(&mut Owed)) {
        let Some(earlier) = &mut self.earlier else { return };
        let Some(owed) = &mut earlier.owed else { return };
        settle(owed);
        if owed.is_empty() {
            earlier.owed = None;
        }
    }

    pub(super) fn lost(&self) -> Option<Lost> {
        self.earlier.as_ref()?.lost
    }

    fn before(&self) -> Option<Psn> {
        self.earlier.as_ref()?.before
    }

    /// Where the requester that targets have spoken of last goes on, whoever's this flow is.
    fn goes_on_at(&self) -> Option<Psn> {
        let earlier = self.earlier.as_ref()?;
        earlier.before.or(earlier.own)
    }

    /// The requester has gone back to the PSN that its target named.
    pub(super) fn forget_lost(&mut self) {
        if let Some(earlier) = &mut self.earlier {
            earlier.lost = None;
        }
    }
}

/// A PSN to which a requester does not go back although targets of this and of earlier flows have
/// named it.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Lost {
    psn: Psn,
    #[serde_as(as = "snapshot::At")]
    pub(super) since: Instant,
    pub(super) times: u8,
}

impl Near {
    /// Returns the flow that asks the target about a request that this one
    /// [`doubts`](Near::doubts). That request is its first, wherever in its message it stands; it
    /// is still to be handed in. It knows the path MTU, as a hint, the LAN, and which READs and
    /// atomics have no answer; nothing else.
    pub fn anew(&self, config: impl Into<Arc<NearConfig>>, packet: &Packet<'_>, now: Instant) -> Near {
        self.anew_at(config, packet.bth.psn, Style::of(&packet.bth), now)
    }

    /// Returns a flow of which only its first packet is known, wherever in its message that stands:
    /// the requester began with another gateway. The packet is still to be handed in. Nothing is
    /// told to the requester before the target has spoken.
    pub fn amid(
        config: impl Into<Arc<NearConfig>>,
        stats: Arc<NearCounters>,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Near {
        let mut near = Near::new(config, stats, now);
        near.begin(packet.bth.psn, Style::of(&packet.bth));
        near
    }

    /// Forgets what is on its way: the far half is gone, with all that it had. From now on this
    /// tells the requester nothing new, and serves to have a new flow ask the target
    /// ([`anew`](Near::anew)).
    pub fn strand(&mut self) {
        if self.is_failed() || !self.is_started() {
            return;
        }
        self.restart_at(self.told.to());
        self.replays = Replays::default();
        self.due = Due::default();
    }

    /// Returns the flow to take the place of one that [is over](Near::is_over), if its target is in
    /// the midst of a message. It expects the rest of that, which begins no message and so would
    /// open no flow.
    pub fn anew_amid(&self, config: impl Into<Arc<NearConfig>>, now: Instant) -> Option<Near> {
        let psn = self.incarnation.questions.as_ref()?.amid?;
        Some(self.anew_at(config, psn, self.requester.style, now))
    }

    fn anew_at(&self, config: impl Into<Arc<NearConfig>>, psn: Psn, style: Style, now: Instant) -> Near {
        let mut near = Near::new(config, Arc::clone(&self.stats), now);
        (near.seen, near.turn) = (Seen::new(self.seen.mtu()), self.turn);
        let is_imitated = self.is_imitated(psn);
        // What lies little before that is its own, and asked about now, unless others may send it.
        let most = if is_imitated { 0 } else { NEARBY };
        let is_own = |goes_on: &Psn| (0..=most).contains(&goes_on.distance(psn));
        let goes_on = self.goes_on_at();
        let (own, before) = (goes_on.filter(is_own), goes_on.filter(|goes_on| !is_own(goes_on)));
        let (lost, owed, amid) = (self.incarnation.lost(), self.left_for(psn), self.amid_for(psn));
        let is_unheard = self.has_heard_nothing();
        let earlier = Earlier { lost, before, own, owed, amid, is_imitated, is_unheard };
        near.incarnation = Incarnation::after(earlier);
        near.begin(psn, style);
        near
    }

    /// Where the requester goes on, if it is in the last incarnation of which its target has
    /// spoken, or where that target has said that it is.
    fn goes_on_at(&self) -> Option<Psn> {
        let is_known = self.is_started() && !self.is_failed() && !self.is_unproven();
        let hinted = || self.incarnation.hinted();
        if is_known { Some(self.told.to()) } else { hinted().or(self.incarnation.goes_on_at()) }
    }

    /// Returns whether somebody else was heard in the requester's name, little behind where that
    /// was: this flow began with that, and the requester goes on at `psn` as if nothing had been.
    fn is_imitated(&self, psn: Psn) -> bool {
        let Some(earlier) = &self.incarnation.earlier else { return false };
        earlier.is_imitated || earlier.own == Some(psn) && self.seen.floor().is_before(psn)
    }

    /// Returns whether a request is the next one of the incarnation before, or its last, whose ACK
    /// was lost, while the target has not spoken of this one: what this one began with was not its
    /// requester's.
    fn is_of_the_one_before(&self, psn: Psn) -> bool {
        let goes_on = self.incarnation.before().is_some_and(|before| before == psn || before == psn.next());
        goes_on && !self.fits(psn) && (self.is_failed() || self.is_unproven())
    }

    /// Returns whether a request may repeat what the incarnation before had sent.
    fn may_be_of_the_one_before(&self, psn: Psn) -> bool {
        self.incarnation.before().is_some_and(|before| (1..=NEARBY).contains(&before.distance(psn)))
    }

    /// Says nothing more until the next response names the requester's queue pair.
    pub fn unpair(&mut self) {
        self.requester.qpn = None;
    }

    /// Uses these bounds and this measure of the round trip from now on.
    pub fn adopt(&mut self, config: &Arc<NearConfig>) {
        if !Arc::ptr_eq(&self.config, config) {
            self.config = Arc::clone(config);
        }
    }

    /// Has what flows share, after it was read from a snapshot.
    pub fn share(&mut self, config: Arc<NearConfig>, stats: Arc<NearCounters>) {
        (self.config, self.stats) = (config, stats);
    }

    /// Returns whether only the target can tell if this request belongs to the incarnation of the
    /// queue pair that this flow knows. Then have a new flow ask it ([`anew`](Near::anew)) instead
    /// of handing it in. Where that is not possible at the moment, hand it in: it is not answered,
    /// or refused.
    pub fn doubts(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let (psn, starts) = (packet.bth.psn, packet.bth.opcode.starts_message());
        if self.is_of_the_one_before(psn) {
            return true;
        }
        if let State::Failed(failed) = &self.state {
            let past =
                failed.is_past(psn) || failed.is_strange(packet, now) || failed.leaves_to_target(psn, now);
            return starts && past && self.has_crossed(now);
        }
        if starts && (self.has_ended() || self.is_elsewhere(psn)) || self.returned() == Some(psn) {
            return true;
        }
        if self.told.to().is_after(self.ring.done()) {
            // The requester was acknowledged what the target has yet to get from here, and will not
            // send it again.
            return starts && self.comes_in_place_of_a_standstill(packet, now);
        }
        let rests = self.is_at_rest();
        let may_begin = starts || self.may_be_of_the_one_before(psn);
        match self.seen.order(packet) {
            // What comes next on a flow at rest starts a message.
            Order::Exact if rests => !starts,
            Order::Exact => self.breaks_off(packet, now) && self.comes_in_place_of_all(psn, now),
            // It was told where to go on. If it may not have heard, its own timer brings it back.
            Order::Ahead if rests && self.seen.is_placed() => self.comes_in_place_of_all(psn, now),
            Order::Ahead if rests => self.has_crossed(now) || self.cannot_cross(packet),
            Order::Ahead => may_begin && self.comes_in_place_of_all(psn, now),
            // So far back goes no requester that has begun here.
            Order::Behind if self.is_rewind(psn) => {
                psn.distance(self.told.to()) < -NEARBY && may_begin && self.comes_in_place_of_all(psn, now)
            }
            // It has gone back before all that it asked for again, which came beside what had
            // crossed an answer and was dropped.
            Order::Behind if self.has_nothing_open() && self.replays.lie_behind(psn) => self.has_crossed(now),
            // All that came is answered, in the midst of a message: an ACK was lost, and the target
            // is asked to repeat it. That is for what the requester can have sent.
            Order::Behind if !rests && self.has_all_answers() => {
                starts && self.comes_in_place_of_a_standstill(packet, now)
            }
            Order::Behind => match self.ring.repeats(packet) {
                // The target has not spoken, and judges which is its requester's.
                Some(false) if starts && self.comes_in_place_of_the_first(psn, now) => true,
                Some(same) => !same && self.comes_in_place_of_all(psn, now),
                None if rests => self.has_crossed(now) || self.cannot_cross(packet),
                None if packet.bth.opcode.needs_response() => false,
                // What was being sent goes on without a pause.
                None if self.is_rested() && self.has_paused(now) => true,
                None => self.comes_in_place_of_all(psn, now),
            },
        }
    }

    /// The target has answered all there was, and the requester was told.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_started() && !self.is_unproven() && self.has_nothing_open() && self.replays.is_empty()
    }

    pub(super) fn has_nothing_open(&self) -> bool {
        self.ring.is_empty() && self.told.to() == self.ring.done()
    }

    /// Returns true if what the requester was told last is no news any more: what it sent before it
    /// heard that has come.
    pub(super) fn has_crossed(&self, now: Instant) -> bool {
        self.told.age(now) >= self.crossing()
    }

    /// On a flow at rest: returns whether a request cannot have been sent before the requester
    /// heard what it was told last. It is another one than that which was answered at its PSN, or
    /// no requester has so much under way.
    fn cannot_cross(&self, packet: &Packet<'_>) -> bool {
        let ahead = packet.bth.psn.distance(self.seen.floor());
        let is_far = ahead.abs() > NEARBY;
        is_far || packet.bth.opcode.starts_message() && self.ring.differs(packet)
    }

    /// The requester has sent nothing for as long as what crosses takes.
    ///
    /// That only chooses who asks the target: a flow begun anew, or this one. Before the target has
    /// spoken to it the new flow tells its requester nothing, and this one had told it no more than
    /// the target had acknowledged. So a wrong choice costs a repeat.
    ///
    /// Rule: `docs/protocol.md#rule-time-pause`.
    fn has_paused(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.requester.heard()) >= self.crossing()
    }

    /// Another request than the first of a flow comes at its PSN, after a pause, and the target has
    /// not spoken. A requester that repeats sends the same. As the target has not spoken, this flow
    /// has told the requester nothing, and neither does the one begun in its place.
    ///
    /// Rule: `docs/protocol.md#rule-time-first`.
    fn comes_in_place_of_the_first(&self, psn: Psn, now: Instant) -> bool {
        self.is_unproven() && psn == self.told.to() && self.has_paused(now)
    }

    /// The target has named the PSN expected, and what comes was sent before the requester can have
    /// heard of that. What comes later may be of another incarnation.
    pub(super) fn is_placed(&self, now: Instant) -> bool {
        self.seen.is_placed() && self.is_within_turn(now)
    }

    /// The next request is about to be accepted.
    pub(super) fn note_rest(&mut self, now: Instant) {
        if !self.ring.is_empty() {
            return;
        }
        self.target.note_answered(now);
        self.note_window();
        if self.is_unproven() || self.seen.is_none() || !self.has_nothing_open() {
            return;
        }
        self.measure_turn(now);
        // What is done locally is told before the target spoke, and gives this up as well.
        if !self.is_within_turn(now) && !self.local {
            self.set_proof(Proof::Rested);
        }
    }

    /// A request at this PSN does not fit what is outstanding. Returns whether the incarnation that
    /// is outstanding must have stopped: this comes for the second time, nothing that is
    /// outstanding came in between, and the target has answered nothing.
    fn comes_in_place_of_all(&mut self, psn: Psn, now: Instant) -> bool {
        self.comes_in_place_after(self.crossing(), psn, now)
    }

    /// The same, where a new flow would lose what the requester was acknowledged in the midst of a
    /// message. So this comes from where no requester that is outstanding can be, or is another
    /// request than the one outstanding there. Meanwhile an answer to that would have come. The new
    /// flow confirms nothing before the target has spoken to it. Somebody who sends in the
    /// requester's name twice may so end its message, and with that the connection. The requester
    /// hears of an error then, and of no success.
    ///
    /// Rule: `docs/protocol.md#rule-time-standstill`.
    fn comes_in_place_of_a_standstill(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let (psn, patience) = (packet.bth.psn, self.patience().max(self.crossing()));
        let is_open = !psn.is_before(self.ring.done()) && psn.is_before(self.seen.floor());
        let is_anothers = self.is_far(psn) || is_open && self.ring.repeats(packet) == Some(false);
        is_anothers && !self.is_at_rnr() && self.comes_in_place_after(patience, psn, now)
    }

    fn comes_in_place_after(&mut self, time: Duration, psn: Psn, now: Instant) -> bool {
        let answered = self.target.answered();
        let open = self.incarnation.questions.get_or_insert_default();
        let floor = self.seen.floor();
        let strangers = open.strangers.get_or_insert_with(|| Strangers::new(floor, now));
        strangers.see(psn, floor, answered, time, now)
    }

    /// The requester goes back to this packet, which lies before the first, and the target has not
    /// spoken. Returns whether that is its first: it may begin a flow, and is the one before, or
    /// both came together; the target has named it; or it comes for the second time, and nothing
    /// before it came in between.
    ///
    /// The last holds in the midst of a message, too. The target names what it lacks once, and that
    /// word may be lost, or have been for a flow before.
    pub(super) fn begins_earlier(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        let psn = packet.bth.psn;
        let (crossing, first) = (self.crossing(), self.ring.done());
        let may_begin = packet.bth.opcode.starts_message() || self.lacks(psn);
        // What was sent together may come in any order.
        let came_together = now.saturating_duration_since(self.target.answered()) < crossing;
        if may_begin && (psn.next() == first || came_together) {
            return true;
        }
        if self.is_hinted(psn) {
            self.seen.place();
            return true;
        }
        let open = self.incarnation.questions.get_or_insert_default();
        open.back.comes_again(psn, crossing, now)
    }

    /// Counts that a target has named this PSN, and returns how often it was counted before.
    pub(super) fn count_lost(&mut self, psn: Psn, now: Instant) -> u8 {
        let earlier = self.incarnation.earlier.get_or_insert_default();
        let fresh = Lost { psn, since: now, times: 0 };
        let lost = earlier.lost.filter(|lost| lost.psn == psn).unwrap_or(fresh);
        earlier.lost = Some(Lost { times: lost.times.saturating_add(1), ..lost });
        lost.times
    }

    /// Keeps in mind whether what came belongs to the incarnation that is outstanding. A request
    /// before all of that, or another one than the outstanding one with its PSN, may be of the next
    /// one.
    pub(super) fn note_incarnation(&mut self, packet: &Packet<'_>, now: Instant) {
        if self.ring.is_empty() || self.seen.order(packet) != Order::Behind {
            return;
        }
        let psn = packet.bth.psn;
        match self.ring.repeats(packet) {
            // Of what the target has acknowledged in the midst of a message too little is known.
            Some(_) if psn.is_before(self.ring.done()) && !self.ring.breaks_into(packet) => {}
            // It has an ACK for these. Another incarnation may send the like.
            Some(true) if psn.is_before(self.told.to()) => {}
            Some(true) if self.is_from_before_doubt(psn) => {
                if self.agrees(psn, now) {
                    self.forget_strange();
                    self.note_call();
                }
            }
            Some(true) => {}
            _ if self.is_rewind(psn) => {}
            repeats => {
                self.comes_in_place_of_all(psn, now);
                if repeats == Some(false) {
                    self.contradict(psn);
                }
            }
        }
    }

    /// Returns whether this PSN, which is outstanding, was accepted before anything came that does
    /// not fit. What was accepted since may itself be of the next incarnation.
    fn is_from_before_doubt(&self, psn: Psn) -> bool {
        let strangers = self.incarnation.questions.as_ref().and_then(|open| open.strangers.as_ref());
        strangers.is_none_or(|strangers| strangers.lie_behind(psn))
    }

    /// An outstanding request came again. Returns whether its requester must have sent it.
    fn agrees(&mut self, psn: Psn, now: Instant) -> bool {
        let crossing = self.crossing();
        self.strangers().is_none_or(|strangers| strangers.agree(psn, crossing, now))
    }

    /// Another request than the one outstanding came at this PSN.
    fn contradict(&mut self, psn: Psn) {
        if let Some(strangers) = self.strangers() {
            strangers.contradict(psn);
        }
    }

    fn strangers(&mut self) -> Option<&mut Strangers> {
        self.incarnation.questions.as_mut()?.strangers.as_mut()
    }

    /// The target is asked about this request once more. Whether it is another one than that which
    /// was answered at its PSN is kept in mind.
    pub(super) fn note_another(&mut self, packet: &Packet<'_>) {
        let differs = packet.bth.opcode.starts_message() && self.ring.differs(packet);
        if differs || self.ring.runs_into(packet, self.seen.mtu()) {
            let another = Another { psn: packet.bth.psn, goes_on: !packet.bth.opcode.ends_message() };
            self.incarnation.questions.get_or_insert_default().another = Some(another);
        } else if let Some(open) = &mut self.incarnation.questions {
            // What is answered next may be this.
            open.another = None;
        }
    }

    /// The target has answered, at this PSN, what lies before all that is outstanding. If that was
    /// another request than before, the next one is asked about anew. Nothing is lost by that where
    /// the requester was acknowledged no more than its target did: it repeats the rest.
    pub(super) fn note_another_answered(&mut self, psn: Psn) {
        let is_ahead = self.told.to().is_after(self.ring.done());
        let may_end = !is_ahead || self.returned().is_some();
        let Some(open) = self.incarnation.questions.as_mut().filter(|_| may_end) else { return };
        let Some(another) = open.another.filter(|another| !psn.is_before(another.psn)) else { return };
        open.is_over = true;
        open.amid = (another.goes_on && psn == another.psn).then(|| psn.next());
    }

    /// The target responds with data at this PSN, where it was asked for none but by another
    /// request than it answered. Where it stands what is outstanding cannot be run any more.
    pub(super) fn note_strange_answer(&mut self, psn: Psn) {
        let Some(open) = &mut self.incarnation.questions else { return };
        open.is_over |= open.another.is_some_and(|another| !psn.is_before(another.psn));
    }

    /// The target expects this PSN. If that is far from all that was sent, it is in another
    /// incarnation, or this is an old word.
    pub(super) fn note_elsewhere(&mut self, psn: Psn) {
        if self.is_far(psn) {
            self.incarnation.questions.get_or_insert_default().elsewhere = Some(psn);
        }
    }

    /// The target, asked about a request that it had answered, names a PSN before others that it
    /// had acknowledged. It cannot expect those again: it is in its next incarnation.
    pub(super) fn note_returned(&mut self, expected: Psn) {
        if expected.is_before(self.ring.done()) {
            self.incarnation.questions.get_or_insert_default().returned = Some(expected);
        }
    }

    /// The PSN that the target expects in its next incarnation, be it in the midst of a message
    /// whose beginning was asked about.
    fn returned(&self) -> Option<Psn> {
        self.incarnation.questions.as_ref()?.returned.filter(|psn| psn.is_before(self.ring.done()))
    }

    /// Returns whether the next packet is of another incarnation than what is outstanding.
    /// It cannot follow, and what came before did not fit. If all did, a faulty sequence is the
    /// target's to refuse. Or it goes on with a message, and the target is being asked about
    /// another one in its place.
    pub(super) fn breaks_off(&self, packet: &Packet<'_>, now: Instant) -> bool {
        let is_asked = || self.incarnation.questions.as_ref().is_some_and(|open| open.another.is_some());
        let goes_on = !packet.bth.opcode.starts_message();
        self.ring.breaks_off(packet) && (self.is_doubted() || is_asked())
            || goes_on && self.asks_about_head(now)
    }

    /// Returns true while the target, which has a part of the oldest message, is being asked about
    /// another one that came in its place. What else comes meanwhile may belong to that, and the
    /// requester hears nothing of the oldest.
    pub(super) fn asks_about_head(&self, now: Instant) -> bool {
        let Some(open) = &self.incarnation.questions else { return false };
        let waits = open.asked.as_ref().is_some_and(|asked| asked.waits(self.patience(), now));
        waits && open.another.is_some_and(|another| self.ring.is_half_done() && self.ring.holds(another.psn))
    }

    /// Returns whether a request that comes with this PSN is just what the target expects, far from
    /// all that was sent. Both are in another incarnation.
    fn is_elsewhere(&self, psn: Psn) -> bool {
        let named = self.incarnation.questions.as_ref().and_then(|open| open.elsewhere);
        named == Some(psn) && self.is_far(psn)
    }

    fn is_far(&self, psn: Psn) -> bool {
        psn.distance(self.ring.done()) < -NEARBY || psn.distance(self.seen.floor()) > NEARBY
    }

    /// Returns true once the target has answered a request of another incarnation. Then forget the
    /// flow when it has nothing more to say: nobody waits for what is outstanding. The next request
    /// opens a flow.
    ///
    /// A flow whose target has answered all that came is kept while that may be in the midst of
    /// that request. The rest of it begins no message, and only this flow knows where it belongs.
    pub fn is_over(&self) -> bool {
        self.has_ended() && !(self.has_all_answers() && self.returned().is_some())
    }

    /// Returns true if what is outstanding is of an incarnation that has ended, as the target has
    /// shown.
    pub(super) fn is_known_over(&self) -> bool {
        self.has_ended() || self.returned().is_some()
    }

    fn has_ended(&self) -> bool {
        self.incarnation.questions.as_ref().is_some_and(|open| open.is_over)
    }

    /// Returns true while the requester may be in another incarnation than what is outstanding.
    /// Since it sent what does not fit, the target has answered nothing that is outstanding, and
    /// nothing of that has come again. It hears nothing meanwhile.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted_since().is_some()
    }

    /// Returns true while what is outstanding may be nobody's any more: another request came at the
    /// PSN of one of them, which is no retry of it, and nothing has shown since that their
    /// requester is there. Then the far half is to leave the target alone with them
    /// ([`suspend`](crate::flow::Far::suspend)). They would run in its next incarnation.
    pub fn is_contradicted(&self) -> bool {
        let strangers = || self.incarnation.questions.as_ref()?.strangers.as_ref();
        self.is_doubted() && strangers().is_some_and(Strangers::contradict_requests)
    }

    /// Returns since when that is so.
    pub(super) fn doubted_since(&self) -> Option<Instant> {
        let strangers = self.incarnation.questions.as_ref()?.strangers.as_ref()?;
        // Where the target has answered all that came, nothing else could come again.
        let latest = strangers.latest();
        (latest >= self.target.answered() && !self.has_all_answers()).then_some(latest)
    }

    /// The next request was accepted. Either incarnation may have sent it.
    pub(super) fn pass_strange(&mut self) {
        if let Some(strangers) = self.strangers() {
            strangers.pass();
        }
    }

    /// Returns whether a PSN that has come is outstanding, or is the one expected.
    pub(super) fn fits(&self, psn: Psn) -> bool {
        match self.classify(psn) {
            PsnPosition::InOrder => true,
            PsnPosition::Duplicate { .. } => self.ring.holds(psn),
            PsnPosition::Ahead => false,
        }
    }

    /// The requester is in the incarnation that is outstanding.
    pub(super) fn forget_strange(&mut self) {
        if let Some(open) = &mut self.incarnation.questions {
            open.strangers = None;
        }
    }
}
