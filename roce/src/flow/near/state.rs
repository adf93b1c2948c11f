//! Requester side: how far a flow has come, and on whose word its requester may be answered.

use super::failed::Failed;
use super::{Near, Proof, State};

impl Near {
    /// On whose word the requester may be answered; of a flow that failed, might until then.
    pub(super) fn proof(&self) -> Proof {
        self.state.stood().unwrap_or(Proof::Unproven)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.proof() == Proof::Proven
    }

    pub(super) fn is_unproven(&self) -> bool {
        self.proof() == Proof::Unproven
    }

    /// The target has spoken of this incarnation.
    pub(super) fn prove(&mut self) {
        self.set_proof(Proof::Proven);
    }

    /// Nothing, on a flow that is not open.
    pub(super) fn set_proof(&mut self, proof: Proof) {
        if let State::Open(current) = &mut self.state {
            *current = proof;
        }
    }

    /// Connection management has told the PSN of the first packet, which has not come.
    pub(super) fn is_announced(&self) -> bool {
        matches!(self.state, State::Announced)
    }

    /// Returns true if a first packet was accepted.
    pub fn is_started(&self) -> bool {
        self.state.stood().is_some()
    }

    /// Returns true while the target has answered nothing since a rest: its requester may be
    /// another by now.
    pub fn is_rested(&self) -> bool {
        self.proof() == Proof::Rested
    }

    /// The flow failed: every request is refused.
    pub fn is_failed(&self) -> bool {
        self.failed().is_some()
    }

    pub(super) fn failed(&self) -> Option<&Failed> {
        match &self.state {
            State::Failed(failed) => Some(failed),
            _ => None,
        }
    }
}
