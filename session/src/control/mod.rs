//! The control connection: one QUIC connection of two gateways.
//!
//! It authenticates both, yields the keys of the bulk path, and tells of a session's begin and end.
//!
//! The gateway whose site name sorts first dials, as long as it runs; the other listens.
//! Both use [`Config::listen`], and each side's bulk port is the one above its QUIC port.
//! Every connection is a new session with new keys.
//! If the same peer opens another one, that replaces the first, which the peer must have lost.
//! If both sides prove that they are the processes of the session before, its flows go on.
//!
//! The owner of the data path
//! 1. keeps [`Config::pairings`] filled with what it knows, and receives events without pause;
//! 2. on [`Event::Up`] starts with the [`Session`]'s sealers and openers;
//! 3. on [`Event::Lost`] keeps the session's flows, and its keys for as long as bulk data come;
//! 4. on [`Event::Down`] drops the keys, which erases them, and ends the session's flows;
//! 5. sends [`Command::Goodbye`] to stop, after which [`Control::run`] returns.
//!
//! An `Up` is followed by `Lost` or `Down`, and a `Lost` by an `Up` with which flows go on or by
//! `Down`. After `Down` comes an `Up` with which none do.
//! Control waits for the owner at the events' queue only.
//! If one task receives the events and sends commands, it uses `try_send` for these.

mod accept;
mod current;
mod dial;
mod refusal;
mod renewal;
mod socket;
mod wire;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use quinn::crypto::rustls::NoInitialCipherSuite;
use quinn::{IdleTimeout, TransportConfig, VarInt};
use rustls_pki_types::UnixTime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::identity::{Identity, IdentityError, SerialNumber, server_name};
use crate::key_log::KeyLog;
use crate::message::{Cipher, Ciphers, GoodbyeReason, MessageError, Pairing};
use crate::resumption::Resumption;
use crate::schedule::Role;
use crate::seal::{Opener, Sealer};
use crate::threads::ThreadCounts;
use current::{Current, Held, OwnerGone};
use wire::Link;

pub use refusal::{Impostor, Refusal, Refusals};
use renewal::Credentials;
pub use renewal::Renewal;
pub use socket::Gate;
use socket::{ControlSocket, Strangers};

/// Default of [`Config::dead_after`].
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// The handshake must be through by then, and so much later the hello and, one after the other,
/// each message of pairings.
const SETUP_TIMEOUT: Duration = Duration::from_secs(3);
/// And all of these, of which there are the more the more flows there were: 13 MB for the most, on
/// a link that may lose a packet in a hundred.
const SETUP_LIMIT: Duration = Duration::from_secs(240);
/// Until a path's round trip is known. It makes the first retransmissions of a handshake come at
/// 0.3, 0.9 and 2.1 s.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Between two of [`Config::pulse`].
const PULSE: Duration = Duration::from_secs(1);
/// How long a goodbye may take to be acknowledged.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// Codes with which a gateway closes the QUIC connection.
mod close {
    use quinn::VarInt;

    /// The reason phrase is one byte, the goodbye's reason.
    pub(super) const GOODBYE: VarInt = VarInt::from_u32(1);
    pub(super) const REPLACED: VarInt = VarInt::from_u32(2);
    pub(super) const PROTOCOL: VarInt = VarInt::from_u32(3);
    pub(super) const VERSION: VarInt = VarInt::from_u32(4);
    pub(super) const SITE: VarInt = VarInt::from_u32(5);
    pub(super) const CIPHER: VarInt = VarInt::from_u32(6);
    pub(super) const THREADS: VarInt = VarInt::from_u32(7);
    pub(super) const ADDRESS: VarInt = VarInt::from_u32(8);
    pub(super) const SPENT: VarInt = VarInt::from_u32(9);
    /// The flows that were to go on have ended meanwhile.
    pub(super) const ENDED: VarInt = VarInt::from_u32(10);
    /// The peer's certificate has been revoked since the session began.
    pub(super) const REVOKED: VarInt = VarInt::from_u32(11);
}

