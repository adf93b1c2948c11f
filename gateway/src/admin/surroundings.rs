//! The sides of the gateway and what outlives it, as /status tells of them.

use std::fmt;
use std::time::Instant;

use reliability::human;
use rustls_pki_types::UnixTime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use session::identity::Date;

use super::members::MembersStatus;
use super::survival::SurvivalStatus;
use crate::renewal::SOON;
use crate::telemetry::{Snapshot, Standing, Telemetry, Validity};

/// How the sides of the gateway stand, and what outlives its process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Surroundings {
    /// The LAN's interface.
    #[serde(default)]
    pub lan: SideStatus,
    /// The own address on the WAN, and the route to the peer.
    #[serde(default)]
    pub wan: SideStatus,
    /// Ends of the certificates that are known.
    #[serde(default)]
    pub certificates: Vec<CertificateStatus>,
    /// For how long the gateway is not healthy, since it was told to stop; absent if it was not.
    #[serde(default)]
    pub stopping_for: Option<f64>,
    /// Requests and flows that outlive a process.
    #[serde(default)]
    pub survival: SurvivalStatus,
    /// The gateways of this site; absent if both sites have one, and for one of this site.
    #[serde(default)]
    pub members: Option<MembersStatus>,
}

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateStatus {
    /// "own", "peer", "authority" or "admin"; each with those above it in its file.
    pub of: String,
    /// RFC 3339, UTC.
    pub expires: String,
    /// True if that is past, by the gateway's clock.
    pub is_expired: bool,
    /// True if it is past, or comes within thirty days.
    pub is_due: bool,
}

impl CertificateStatus {
    fn all(telemetry: &Telemetry, now: UnixTime) -> Vec<Self> {
        let known = Validity::ALL.into_iter().filter_map(|whose| Some((whose, telemetry.expiry(whose)?)));
        let show = |(whose, until): (Validity, UnixTime)| Self {
            of: whose.name().to_owned(),
            expires: Date(until).to_string(),
            is_expired: until <= now,
            is_due: until.as_secs() < now.as_secs().saturating_add(SOON.as_secs()),
        };
        known.map(show).collect()
    }

    /// Returns the end in a few words.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { of, expires, is_expired, .. } = self;
        let verb = if *is_expired { "EXPIRED" } else { "expires" };
        format!("{of} {verb} {expires}")
    }
}

/// How one side stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SideStatus {
    /// "up", "down", or "unknown".
    pub state: String,
    /// The interface, where the gateway file names one.
    #[serde(default)]
    pub interface: Option<String>,
    /// Why it is down.
    #[serde(default)]
    pub why: Option<String>,
    /// For how long it is down.
    #[serde(default)]
    pub down_for: Option<f64>,
}

const UP: &str = "up";
const DOWN: &str = "down";

impl SideStatus {
    pub(super) fn lan(telemetry: &Telemetry, now: Instant) -> Self {
        Self::new(&telemetry.lan(), telemetry.lan_interface(), now)
    }

    pub(super) fn wan(telemetry: &Telemetry, now: Instant) -> Self {
        Self::new(&telemetry.wan(), None, now)
    }

    fn new(standing: &Standing, interface: Option<String>, now: Instant) -> Self {
        let unusable = standing.unusable();
        let state = match standing {
            Standing::Unknown => "unknown",
            Standing::Usable => UP,
            Standing::Unusable { .. } => DOWN,
        };
        Self {
            state: state.to_owned(),
            interface,
            why: unusable.map(|(why, _)| why.to_owned()),
            down_for: unusable.map(|(_, since)| now.saturating_duration_since(since).as_secs_f64()),
        }
    }

    /// Returns true if nothing can pass.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state == DOWN
    }

    /// Returns for how long it is down, and why, in a line.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let why = self.why.as_deref().filter(|_| self.is_down())?;
        let span = self.down_for.map(human::span).unwrap_or_default();
        Some(format!("down for {span}: {why}"))
    }
}

impl Surroundings {
    pub(super) fn new(telemetry: &Telemetry, snapshot: &Snapshot, now: Instant) -> Self {
        Self {
            survival: SurvivalStatus::new(telemetry, snapshot),
            members: None,
            lan: SideStatus::lan(telemetry, now),
            wan: SideStatus::wan(telemetry, now),
            certificates: CertificateStatus::all(telemetry, UnixTime::now()),
            stopping_for: telemetry.leaving().map(|since| now.saturating_duration_since(since).as_secs_f64()),
        }
    }

    /// Returns that the gateway was told to stop, in a line, if it was.
    #[must_use]
    pub fn stopping(&self) -> Option<String> {
        self.stopping_for.map(|span| format!("told so {} ago; not healthy", human::span(span)))
    }

    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("lan", &self.lan), ("wan", &self.wan)] {
            if let Some(trouble) = side.trouble() {
                writeln!(f, "{name:<9}{trouble}")?;
            }
        }
        if let Some(stopping) = self.stopping() {
            writeln!(f, "stopping {stopping}")?;
        }
        let each: Vec<String> = self.certificates.iter().map(CertificateStatus::text).collect();
        if each.is_empty() { Ok(()) } else { writeln!(f, "certs    {}", each.join("; ")) }
    }
}
