//! Requester side: the end of a flow that failed: every request is answered with the fatal NAK, at
//! a bounded rate, for a while.

use std::time::{Duration, Instant};

use super::super::horizon::{MAX_MESSAGE, NEARBY};
use super::super::rewritten::Reply;
use super::due::Say;
use super::seen::SEEN_MAX;
use super::{Near, NearConfig, Proof, Ring, State, Why};
use crate::wire::{Kind, Nak, Packet, Psn, Qpn, Syndrome};

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Failed {
    syndrome: Syndrome,
    /// The proof until then; `None`: no packet has come.
    stood: Option<Proof>,
    /// The first PSN refused: everything before is acknowledged by the target.
    psn: Psn,
    /// The highest PSN seen, exclusive.
    high: Psn,
    /// The first PSN that was, or is to be, refused: a requester that begins before it was told
    /// that those are done.
    floor: Option<Psn>,
    /// The PSN of the NAK to send.
    due: Option<Psn>,
    /// The one to send then.
    #[serde_as(as = "Option<(_, snapshot::At)>")]
    held: Option<(Psn, Instant)>,
    #[serde_as(as = "Option<snapshot::At>")]
    sent: Option<Instant>,
    /// How often the requester was refused, each time after it had had the time to hear of the
    /// last.
    refusals: u32,
    /// Nothing is refused before.
    #[serde_as(as = "Option<snapshot::At>")]
    mute_until: Option<Instant>,
    /// The messages that the requester waited for when that began, and the PSN after them.
    outstanding: Option<(Ring, Psn)>,
    #[serde_as(as = "snapshot::At")]
    until: Instant,
    over: bool,
    /// An ACK would go past a READ or atomic without an answer.
    holds_back: bool,
    /// When the requester last sent anything, and the highest PSN of the retry under way.
    #[serde_as(as = "Option<(snapshot::At, _)>")]
    heard: Option<(Instant, Psn)>,
    /// It came when memory was no longer fresh, so it may be in another life: what it was told
    /// since then does not prove otherwise.
    doubted: bool,
    stand: Stand,
    /// With this PSN the last whole retry began: it may be coming back to that.
    sought: Option<Psn>,
    /// How many retries in a row did.
    sightings: u32,
    /// The lowest PSN of the retry under way, which may come in any order.
    low: Option<Psn>,
}

/// Knowledge of where the requester stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Stand {
    /// All before the PSN to refuse is acknowledged.
    Known,
    /// Nothing: only the PSN it keeps coming back to is refused.
    Sought,
    /// As before, and only the rest of a message is refused. What begins one asks the target.
    Amid,
}

/// A request to be refused.
struct Request {
    psn: Psn,
    /// PSNs that it consumes, at most.
    span: u32,
    /// It is a READ or atomic: its requester may ask again for what it was answered.
    again: bool,
    /// This flow has seen its PSN.
    seen: bool,
    /// True if the requester has had the time to hear what it was told last.
    settled: bool,
}

/// How long the requester had sent nothing before this.
struct Pause {
    /// So long that a retry may begin, and one may with its PSN.
    has_been: bool,
    /// So long that what comes now was not under way together with what came before.
    is_long: bool,
}

/// How far ahead of all it has sent a requester's next packet may be, to be taken for its own and
/// not for a new life of the queue pair.
const STRAY: i32 = 1024;

/// A requester that starts its retries at the same PSN this many times has nothing unacknowledged
/// before it.
const SIGHTINGS: u32 = 3;

/// Time within which packets of one retry, and copies of them, may overtake each other. Retries are
/// further apart: mlx5's adaptive ones by 2 ms at least.
///
/// With [`SIGHTINGS`] this is a likelihood, and one that can confirm something. If the LAN loses
/// the first packet of three retries in a row, the second is refused, and the NAK acknowledges the
/// first. It counts only where nothing is known of the requester: its target never spoke, or is in
/// error, and the program is told that its connection is over.
///
/// Rule: `docs/protocol.md#rule-time-retry`.
const TOGETHER: Duration = Duration::from_millis(1);

/// A requester that sends the same again after so many NAKs has not lost them all.
const REFUSALS: u32 = 2;