/// Settings of the control connection.
#[derive(Debug)]
pub struct Config {
    /// This site's name.
    pub site: String,
    /// The peer site's name.
    pub peer: String,
    /// Address to speak QUIC on, in both roles. Bulk is on the port above.
    pub listen: SocketAddr,
    /// The peer's address. The side that dials dials it; the other takes no other IP address.
    pub peer_address: SocketAddr,
    /// The index of the interface by which a link-local peer is dialled, which may change; 0: that
    /// of `peer_address`.
    pub peer_scope: Arc<AtomicU32>,
    /// Certificate, key and authority.
    pub identity: Identity,
    /// Certificates that are turned away within the handshake.
    pub revoked: Vec<SerialNumber>,
    /// Silence after which the peer counts as dead. The smaller of both sides' values holds.
    pub dead_after: Duration,
    /// How long flows wait for a session that is lost. The smaller of both sides' values holds.
    /// Zero: flows end with their session.
    pub resume_for: Duration,
    /// Flows here outlive the peer's process, and those of the peer outlive this one. False for
    /// good once a requester may have been told more than its target had: then they end.
    pub outlives: Arc<AtomicBool>,
    /// Largest bulk datagram (UDP payload, in bytes) to send or take in; see
    /// [`crate::seal::max_datagram`].
    pub max_datagram: u16,
    /// Lanes to announce: those that each pair of threads sends on. The peer refuses what comes on
    /// others. All pairs together have [`MOST_LANES`](crate::MOST_LANES) at most.
    pub lanes: u8,
    /// Data-plane threads here and at the peer, 1 at least. A peer with another number gets no
    /// session.
    pub threads: ThreadCounts,
    /// Ciphers to offer.
    pub ciphers: Ciphers,
    /// Prefixes of the hosts behind the peer, to be told to it.
    pub remote: Vec<IpNet>,
    /// Flows of the previous session to tell the peer of, by pair of data-plane threads.
    ///
    /// They are read whenever a session starts.
    pub pairings: Vec<watch::Receiver<Arc<[Pairing]>>>,
    /// The program's build, for the peer to show.
    pub build: String,
    /// Grows about every second while [`Control::run`] makes progress.
    pub pulse: Arc<AtomicU64>,
    /// Peers that got no session.
    pub refusals: Arc<Refusals>,
    /// Where the keys of bulk data are logged, if anywhere: whoever reads them reads the traffic.
    pub key_log: Option<KeyLog>,
}

/// News for the owner of the data path.
#[derive(Debug)]
pub enum Event {
    /// A session is up.
    Up(Box<Session>),
    /// Its control connection is gone. Its flows wait for the next session, for
    /// [`PeerInfo::resume_for`] at most.
    Lost(DownReason),
    /// It is gone for good, and its keys are of no use any more.
    Down(DownReason),
}

/// A session that has just come up.
#[derive(Debug)]
pub struct Session {
    /// Sealer and opener of each pair of data-plane threads ([`ThreadCounts::pair`]).
    pub keys: Vec<(Sealer, Opener)>,
    /// The other side.
    pub peer: PeerInfo,
    /// Flows of the previous session that the peer told of.
    pub pairings: Vec<Pairing>,
    /// Both sides have proven that they are the processes of the session before: its flows and
    /// streams go on.
    pub resumes: bool,
    /// The peer's process is another one, which has no flows. Those here go on by what requesters
    /// and targets know; streams begin anew.
    pub outlives: bool,
}

/// The other side of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its site name, proven by its certificate.
    pub site: String,
    /// Its certificate's serial number.
    pub certificate: Option<SerialNumber>,
    /// When its certificate, or one above it that it has sent, expires.
    pub valid_until: Option<UnixTime>,
    /// Address that it speaks QUIC on.
    pub address: SocketAddr,
    /// Address that it takes in bulk datagrams on.
    pub bulk: SocketAddr,
    /// The cipher agreed on.
    pub cipher: Cipher,
    /// Largest bulk datagram (UDP payload, in bytes) that both sides take.
    pub max_datagram: u16,
    /// Lanes that it sends on.
    pub lanes: u8,
    /// Prefixes that it takes for this site's: it drops what comes in another name. None if it does
    /// not say.
    pub takes: Vec<IpNet>,
    /// See [`Hello::begins_again`](crate::message::Hello::begins_again).
    pub begins_again: bool,
    /// How long flows wait for the session if it is lost, on both sides.
    pub resume_for: Duration,
    /// Session number in datagrams from the peer.
    pub local_session: u32,
    /// Session number in datagrams to the peer.
    pub remote_session: u32,
    /// Smoothed round-trip time of the handshake.
    pub rtt: Duration,
    /// This side's role towards it.
    pub role: Role,
    /// Its build; empty if it does not say.
    pub build: String,
}

