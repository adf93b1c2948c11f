//! Warnings of certificates that are about to expire.

use std::time::{Duration, Instant};

use rustls_pki_types::UnixTime;
use session::identity::Date;
use tracing::warn;

use super::SOON;
use crate::events::EventKind;
use crate::telemetry::{Telemetry, Validity};

/// Between two warnings of one certificate.
const AGAIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Warns of what expires within thirty days, once a day for each certificate, and when it expires.
#[derive(Debug, Default)]
pub struct Outlook {
    /// The last warning of each [`Validity`].
    told: [Option<Told>; Validity::ALL.len()],
    /// Another peer's tells of what is the same for all.
    is_of_peer_alone: bool,
}

/// A warning that was given.
#[derive(Clone, Copy, Debug)]
struct Told {
    until: UnixTime,
    had_expired: bool,
    /// By the clock that nobody sets.
    at: Instant,
}

impl Outlook {
    /// Tells of the peer's certificate alone.
    #[must_use]
    pub fn of_peer_alone() -> Self {
        Self { is_of_peer_alone: true, ..Self::default() }
    }

    /// Warns of what is due.
    pub fn tell(&mut self, telemetry: &Telemetry, gateway: &config::Gateway) {
        for text in self.due(telemetry, gateway, UnixTime::now(), Instant::now()) {
            warn!("{text}");
            telemetry.events().push(EventKind::Expiry, &text);
        }
    }

    fn due(
        &mut self,
        telemetry: &Telemetry,
        gateway: &config::Gateway,
        now: UnixTime,
        at: Instant,
    ) -> Vec<String> {
        let mut due = Vec::new();
        for (whose, told) in Validity::ALL.into_iter().zip(&mut self.told) {
            if self.is_of_peer_alone && whose != Validity::Peer {
                continue;
            }
            let Some(until) = telemetry.expiry(whose) else { continue };
            if until.as_secs() >= now.as_secs() + SOON.as_secs() {
                *told = None;
                continue;
            }
            let has_expired = until <= now;
            if let Some(told) = told.as_mut().filter(|_| !has_expired) {
                // The clock was ahead when it was told, and is set back.
                told.had_expired = false;
            }
            let is_due = |told: Told| {
                told.until != until
                    || has_expired && !told.had_expired
                    || at.saturating_duration_since(told.at) >= AGAIN
            };
            if told.is_none_or(is_due) {
                *told = Some(Told { until, had_expired: has_expired, at });
                due.push(text(whose, gateway, until, now));
            }
        }
        due
    }
}

fn text(whose: Validity, gateway: &config::Gateway, until: UnixTime, now: UnixTime) -> String {
    let (site, peer) = (&gateway.site.name, &gateway.peer.name);
    let (what, remedy) = match whose {
        Validity::Own => (
            format!("the certificate of this site, `{site}`,"),
            format!("renew it here (`longhaul keys --force {site}`): no restart is needed"),
        ),
        Validity::Peer => (
            format!("the certificate of the peer, `{peer}`,"),
            format!("renew it at `{peer}` (`longhaul keys --force {peer}`)"),
        ),
        Validity::Authority => (
            "the authority".to_owned(),
            "make a new one in an empty folder, and certificates of it for all sites".to_owned(),
        ),
        Validity::Admin => (
            "the certificate of the admin listener".to_owned(),
            "put another one in place of admin.certificate and admin.key: no restart is needed".to_owned(),
        ),
    };
    let verb = if until > now { "expires" } else { "expired" };
    let (until, now) = (Date(until), Date(now));
    format!("{what} {verb} at {until}, by this machine's clock, which says {now}: {remedy}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    #[test]
    fn each_certificate_is_warned_of_once_a_day_from_thirty_days_on() {
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        let gateway = config::Gateway::parse(Path::new("gateway.toml"), text).unwrap();
        let telemetry = Telemetry::new(Instant::now());
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let end = 1000 * DAY;
        telemetry.set_expiry(Validity::Own, Some(at(end)));
        telemetry.set_expiry(Validity::Peer, Some(at(end + 5 * DAY)));
        let mut outlook = Outlook::default();
        let start = Instant::now();
        let mut due = |now| {
            let passed = Duration::from_secs(now - (end - 30 * DAY));
            outlook.due(&telemetry, &gateway, at(now), start + passed)
        };
        assert!(due(end - 30 * DAY).is_empty());
        let own = due(end - 30 * DAY + 1);
        assert!(
            own.len() == 1 && own[0].contains("of this site") && own[0].contains(" expires at "),
            "{own:?}"
        );
        assert!(due(end - 29 * DAY).is_empty(), "not within a day");
        assert_eq!(due(end - 29 * DAY + 1).len(), 1);
        assert_eq!(due(end - 1).len(), 2);
        let expired = due(end);
        assert!(
            expired.len() == 1 && expired[0].contains(" expired at ") && expired[0].contains("of this site"),
            "{expired:?}"
        );
        assert!(due(end + 1).is_empty(), "it was told of at that moment");
        telemetry.set_expiry(Validity::Own, Some(at(end + 400 * DAY)));
        assert_eq!(due(end + 2 * DAY).len(), 1, "renewed");
        let peer = due(end + 5 * DAY);
        assert!(
            peer.len() == 1 && peer[0].contains("of the peer") && peer[0].contains(" expired "),
            "{peer:?}"
        );
    }
    /// Whoever sets the clock back hears no less of what is due.
    #[test]
    fn a_clock_that_is_set_keeps_no_warning_back() {
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        let gateway = config::Gateway::parse(Path::new("gateway.toml"), text).unwrap();
        let (start, telemetry) = (Instant::now(), Telemetry::new(Instant::now()));
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let end = 20_000 * DAY;
        telemetry.set_expiry(Validity::Own, Some(at(end)));
        let mut outlook = Outlook::default();
        // The clock's time, the days that have passed, and the lines.
        for (now, passed, lines) in [
            (end - 10 * DAY, 0, 1),
            (end + 27_000 * DAY, 1, 1),
            (end - 10 * DAY, 1, 0),
            (end, 1, 1),
            (end - 9 * DAY, 1, 0),
            (end - 8 * DAY, 2, 1),
            (end - 1, 2, 0),
            (end, 2, 1),
            (0, 3, 0),
            (end - DAY, 3, 1),
        ] {
            let due = outlook.due(&telemetry, &gateway, at(now), start + Duration::from_secs(passed * DAY));
            assert_eq!(due.len(), lines, "{now} {passed}: {due:?}");
        }
    }
}