impl Failed {
    pub(super) fn stood(&self) -> Option<Proof> {
        self.stood
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        let held = self.held.map_or(self.until, |(_, at)| at);
        (!self.over).then(|| held.min(self.until))
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.over |= now >= self.until;
        if let Some((psn, _)) = self.held.take_if(|(_, at)| *at <= now) {
            self.due = Some(psn);
        }
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns true if a requester that begins with this PSN is likelier in its next life than
    /// still to be refused: it lies before what is refused, or that was refused so often that it
    /// must have heard.
    pub(super) fn is_past(&self, psn: Psn) -> bool {
        self.refusals >= REFUSALS || self.floor.is_some_and(|floor| psn.is_before(floor))
    }

    fn refuse(&mut self, request: &Request, config: &NearConfig, now: Instant) -> Why {
        if self.over {
            return Why::Dead;
        }
        let pause = Pause {
            has_been: self.may_begin_retry(request.psn, now),
            is_long: self.has_paused(config.fatal_interval, now),
        };
        let under_way = self.heard.filter(|_| !pause.has_been).map(|(_, reached)| reached);
        let reached = under_way.map_or(request.psn, |reached| super::later(reached, request.psn));
        self.heard = Some((now, reached));
        if self.is_mute(now) {
            if self.is_seeking() {
                self.sight(request.psn, pause.has_been);
            }
            // It is still to be refused, and goes on meanwhile.
            self.until = self.until.max(now + config.linger);
            self.reach(request.psn, request.span);
            return Why::Failed;
        }
        self.outstanding = None;
        self.doubted |= request.settled;
        if self.is_seeking() {
            self.refuse_sought(request.psn, &pause, now, config.fatal_interval);
            return Why::Failed;
        }
        self.refuse_known(request, &pause, now, config.fatal_interval)
    }

    /// A request while it is not known where the requester stands.
    fn refuse_sought(&mut self, psn: Psn, pause: &Pause, now: Instant, interval: Duration) {
        // If the target never spoke, whether the requester's first packets were all seen is
        // unknown, and a NAK acknowledges what is before it. What lies before may also be right
        // behind, overtaken on the LAN.
        if self.lowest().is_some_and(|lowest| psn.is_before(lowest)) {
            (self.due, self.held) = (None, None);
        }
        if self.sight(psn, pause.has_been) {
            self.answer(psn, true, now, interval);
        }
    }

    /// A request while all before the PSN to refuse is acknowledged.
    fn refuse_known(&mut self, request: &Request, pause: &Pause, now: Instant, interval: Duration) -> Why {
        let &Request { psn, span, again, seen, .. } = request;
        let behind = psn.is_before(self.psn);
        if self.is_beyond(psn) || behind && !seen && !self.doubted {
            return Why::Stale;
        }
        if !behind {
            self.reach(psn, span);
        }
        if self.doubted {
            if behind && !seen {
                // Of another life, and the NAK would acknowledge what else is of that.
                self.seek(psn);
            } else {
                self.meet(psn, pause, now, interval);
            }
            return Why::Failed;
        }
        let unsent = !self.high.is_after(self.psn);
        if behind && !again && unsent {
            // What is refused has not been sent yet; what came again has crossed its ACK.
            return Why::Duplicate;
        }
        // A NAK must not go past a READ whose responses were lost: that would only make the
        // requester ask for it again.
        let psn = if behind && again { psn } else { self.psn };
        self.answer(psn, false, now, interval);
        Why::Failed
    }

    fn is_mute(&self, now: Instant) -> bool {
        self.mute_until.is_some_and(|end| now < end)
    }

    /// Returns true if a request may be the next life's although nothing is refused yet. It begins
    /// beyond all that the requester can have sent. While nothing is refused, another may also have
    /// been outstanding with its PSN, or it begins before all that came where the target never
    /// spoke. That may be the requester itself, whose first packets were lost: then its target has
    /// executed nothing, or is in error.
    pub(super) fn is_strange(&self, packet: &Packet<'_>, now: Instant) -> bool {
        let psn = packet.bth.psn;
        if !self.is_mute(now) {
            return !self.is_seeking() && self.is_beyond(psn);
        }
        let Some((outstanding, end)) = &self.outstanding else { return false };
        let differs = || outstanding.repeats(packet).map_or(self.is_seeking(), |same| !same);
        self.is_beyond(psn) || psn.is_before(*end) && differs()
    }

    /// Returns whether a request that begins a message is for the target to judge: it comes first,
    /// or before what was being refused. What comes after that belongs to the same retry.
    pub(super) fn leaves_to_target(&self, psn: Psn, now: Instant) -> bool {
        let lower = || self.lowest().is_none_or(|lowest| psn.is_before(lowest));
        self.stand == Stand::Amid && (lower() || self.may_begin_retry(psn, now))
    }

    /// Nothing was refused yet, or the requester was heard since.
    fn is_untold(&self, now: Instant) -> bool {
        let is_heard_since = |sent| self.heard.is_some_and(|(heard, _)| heard > sent);
        now < self.until && !self.over && !self.is_mute(now) && self.sent.is_none_or(is_heard_since)
    }

    fn has_paused(&self, pause: Duration, now: Instant) -> bool {
        self.heard.is_none_or(|(heard, _)| now.saturating_duration_since(heard) >= pause)
    }

    /// Returns whether a retry may begin with this PSN. A pause alone shows none, since a busy host
    /// pauses between any two packets: what goes beyond all before it goes on with the same.
    fn may_begin_retry(&self, psn: Psn, now: Instant) -> bool {
        self.has_paused(TOGETHER, now) && self.heard.is_none_or(|(_, reached)| !psn.is_after(reached))
    }

    fn is_seeking(&self) -> bool {
        self.stand != Stand::Known
    }

    /// The requester that failed does not come to this PSN: it lies far beyond all that it has
    /// sent.
    fn is_beyond(&self, psn: Psn) -> bool {
        psn.distance(self.high) >= STRAY
    }

    /// A request came that consumes PSNs up to this one.
    fn reach(&mut self, psn: Psn, span: u32) {
        if !self.is_beyond(psn) {
            self.high = super::later(self.high, psn + span);
        }
    }

    /// Where the requester stands is not known (any more): refuse only what it keeps coming back
    /// to.
    fn seek(&mut self, psn: Psn) {
        if self.stand == Stand::Known {
            self.stand = Stand::Sought;
        }
        (self.due, self.held) = (None, None);
        (self.sought, self.sightings, self.low) = (Some(psn), 1, None);
    }

    /// A request that may be of another life than the one that failed, at a PSN that either can
    /// have. What a retry begins with, after a long pause, is the oldest request that the requester
    /// has heard nothing of: if it lies at or before the one to refuse, all before it is done in
    /// the life that failed, and there is nothing before it in another. Anything else may follow
    /// what was lost.
    fn meet(&mut self, psn: Psn, since: &Pause, now: Instant, interval: Duration) {
        match self.held {
            Some((held, _)) if psn.is_before(held) => self.held = None,
            Some(_) => return,
            None => {}
        }
        // Nor is a retry what goes on after something before it that was not refused, or not heard
        // to be.
        let lowest = self.lowest().is_none_or(|lowest| !psn.is_after(lowest));
        let begins = since.is_long && lowest && !psn.is_after(self.psn);
        if begins || self.sight(psn, since.has_been) {
            self.held = Some((psn, now + interval));
            (self.sought, self.sightings, self.low) = (Some(psn), 0, Some(psn));
        }
    }

    /// Returns whether enough retries in a row had nothing before this PSN, and neither has the one
    /// under way so far. Only what comes `first`, after a pause, can begin one.
    fn sight(&mut self, psn: Psn, first: bool) -> bool {
        let is_far = |other: Psn| psn.distance(other).abs() > NEARBY;
        if self.lowest().is_some_and(is_far) {
            return false;
        }
        if first {
            self.count_retry();
            self.low = Some(psn);
        } else if self.low.is_some_and(|low| psn.is_before(low)) {
            self.low = Some(psn);
        }
        let is_lowest = self.sought == Some(psn) && self.low == Some(psn);
        is_lowest && self.sightings + 1 >= SIGHTINGS
    }

    /// The retry under way is whole.
    fn count_retry(&mut self) {
        let Some(low) = self.low else { return };
        let before = if self.sought == Some(low) { self.sightings } else { 0 };
        (self.sought, self.sightings) = (Some(low), (before + 1).min(SIGHTINGS));
    }

    /// The lowest PSN of the retry under way, or else of the last one.
    fn lowest(&self) -> Option<Psn> {
        self.low.or(self.sought)
    }

    /// Answers a request by a NAK, at once or, if it may be of another life (`doubted`), later. The
    /// first packet of another life need not be its first request: then one from before follows at
    /// once, and this one must not be refused.
    fn answer(&mut self, psn: Psn, doubted: bool, now: Instant, interval: Duration) {
        if self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < interval) {
            return;
        }
        if doubted {
            self.held.get_or_insert((psn, now + interval));
        } else {
            self.due = Some(psn);
        }
    }
}

