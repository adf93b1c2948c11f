//! Requester side: a PSN before the first one, which the target expects.

use std::time::Instant;

use super::Near;
use crate::wire::Psn;

/// A requester that was told of an earlier PSN, and has begun so often where it began, stands
/// still.
const REPEATS: u8 = 3;

impl Near {
    /// The target may expect this PSN, which lies before the first. The requester goes back to it
    /// if it has sent it, and otherwise ignores the word.
    pub(super) fn hint(&mut self, psn: Psn, now: Instant) {
        let open = self.incarnation.questions.get_or_insert_default();
        (open.hinted, open.is_hint_due) = (Some(psn), true);
        self.lose(psn, now);
    }

    /// Returns whether the target has named this PSN, which lies before the first.
    pub(super) fn is_hinted(&self, psn: Psn) -> bool {
        self.incarnation.hinted() == Some(psn)
    }

    /// Returns whether the target has named this PSN, or one before it, which lies before the
    /// first: it lacks what lies from there on.
    pub(super) fn lacks(&self, psn: Psn) -> bool {
        self.incarnation.hinted().is_some_and(|hinted| !psn.is_before(hinted))
    }

    /// Begins at a PSN before the first. A PSN before that, which the target has named, stays in
    /// mind: the target names it once.
    pub(super) fn start_over_at(&mut self, psn: Psn) {
        let open = self.incarnation.questions.as_deref();
        let hint = open.and_then(|open| Some((open.hinted?, open.is_hint_due)));
        self.restart_at(psn);
        if let Some((hinted, is_due)) = hint.filter(|(hinted, _)| hinted.is_before(psn)) {
            let open = self.incarnation.questions.get_or_insert_default();
            (open.hinted, open.is_hint_due) = (Some(hinted), is_due);
        }
    }

    /// Returns the hint that the requester is to hear.
    pub(super) fn take_hint(&mut self) -> Option<Psn> {
        let open = self.incarnation.questions.as_mut()?;
        std::mem::take(&mut open.is_hint_due).then_some(open.hinted)?
    }

    /// The first request comes again. Where the target has named an earlier one, the requester does
    /// not go back to that.
    pub(super) fn note_standstill(&mut self, psn: Psn, now: Instant) {
        if let Some(hinted) =
            self.incarnation.hinted().filter(|_| self.is_unproven() && psn == self.told.to())
        {
            self.lose(hinted, now);
        }
    }

    /// Counts that the requester is at a PSN beyond this one, which its target expects, and fails
    /// the flow where that has been so for long.
    fn lose(&mut self, psn: Psn, now: Instant) {
        let times = self.count_lost(psn, now);
        if self.incarnation.lost().is_some_and(|lost| self.is_lost(lost.since, times, now)) {
            self.fail_before_first(psn, now);
        }
    }

    /// Returns true if the requester was told of an earlier PSN that its target expects, and begins
    /// again and again where it began.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        self.missing().is_some() && self.incarnation.lost().is_some_and(|lost| lost.times >= REPEATS)
    }

    /// Ends a flow that [stands still](Near::stands_still), for whose requester nobody waits any
    /// longer. No effect on another one.
    pub fn give_up_missing(&mut self, now: Instant) {
        if let Some((expected, _)) = self.missing().filter(|_| self.stands_still()) {
            self.fail_before_first(expected, now);
        }
    }

    /// The target expects this PSN, which the requester will not send.
    fn fail_before_first(&mut self, psn: Psn, now: Instant) {
        let (first, end) = (self.told.to(), self.seen.floor());
        let outstanding = self.restart_at(psn);
        self.prove();
        self.fail_at_gap(first, (outstanding, end), now);
    }
}
