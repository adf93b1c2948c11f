//! How long packets between the gateways are, as /status tells it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::Snapshot;

/// IP packets between the gateways, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MtuStatus {
    /// The longest that is sent.
    pub to_peer: u64,
    /// The longest that the peer says to send; absent until it has, and where it does not probe.
    pub from_peer: Option<u64>,
    /// Where the search stands.
    pub state: MtuState,
    /// Probes sent.
    pub probes: u64,
    /// Probes lost that were longer than the length in use.
    pub lost: u64,
    /// Times that the path came to carry less.
    pub black_holes: u64,
}

/// `reliability::mtu::State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MtuState {
    /// It is configured.
    Fixed,
    /// Nothing was answered yet.
    Base,
    /// Longer ones are tried.
    Searching,
    /// The longest is in use.
    Complete,
    /// Less than any path should carry.
    Error,
}

impl MtuState {
    fn name(self) -> &'static str {
        match self {
            Self::Fixed => "as configured",
            Self::Base => "not confirmed yet",
            Self::Searching => "longer ones are tried",
            Self::Complete => "found",
            Self::Error => "less than any path should carry",
        }
    }
}

impl MtuStatus {
    pub(super) fn new(snapshot: &Snapshot) -> Option<Self> {
        let [to_peer, from_peer] = snapshot.wan_mtu;
        let state = match snapshot.mtu_state {
            1 => MtuState::Base,
            2 => MtuState::Searching,
            3 => MtuState::Complete,
            4 => MtuState::Error,
            _ => MtuState::Fixed,
        };
        (to_peer > 0).then_some(Self {
            to_peer,
            from_peer: (from_peer > 0).then_some(from_peer),
            state,
            probes: snapshot.mtu_probes,
            lost: snapshot.mtu_probes_lost,
            black_holes: snapshot.mtu_black_holes,
        })
    }

    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU      {} bytes to the peer ({})", self.to_peer, self.state.name())?;
        if let Some(from_peer) = self.from_peer {
            write!(f, ", {from_peer} from it")?;
        }
        if self.probes > 0 {
            write!(f, "; {} probes, {} lost", self.probes, self.lost)?;
        }
        match self.black_holes {
            0 => writeln!(f),
            times => writeln!(f, "; fallen back {times} times"),
        }
    }
}
