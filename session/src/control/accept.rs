//! The listening side: takes connections in, a bounded number at a time.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{ConnectionError, Endpoint, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::refusal::{Journal, Refusal, Told, connection_error};
use super::wire::{Link, SetupError, set_up};
use super::{Config, Held, SETUP_LIMIT, SETUP_TIMEOUT};
use crate::schedule::Role;

/// Connections being set up at once from the peer's configured address, and as many from everywhere
/// else, so that strangers cannot keep the peer out. Beyond that they are refused.
const AT_ONCE: usize = 8;
/// From here on, source addresses must prove themselves by a round trip (QUIC Retry) before they
/// cost a handshake.
const UNPROVEN_AT_ONCE: usize = 4;

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("the peer began a session and did not go on in time")]
    Timeout,
    #[error("{AT_ONCE} connections are being set up already")]
    Busy,
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
            Failure::Connection(error) => error.into(),
            Failure::Setup(error) => error.into(),
            Failure::Timeout => Refusal::Timeout,
            Failure::Busy => Refusal::Busy,
        }
    }
}

/// Accepts as long as the socket works, and hands sessions over as they are agreed on.
pub(super) async fn accept(
    endpoint: Endpoint,
    config: Arc<Config>,
    held: Arc<Held>,
    links: mpsc::Sender<Link>,
) {
    let mut door = Door::new(Arc::clone(&config), held);
    let mut journal = Journal::default();
    loop {
        let ended = tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => door.admit(incoming),
                None => return,
            },
            Some(ended) = door.in_progress.join_next() => ended.ok(),
        };
        let Some((address, result)) = ended else {
            continue;
        };
        let failure = match result {
            Ok(link) => match links.send(link).await {
                Ok(()) => {
                    journal.begin_anew();
                    continue;
                }
                Err(_) => return,
            },
            Err(failure) => failure,
        };
        let reason = Refusal::from(&failure);
        let told = Told { failure: &failure, error: failure.of_connection(), peer: &config.peer };
        let is_peers = is_peers(&failure, address, &config);
        if is_peers {
            config.refusals.remember(&told);
        }
        config.refusals.count(reason, address);
        journal.note(reason, address, &told, (is_peers, true));
    }
}

/// Set-up begins once the certificate has proven who it is; before that, there is only the address
/// to go by.
fn is_peers(failure: &Failure, address: SocketAddr, config: &Config) -> bool {
    matches!(failure, Failure::Setup(_)) || is_peers_address(address, config)
}

fn is_peers_address(address: SocketAddr, config: &Config) -> bool {
    address.ip().to_canonical() == config.peer_address.ip().to_canonical()
}

type Ended = (SocketAddr, Result<Link, Failure>);

struct Door {
    config: Arc<Config>,
    held: Arc<Held>,
    in_progress: JoinSet<Ended>,
    for_peer: Arc<Semaphore>,
    for_strangers: Arc<Semaphore>,
    admitted: u64,
}

impl Door {
    fn new(config: Arc<Config>, held: Arc<Held>) -> Self {
        Door {
            config,
            held,
            in_progress: JoinSet::new(),
            for_peer: Arc::new(Semaphore::new(AT_ONCE)),
            for_strangers: Arc::new(Semaphore::new(AT_ONCE)),
            admitted: 0,
        }
    }

    /// Starts the handshake, asks for proof of the address, or refuses. Returns what has ended at
    /// once.
    fn admit(&mut self, incoming: Incoming) -> Option<Ended> {
        let address = incoming.remote_address();
        let pool = match is_peers_address(address, &self.config) {
            true => &self.for_peer,
            false => &self.for_strangers,
        };
        let unproven = incoming.may_retry() && !incoming.remote_address_validated();
        if unproven && pool.available_permits() <= AT_ONCE - UNPROVEN_AT_ONCE {
            // It can fail only for an address that is proven.
            let _ = incoming.retry();
            return None;
        }
        let Ok(permit) = Arc::clone(pool).try_acquire_owned() else {
            incoming.refuse();
            return Some((address, Err(Failure::Busy)));
        };
        let order = self.admitted;
        self.admitted += 1;
        let (config, held) = (Arc::clone(&self.config), Arc::clone(&self.held));
        self.in_progress.spawn(serve(incoming, order, config, held, permit));
        None
    }
}

async fn serve(
    incoming: Incoming,
    order: u64,
    config: Arc<Config>,
    held: Arc<Held>,
    _permit: OwnedSemaphorePermit,
) -> Ended {
    let address = incoming.remote_address();
    let result = async {
        let handshake = timeout(SETUP_TIMEOUT, incoming.accept()?);
        let connection = handshake.await.map_err(|_| Failure::Timeout)??;
        let set_up = timeout(SETUP_LIMIT, set_up(connection, Role::Listener, order, &config, &held));
        Ok(set_up.await.map_err(|_| Failure::Timeout)??)
    };
    (address, result.await)
}