/// A reason why a session ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The peer ended it on purpose.
    #[error("the peer said goodbye: {0}")]
    Goodbye(GoodbyeReason),
    /// A new one took its place, whichever side opened that; [`Event::Up`] follows.
    #[error("a new session took its place")]
    Replaced,
    /// Nothing was heard for `dead_after`.
    #[error("the peer has gone silent")]
    Silent,
    /// The peer runs, but knows nothing of the session (stateless reset), or its flows waited and
    /// the new session is another process's.
    #[error("the peer restarted")]
    Restarted,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(MessageError),
    /// One side's keys are used up, by forged datagrams or by packets beyond number.
    #[error("the session's keys are used up")]
    Spent,
    /// The peer's certificate has been revoked since.
    #[error("the peer's certificate is revoked")]
    Revoked,
    /// The connection ended in another way.
    #[error("the connection ended: {0}")]
    Connection(String),
}

impl DownReason {
    /// Returns true if the peer ended the flows as well: it stops, or broke the protocol.
    #[must_use]
    pub fn ends_flows(&self) -> bool {
        matches!(self, DownReason::Goodbye(_) | DownReason::Protocol(_))
    }
}

/// An order from the owner of the data path.
#[derive(Debug)]
pub enum Command {
    /// Tell the peer that this is the end, and return from [`Control::run`].
    Goodbye(GoodbyeReason),
    /// Another process takes over, by what [`Claim::get`] returned before: lose the session without
    /// a goodbye, so that its flows wait, and return from [`Control::run`].
    HandOver,
    /// Let no session begin or end until another process has taken over, or has not.
    Hold(Hold),
}

/// The time between the moment when another process is given [`Claim::get`] and its answer.
///
/// Events that were sent before [`Hold::standing`] are to be received first: until then the queue
/// may hold control up, and what they tell belongs to what is claimed.
#[derive(Debug)]
pub struct Hold {
    /// Told when no event follows any more.
    pub standing: oneshot::Sender<()>,
    /// True: the other has taken over, as by [`Command::HandOver`]. False, or no answer: go on.
    pub taken: oneshot::Receiver<bool>,
}

/// The way to what another process has to hold to go on with this one's flows.
#[derive(Clone, Debug)]
pub struct Claim(Arc<Held>);

impl Claim {
    /// Returns the secret of the flows that there are, or wait; `None` if there are none that
    /// could go on. Whoever has it passes for this process, with a certificate of its site.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Resumption>> {
        self.0.get()
    }
}

