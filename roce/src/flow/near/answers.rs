//! Requester side: operations that the target is asked for again, since the requester asks again.

use std::time::{Duration, Instant};

use thin_vec::ThinVec;

use super::due::Say;
use super::{Near, Verdict, Why};
use crate::wire::{Packet, Psn};

/// READs and atomics that the requester asked for again and the target is asked for again.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Replays {
    list: ThinVec<Replay>,
    /// The requester asked again for a READ from here on: the response with this PSN is a First or
    /// Only to it.
    restart: Option<Psn>,
    /// Where the READ or atomic begins that was answered last.
    answer_from: Psn,
    /// How often in a row all were given up.
    #[serde(skip)]
    in_vain: u8,
}

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Replay {
    next: Psn,
    /// `None`: while the path MTU is unknown.
    end: Option<Psn>,
    #[serde_as(as = "snapshot::At")]
    moved: Instant,
}

/// The handling of a READ asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Run,
    Running,
    Full,
}

impl Replays {
    /// At most so many at once.
    const MAX: usize = 16;

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// `span` is how many responses there will be, if that is known.
    pub(super) fn ask(&mut self, start: Psn, span: Option<u32>, now: Instant) -> Again {
        let fresh = Replay { next: start, end: span.map(|span| start + span), moved: now };
        if let Some(same) = self.list.iter_mut().find(|replay| replay.end == fresh.end) {
            if !start.is_before(same.next) {
                return Again::Running;
            }
            *same = fresh;
            return Again::Run;
        }
        if self.list.len() >= Replays::MAX {
            return Again::Full;
        }
        self.list.push(fresh);
        Again::Run
    }

    /// Takes the response with this PSN, and returns true if it is the next of a replay.
    pub(super) fn answer(&mut self, psn: Psn, last: bool, now: Instant) -> bool {
        let Some(at) = self.list.iter().position(|replay| replay.next == psn) else {
            return false;
        };
        if last {
            self.list.remove(at);
            self.in_vain = if self.list.is_empty() { 0 } else { self.in_vain };
        } else if let Some(replay) = self.list.get_mut(at) {
            replay.next = psn.next();
            replay.moved = now;
        }
        true
    }

    /// Returns whether one is still to be answered before `psn`. An ACK past a READ or atomic that
    /// its requester asks for again would only make it ask once more.
    pub(super) fn lie_before(&self, psn: Psn) -> bool {
        self.list.iter().any(|replay| replay.next.is_before(psn))
    }

    /// The next PSN to be answered of each.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = Psn> + '_ {
        self.list.iter().map(|replay| replay.next)
    }

    /// Returns whether the target is asked for one that goes on with this PSN.
    pub(super) fn wait_for(&self, psn: Psn) -> bool {
        self.list.iter().any(|replay| replay.next == psn)
    }

    /// Returns whether there are any, and all are still to be answered beyond `psn`.
    pub(super) fn lie_behind(&self, psn: Psn) -> bool {
        !self.is_empty() && self.list.iter().all(|replay| replay.next.is_after(psn))
    }

    /// Returns the next PSN to be answered of the one that answers this PSN as well.
    pub(super) fn next_of(&self, psn: Psn) -> Option<Psn> {
        let over = |replay: &&Replay| replay.end.is_some_and(|end| psn.is_before(end));
        self.list.iter().filter(over).map(|replay| replay.next).find(|next| !next.is_before(psn))
    }

    /// When the first of them has made no progress for `timeout`.
    fn first_expiry(&self, timeout: Duration) -> Option<Instant> {
        self.list.iter().map(|replay| replay.moved + timeout).min()
    }

    /// When none of them has made progress for `timeout`.
    fn last_expiry(&self, timeout: Duration) -> Option<Instant> {
        self.list.iter().map(|replay| replay.moved + timeout).max()
    }

    /// Drops those that made no progress for `timeout`, so that the requester may ask again;
    /// returns how many, and the lowest PSN that they had no answer to.
    fn expire(&mut self, now: Instant, timeout: Duration) -> (usize, Option<Psn>) {
        let (before, mut unanswered) = (self.list.len(), None);
        self.list.retain(|replay| {
            let is_kept = replay.moved + timeout > now;
            if !is_kept {
                unanswered = lower(unanswered, replay.next);
            }
            is_kept
        });
        (before - self.list.len(), unanswered)
    }

    /// The responses from this one on are to look like an answer of their own.
    pub(super) fn restart_at(&mut self, psn: Psn) {
        self.restart = Some(psn);
    }

    pub(super) fn is_restart(&self, psn: Psn) -> bool {
        self.restart == Some(psn)
    }

    pub(super) fn end_restart(&mut self) {
        self.restart = None;
    }

    /// An answer begins with this response.
    pub(super) fn begin_answer(&mut self, psn: Psn) {
        self.answer_from = psn;
    }

    /// Where the answer begins that was passed on last.
    pub(super) fn answer_from(&self) -> Psn {
        self.answer_from
    }

    pub(super) fn clear(&mut self) {
        self.list = ThinVec::new();
    }
}

