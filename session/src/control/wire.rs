//! One connection's messages: the set-up of a session, and reading and writing after it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use rustls_pki_types::CertificateDer;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::warn;
use zeroize::Zeroizing;

use super::{Config, Held, PeerInfo, SETUP_TIMEOUT, Session, close};
use crate::identity::{SerialNumber, earliest_end};
use crate::key_log::KeyLog;
use crate::message::{
    Direction, GoodbyeReason, Hello, MAX_PAIRINGS, MOST_LANES, Message, MessageError, Pairing, Ticket,
    VERSION, encode_all_pairings,
};
use crate::resumption::{CHANNEL_LABEL, Resumption, SECRET_LABEL};
use crate::schedule::{EXPORTER_BYTES, EXPORTER_LABEL, KeyError, Role, Secrets, exporter_context};
use crate::seal::{Opener, Sealer, most_forgeries, packets_per_epoch, session_number};
use crate::threads::ThreadCounts;

const READ_CHUNK: usize = 16 << 10;

/// A connection whose session is agreed on.
pub(super) struct Link {
    pub(super) wire: Wire,
    /// Later connections of this process have higher numbers.
    pub(super) order: u64,
    pub(super) session: Session,
    /// Proof on the next connection that this is the same process.
    pub(super) resumption: Arc<Resumption>,
    /// The proof that there was before, if flows go on.
    pub(super) former: Option<Arc<Resumption>>,
}

/// The control stream of a connection, message by message.
pub(super) struct Wire {
    connection: Connection,
    inbox: Inbox,
    send: SendStream,
    spent: Arc<Spent>,
}

/// Carries word from the threads that seal and open to the connection's task: the keys are used up.
///
/// It may be sent any number of times, and arrives once.
#[derive(Default)]
struct Spent(Notify);

impl Wake for Spent {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// How a connection is lost.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("the peer ended the control stream")]
    Stream,
    #[error("the peer says nothing for {SETUP_TIMEOUT:?}")]
    Silent,
    #[error("the session's keys are used up")]
    Spent,
}

impl From<ReadError> for Lost {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(error) => Lost::Connection(error),
            _ => Lost::Stream,
        }
    }
}

impl From<WriteError> for Lost {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConnectionLost(error) => Lost::Connection(error),
            _ => Lost::Stream,
        }
    }
}

/// Why an authenticated connection came to no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("the session would be with {from}, and `peer.address` is {configured}")]
    Address { from: SocketAddr, configured: SocketAddr },
    #[error("the peer calls itself `{0}`")]
    Site(String),
    #[error("no cipher in common")]
    Cipher,
    #[error("the peer has {there} data-plane threads, and not {expected} as `peer.threads` says here")]
    Threads { expected: u8, there: u8 },
    #[error("{0}: the peer's bulk port would be the one above, there is none")]
    NoBulkPort(SocketAddr),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Says hello, hears the peer's, exchanges pairings and derives the keys. Closes the connection if
/// that fails.
pub(super) async fn set_up(
    connection: Connection,
    role: Role,
    order: u64,
    config: &Config,
    held: &Held,
) -> Result<Link, SetupError> {
    let result = agree(connection.clone(), role, config, held).await;
    match result {
        Ok((wire, session, resumption, former)) => Ok(Link { wire, order, session, resumption, former }),
        Err(error) => {
            connection.close(close_code(&error), error.to_string().as_bytes());
            Err(error)
        }
    }
}

fn close_code(error: &SetupError) -> VarInt {
    match error {
        SetupError::Lost(Lost::Message(MessageError::Version { .. })) => close::VERSION,
        SetupError::Address { .. } => close::ADDRESS,
        SetupError::Site(_) => close::SITE,
        SetupError::Cipher => close::CIPHER,
        SetupError::Threads { .. } => close::THREADS,
        _ => close::PROTOCOL,
    }
}

