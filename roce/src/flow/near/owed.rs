//! Requester side: READs and atomics that were carried to the target, where the flow that knew of
//! them begins anew, or another one takes its place.
//!
//! The target may have run them, and nobody has their answers. Their requester may still wait for
//! these, or be in its next incarnation. An ACK past them might complete what nobody has.

use thin_vec::ThinVec;

use super::Near;
use crate::flow::horizon::NEARBY;
use crate::wire::{Packet, Psn};

/// A target that counted fewer messages than this cannot have come round to 0 since: a requester
/// that is still near has not sent so many.
const MOST_COUNTED: u32 = 1 << 23;

/// READs and atomics without an answer, of which the flow knows no more.
///
/// Bound: [`Owed::MOST`], since connection management has 8 bits for how many a queue pair may have
/// outstanding. Beyond, the newest are left out.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Owed {
    /// The PSN of the next response to each, in PSN order.
    list: ThinVec<Psn>,
    /// The target's count of messages when it last spoke to a flow that carried them. `None`: it
    /// had not.
    msn: Option<u32>,
    /// Retries in a row that began beyond the first of them.
    retries: u8,
    /// The last retry has come to this PSN.
    reached: Option<Psn>,
}

impl Owed {
    const MOST: usize = 255;
    /// After so many retries that began beyond them, they wait for the target's word alone.
    const RETRIES: u8 = 2;

    fn add(&mut self, psn: Psn) {
        let at = self.list.partition_point(|known| known.is_before(psn));
        if self.list.len() < Owed::MOST && self.list.get(at) != Some(&psn) {
            self.list.insert(at, psn);
        }
    }

    /// Drops those from which no requester is still at `psn`.
    fn stay_near(&mut self, psn: Psn) {
        self.list.retain(|known| known.distance(psn).abs() <= NEARBY);
    }

    fn first(&self) -> Option<Psn> {
        self.list.first().copied()
    }

    fn lie_before(&self, psn: Psn) -> bool {
        self.first().is_some_and(|first| first.is_before(psn))
    }

    /// Drops those from `start` on, up to `end`.
    fn forget_between(&mut self, start: Psn, end: Psn) {
        self.list.retain(|known| known.is_before(start) || !known.is_before(end));
    }

    /// A request at `psn` came again. It begins a retry, or goes on with the last one.
    fn see_retry(&mut self, psn: Psn) {
        let begins = self.reached.is_none_or(|reached| !psn.is_after(reached));
        let retries = self.retries.saturating_add(u8::from(begins));
        self.retries = if self.lie_before(psn) { retries } else { 0 };
        self.reached = Some(psn);
    }

    /// The target has answered a retry that began at `psn`.
    fn pass(&mut self, psn: Psn) {
        if self.retries >= Owed::RETRIES {
            self.list.retain(|known| !known.is_before(psn));
        }
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

impl Near {
    /// Returns all that stays without an answer when this flow is forgotten. An incarnation that is
    /// over waits for nothing that is outstanding.
    fn left(&self) -> Option<Owed> {
        let mut owed = self.incarnation.owed().cloned();
        let ring = Some(&self.ring).filter(|_| !self.is_known_over());
        let outstanding = ring.into_iter().flat_map(|ring| ring.unanswered());
        for psn in outstanding.chain(self.replays.unanswered()).chain(self.unanswered()) {
            owed.get_or_insert_default().add(psn);
        }
        if let Some(owed) = owed.as_mut().filter(|_| !self.is_unproven()) {
            owed.msn = Some(self.target.aeth().msn);
        }
        owed
    }

    /// The same, for a flow that takes this one's place at `psn`.
    pub(super) fn left_for(&self, psn: Psn) -> Option<Owed> {
        let mut owed = self.left()?;
        (owed.retries, owed.reached) = (0, None);
        owed.stay_near(psn);
        (!owed.is_empty()).then_some(owed)
    }

    /// Keeps in mind what stays without an answer, before the ring and all questions are forgotten.
    pub(super) fn keep_owed(&mut self) {
        let owed = self.left();
        self.incarnation.set_owed(owed);
    }

    /// Returns whether it keeps READs or atomics of before in mind, which have no answer.
    pub fn owes(&self) -> bool {
        self.incarnation.owed().is_some()
    }

    /// Returns whether an ACK of all before `psn` would go past one that is owed.
    pub(super) fn owes_before(&self, psn: Psn) -> bool {
        self.incarnation.owed().is_some_and(|owed| owed.lie_before(psn))
    }

    /// This request was accepted as the next. The flow itself knows what has no answer there.
    pub(super) fn note_taken_again(&mut self, packet: &Packet<'_>) {
        let (psn, floor) = (packet.bth.psn, self.seen.floor());
        self.incarnation.settle_owed(|owed| owed.forget_between(psn, floor));
    }

    /// The requester was given the last response, with this PSN, to one that it asked for again.
    pub(super) fn note_answered_again(&mut self, psn: Psn) {
        let start = self.replays.answer_from();
        self.incarnation.settle_owed(|owed| owed.forget_between(start, psn.next()));
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

    /// A request has come again, and the target is asked about it.
    pub(super) fn note_asked_again(&mut self, psn: Psn) {
        self.incarnation.settle_owed(|owed| owed.see_retry(psn));
    }

    /// The target has answered a retry that began at `psn`, and stands where it did.
    ///
    /// A retry of a requester that waits for what is owed begins there, unless the LAN loses that.
    /// Without gateways one such loss would have the target acknowledge what follows. Here two
    /// retries have to lose it.
    pub(super) fn pass_owed(&mut self, psn: Psn) {
        self.incarnation.settle_owed(|owed| owed.pass(psn));
    }
}
