//! The session with the peer, as /status tells of it.

use std::fmt;
use std::time::Instant;

use reliability::human;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::seconds;
use crate::telemetry::{SessionInfo, SessionState, Snapshot, Telemetry};

/// The session with the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStatus {
    /// "connecting", "up", "lost", "draining", or "blocked": control is up, and a way of the data
    /// path is known to be dead.
    pub state: String,
    /// How what this gateway sends fares: "alive", "silent" or "unknown".
    #[serde(default)]
    pub to_peer: String,
    /// How what the peer sends fares.
    #[serde(default)]
    pub from_peer: String,
    /// For how long; of a blocked one, since anything last crossed by the way that is dead.
    pub since: f64,
    /// Sessions set up since the start.
    pub established: u64,
    /// Sessions among these in which the flows of the one before went on.
    #[serde(default)]
    pub resumed: u64,
    /// Flows that wait for a lost session to go on.
    #[serde(default)]
    pub waiting: u64,
    /// Smoothed round-trip time; absent until measured.
    pub rtt: Option<f64>,
    /// Why the last session ended or could not be set up.
    pub last_error: Option<String>,
    /// Time since then; absent without such an error.
    #[serde(default)]
    pub last_error_age: Option<f64>,
}

/// The state of a session whose data path is dead.
const BLOCKED: &str = "blocked";

impl SessionStatus {
    pub(super) fn new(
        telemetry: &Telemetry,
        snapshot: &Snapshot,
        session: &SessionInfo,
        now: Instant,
    ) -> Self {
        let data_path = telemetry.data_path();
        let blocked = telemetry.blocked_since().filter(|_| session.state == SessionState::Up);
        Self {
            state: blocked.map_or_else(|| session.state.name().to_owned(), |_| BLOCKED.to_owned()),
            to_peer: data_path.to_peer.name().to_owned(),
            from_peer: data_path.from_peer.name().to_owned(),
            since: now.saturating_duration_since(blocked.unwrap_or(session.since)).as_secs_f64(),
            established: snapshot.sessions_established,
            resumed: snapshot.sessions_resumed,
            waiting: snapshot.flows_waiting,
            rtt: (snapshot.session_rtt_micros > 0).then(|| seconds(snapshot.session_rtt_micros)),
            last_error: session.last_error.clone(),
            last_error_age: session.last_error_at.map(|at| now.saturating_duration_since(at).as_secs_f64()),
        }
    }

    /// Returns true if there is a session, and no way of its data path is known to be dead.
    pub(crate) fn is_up(&self) -> bool {
        self.state == SessionState::Up.name()
    }

    /// Returns true if control is up, and nothing crosses.
    pub(crate) fn is_blocked(&self) -> bool {
        self.state == BLOCKED
    }

    pub(super) fn write(&self, bulk_port: u16, has_way: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session  {} for {}, {} set up", self.state, human::span(self.since), self.established)?;
        match self.rtt {
            Some(rtt) => writeln!(f, ", RTT {}", human::seconds(rtt))?,
            None => writeln!(f)?,
        }
        if self.resumed > 0 || self.state == SessionState::Lost.name() {
            writeln!(
                f,
                "         {} of them went on with the flows before; {} flows wait",
                self.resumed, self.waiting
            )?;
        }
        // Without a way to begin with, a line of its own says so.
        if self.is_blocked() && has_way {
            writeln!(
                f,
                "         no data crosses: to the peer {}, from the peer {}; is UDP port {bulk_port} open both ways?",
                self.to_peer, self.from_peer
            )?;
        }
        match self.error_with_age() {
            Some(error) => writeln!(f, "         last error: {error}"),
            None => Ok(()),
        }
    }

    /// Returns the last error, and how old it is where the gateway says so.
    pub(crate) fn error_with_age(&self) -> Option<String> {
        let age = self.last_error_age.map(|age| format!(", {} ago", human::span(age)));
        self.last_error.as_ref().map(|error| format!("{error}{}", age.unwrap_or_default()))
    }
}