async fn agree(
    connection: Connection,
    role: Role,
    config: &Config,
    held: &Held,
) -> Result<(Wire, Session, Arc<Resumption>, Option<Arc<Resumption>>), SetupError> {
    check_address(&connection, config)?;
    let (mut send, recv) = match role {
        Role::Dialer => connection.open_bi().await.map_err(Lost::from)?,
        Role::Listener => connection.accept_bi().await.map_err(Lost::from)?,
    };
    let local_session = random_session()?;
    let channel = export(&connection, CHANNEL_LABEL)?;
    // The very one that the ticket is made from, whatever ends meanwhile.
    let held = held.get();
    let ticket = held.as_ref().map(|held| held.ticket(role, &channel)).transpose()?;
    let mut inbox = Inbox::new(recv);
    let greeting = greeting(local_session, ticket, config);
    let speak = async { send.write_all(&greeting).await.map_err(Lost::from) };
    let ((), hello) = tokio::try_join!(speak, hear_hello(&mut inbox))?;
    let (shown, outlives) = (hello.ticket, hello.takes_living && config.outlives.load(Ordering::Relaxed));
    // Before more is said: what a connection that is closed still holds is lost.
    let peer = judge(&connection, role, local_session, hello, config)?;
    let (resumed, outlived) = match held {
        Some(held) if held.admits(shown, role.other(), &channel)? => (Some(held), None),
        // A process without any flows, in the place of the one that had them.
        Some(held) if shown.is_none() && outlives && !peer.resume_for.is_zero() => (None, Some(held)),
        _ => (None, None),
    };
    // Flows that go on are no news.
    let known = if resumed.is_some() { told(&[]) } else { told(&remembered(config, outlived.is_some())) };
    // Both at once: each side may have more to say than fits the other's receive window.
    let speak = async { send.write_all(&known).await.map_err(Lost::from) };
    let ((), pairings) = tokio::try_join!(speak, hear_pairings(&mut inbox))?;
    let spent = Arc::<Spent>::default();
    let threads = (config.threads, config.key_log.as_ref());
    let mut session = derive(&connection, peer, pairings, threads, &Waker::from(Arc::clone(&spent)))?;
    (session.resumes, session.outlives) = (resumed.is_some(), outlived.is_some());
    let former = resumed.clone().or(outlived);
    let resumption = match resumed {
        Some(held) => held,
        None => Arc::new(Resumption::new(export(&connection, SECRET_LABEL)?)),
    };
    Ok((Wire { connection, inbox, send, spent }, session, resumption, former))
}

fn export(connection: &Connection, label: &[u8]) -> Result<Zeroizing<[u8; EXPORTER_BYTES]>, KeyError> {
    let mut secret = Zeroizing::new([0; EXPORTER_BYTES]);
    connection.export_keying_material(secret.as_mut_slice(), label, &[]).map_err(|_| KeyError)?;
    Ok(secret)
}

/// Holds the peer to the address to which its bulk datagrams will go, whatever its certificate
/// says.
/// Its port may be another one: a translator on the way may change it.
fn check_address(connection: &Connection, config: &Config) -> Result<(), SetupError> {
    let (from, configured) = (connection.remote_address(), config.peer_address);
    match from.ip().to_canonical() == configured.ip().to_canonical() {
        true => Ok(()),
        false => Err(SetupError::Address { from, configured }),
    }
}

fn random_session() -> Result<u32, KeyError> {
    let mut bytes = [0; 4];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(session_number(u32::from_be_bytes(bytes)))
}

fn greeting(session: u32, ticket: Option<Ticket>, config: &Config) -> Vec<u8> {
    let mut bytes = Vec::new();
    let hello = Hello {
        site: config.site.clone(),
        session,
        ciphers: config.ciphers,
        max_datagram: config.max_datagram,
        lanes: config.lanes,
        threads: config.threads.here,
        resume_for: u32::try_from(config.resume_for.as_millis()).unwrap_or(u32::MAX),
        ticket,
        build: config.build.clone(),
        remote: config.remote.clone(),
        takes_living: config.outlives.load(Ordering::Relaxed),
        begins_again: true,
    };
    Message::Hello(hello).encode(&mut bytes);
    bytes
}