pub(super) fn lower(one: Option<Psn>, other: Psn) -> Option<Psn> {
    one.filter(|one| one.is_before(other)).or(Some(other))
}

/// A SEND or WRITE that the target acknowledged before, and is asked about since it came again
/// while others are outstanding.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Asked {
    psn: Psn,
    #[serde_as(as = "snapshot::At")]
    at: Instant,
    /// The PSN that the target named in answer, to be passed on.
    named: Option<Psn>,
}

impl Asked {
    /// Its answer may still come.
    pub(super) fn waits(&self, patience: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < patience
    }
}

impl Near {
    /// A SEND or WRITE lies before all that is outstanding. Of a run of them the first is carried;
    /// what the target answers is for all.
    pub(super) fn ask_again(&mut self, psn: Psn, now: Instant) -> bool {
        let asks = self.would_ask(psn, now);
        if asks {
            self.incarnation.questions.get_or_insert_default().asked =
                Some(Asked { psn, at: now, named: None });
            self.note_asked_again(psn);
        }
        asks
    }

    /// A READ that was seen before comes again.
    pub(super) fn read_again(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let psn = packet.bth.psn;
        if !psn.is_before(self.ring.done()) {
            if self.ring.is_mid_read(psn) {
                self.replays.restart_at(psn);
            }
            return Verdict::Drop(Why::Pending);
        }
        let length = packet.ext.reth().map_or(0, |reth| reth.dma_length);
        let span = self.seen.mtu().span(length);
        if span.is_some_and(|span| (psn + span).is_after(self.seen.to())) {
            return Verdict::Drop(Why::Stale);
        }
        if span.is_some_and(|span| self.crosses_answer(psn, span, now)) {
            return Verdict::Drop(Why::Duplicate);
        }
        self.note_window();
        match self.ask_for(psn, span, now) {
            Again::Run => Verdict::Replay,
            Again::Running => {
                self.replays.restart_at(psn);
                Verdict::Drop(Why::Pending)
            }
            Again::Full => Verdict::Drop(Why::Full),
        }
    }

    /// An atomic that was seen before comes again.
    pub(super) fn result_again(&mut self, psn: Psn, now: Instant) -> Verdict {
        if !psn.is_before(self.ring.done()) {
            return Verdict::Drop(Why::Pending);
        }
        if self.crosses_answer(psn, 1, now) {
            return Verdict::Drop(Why::Duplicate);
        }
        // The target may still have it. It has seen this PSN, so it runs nothing twice.
        match self.ask_for(psn, Some(1), now) {
            Again::Run => Verdict::Replay,
            Again::Running => Verdict::Drop(Why::Pending),
            Again::Full => Verdict::Drop(Why::Full),
        }
    }

    /// Returns true if the requester asks again for all that it was told last, and did so before it
    /// can have heard. Asked for again from the midst of it, something was lost.
    pub(super) fn crosses_answer(&self, start: Psn, span: u32, now: Instant) -> bool {
        let is_last = start == self.replays.answer_from && start + span == self.told.to();
        is_last && self.has_nothing_open() && !self.has_crossed(now)
    }

    /// When what is asked for again is waited for no longer. Where nothing else waits, the far half
    /// asks the target once for each, one after the other: then all are given up together, and who
    /// asks again after that comes through.
    pub(super) fn replay_expiry(&self) -> Option<Instant> {
        let timeout = self.replay_timeout();
        if self.has_all_answers() {
            self.replays.last_expiry(timeout)
        } else {
            self.replays.first_expiry(timeout)
        }
    }

    /// The target has answered all that came, be it in the midst of a message.
    pub(super) fn has_all_answers(&self) -> bool {
        self.ring.done() == self.seen.floor()
    }

    /// From the fourth time in a row on twice as long each time: a target may take longer than the
    /// link.
    fn replay_timeout(&self) -> Duration {
        let most = self.config.replay_timeout;
        if !self.has_all_answers() {
            return most;
        }
        self.patience().saturating_mul(1 << self.replays.in_vain.saturating_sub(2).min(16)).min(most)
    }

    /// Gives up what [`replay_expiry`](Near::replay_expiry) says.
    pub(super) fn expire_replays(&mut self, now: Instant) {
        if self.replay_expiry().is_some_and(|at| at <= now) {
            let (expired, unanswered) = self.replays.expire(now, self.replay_timeout());
            self.stats.replays_expired.add(expired as u64);
            self.replays.in_vain = self.replays.in_vain.saturating_add(1);
            if let Some(psn) = unanswered {
                let open = self.incarnation.questions.get_or_insert_default();
                open.unanswered = lower(open.unanswered, psn);
                // It came with this retry or before, so that its answer tells of no later one.
                open.asked = None;
            }
        }
    }

    /// Returns from which PSN on the requester has no answer to a READ or atomic that it asked for
    /// again, and the target is not asked any more.
    pub(super) fn unanswered(&self) -> Option<Psn> {
        self.incarnation.questions.as_ref()?.unanswered
    }

