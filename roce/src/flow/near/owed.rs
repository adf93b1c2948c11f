//! Requester side: READs and atomics that were carried to the target, where the flow that knew of
//! them begins anew, or another one takes its place.
//!
//! The target may have run them, and nobody has their answers. Their requester may still wait for
//! these, or be in its next incarnation. No ACK goes past them before one of both has shown: a NIC
//! might complete what nobody has.

use std::time::Instant;

use thin_vec::ThinVec;

use super::Near;
use super::answers::lower;
use super::ring::{Class, Ring, Unanswered};
use crate::flow::horizon::NEARBY;
use crate::wire::{Packet, Psn};

/// A target that counted fewer messages than this cannot have come round to 0 since: a requester
/// that is still near has not sent so many.
const MOST_COUNTED: u32 = 1 << 23;

/// READs and atomics without an answer, in PSN order.
///
/// Bound: [`Owed::MOST`], since connection management has 8 bits for how many a queue pair may have
/// outstanding. Beyond, the newest are left out.
#[serde_with::serde_as]
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Owed {
    list: ThinVec<Unanswered>,
    /// The target's count of messages when it last spoke to a flow that carried them. `None`: it
    /// had not.
    msn: Option<u32>,
    /// Requests beyond them that came again since one of them did, and when the first of those
    /// came.
    passed: u8,
    #[serde_as(as = "Option<snapshot::At>")]
    since: Option<Instant>,
}

impl Owed {
    const MOST: usize = 255;

    fn has(&self, psn: Psn) -> bool {
        let is_of = |known: &Unanswered| match known.end {
            Some(end) => !psn.is_before(known.start) && psn.is_before(end),
            None => psn == known.start,
        };
        self.list.iter().any(is_of)
    }

    fn add(&mut self, fresh: Unanswered) {
        if self.list.len() < Owed::MOST {
            let at = self.list.partition_point(|known| known.start.is_before(fresh.start));
            self.list.insert(at, fresh);
        }
    }

    /// Drops those from which no requester is still at `psn`.
    fn stay_near(&mut self, psn: Psn) {
        self.list.retain(|known| known.start.distance(psn).abs() <= NEARBY);
    }

    fn lie_before(&self, psn: Psn) -> bool {
        self.list.first().is_some_and(|oldest| oldest.start.is_before(psn))
    }

    /// Another request stands from `start` up to `end`.
    fn forget_between(&mut self, start: Psn, end: Psn) {
        self.list.retain(|known| known.start.is_before(start) || !known.start.is_before(end));
    }

    /// The requester was given the last response, with this PSN, to a READ or atomic that begins at
    /// `start`.
    fn forget_from(&mut self, start: Psn, psn: Psn) {
        self.list.retain(|known| known.start.is_before(start) || known.start.is_after(psn));
        (self.passed, self.since) = (0, None);
    }

    /// The same, where the beginning is not known. Nor may the end be: while the path MTU is a
    /// guess, it may be wrong. So the last goes that began before, if it `may_be_longer`.
    fn forget_answered(&mut self, psn: Psn, may_be_longer: bool) {
        let after = self.list.partition_point(|known| !known.start.is_after(psn));
        let latest = after.checked_sub(1).and_then(|at| self.list.get(at)).map(|known| known.start);
        self.list.retain(|known| {
            let has_psn = known.end.is_some_and(|end| !known.start.is_after(psn) && psn.is_before(end));
            !(has_psn || may_be_longer && Some(known.start) == latest)
        });
        (self.passed, self.since) = (0, None);
    }

    /// Returns whether a target that has counted `msn` messages, as it first answers `completed` of
    /// a flow, is in an incarnation that began with the flow.
    fn precedes(&self, msn: u32, completed: u32) -> bool {
        completed > 0 && msn == completed && self.msn.is_some_and(|before| before < MOST_COUNTED)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// All that a flow leaves behind without an answer.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) owed: Option<Owed>,
    /// From this PSN on there are some that the requester was answered before, and has asked for
    /// again.
    pub(super) again: Option<Psn>,
}

impl Near {
    /// Everything before this PSN the requester was told or given by this flow, or by one before.
    pub(super) fn had(&self) -> Option<Psn> {
        let told = self.told.to();
        let own = (self.is_started() && told.is_after(self.seen.begin())).then_some(told);
        match (own, self.incarnation.had()) {
            (Some(own), Some(before)) => Some(super::later(own, before)),
            (own, before) => own.or(before),
        }
    }