/// The flows to tell the peer of. If they outlive its process, those of requesters there go on, and
/// so do those of requesters here, of which it need not know.
///
/// Rule: `docs/protocol.md#rule-reborn`.
fn remembered(config: &Config, outlive: bool) -> Vec<Pairing> {
    let known = |known: &watch::Receiver<Arc<[Pairing]>>| known.borrow().to_vec();
    let mut pairings: Vec<Pairing> = config.pairings.iter().flat_map(known).collect();
    if outlive {
        pairings.retain(|pairing| !pairing.lives || pairing.direction == Direction::Inbound);
    } else {
        pairings.iter_mut().for_each(|pairing| pairing.lives = false);
    }
    if pairings.len() > MAX_PAIRINGS {
        warn!(known = pairings.len(), told = MAX_PAIRINGS, "more pairings than a peer takes in");
    }
    pairings
}

fn told(pairings: &[Pairing]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_all_pairings(pairings, &mut bytes);
    bytes
}

async fn hear_hello(inbox: &mut Inbox) -> Result<Hello, Lost> {
    match inbox.next_in_time().await? {
        Message::Hello(hello) => Ok(hello),
        other => Err(MessageError::OutOfOrder(other.kind()).into()),
    }
}

async fn hear_pairings(inbox: &mut Inbox) -> Result<Vec<Pairing>, Lost> {
    let mut all = Vec::new();
    loop {
        match inbox.next_in_time().await? {
            Message::Pairings { last, pairings } => {
                all.extend(pairings);
                if all.len() > MAX_PAIRINGS {
                    return Err(MessageError::TooManyPairings.into());
                }
                if last {
                    return Ok(all);
                }
            }
            other => return Err(MessageError::OutOfOrder(other.kind()).into()),
        }
    }
}

fn judge(
    connection: &Connection,
    role: Role,
    local_session: u32,
    hello: Hello,
    config: &Config,
) -> Result<PeerInfo, SetupError> {
    if hello.site != config.peer {
        return Err(SetupError::Site(hello.site));
    }
    let threads = config.threads;
    if hello.threads != threads.there {
        return Err(SetupError::Threads { expected: threads.there, there: hello.threads });
    }
    // Each pair of threads has as many lanes, and each of these a replay window.
    if hello.lanes.saturating_mul(threads.pairs()) > MOST_LANES {
        return Err(Lost::from(MessageError::Value { field: "lanes" }).into());
    }
    let cipher = config.ciphers.agree(hello.ciphers).ok_or(SetupError::Cipher)?;
    let remote = connection.remote_address();
    let mut address = remote;
    address.set_ip(remote.ip().to_canonical());
    let port = address.port().checked_add(1).ok_or(SetupError::NoBulkPort(address))?;
    // A link-local address keeps its scope.
    let mut bulk = address;
    bulk.set_port(port);
    let chain = shown_chain(connection);
    Ok(PeerInfo {
        site: hello.site,
        certificate: chain.first().and_then(SerialNumber::of),
        valid_until: earliest_end(&chain),
        address,
        bulk,
        cipher,
        max_datagram: config.max_datagram.min(hello.max_datagram),
        lanes: hello.lanes,
        takes: hello.remote,
        begins_again: hello.begins_again,
        resume_for: config.resume_for.min(Duration::from_millis(hello.resume_for.into())),
        local_session,
        remote_session: hello.session,
        rtt: connection.rtt(),
        role,
        build: hello.build,
    })
}

/// The certificates that the peer has shown, its own first.
pub(super) fn shown_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map_or_else(Vec::new, |chain| *chain)
}

