//! Answers a requester may ask for again: operations being replayed, results of atomics kept.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thin_vec::ThinVec;

use crate::wire::{Aeth, Psn};

/// READs, and atomics without a result kept here, that the requester asked for again and the target is asked for again.
#[derive(Debug, Default)]
pub(super) struct Replays(ThinVec<Replay>);

#[derive(Clone, Copy, Debug)]
struct Replay {
    next: Psn,
    /// `None`: while the path MTU is unknown.
    end: Option<Psn>,
    moved: Instant,
}

/// What to do with a READ asked for again.
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
        self.0.is_empty()
    }

    /// `span` is how many responses there will be, if that is known.
    pub(super) fn ask(&mut self, start: Psn, span: Option<u32>, now: Instant) -> Again {
        let fresh = Replay { next: start, end: span.map(|span| start + span), moved: now };
        if let Some(same) = self.0.iter_mut().find(|replay| replay.end == fresh.end) {
            if !start.is_before(same.next) {
                return Again::Running;
            }
            *same = fresh;
            return Again::Run;
        }
        if self.0.len() >= Replays::MAX {
            return Again::Full;
        }
        self.0.push(fresh);
        Again::Run
    }

    /// Whether the response with this PSN is the next of a replay.
    pub(super) fn answer(&mut self, psn: Psn, last: bool, now: Instant) -> bool {
        let Some(at) = self.0.iter().position(|replay| replay.next == psn) else {
            return false;
        };
        if last {
            self.0.remove(at);
        } else if let Some(replay) = self.0.get_mut(at) {
            replay.next = psn.next();
            replay.moved = now;
        }
        true
    }

    pub(super) fn expiry(&self, timeout: Duration) -> Option<Instant> {
        // Asked with every packet, and nearly always empty.
        if self.0.is_empty() {
            return None;
        }
        self.0.iter().map(|replay| replay.moved + timeout).min()
    }

    /// Drops those that made no progress for `timeout`, so that the requester may ask again; returns how many.
    pub(super) fn expire(&mut self, now: Instant, timeout: Duration) -> usize {
        let before = self.0.len();
        self.0.retain(|replay| replay.moved + timeout > now);
        before - self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0 = ThinVec::new();
    }
}

/// The answer to an operation that must not run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) psn: Psn,
    pub(super) aeth: [u8; Aeth::LEN],
    /// The original value; `None` for FLUSH and ATOMIC WRITE.
    pub(super) value: Option<u64>,
}

/// The last answers, the oldest forgotten first. Most flows have none.
#[derive(Debug, Default)]
pub(super) struct Journal(Option<Box<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    saved: VecDeque<Saved>,
    wanted: VecDeque<Psn>,
}

impl Journal {
    /// As many atomics as any NIC lets be outstanding.
    pub(super) const MAX: usize = 128;

    pub(super) fn save(&mut self, saved: Saved) {
        let answers = self.0.get_or_insert_default();
        if answers.saved.len() >= Journal::MAX {
            answers.saved.pop_front();
        }
        answers.saved.push_back(saved);
    }

    /// The requester asks again; returns whether the answer is known.
    pub(super) fn ask(&mut self, psn: Psn) -> bool {
        let Some(Answers { saved, wanted }) = self.0.as_deref_mut() else { return false };
        let known = saved.iter().any(|saved| saved.psn == psn);
        if known && !wanted.contains(&psn) && wanted.len() < Journal::MAX {
            wanted.push_back(psn);
        }
        known
    }

    pub(super) fn poll(&mut self) -> Option<Saved> {
        let Answers { saved, wanted } = self.0.as_deref_mut()?;
        let psn = wanted.pop_front()?;
        saved.iter().rev().find(|saved| saved.psn == psn).copied()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.0.as_ref().is_none_or(|answers| answers.wanted.is_empty())
    }

    pub(super) fn is_allocated(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}