    /// Returns whether the requester asked again for a READ or atomic before `psn`, and has no
    /// answer. An ACK past that would complete what nobody has if both are in another incarnation.
    /// How long the target takes proves nothing.
    pub(super) fn holds_back(&self, psn: Psn) -> bool {
        let waits = || self.unanswered().is_some_and(|unanswered| unanswered.is_before(psn));
        self.replays.lie_before(psn) || waits() || self.owes_before(psn)
    }

    /// The target has said, up to this PSN, that it has all that it had answered. A retry began
    /// beyond the READ or atomic without an answer, and came after that was given up. The requester
    /// hears just that PSN.
    ///
    /// The retry does not show that its requester waits for no READ: the LAN may have lost the
    /// first packet. Without a gateway the target's ACK would be the same then. If the target is in
    /// the requester's incarnation, it has all that it names. A NIC that still waits for the READ
    /// takes the ACK for a request to repeat it. Otherwise the target was in the incarnation before
    /// for two round trips more than its requester, and confirms that on any path.
    pub(super) fn note_told_again(&mut self, psn: Psn) {
        let done = self.ring.done();
        let is_held = self.holds_back(done);
        let Some(open) = &mut self.incarnation.questions else { return };
        let asked = open.asked.as_ref().filter(|asked| asked.named == Some(psn));
        let Some(asked) = asked.filter(|_| !psn.next().is_before(done)).map(|asked| asked.psn) else {
            return;
        };
        open.unanswered.take_if(|unanswered| asked.is_after(*unanswered));
        self.pass_owed(asked);
        self.due.add_if(Say::Ack, is_held);
    }

    /// Returns whether the requester, which sends this again, is told nothing of it for want of an
    /// answer to a READ or atomic before. Then the target is asked whether both are where they
    /// were.
    pub(super) fn is_held_back(&self, psn: Psn) -> bool {
        let waits = || self.unanswered().is_some_and(|unanswered| psn.is_after(unanswered));
        psn.is_before(self.ring.done()) && (waits() || self.owes_before(psn))
    }

    /// The requester is told beyond all that waits for an answer.
    pub(super) fn forget_unanswered(&mut self) {
        if let Some(open) = &mut self.incarnation.questions {
            open.unanswered = None;
        }
    }

    /// The target is asked once more from this PSN on.
    fn note_asked_for(&mut self, psn: Psn) {
        if let Some(open) = &mut self.incarnation.questions {
            open.unanswered.take_if(|unanswered| !psn.is_after(*unanswered));
        }
    }

    /// The target is asked again for a READ or atomic.
    fn ask_for(&mut self, psn: Psn, span: Option<u32>, now: Instant) -> Again {
        let again = self.replays.ask(psn, span, now);
        if again == Again::Run {
            self.note_asked_again(psn);
            self.note_asked_for(psn);
        }
        again
    }

    /// How long an answer of the target may take.
    pub(super) fn patience(&self) -> Duration {
        2 * self.config.rtt.max(self.config.lan_turn)
    }

    /// The same as [`ask_again`](Near::ask_again), without doing it.
    pub(super) fn would_ask(&self, psn: Psn, now: Instant) -> bool {
        let waits = |asked: &Asked| asked.waits(self.patience(), now) && !psn.is_before(asked.psn);
        self.seen.has(psn) && self.has_crossed(now) && !self.asked().is_some_and(waits)
    }

    /// The target has acknowledged everything up to `psn`, whatever was asked.
    pub(super) fn note_answer(&mut self, psn: Psn) {
        let asked = self.incarnation.questions.as_mut().and_then(|open| open.asked.as_mut());
        if let Some(asked) = asked.filter(|asked| !psn.is_before(asked.psn)) {
            asked.named = Some(psn);
        }
    }

    /// Returns the PSN to pass on, once.
    pub(super) fn take_answer(&mut self) -> Option<Psn> {
        self.asked()?.named?;
        self.incarnation.questions.as_mut()?.asked.take()?.named
    }

    pub(super) fn has_answer(&self) -> bool {
        self.asked().is_some_and(|asked| asked.named.is_some())
    }

    /// Returns whether the target is being asked about requests that it had answered, and about
    /// none at or before this PSN.
    pub(super) fn is_asked_beyond(&self, psn: Psn) -> bool {
        let asked = self.asked().is_some_and(|asked| psn.is_before(asked.psn));
        asked || self.replays.lie_behind(psn)
    }

    /// Returns whether the target was asked about a request at this PSN or before, which it had
    /// answered.
    pub(super) fn is_asked_from(&self, psn: Psn) -> bool {
        self.asked().is_some_and(|asked| !psn.is_before(asked.psn)) || self.replays.wait_for(psn)
    }

    fn asked(&self) -> Option<&Asked> {
        self.incarnation.questions.as_ref()?.asked.as_ref()
    }
}