fn derive(
    connection: &Connection,
    peer: PeerInfo,
    pairings: Vec<Pairing>,
    (threads, key_log): (ThreadCounts, Option<&KeyLog>),
    spent: &Waker,
) -> Result<Session, KeyError> {
    let (dialer, listener) = match peer.role {
        Role::Dialer => (peer.local_session, peer.remote_session),
        Role::Listener => (peer.remote_session, peer.local_session),
    };
    let context = exporter_context(VERSION, dialer, listener, peer.cipher);
    let mut secret = Zeroizing::new([0; EXPORTER_BYTES]);
    connection
        .export_keying_material(secret.as_mut_slice(), EXPORTER_LABEL, &context)
        .map_err(|_| KeyError)?;
    let secrets = Secrets::derive(&secret, peer.role, peer.cipher)?;
    if let Some(log) = key_log {
        log.session(&secrets, peer.local_session, peer.remote_session)?;
    }
    // Pairs of threads go from epoch to epoch each by itself, and share each epoch's key; so they
    // share its limits.
    let pairs = u64::from(threads.pairs());
    let epoch = packets_per_epoch(peer.max_datagram) / pairs;
    let forgeries = most_forgeries(peer.cipher) / pairs;
    let keys = |nth| {
        let pair = threads.pair(nth);
        let sealer = Sealer::new(peer.remote_session, secrets.send.clone(), epoch)?.between(pair);
        let opener = Opener::new(peer.local_session, secrets.receive.clone(), peer.lanes)?.between(pair);
        Ok((sealer.telling(spent.clone()), opener.within(forgeries, spent.clone())))
    };
    let keys = (0..threads.pairs()).map(keys).collect::<Result<_, KeyError>>()?;
    Ok(Session { keys, peer, pairings, resumes: false, outlives: false })
}

impl Wire {
    /// The next message from the peer, unless the session's keys are used up. May be cancelled at
    /// any time.
    pub(super) async fn next(&mut self) -> Result<Message, Lost> {
        tokio::select! {
            message = self.inbox.next() => message,
            () = self.spent.0.notified() => Err(Lost::Spent),
        }
    }

    /// Sends the last message and waits until the peer has it.
    pub(super) async fn say_goodbye(&mut self, reason: GoodbyeReason) -> Result<(), Lost> {
        let mut bytes = Vec::new();
        Message::Goodbye(reason).encode(&mut bytes);
        self.send.write_all(&bytes).await?;
        // Neither fails otherwise than with the connection, whose end is what this waits for.
        let _ = self.send.finish();
        let _ = self.send.stopped().await;
        Ok(())
    }

    /// Closes the connection at once.
    pub(super) fn close(&self, code: VarInt, reason: &[u8]) {
        self.connection.close(code, reason);
    }

    /// A handle by which to learn of the connection's end, or to see whether it has come.
    pub(super) fn connection(&self) -> Connection {
        self.connection.clone()
    }
}

/// Cuts the received bytes into messages.
struct Inbox {
    recv: RecvStream,
    /// Bytes that are no whole message yet: at most one of the greatest length, and one chunk.
    bytes: Vec<u8>,
    chunk: Box<[u8]>,
}

impl Inbox {
    fn new(recv: RecvStream) -> Self {
        Inbox { recv, bytes: Vec::new(), chunk: vec![0; READ_CHUNK].into_boxed_slice() }
    }

    /// The next message of those that begin a session.
    async fn next_in_time(&mut self) -> Result<Message, Lost> {
        timeout(SETUP_TIMEOUT, self.next()).await.map_err(|_| Lost::Silent)?
    }

    /// May be cancelled at any time.
    async fn next(&mut self) -> Result<Message, Lost> {
        loop {
            if let Some((message, length)) = Message::decode(&self.bytes)? {
                self.bytes.drain(..length);
                return Ok(message);
            }
            let received = self.recv.read(&mut self.chunk).await?.ok_or(Lost::Stream)?;
            self.bytes.extend_from_slice(self.chunk.get(..received).unwrap_or_default());
        }
    }
}