/// A reason why control cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Both sites have the same name, but for case.
    #[error("this site and its peer have the same name, `{0}`")]
    SameName(String),
    /// The QUIC port has no port above it for bulk.
    #[error("{0}: the port above is needed for bulk datagrams, there is none")]
    NoBulkPort(SocketAddr),
    /// `dead_after` is longer than QUIC can say.
    #[error("dead_after is too long: {0:?}")]
    DeadAfter(Duration),
    /// Certificates or keys.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The TLS library lacks what QUIC needs.
    #[error(transparent)]
    Tls(#[from] NoInitialCipherSuite),
    /// The socket could not be opened.
    #[error("cannot open {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// The QUIC socket failed for good while in use: no session can come up any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the QUIC socket failed")]
pub struct SocketLost;

/// Returns a link-local address on the interface of this index; 0: the address as it is.
#[must_use]
pub fn with_scope(mut address: SocketAddr, scope: u32) -> SocketAddr {
    if let (SocketAddr::V6(address), 1..) = (&mut address, scope) {
        address.set_scope_id(scope);
    }
    address
}

/// Returns the role of site `own` towards `peer`: the name that sorts first, byte by byte, dials.
#[must_use]
pub fn role(own: &str, peer: &str) -> Role {
    Role::of(own, peer)
}

/// The control side of a gateway, its socket open.
#[derive(Debug)]
pub struct Control {
    config: Arc<Config>,
    endpoint: quinn::Endpoint,
    newest: watch::Sender<Arc<Credentials>>,
    held: Arc<Held>,
    gate: Gate,
}

impl Control {
    /// Checks the configuration and the own certificate, and opens the socket. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(config: Config) -> Result<Self, StartError> {
        check(&config)?;
        let socket = UdpSocket::bind(config.listen)
            .map_err(|source| StartError::Bind { address: config.listen, source })?;
        Self::checked(socket, config, Gate::default())
    }

    /// As [`Control::bind`], with a socket that is bound to [`Config::listen`]. Only the peer's
    /// datagrams need to come by it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn on(socket: UdpSocket, config: Config) -> Result<Self, StartError> {
        check(&config)?;
        Self::checked(socket, config, Gate::default())
    }

    /// As [`Control::on`], with a socket that another process still receives by: nothing is
    /// received before [`Control::gate`] opens.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn behind_gate(socket: UdpSocket, config: Config) -> Result<Self, StartError> {
        check(&config)?;
        let gate = Gate::default();
        gate.shut();
        Self::checked(socket, config, gate)
    }

    fn checked(socket: UdpSocket, config: Config, gate: Gate) -> Result<Self, StartError> {
        let credentials = Credentials::new(&config, &config.identity, &config.revoked)?;
        let strangers = Strangers::new(config.peer_address.ip(), Arc::clone(&config.refusals));
        let endpoint = open(socket, &config.identity, credentials.server.clone(), (strangers, gate.clone()))
            .map_err(|source| StartError::Bind { address: config.listen, source })?;
        let (config, newest) = (Arc::new(config), watch::Sender::new(Arc::new(credentials)));
        Ok(Control { config, endpoint, newest, held: Arc::default(), gate })
    }

    /// Holds flows that another process had, which wait for [`Config::resume_for`]. The owner of
    /// the data path has them, and its first event tells what becomes of them.
    #[must_use]
    pub fn holding(self, resumption: Resumption) -> Self {
        self.held.set(Some(Arc::new(resumption)));
        self
    }

    /// Returns the way to what the next process has to hold.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim(Arc::clone(&self.held))
    }

    /// Returns the way to keep it from receiving.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Returns the way to give it another identity while it runs.
    #[must_use]
    pub fn renewal(&self) -> Renewal {
        let (config, endpoint) = (Arc::clone(&self.config), self.endpoint.clone());
        Renewal { config, endpoint, newest: self.newest.clone() }
    }

    /// Returns the address that QUIC is spoken on.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Keeps a session up for as long as it runs: until [`Command::Goodbye`], or until the owner
    /// dropped its end of either queue. A session that is up then ends without a further event.
    /// Dropping the future closes everything without a goodbye.
    ///
    /// # Errors
    /// [`SocketLost`]; everything else is waited out.
    pub async fn run(
        self,
        events: mpsc::Sender<Event>,
        mut commands: mpsc::Receiver<Command>,
    ) -> Result<(), SocketLost> {
        let (found, mut links) = mpsc::channel(1);
        let mut seeker = self.seek(&self.held, found);
        let mut current = Current::new(Arc::clone(&self.held), self.config.resume_for, events);
        let mut newest = self.newest.subscribe();
        let mut pulses = tokio::time::interval(PULSE);
        let (end, result) = loop {
            // In this order, so that a session's own end is seen before the session that follows
            // it.
            let step = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Goodbye(reason)) => break (End::Goodbye(reason), Ok(())),
                    Some(Command::HandOver) => break (End::HandOver, Ok(())),
                    Some(Command::Hold(hold)) => match hold.answer().await {
                        true => break (End::HandOver, Ok(())),
                        false => Ok(()),
                    },
                    None => break (End::Goodbye(GoodbyeReason::Shutdown), Ok(())),
                },
                _ = pulses.tick() => {
                    self.config.pulse.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                received = current.next() => current.handle(received).await,
                Ok(()) = newest.changed() => {
                    let newest = Arc::clone(&newest.borrow_and_update());
                    current.turn_away(&newest).await
                }
                Some(link) = links.recv() => {
                    // Another identity may have let it in.
                    let newest = Arc::clone(&newest.borrow());
                    match newest.turn_away(&link.wire.connection()) {
                        true => { link.wire.close(close::REVOKED, b"the certificate is revoked"); Ok(()) }
                        false => current.replace(link).await,
                    }
                }
                _ = seeker.join_next() => break (End::Goodbye(GoodbyeReason::Restart), Err(SocketLost)),
            };
            if let Err(OwnerGone) = step {
                break (End::Goodbye(GoodbyeReason::Shutdown), Ok(()));
            }
        };
        seeker.abort_all();
        self.leave(current, end).await;
        result
    }

    /// Starts the task that finds sessions. It ends only with the socket.
    fn seek(&self, held: &Arc<Held>, found: mpsc::Sender<Link>) -> JoinSet<()> {
        let mut seeker = JoinSet::new();
        let (endpoint, config, held) = (self.endpoint.clone(), Arc::clone(&self.config), Arc::clone(held));
        match role(&config.site, &config.peer) {
            Role::Dialer => seeker.spawn(dial::dial(endpoint, self.newest.subscribe(), config, held, found)),
            Role::Listener => seeker.spawn(accept::accept(endpoint, config, held, found)),
        };
        seeker
    }

    async fn leave(self, current: Current, end: End) {
        let (code, words) = match end {
            End::Goodbye(reason) => (close::GOODBYE, vec![reason.wire()]),
            End::HandOver => (close::REPLACED, b"another process takes over".to_vec()),
        };
        if let Some(mut wire) = current.into_wire() {
            match end {
                End::Goodbye(reason) => {
                    // A peer that does not answer will find out by itself.
                    let _ = timeout(GOODBYE_TIMEOUT, wire.say_goodbye(reason)).await;
                    info!(peer = self.config.peer, %reason, "session ended");
                }
                End::HandOver => wire.close(code, &words),
            }
        }
        self.endpoint.close(code, &words);
        let _ = timeout(GOODBYE_TIMEOUT, self.endpoint.wait_idle()).await;
    }
}