    /// Returns all that stays without an answer when the ring is forgotten. An incarnation that is
    /// over waits for nothing that is outstanding.
    pub(super) fn left(&self) -> Left {
        let mut left = Left { owed: self.incarnation.owed().cloned(), again: self.unanswered() };
        let had = self.had();
        let ring = Some(&self.ring).filter(|_| !self.is_known_over());
        for fresh in ring.into_iter().flat_map(Ring::unanswered) {
            let is_known = left.owed.as_ref().is_some_and(|owed| owed.has(fresh.start));
            let was_had = || had.is_some_and(|had| (1..=NEARBY).contains(&had.distance(fresh.start)));
            if is_known {
            } else if was_had() {
                left.again = lower(left.again, fresh.start);
            } else {
                left.owed.get_or_insert_default().add(fresh);
            }
        }
        if let Some(owed) = left.owed.as_mut().filter(|_| !self.is_unproven()) {
            owed.msn = Some(self.target.aeth().msn);
        }
        left
    }

    /// The same, for a flow that takes this one's place at `psn`.
    pub(super) fn left_for(&self, psn: Psn) -> Left {
        let mut left = self.left();
        if let Some(owed) = &mut left.owed {
            owed.stay_near(psn);
        }
        let replays = self.replays.lowest();
        let again = replays.map_or(left.again, |replay| lower(left.again, replay));
        left.again = again.filter(|again| (1..=NEARBY).contains(&psn.distance(*again)));
        left.owed = left.owed.filter(|owed| !owed.is_empty());
        left
    }

    /// Keeps what is owed before the ring is forgotten. Returns what is left beside that, for
    /// `Incarnation::ask_for_again`.
    pub(super) fn keep_owed(&mut self) -> Option<Psn> {
        if self.ring.unanswered().next().is_none() {
            return self.unanswered();
        }
        let Left { owed, again } = self.left();
        self.incarnation.set_owed(owed);
        again
    }

    /// Returns whether an ACK of all before `psn` would go past one that is owed.
    pub(super) fn owes_before(&self, psn: Psn) -> bool {
        self.incarnation.owed().is_some_and(|owed| owed.lie_before(psn))
    }

    /// This request was accepted as the next. The flow knows of it, and if it is no READ or atomic,
    /// nobody waits for one.
    pub(super) fn note_taken_again(&mut self, packet: &Packet<'_>) {
        if !self.incarnation.is_plain() {
            let (psn, floor) = (packet.bth.psn, self.seen.floor());
            self.incarnation.forget_unanswered_between(psn, floor);
            if Class::of(packet.bth.opcode.kind()) == Class::Plain {
                self.incarnation.settle_owed(|owed| owed.forget_between(psn, floor));
            }
        }
    }

    /// The requester is given the last response, with this PSN, to a READ or atomic of this flow
    /// that begins at `start`.
    pub(super) fn note_answered(&mut self, start: Psn, psn: Psn) {
        self.incarnation.settle_owed(|owed| owed.forget_from(start, psn));
    }

    /// The requester is given the last response, with this PSN, to one that it asked for again.
    pub(super) fn note_answered_again(&mut self, psn: Psn) {
        let is_earlier = psn.is_before(self.seen.begin());
        self.incarnation.settle_owed(|owed| owed.forget_answered(psn, is_earlier));
    }

    /// The target has spoken to this flow for the first time. It has counted `msn` messages, and
    /// answered `completed` of this flow. If these are all, nothing before is of its incarnation.
    pub(super) fn note_first_count(&mut self, msn: u32, completed: usize) {
        let completed = u32::try_from(completed).unwrap_or(u32::MAX);
        self.incarnation.settle_owed(|owed| {
            if owed.precedes(msn, completed) {
                owed.list.clear();
            }
        });
    }

    /// A request at this PSN came again. Returns whether its requester has begun its retries beyond
    /// what is owed for so long that it never comes back to that. The LAN may have lost those
    /// packets, so no ACK may go there. The flow has to end.
    pub(super) fn is_owed_in_vain(&mut self, psn: Psn, now: Instant) -> bool {
        let done = self.ring.done();
        let (mut since, mut passed) = (None, 0);
        self.incarnation.settle_owed(|owed| {
            if owed.lie_before(psn) && owed.lie_before(done) {
                owed.passed = owed.passed.saturating_add(1);
                (since, passed) = (Some(*owed.since.get_or_insert(now)), owed.passed);
            } else {
                (owed.passed, owed.since) = (0, None);
            }
        });
        since.is_some_and(|since| self.is_lost(since, passed, now))
    }
}
