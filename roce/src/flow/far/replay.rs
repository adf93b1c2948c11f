//! Responder side: requests run again because the requester asks again: READs, atomics, and SENDs
//! and WRITEs whose ACK it did not hear.
//!
//! They may be of an incarnation that is over, whose requester heard the answer while it asked
//! again. Its target's next incarnation may begin at their PSN, and would run them. So while
//! nothing else waits for the target, each is sent once, and soon: then it gets no older here than
//! on a plain path. Its requester asks again if it still cares.

use std::time::{Duration, Instant};

use thin_vec::ThinVec;

use super::read::{self, Progress};
use super::{Far, Parsed, parse};
use crate::flow::horizon::MtuSet;
use crate::flow::near::Class;
use crate::pairing::{Rival, Word};
use crate::wire::{Bth, Kind, Opcode, Packet, Psn};

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Replay<B> {
    packet: B,
    kind: Kind,
    read: Progress,
    /// Bytes asked for, counted from its beginning.
    asked: u32,
    #[serde_as(as = "snapshot::At")]
    came: Instant,
    /// When it was sent or last made progress; `None`: to be sent.
    #[serde_as(as = "Option<snapshot::At>")]
    moved: Option<Instant>,
}

/// One at a time, the oldest first; sixteen at most, and mostly none.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Replays<B>(ThinVec<Replay<B>>);

impl<B: AsRef<[u8]>> Replays<B> {
    const MAX: usize = 16;
    /// A target that keeps too few of its past READs stays silent.
    const TRIES: u32 = 5;