impl Hold {
    /// Stands still until there is an answer.
    async fn answer(self) -> bool {
        self.standing.send(()).is_ok() && self.taken.await.unwrap_or(false)
    }
}

/// How [`Control::run`] ends.
#[derive(Clone, Copy)]
enum End {
    Goodbye(GoodbyeReason),
    HandOver,
}

fn check(config: &Config) -> Result<(), StartError> {
    if config.site.eq_ignore_ascii_case(&config.peer) {
        return Err(StartError::SameName(config.site.clone()));
    }
    for address in [config.listen, config.peer_address] {
        if address.port() == u16::MAX {
            return Err(StartError::NoBulkPort(address));
        }
    }
    server_name(&config.peer)?;
    match config.identity.verify(&config.site, role(&config.site, &config.peer), UnixTime::now()) {
        // A clock that is not set yet, as after some boots, is set later. Until then the peer's
        // certificate is refused, attempt by attempt.
        Err(error @ IdentityError::NotYetValid { .. }) => warn!("no session for now: {error}"),
        judged => judged?,
    }
    Ok(())
}

fn transport(dead_after: Duration) -> Result<TransportConfig, StartError> {
    let idle = IdleTimeout::try_from(dead_after).map_err(|_| StartError::DeadAfter(dead_after))?;
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(keep_alive(dead_after)))
        .initial_rtt(INITIAL_RTT)
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None);
    Ok(transport)
}

/// Eight to the silence that means death, so that losses in a row do not look like it.
fn keep_alive(dead_after: Duration) -> Duration {
    (dead_after / 8).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

fn open(
    socket: UdpSocket,
    identity: &Identity,
    server: Option<quinn::ServerConfig>,
    (strangers, gate): (Strangers, Gate),
) -> io::Result<quinn::Endpoint> {
    let mut endpoint = quinn::EndpointConfig::new(Arc::new(identity.reset_key()));
    // After a restart, connection numbers of before must still be recognised, or they would get no
    // stateless reset.
    let key = identity.connection_id_key();
    endpoint.cid_generator(move || Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(key)));
    let socket = Arc::new(ControlSocket::new(socket, strangers, gate)?);
    quinn::Endpoint::new_with_abstract_socket(endpoint, server, socket, Arc::new(quinn::TokioRuntime))
}

#[cfg(test)]
mod tests;
