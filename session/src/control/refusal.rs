//! Peers that got no session: counted always, logged at a bounded rate, and the last one's reason
//! kept.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quinn::ConnectionError;
use rustls_pki_types::UnixTime;
use tokio::time::Instant;
use tracing::{info, warn};

use super::wire::{Lost, SetupError};
use crate::identity::Date;
use crate::message::MessageError;

/// Between two lines of the log about the same: at first, and at most.
const LOG_INTERVALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// TLS alerts are transport errors from here on, one per alert (RFC 9001, 4.8).
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;

/// A reason why a connection came to no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The TLS handshake failed on this side: an unknown authority, another name than the
    /// configured peer's, an expired certificate.
    Authentication,
    /// The peer's certificate, or one above it, is revoked.
    Revoked,
    /// The peer ended the set-up, most often because it refused this gateway's certificate.
    ByPeer,
    /// No answer, or not in time.
    Timeout,
    /// Another protocol version.
    Version,
    /// Another address than the configured peer's, with a certificate that is in order.
    Address,
    /// The hello names another site than the certificate.
    Site,
    /// No cipher in common.
    Cipher,
    /// Another number of data-plane threads than was expected.
    Threads,
    /// Messages that break the protocol.
    Protocol,
    /// Too many connections being set up at once.
    Busy,
    /// Anything else that QUIC reports.
    Transport,
}

impl Refusal {
    /// Every reason, in the order of [`Refusal::index`].
    pub const ALL: [Refusal; 12] = [
        Refusal::Authentication,
        Refusal::Revoked,
        Refusal::ByPeer,
        Refusal::Timeout,
        Refusal::Version,
        Refusal::Address,
        Refusal::Site,
        Refusal::Cipher,
        Refusal::Threads,
        Refusal::Protocol,
        Refusal::Busy,
        Refusal::Transport,
    ];

    /// Returns the reason's place in [`Refusal::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the reason as a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Refusal::Authentication => "authentication",
            Refusal::Revoked => "revoked",
            Refusal::ByPeer => "by_peer",
            Refusal::Timeout => "timeout",
            Refusal::Version => "version",
            Refusal::Address => "address",
            Refusal::Site => "site",
            Refusal::Cipher => "cipher",
            Refusal::Threads => "threads",
            Refusal::Protocol => "protocol",
            Refusal::Busy => "busy",
            Refusal::Transport => "transport",
        }
    }
}

impl From<&ConnectionError> for Refusal {
    fn from(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::TransportError(error) if u64::from(error.code) == ALERT_REVOKED => {
                Refusal::Revoked
            }
            ConnectionError::TransportError(error) if CRYPTO_ERRORS.contains(&u64::from(error.code)) => {
                Refusal::Authentication
            }
            ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => Refusal::ByPeer,
            ConnectionError::TimedOut => Refusal::Timeout,
            _ => Refusal::Transport,
        }
    }
}

impl From<&SetupError> for Refusal {
    fn from(error: &SetupError) -> Self {
        match error {
            SetupError::Lost(Lost::Connection(error)) => error.into(),
            SetupError::Lost(Lost::Message(MessageError::Version { .. })) => Refusal::Version,
            SetupError::Lost(Lost::Silent) => Refusal::Timeout,
            SetupError::Lost(_) => Refusal::Protocol,
            SetupError::Address { .. } => Refusal::Address,
            SetupError::Site(_) => Refusal::Site,
            SetupError::Cipher => Refusal::Cipher,
            SetupError::Threads { .. } => Refusal::Threads,
            SetupError::NoBulkPort(_) | SetupError::Key(_) => Refusal::Transport,
        }
    }
}

/// TLS alert `unknown_ca`.
const ALERT_UNKNOWN_AUTHORITY: u64 = 0x100 + 48;
/// TLS alert `decrypt_error`: an authority of the right name has another key.
const ALERT_SIGNATURE: u64 = 0x100 + 51;
/// TLS alert `certificate_expired`, which also says that one is not valid yet.
const ALERT_EXPIRED: u64 = 0x100 + 45;
/// TLS alert `certificate_revoked`.
const ALERT_REVOKED: u64 = 0x100 + 44;

