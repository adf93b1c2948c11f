//! The dialling side: tries for ever, at growing intervals.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::{ClientConfig, ConnectError, Connection, ConnectionError, Endpoint};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::refusal::{Journal, Refusal, Told, connection_error};
use super::wire::{Link, SetupError, set_up};
use super::{Config, Credentials, Held, SETUP_LIMIT, SETUP_TIMEOUT, close, with_scope};
use crate::schedule::Role;

const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const LAST_INTERVAL: Duration = Duration::from_secs(2);

/// Why an attempt came to nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Dial(#[from] ConnectError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("the peer does not answer in time")]
    Timeout,
}

impl Failure {
    /// The connection's own error, if that is why.
    fn of_connection(&self) -> Option<&ConnectionError> {
        match self {
            Failure::Connection(error) => Some(error),
            Failure::Setup(error) => connection_error(error),
            _ => None,
        }
    }
}

impl From<&Failure> for Refusal {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Dial(_) => Refusal::Transport,
            Failure::Connection(error) => error.into(),
            Failure::Setup(error) => error.into(),
            Failure::Timeout => Refusal::Timeout,
        }
    }
}

/// Dials, hands the session over, waits for its end, and begins again, as long as the socket works.
/// Intervals are between the beginnings of attempts.
///
/// It also dials at once when this side has another certificate, if the flows there are can go on:
/// whether the peer takes the certificate shows then, and not when the session is lost one day. If
/// the peer refuses it, the session stays.
pub(super) async fn dial(
    endpoint: Endpoint,
    mut newest: watch::Receiver<Arc<Credentials>>,
    config: Arc<Config>,
    held: Arc<Held>,
    links: mpsc::Sender<Link>,
) {
    let mut journal = Journal::default();
    let mut backoff = Backoff::default();
    let mut standing: Option<Standing> = None;
    // The session before was lost by silence, and its owner has told of that.
    let mut is_silent = false;
    for order in 0.. {
        let started = Instant::now();
        let credentials = Arc::clone(&newest.borrow_and_update());
        // The listening side has none, and does not dial.
        let Some(client) = credentials.client.clone() else { return };
        match attempt(&endpoint, client, order, &config, &held).await {
            Ok(link) => {
                journal.begin_anew();
                let (connection, goes_on) = (link.wire.connection(), !link.session.peer.resume_for.is_zero());
                standing = Some(Standing { connection, goes_on, started });
                if links.send(link).await.is_err() {
                    return;
                }
            }
            Err(Failure::Dial(ConnectError::EndpointStopping)) => return,
            Err(failure) => {
                let reason = Refusal::from(&failure);
                let told = Told { failure: &failure, error: failure.of_connection(), peer: &config.peer };
                config.refusals.remember(&told);
                config.refusals.count(reason, config.peer_address);
                let is_news = !(is_silent && reason == Refusal::Timeout);
                journal.note(reason, config.peer_address, &told, (true, is_news));
            }
        }
        if let Some(session) = &standing {
            match session.until_over(&mut newest, &credentials).await {
                Over::Renewed => continue,
                Over::Ended(ended) => {
                    is_silent = matches!(ended, ConnectionError::TimedOut);
                    backoff.after_session(session.started.elapsed(), &ended);
                }
            }
            standing = None;
        }
        sleep_until(started + backoff.next()).await;
    }
}

/// The session that was dialled last, while it is not known to have ended.
struct Standing {
    connection: Connection,
    /// Its flows go on in the next one.
    goes_on: bool,
    started: Instant,
}

/// Why it is time to dial again.
enum Over {
    /// The session has ended.
    Ended(ConnectionError),
    /// It has not, and there is another certificate to show.
    Renewed,
}

impl Standing {
    async fn until_over(&self, newest: &mut watch::Receiver<Arc<Credentials>>, shown: &Credentials) -> Over {
        let renewed = newest.wait_for(|newest| self.goes_on && !newest.show_the_same(shown));
        tokio::select! {
            ended = self.connection.closed() => Over::Ended(ended),
            // Nobody can renew any more once the sender is gone.
            Ok(_) = renewed => Over::Renewed,
        }
    }
}

async fn attempt(
    endpoint: &Endpoint,
    client: ClientConfig,
    order: u64,
    config: &Config,
    held: &Held,
) -> Result<Link, Failure> {
    let address = with_scope(config.peer_address, config.peer_scope.load(Ordering::Relaxed));
    let handshake = timeout(SETUP_TIMEOUT, endpoint.connect_with(client, address, &config.peer)?);
    let connection = handshake.await.map_err(|_| Failure::Timeout)??;
    let set_up = timeout(SETUP_LIMIT, set_up(connection, Role::Dialer, order, config, held));
    Ok(set_up.await.map_err(|_| Failure::Timeout)??)
}

/// The interval to the next attempt: doubles from attempt to attempt, and begins anew after a
/// session that lasted.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(FIRST_INTERVAL)
    }
}

impl Backoff {
    fn next(&mut self) -> Duration {
        let interval = self.0;
        self.0 = (interval * 2).min(LAST_INTERVAL);
        interval
    }

    /// A session that ends at once must not make a busy loop of dialling, and two gateways that
    /// claim to be the same site must not chase each other out at full speed.
    fn after_session(&mut self, lasted: Duration, ended: &ConnectionError) {
        if replaced(ended) {
            self.0 = LAST_INTERVAL;
        } else if lasted >= LAST_INTERVAL {
            self.0 = FIRST_INTERVAL;
        }
    }
}

fn replaced(ended: &ConnectionError) -> bool {
    matches!(ended, ConnectionError::ApplicationClosed(closed) if closed.error_code == close::REPLACED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_to_a_bound_and_begin_anew_after_a_session_that_lasted() {
        let mut backoff = Backoff::default();
        let millis: Vec<_> = (0..7).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 2000, 2000]);
        backoff.after_session(Duration::from_millis(10), &ConnectionError::Reset);
        assert_eq!(backoff.next(), LAST_INTERVAL);
        backoff.after_session(Duration::from_secs(60), &ConnectionError::Reset);
        assert_eq!(backoff.next(), FIRST_INTERVAL);
    }
}
