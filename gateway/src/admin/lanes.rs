//! The lanes to the peer, as /status tells of them.

use std::fmt;

use reliability::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{seconds, share};
use crate::telemetry::Snapshot;

/// A lane to the peer: what is sent by one of the gateway's source ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaneStatus {
    /// Its number.
    pub lane: usize,
    /// How it stands.
    pub state: LaneState,
    /// Part of the packets that it is given.
    pub share: f64,
    /// Share of its packets that are lost, the likely value; absent while nothing crosses.
    #[serde(default)]
    pub drop: Option<f64>,
    /// Smoothed round-trip time of what is sent on it; absent while nothing crosses.
    #[serde(default)]
    pub rtt: Option<f64>,
    /// Times it was left.
    pub leaves: u64,
}

/// How a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneState {
    /// It takes its part.
    InUse,
    /// Nothing was heard of it lately: it gets no data, unless all lanes are so.
    Suspect,
    /// Left: nothing of it arrives.
    Silent,
    /// Left: it loses much more than others.
    Lossy,
    /// Left: it is much slower than others.
    Slow,
}

impl LaneState {
    const ALL: [Self; 5] = [Self::InUse, Self::Suspect, Self::Silent, Self::Lossy, Self::Slow];
}

impl LaneStatus {
    pub(crate) fn is_in_use(&self) -> bool {
        self.state == LaneState::InUse
    }

    /// Leaves out loss and round-trip times while nothing crosses: they are those of before.
    pub(super) fn all(snapshot: &Snapshot, crosses: bool) -> Vec<Self> {
        let lane = |(lane, state): (usize, &u64)| {
            let of = |cells: &[u64]| cells.get(lane).copied().unwrap_or(0);
            // 0: there is none.
            let state = usize::try_from(*state).ok()?.checked_sub(1)?;
            let state = match *LaneState::ALL.get(state)? {
                LaneState::InUse if !crosses => LaneState::Suspect,
                state => state,
            };
            Some(Self {
                lane,
                state,
                share: share(of(&snapshot.lane_share)),
                drop: crosses.then(|| share(of(&snapshot.lane_drop))),
                rtt: crosses.then(|| seconds(of(&snapshot.lane_rtt_micros))),
                leaves: of(&snapshot.lane_leaves),
            })
        };
        snapshot.lane_state.iter().enumerate().filter_map(lane).collect()
    }
}

impl fmt::Display for LaneStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            LaneState::InUse => "in use",
            LaneState::Suspect => "not heard of",
            LaneState::Silent => "left, silent",
            LaneState::Lossy => "left, loses more than others",
            LaneState::Slow => "left, slower than others",
        };
        let Self { lane, leaves, .. } = self;
        write!(f, "lane {lane}   {} of packets", human::share(self.share))?;
        if let Some(drop) = self.drop {
            write!(f, ", drop {}", human::share(drop))?;
        }
        if let Some(rtt) = self.rtt {
            write!(f, ", RTT {}", human::seconds(rtt))?;
        }
        write!(f, ", {state}")?;
        match leaves {
            0 => Ok(()),
            times => write!(f, "; left {times} times"),
        }
    }
}