impl Near {
    /// Ends the flow: the oldest incomplete request is refused with NAK 0x63 (remote operational
    /// error), after the ACKs due before, and so is whatever comes later. If nothing is outstanding
    /// the next request gets it. No effect on a flow that failed already.
    pub fn fail(&mut self, now: Instant) {
        self.fail_with(Syndrome::Nak(Nak::RemoteOperation), now);
    }

    /// As [`fail`](Near::fail), for a requester that goes on in the midst of a message of an
    /// earlier flow, whose rest can never complete. What begins a message may be of the next
    /// incarnation: [`doubts`](Near::doubts) has the target asked.
    pub fn fail_amid(&mut self, now: Instant) {
        self.fail(now);
        if let State::Failed(failed) = &mut self.state {
            failed.stand = Stand::Amid;
        }
    }

    pub(super) fn fail_with(&mut self, syndrome: Syndrome, now: Instant) {
        if self.is_failed() {
            return;
        }
        // A NAK acknowledges all before it, so it must not lie beyond what the target acknowledged;
        // nor before what the requester was told, or it would be taken for a stale one.
        let psn = super::later(self.ring.done(), self.told.to());
        self.fail_from(psn, syndrome, now);
    }

    /// The same, where the target itself names the PSN that it refuses.
    pub(super) fn fail_from(&mut self, psn: Psn, syndrome: Syndrome, now: Instant) {
        let done = self.ring.done();
        let high = self.seen.floor();
        self.keep_owed();
        let mut failed = Failed {
            syndrome,
            stood: self.state.stood(),
            psn,
            high,
            floor: (self.is_proven()).then_some(psn),
            due: None,
            held: None,
            sent: None,
            refusals: 0,
            mute_until: None,
            outstanding: None,
            until: now + self.config.linger,
            over: false,
            holds_back: self.holds_back(done),
            heard: None,
            doubted: false,
            stand: if self.is_proven() { Stand::Known } else { Stand::Sought },
            sought: None,
            sightings: 0,
            low: None,
        };
        if !failed.is_seeking() && high.is_after(psn) {
            failed.due = Some(psn);
        }
        self.ring = Ring::at(done);
        self.target.rnr = None;
        self.due.remove(Say::Pause);
        self.replays.clear();
        self.gap.forget_dropped();
        self.incarnation.forget_questions();
        self.state = State::Failed(Box::new(failed));
    }

