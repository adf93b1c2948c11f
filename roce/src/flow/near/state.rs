//! How far a flow has come, and on whose word its requester may be answered.

use super::Near;
use super::failed::Failed;

/// The state of a flow.
#[derive(Debug)]
pub(super) enum State {
    /// Waits for its first packet.
    Fresh,
    /// The same; connection management has told the PSN of that packet, up to which all counts as
    /// told.
    Announced,
    /// A first packet was accepted.
    Open(Proof),
    /// Every request is refused.
    Failed(Box<Failed>),
}

/// On whose word the requester may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nobody's: the target has not spoken, and the first PSN may be too high.
    Unproven,
    /// Nobody's any more: all was answered, and what came since may be of another incarnation,
    /// whose first packets were lost.
    Rested,
    /// The target's: it has answered requests of this incarnation, or connection management told
    /// its first PSN.
    Proven,
}

impl State {
    /// The proof of a flow that has started.
    pub(super) fn stood(&self) -> Option<Proof> {
        match self {
            State::Fresh | State::Announced => None,
            State::Open(proof) => Some(*proof),
            State::Failed(failed) => failed.stood(),
        }
    }
}

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