    pub(super) fn new() -> Replays<B> {
        Replays(ThinVec::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0 = ThinVec::new();
    }

    /// Drops what lies so far behind `una` that a target might soon take it for what is to come.
    /// Nobody waits for it.
    pub(super) fn forget_past(&mut self, una: Psn) {
        if !self.0.is_empty() {
            self.0.retain(|replay| una.distance(replay.read.start) <= MOST_BEHIND);
        }
    }

    /// Queues it, in the place of one with the same end. Returns `false` when too many wait.
    pub(super) fn push(&mut self, packet: B, kind: Kind, read: Progress, now: Instant) -> bool {
        let fresh = Replay { packet, kind, read, asked: 0, came: now, moved: None };
        if let Some(same) = self.0.iter_mut().find(|other| other.read.end() == read.end()) {
            *same = fresh;
            return true;
        }
        if self.0.len() >= Replays::<B>::MAX {
            return false;
        }
        self.0.push(fresh);
        true
    }

    /// READ data that what is to be sent next asks for, in bytes; `None`: nothing is to be sent.
    pub(super) fn next_bytes(&self, mtu: MtuSet, piece: u32) -> Option<usize> {
        let Replay { read, .. } = self.0.first().filter(|replay| replay.moved.is_none())?;
        let from = read.resume_at(piece, mtu);
        Some(read.between(from, read.piece_end(from, piece, mtu)))
    }

    /// Returns the request to be sent next, if there is one.
    pub(super) fn next(&self) -> Option<(Kind, &Progress)> {
        let front = self.0.first().filter(|replay| replay.moved.is_none());
        front.map(|replay| (replay.kind, &replay.read))
    }

    /// The one that was sent last, if it has no answer.
    fn asked(&self) -> Option<&Replay<B>> {
        self.0.first().filter(|replay| replay.moved.is_some())
    }

    /// Returns true if what was sent last waits for an answer, which this PSN may be. A target
    /// names whatever it has got in answer to a SEND or WRITE, but refuses only what it is sent.
    pub(super) fn awaits(&self, psn: Psn, word: Word) -> bool {
        let Some(replay) = self.asked() else { return false };
        match (Class::of(replay.kind), word) {
            (_, Word::Refusal | Word::NotReady) => {
                !psn.is_before(replay.read.start) && psn.is_before(replay.read.end())
            }
            (Class::Plain, Word::Read | Word::Atomic) => false,
            (Class::Plain, Word::Ack | Word::SequenceNak) => !psn.is_before(replay.read.start),
            (Class::Read | Class::Once, _) => replay.read.next() == psn,
        }
    }

    /// Returns true if what was sent last has no answer.
    pub(super) fn is_running(&self) -> bool {
        self.asked().is_some()
    }

    /// How a response with this PSN may answer what was sent last, if that has no answer.
    pub(super) fn rivals(&self, psn: Psn, word: Word) -> Option<Rival> {
        let replay = self.asked()?;
        if matches!(word, Word::Read | Word::Atomic) {
            return self.awaits(psn, word).then_some(Rival::Here);
        }
        Some(Rival::of_repeat(replay.read.start, replay.read.end(), psn))
    }

    /// Returns whether the target, which expects this PSN, waits for one before what was sent last.
    pub(super) fn is_ahead_of(&self, expected: Psn) -> bool {
        self.asked().is_some_and(|replay| expected.is_before(replay.read.start))
    }

    /// Returns true if what is to be sent next was sent twice, and had no answer.
    pub(super) fn is_unheard(&self) -> bool {
        self.0.first().is_some_and(|replay| replay.moved.is_none() && replay.read.asks > 1)
    }

    /// READ data asked for and not here yet, in bytes.
    pub(super) fn awaited(&self) -> usize {
        self.asked().map_or(0, |replay| replay.read.between(0, replay.asked))
    }

    /// Writes the READ to send, if one is to be sent.
    pub(super) fn transmit(
        &mut self,
        mtu: MtuSet,
        piece: u32,
        now: Instant,
        out: &mut [u8],
    ) -> Option<usize> {
        let replay = self.0.first_mut().filter(|replay| replay.moved.is_none())?;
        let bytes = replay.packet.as_ref();
        let out = out.get_mut(..bytes.len())?;
        out.copy_from_slice(bytes);
        replay.moved = Some(now);
        let from = replay.read.resume_at(piece, mtu);
        replay.read.asks += 1;
        if replay.kind == Kind::Read {
            replay.asked = replay.read.piece_end(from, piece, mtu);
            replay.read.ask(out, from, replay.asked, mtu)?;
        } else {
            Bth::set_ack_req(out.first_chunk_mut()?, true);
        }
        Some(out.len())
    }

    /// The target acknowledges everything up to `psn`. Returns whether that answers a SEND or WRITE
    /// that is run again.
    pub(super) fn acknowledged(&mut self, psn: Psn) -> bool {
        let is_answer = self.0.first().is_some_and(|replay| {
            let is_plain = Class::of(replay.kind) == Class::Plain;
            is_plain && replay.moved.is_some() && !psn.is_before(replay.read.start)
        });
        if is_answer {
            self.0.remove(0);
        }
        is_answer
    }

    /// Takes a response if it is the next one; returns its opcode as the requester is to see it.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        mtu: &mut MtuSet,
        piece: u32,
        now: Instant,
    ) -> Option<Opcode> {
        let replay = self.0.first_mut()?;
        let is_plain = Class::of(replay.kind) == Class::Plain;
        if is_plain || replay.moved.is_none() || replay.read.next() != packet.bth.psn {
            return None;
        }
        let taken = read::take(replay.kind, &mut replay.read, packet, mtu, piece)?;
        replay.moved = Some(now).filter(|_| replay.read.taken < replay.asked);
        if taken.complete {
            self.0.remove(0);
        }
        Some(taken.opcode)
    }

    /// The running replay, if its next response stands at this PSN.
    pub(super) fn running(&self, psn: Psn) -> Option<&Progress> {
        self.0.first().map(|replay| &replay.read).filter(|read| read.next() == psn)
    }

    /// The READ to be sent next, if one is.
    pub(super) fn pending(&self) -> Option<&Progress> {
        let front = self.0.first().filter(|replay| replay.moved.is_none() && replay.kind == Kind::Read);
        front.map(|replay| &replay.read)
    }

    /// A response within the running replay but past its next: one was lost.
    pub(super) fn is_gap(&self, psn: Psn) -> bool {
        self.0.first().is_some_and(|replay| {
            let read = &replay.read;
            let ahead = psn.distance(read.next());
            replay.moved.is_some() && ahead > 0 && psn.is_before(read.end()) && read.asks == 0
        })
    }

    /// A response that the running replay has had: the target is on its way to what is missing.
    pub(super) fn note_duplicate(&mut self, psn: Psn, now: Instant) {
        if let Some(replay) = self.0.first_mut().filter(|replay| replay.read.is_behind(psn)) {
            replay.moved = replay.moved.and(Some(now));
        }
    }

    /// Asks again because of a gap.
    pub(super) fn retry(&mut self) {
        if let Some(replay) = self.0.first_mut() {
            replay.read.gaps += 1;
            replay.moved = None;
        }
    }

