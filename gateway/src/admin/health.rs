//! The answer to /healthy: whether hosts' packets are to come to this gateway.
//!
//! Whoever leads hosts here (BGP, VRRP) asks before and keeps asking. The answer is about what a
//! gateway can know by itself: its LAN, its sessions, and whether it was told to stop.

use std::time::Instant;

use reliability::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::SessionStatus;
use super::surroundings::SideStatus;
use crate::telemetry::Telemetry;

/// The reason why hosts' packets are not to come here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unhealthy {
    /// There is no session with the peer.
    NoSession,
    /// There is a session, and nothing crosses.
    Blocked,
    /// Hosts cannot use the LAN.
    Lan,
    /// The gateway was told to stop.
    Stopping,
}

/// A gateway's judgement on itself: are hosts' packets to come here?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// True if they are: the gateway goes on, its LAN is not down, and data crosses to a peer.
    pub is_healthy: bool,
    /// Absent if it is healthy. Of several peers, the first one's.
    pub cause: Option<Unhealthy>,
    /// The same in a line.
    pub why: String,
    /// Each peer that was asked about.
    pub peers: Vec<PeerHealth>,
}

/// The same about one peer: does data cross?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerHealth {
    /// The peer's site.
    pub peer: String,
    /// Absent if data crosses.
    pub cause: Option<Unhealthy>,
    /// The session's state, and more of it if nothing crosses.
    pub why: String,
}

impl PeerHealth {
    pub(super) fn new(peer: String, telemetry: &Telemetry, now: Instant) -> Self {
        let snapshot = telemetry.snapshot(now);
        let session = SessionStatus::new(telemetry, &snapshot, &telemetry.session_info(), now);
        let way = SideStatus::wan(telemetry, now).trouble();
        let (cause, more) = match () {
            () if session.is_up() => (None, None),
            () if session.is_blocked() => (Some(Unhealthy::Blocked), way),
            () => (Some(Unhealthy::NoSession), session.last_error),
        };
        let more = more.map(|more| format!(" ({more})")).unwrap_or_default();
        Self { peer, cause, why: format!("{}{more}", session.state) }
    }
}

impl Health {
    /// Judges the gateway of this telemetry by its peers, of which there is one at least.
    pub(super) fn new(telemetry: &Telemetry, peers: Vec<PeerHealth>, now: Instant) -> Self {
        let lan = SideStatus::lan(telemetry, now).trouble();
        let stopping = telemetry.leaving();
        let crosses = peers.iter().any(|peer| peer.cause.is_none());
        let sessions: Vec<String> =
            peers.iter().map(|peer| format!("session with {}: {}", peer.peer, peer.why)).collect();
        let sessions = sessions.join("; ");
        let (cause, why) = match (stopping, lan) {
            (Some(since), _) => {
                let span = human::span(now.saturating_duration_since(since).as_secs_f64());
                (Some(Unhealthy::Stopping), format!("told to stop {span} ago"))
            }
            (None, Some(trouble)) => (Some(Unhealthy::Lan), format!("hosts cannot use the LAN: {trouble}")),
            (None, None) if crosses => (None, sessions),
            (None, None) => (peers.iter().find_map(|peer| peer.cause), sessions),
        };
        Self { is_healthy: cause.is_none(), cause, why, peers }
    }
}