/// Says whose certificate is out of its time, if that is why a connection ended, and what to do.
fn explain(error: &ConnectionError, peer: &str, now: UnixTime) -> Option<String> {
    let now = Date(now);
    match error {
        ConnectionError::TransportError(error) if u64::from(error.code) == ALERT_EXPIRED => {
            // The text of `rustls::CertificateError`.
            Some(if error.reason.contains("not valid yet") {
                format!(
                    "the certificate of `{peer}` is not valid yet by this machine's clock, which says {now}: \
                     one of the two clocks is wrong (`timedatectl`), and new keys would not help"
                )
            } else {
                format!(
                    "the certificate of `{peer}` has expired by this machine's clock, which says {now}: \
                     if that is right, renew it at `{peer}` (`longhaul keys --force {peer}`)"
                )
            })
        }
        ConnectionError::TransportError(error) if is_of_authority(error.code.into(), &error.reason) => {
            Some(format!(
                "the authority of this site's `identity.authority` has not signed the certificate of `{peer}`: \
                 both sites need the same one, which `longhaul keys` makes as ca.crt"
            ))
        }
        ConnectionError::ConnectionClosed(closed)
            if u64::from(closed.error_code) == ALERT_UNKNOWN_AUTHORITY =>
        {
            Some(format!(
                "the authority that `{peer}` trusts has not signed this site's certificate: both sites need \
                 the same one, which `longhaul keys` makes as ca.crt"
            ))
        }
        ConnectionError::ConnectionClosed(closed) if u64::from(closed.error_code) == ALERT_EXPIRED => {
            Some(format!(
                "by the clock of `{peer}` this site's certificate has expired, or is not valid yet: \
                 if `longhaul check` finds it valid here, one of the two clocks is wrong (`timedatectl`)"
            ))
        }
        _ => None,
    }
}

/// Returns true if a certificate is another authority's than the one that it is judged by. `reason`
/// has the text of `rustls::CertificateError`.
fn is_of_authority(code: u64, reason: &str) -> bool {
    code == ALERT_UNKNOWN_AUTHORITY || code == ALERT_SIGNATURE && reason.contains("BadSignature")
}

/// The connection's own error, if a set-up ended by that.
pub(super) fn connection_error(error: &SetupError) -> Option<&ConnectionError> {
    match error {
        SetupError::Lost(Lost::Connection(error)) => Some(error),
        _ => None,
    }
}

/// A failure as text, with what to do about it where that is known. Put together only where it is
/// shown.
pub(super) struct Told<'a> {
    pub(super) failure: &'a dyn Display,
    /// The connection's own error, if that is why.
    pub(super) error: Option<&'a ConnectionError>,
    pub(super) peer: &'a str,
}

impl Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            Some(ConnectionError::ApplicationClosed(closed)) if !closed.reason.is_empty() => {
                let words = String::from_utf8_lossy(&closed.reason);
                write!(f, "closed by `{}`, to whom this gateway is \"the peer\": \"{words}\"", self.peer)?;
            }
            _ => self.failure.fmt(f)?,
        }
        match self.error.and_then(|error| explain(error, self.peer, UnixTime::now())) {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// How often each [`Refusal`] occurred since the start, and why the configured peer was the last to
/// get no session.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [AtomicU64; Refusal::ALL.len()],
    unanswered: AtomicU64,
    last: Mutex<Option<String>>,
    impostor: Mutex<Option<Impostor>>,
}

/// An attempt that looks like a thief's: with a certificate that is revoked, or with one in order
/// from another address than the peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impostor {
    /// [`Refusal::Revoked`] or [`Refusal::Address`].
    pub reason: Refusal,
    /// Where the last one came from, or what was dialled.
    pub address: SocketAddr,
    /// How many there were since it was last asked.
    pub attempts: u64,
}