    /// `is_alone`: nothing else waits for the target.
    fn timeout(&self, rto: Duration, max: Duration, is_alone: bool) -> Option<Instant> {
        let replay = self.0.first()?;
        let since = match replay.moved {
            Some(moved) => moved,
            None if is_alone && replay.read.asks == 0 => replay.came,
            None => return None,
        };
        Some(since + rto.saturating_mul(1 << replay.read.asks.min(8)).min(max))
    }

    /// Retries the first, or gives up on it. Returns what it waited for in vain.
    fn give_up(&mut self, is_alone: bool) -> Option<Waited> {
        let replay = self.0.first_mut()?;
        let since = replay.moved.take();
        let given_up = is_alone || replay.read.asks >= Replays::<B>::TRIES;
        if given_up {
            self.0.remove(0);
        }
        Some(Waited { since, given_up })
    }
}

impl<B: AsRef<[u8]>> Far<B> {
    /// A replay record: a request answered before that the requester sends again, or the newest
    /// copy of one that the target has not answered yet. The target has seen an answered one's PSN,
    /// so it runs nothing a second time. Dropped if it is neither, or if too many wait. Returns
    /// whether one that was answered is to run again.
    pub fn handle_replay(&mut self, packet: B, now: Instant) -> bool {
        if !self.is_open() {
            return false;
        }
        let Ok(Some(Parsed { kept, .. })) = parse(packet) else {
            return false;
        };
        let mut read = kept.read;
        if kept.kind == Kind::Read {
            read.span = self.came.mtu.span(read.length).unwrap_or(0);
            read.cut = self.came.odd_cut_of(&read);
        }
        let is_answered = read.start.is_before(self.window.una());
        let taken = if is_answered {
            self.said.is_confirmed() && self.replays.push(kept.packet, kept.kind, read, now)
        } else {
            self.window.renew(kept)
        };
        if taken {
            self.last_activity = now;
            self.stats.replays.one();
        } else {
            self.stats.replays_dropped.one();
        }
        taken && is_answered
    }

    /// When [`expire_replay`](Far::expire_replay) has something to do.
    pub(super) fn replay_timeout(&self) -> Option<Instant> {
        let (rto, max) = (self.rtt.timeout(&self.config), self.config.rto_max);
        self.replays.timeout(rto, max, self.runs_replays_alone())
    }

    /// Nothing else is sent to the target.
    fn runs_replays_alone(&self) -> bool {
        self.window.is_empty() || self.excuse.is_suspended()
    }

    /// Retries the replay that is overdue, or gives it up.
    pub(super) fn expire_replay(&mut self, now: Instant) {
        if self.replay_timeout().is_none_or(|at| at > now) {
            return;
        }
        let is_alone = self.runs_replays_alone();
        let Some(Waited { since, given_up }) = self.replays.give_up(is_alone) else { return };
        self.stats.replays_dropped.add(given_up.into());
        // One that speaks is there: it does not have this any more.
        if let Some(since) = since.filter(|since| self.silence.heard() <= *since) {
            // The longest timeout that it had: what is above it is a pause of this gateway's.
            self.silence.add(now.saturating_duration_since(since).min(self.config.rto_max));
            if is_alone {
                self.silence.restart_timer(now);
            }
        }
    }

    /// A requester asks again for what it was given up. If it let no long time pass, the target was
    /// silent to it all the while.
    pub(super) fn count_rest(&mut self, now: Instant) {
        if self.window.is_empty() && self.silence.heard() < self.silence.from() {
            let rest = now.saturating_duration_since(self.silence.from());
            self.silence.add(rest.min(self.config.rto_max));
            self.silence.restart_timer(now);
        }
    }
}

/// A target tells what it has had from what is to come over half of the PSN space.
const MOST_BEHIND: i32 = 1 << 22;

/// The outcome of a timeout.
#[derive(Clone, Copy, Debug)]
struct Waited {
    /// When it was sent; `None`: it was not.
    since: Option<Instant>,
    given_up: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_too_far_behind_is_not_asked_for_again() {
        let start = Psn::new(0xff_fff0);
        let read = Progress { start, span: 1, answered: 0, taken: 0, length: 0, asks: 0, gaps: 0, cut: 0 };
        let mut replays = Replays::new();
        assert!(replays.push([0; 40], Kind::Atomic, read, crate::flow::tests::epoch()));
        replays.forget_past(start + (1 << 22));
        assert!(!replays.is_empty());
        replays.forget_past(start + (1 << 22) + 1);
        assert!(replays.is_empty());
    }
}