    /// Ends the flow because the target answers no more, or cannot be reached. Nothing keeps the
    /// requester waiting now, and nothing refuses what it sends again until
    /// [`NearConfig::silence`](super::NearConfig::silence) is over: its program is to see the end
    /// that it would see without us. No effect on a flow that failed already.
    pub fn fall_silent(&mut self, now: Instant) {
        self.fall_silent_until(now + self.config.silence, now);
    }

    /// As [`fall_silent`](Near::fall_silent), but the silence is over at `end`.
    pub fn fall_silent_until(&mut self, end: Instant, now: Instant) {
        if self.is_failed() {
            return;
        }
        let done = self.ring.done();
        self.keep_owed();
        let outstanding = std::mem::replace(&mut self.ring, Ring::at(done));
        self.fail(now);
        if let State::Failed(failed) = &mut self.state {
            (failed.due, failed.mute_until) = (None, Some(end));
            // What is tried again seldom must not be taken for the first request of a flow
            // meanwhile.
            failed.until = failed.until.max(end);
            failed.outstanding = failed.stood.map(|_| (outstanding, failed.high));
        }
    }

    /// The requester keeps sending ahead of a PSN that it will not send: it was acknowledged past
    /// it by an earlier flow, and what that had taken never reached the target. The message cannot
    /// go on.
    pub(super) fn fail_beyond_gap(&mut self, psn: Psn, now: Instant) {
        let end = self.seen.floor();
        self.keep_owed();
        let done = self.ring.done();
        let outstanding = std::mem::replace(&mut self.ring, Ring::at(done));
        self.fail_at_gap(psn, (outstanding, end), now);
    }

