//! Flows that have ended in an error, for whoever tells people of them.

use std::net::IpAddr;

use roce::pairing::FlowKey;
use roce::wire::Qpn;

use crate::FlowSide;
use crate::record::Reason;

/// A flow that ended in an error which its programs see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFailure {
    /// The half of the flow that is here.
    pub side: FlowSide,
    /// Its requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
    /// Why it failed.
    pub cause: Cause,
    /// Which end gave it up.
    pub by: By,
    /// The class of the last message that this half sent to the peer, by its place in the policy.
    pub class: usize,
}

/// Why a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A gateway gave it up.
    Given(Reason),
    /// Its session ended, and no other went on with it.
    Session,
    /// Its target's side answered with a fatal NAK, which its requester gets.
    Nak,
    /// A process of either gateway ended, and what its requester was acknowledged went with that.
    Process,
}

impl Cause {
    /// Returns its name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Given(reason) => reason.name(),
            Self::Session => "session",
            Self::Nak => "nak",
            Self::Process => "process",
        }
    }
}

impl From<Reason> for Cause {
    fn from(reason: Reason) -> Self {
        Self::Given(reason)
    }
}

/// The gateway that gave a flow up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// This one.
    Us,
    /// The peer.
    Peer,
}

impl FlowFailure {
    /// The failure of the half with this key.
    pub(crate) fn new(
        side: FlowSide,
        key: &FlowKey,
        requester_qpn: Option<Qpn>,
        (cause, by): (Cause, By),
        class: usize,
    ) -> Self {
        let FlowKey { requester, target, target_qpn } = *key;
        Self { side, requester, requester_qpn, target, target_qpn, cause, by, class }
    }
}
