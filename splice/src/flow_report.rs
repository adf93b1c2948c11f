//! Flows as they stand, for whoever shows them to people.

use std::net::IpAddr;

use roce::wire::Qpn;

use crate::FlowSide;

/// One half of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// The half that is here.
    pub side: FlowSide,
    /// Its requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
    /// The class of the last message that this half sent to the peer, by its place in the policy.
    pub class: usize,
    /// How it stands.
    pub state: FlowState,
}

/// How one half of a flow stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// Its session is lost, and it waits for the next one.
    Waiting,
    /// It has ended in an error, and is there to tell its program so.
    Failed,
    /// It has something to send, and waits for room towards the peer or at its target.
    HeldBack,
    /// Requests are under way.
    Active,
    /// Nothing is under way.
    Idle,
}