impl Refusals {
    /// Returns the count for one reason.
    #[must_use]
    pub fn get(&self, reason: Refusal) -> u64 {
        self.counts.get(reason.index()).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns every count, in the order of [`Refusal::ALL`].
    #[must_use]
    pub fn counts(&self) -> [u64; Refusal::ALL.len()] {
        Refusal::ALL.map(|reason| self.get(reason))
    }

    /// Returns how many datagrams to others than the peer were dropped, since they get no more than
    /// a few.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Counts datagrams to others than the peer that were dropped.
    pub(super) fn count_unanswered(&self, datagrams: u32) {
        self.unanswered.fetch_add(datagrams.into(), Ordering::Relaxed);
    }

    /// Takes the reason why the configured peer last got no session, if it got none since the last
    /// call.
    ///
    /// It may hold text of the peer. Escape it before it is shown.
    pub fn take_last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the last attempt that looks like a thief's, if there was one since the last call.
    pub fn take_impostor(&self) -> Option<Impostor> {
        self.impostor.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts one refusal, whoever it was, of who called from or was dialled at `address`.
    pub fn count(&self, reason: Refusal, address: SocketAddr) {
        if let Some(count) = self.counts.get(reason.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(reason, Refusal::Revoked | Refusal::Address) {
            let mut impostor = self.impostor.lock().unwrap_or_else(PoisonError::into_inner);
            let attempts = impostor.as_ref().map_or(0, |earlier| earlier.attempts) + 1;
            *impostor = Some(Impostor { reason, address, attempts });
        }
    }

    /// Keeps the reason for [`Refusals::take_last`].
    ///
    /// Only for the configured peer: strangers must not cover up its failure.
    pub fn remember(&self, error: &dyn Display) {
        let text = format!("no session: {error}");
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Writes refusals to the log. Each reason has its own lines, of the configured peer and of others.
/// They come ever more rarely as long as it goes on, and say how many went unmentioned.
#[derive(Default)]
pub(super) struct Journal {
    peer: Lines,
    others: Lines,
}

type Lines = [Line; Refusal::ALL.len()];

/// When a reason is written of next.
#[derive(Clone, Copy, Default)]
struct Line {
    next: Option<Instant>,
    pause: Duration,
    unmentioned: u64,
}

impl Line {
    /// It is time to write. Returns how many went unmentioned.
    fn write(&mut self, now: Instant) -> Option<u64> {
        let (first, most) = LOG_INTERVALS;
        let over = self.next.map(|next| now.checked_duration_since(next));
        self.pause = match over {
            Some(None) => {
                self.unmentioned += 1;
                return None;
            }
            Some(Some(quiet)) if quiet < self.pause => (self.pause * 2).min(most),
            _ => first,
        };
        self.next = Some(now + self.pause);
        Some(std::mem::take(&mut self.unmentioned))
    }
}

impl Journal {
    /// `is_peers`: it is the configured peer that gets no session. `is_news`: nobody has been told
    /// that the peer does not answer.
    pub(super) fn note(
        &mut self,
        reason: Refusal,
        address: SocketAddr,
        error: &Told<'_>,
        (is_peers, is_news): (bool, bool),
    ) {
        let lines = if is_peers { &mut self.peer } else { &mut self.others };
        let line = lines.get_mut(reason.index());
        let Some(unmentioned) = line.and_then(|line| line.write(Instant::now())) else { return };
        let (peer, reason) = (error.peer, reason.label());
        match is_news {
            true => warn!(peer, reason, %address, %error, unmentioned, "no session"),
            false => info!(peer, reason, %address, %error, unmentioned, "no session"),
        }
    }

    /// The peer has a session: what keeps it from the next one is news.
    pub(super) fn begin_anew(&mut self) {
        self.peer = Lines::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same is written ever more rarely, and something else at once.
    #[test]
    fn what_goes_on_is_written_ever_more_rarely() {
        let (mut line, start) = (Line::default(), Instant::now());
        let written: Vec<_> = (0..4000)
            .filter_map(|second| line.write(start + Duration::from_secs(second)).map(|left| (second, left)))
            .take(9)
            .collect();
        let wanted =
            [(0, 0), (5, 4), (15, 9), (35, 19), (75, 39), (155, 79), (315, 159), (615, 299), (915, 299)];
        assert_eq!(written, wanted);
        // It was quiet for as long.
        assert_eq!(line.write(start + Duration::from_secs(3600)), Some(0));
        assert_eq!(line.write(start + Duration::from_secs(3605)), Some(0));
    }

    /// Whoever gave the two sites different authorities reads that, at either end.
    #[test]
    fn another_authority_has_a_remedy() {
        assert!(is_of_authority(ALERT_UNKNOWN_AUTHORITY, ""));
        assert!(is_of_authority(ALERT_SIGNATURE, "invalid peer certificate: BadSignature"));
        assert!(!is_of_authority(ALERT_SIGNATURE, "") && !is_of_authority(ALERT_EXPIRED, "BadSignature"));
    }

    /// "The peer" of a refusal that is passed on is whoever reads it.
    #[test]
    fn words_of_the_peer_are_told_as_its_own() {
        let reason = "the peer has 2 data-plane threads, and not 1".into();
        let closed =
            ConnectionError::ApplicationClosed(quinn::ApplicationClose { error_code: 1_u8.into(), reason });
        let told = Told { failure: &closed, error: Some(&closed), peer: "b" };
        let text = "closed by `b`, to whom this gateway is \"the peer\": \"the peer has 2 data-plane threads, and not 1\"";
        assert_eq!(told.to_string(), text);
        let reset = ConnectionError::Reset;
        let told = Told { failure: &reset, error: Some(&reset), peer: "b" };
        assert_eq!(told.to_string(), reset.to_string());
    }
}