    /// The same, where this was outstanding, and what came had this PSN at most, exclusive.
    pub(super) fn fail_at_gap(&mut self, psn: Psn, outstanding: (Ring, Psn), now: Instant) {
        self.stats.gaps_abandoned.one();
        self.fail(now);
        if let State::Failed(failed) = &mut self.state {
            failed.seek(psn);
            failed.high = super::later(failed.high, outstanding.1);
            failed.outstanding = Some(outstanding);
        }
    }

    /// Has a flow that has just failed by itself refuse nothing before `end`, like one that
    /// [fell silent](Near::fall_silent_until). No effect on a flow that has not failed.
    pub fn mute_until(&mut self, end: Instant) {
        if let State::Failed(failed) = &mut self.state {
            (failed.due, failed.held, failed.mute_until) = (None, None, Some(end));
            failed.until = failed.until.max(end);
        }
    }

    /// Returns true while the flow has failed and its requester, whose queue pair is known, is yet
    /// to hear of it. Who forgets the flow now leaves that requester to a target that may be in
    /// error, or wait for another PSN, and then answers nobody. This ends by itself:
    /// [`is_dead`](Near::is_dead).
    #[must_use]
    pub fn is_untold(&self, now: Instant) -> bool {
        let State::Failed(failed) = &self.state else { return false };
        self.requester.qpn.is_some() && failed.is_untold(now)
    }

    /// A request on a failed flow.
    pub(super) fn refuse(&mut self, packet: &Packet<'_>, now: Instant) -> Why {
        let psn = packet.bth.psn;
        let again = packet.bth.opcode.needs_response();
        let request = Request {
            psn,
            span: self.longest_span(packet),
            again,
            seen: self.seen.has_lately(psn, self.config.recent) || again && self.seen.has(psn),
            settled: self.has_crossed(now),
        };
        let State::Failed(failed) = &mut self.state else {
            return Why::Failed;
        };
        failed.stood.get_or_insert(Proof::Unproven);
        failed.refuse(&request, &self.config, now)
    }

    /// PSNs that a request consumes, at most; but no more than PSNs can be compared over, and few
    /// for what no target takes.
    fn longest_span(&self, packet: &Packet<'_>) -> u32 {
        let read = packet.ext.reth().filter(|_| packet.bth.opcode.kind() == Kind::Read);
        let length = read.map(|reth| reth.dma_length).filter(|length| *length <= MAX_MESSAGE);
        length.map_or(1, |length| self.seen.longest_span(length).min(SEEN_MAX))
    }

    pub(super) fn poll_failed(&mut self, to: Qpn, now: Instant) -> Option<Reply> {
        let done = self.ring.done();
        let may_acknowledge = |failed: &Failed| !failed.psn.is_before(done) && !failed.holds_back;
        if self.is_proven() && self.failed().is_none_or(may_acknowledge) && done.is_after(self.told.to()) {
            self.tell(done, now);
            self.stats.acks.one();
            return Some(self.acknowledge(to, done.prev(), self.target.aeth().syndrome));
        }
        let settled = self.has_crossed(now);
        let State::Failed(failed) = &mut self.state else { return None };
        let psn = failed.due.take()?;
        failed.refusals += u32::from(settled || failed.sent.is_none());
        failed.sent = Some(now);
        failed.floor.get_or_insert(psn);
        self.told.note_refusal(now);
        let syndrome = failed.syndrome;
        self.stats.fatal_naks.one();
        Some(self.acknowledge(to, psn, syndrome))
    }
}
