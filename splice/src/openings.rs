//! Flows that have been opened, for whoever tells people of them.

use std::net::IpAddr;

use roce::pairing::FlowKey;
use roce::wire::Qpn;

use crate::FlowSide;

/// One half of a flow that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOpening {
    /// The half that is here.
    pub side: FlowSide,
    /// Its requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if connection management has told it.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
}

impl FlowOpening {
    /// The beginning of the half with this key.
    pub(crate) fn new(side: FlowSide, key: &FlowKey, requester_qpn: Option<Qpn>) -> Self {
        let FlowKey { requester, target, target_qpn } = *key;
        Self { side, requester, requester_qpn, target, target_qpn }
    }
}
