//! The session that there is, from its beginning to its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::ConnectionError;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::wire::{Link, Lost, Wire};
use super::{Credentials, DownReason, Event, close};
use crate::message::{GoodbyeReason, Message, MessageError};
use crate::resumption::Resumption;

/// The owner of the data path no longer listens.
pub(super) struct OwnerGone;

/// Proof for the peer that this process has the flows that there are. Whoever dials or accepts
/// greets with it.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<Option<Arc<Resumption>>>);

impl Held {
    pub(super) fn get(&self) -> Option<Arc<Resumption>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, resumption: Option<Arc<Resumption>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = resumption;
    }

    fn is(&self, resumption: &Arc<Resumption>) -> bool {
        self.get().is_some_and(|held| Arc::ptr_eq(&held, resumption))
    }
}

/// Where the session stands.
enum State {
    /// None, and no flows.
    Down,
    /// It is up.
    Up(Up),
    /// Its flows wait for the next one.
    Lost { reason: DownReason, since: Instant, until: Instant },
}

struct Up {
    wire: Wire,
    /// The connection's place in the order of connections.
    order: u64,
    /// How long flows wait once it is lost.
    resume_for: Duration,
}

/// The session that there is, and who is told of it.
pub(super) struct Current {
    state: State,
    held: Arc<Held>,
    events: mpsc::Sender<Event>,
}

impl Current {
    /// None is up. If something is held its flows are another process's, and wait.
    pub(super) fn new(held: Arc<Held>, resume_for: Duration, events: mpsc::Sender<Event>) -> Self {
        let since = Instant::now();
        let lost = |_| State::Lost { reason: DownReason::Replaced, since, until: since + resume_for };
        Self { state: held.get().map_or(State::Down, lost), held, events }
    }

    /// The connection, for the last word.
    pub(super) fn into_wire(self) -> Option<Wire> {
        match self.state {
            State::Up(up) => Some(up.wire),
            State::Down | State::Lost { .. } => None,
        }
    }

    /// A new session takes over. It does not if it was overtaken on its way by a younger one, or if
    /// the flows that it was to go on with have ended meanwhile.
    pub(super) async fn replace(&mut self, link: Link) -> Result<(), OwnerGone> {
        let Link { wire, order, session, resumption, former } = link;
        if matches!(&self.state, State::Up(up) if up.order > order) {
            wire.close(close::REPLACED, b"overtaken");
            return Ok(());
        }
        let goes_on = former.is_some();
        if former.is_some_and(|former| !self.held.is(&former)) {
            wire.close(close::ENDED, b"the flows have ended meanwhile");
            return Ok(());
        }
        self.leave(goes_on, &session.peer).await?;
        let waited = match &self.state {
            State::Lost { since, .. } => Some(since.elapsed()),
            State::Down | State::Up(_) => None,
        };
        info!(
            peer = session.peer.site,
            address = %session.peer.address,
            certificate = session.peer.certificate.as_ref().map(ToString::to_string),
            cipher = session.peer.cipher.name(),
            handshake_rtt = ?session.peer.rtt,
            datagram = session.peer.max_datagram,
            pairings = session.pairings.len(),
            resumes = session.resumes,
            outlives = session.outlives,
            waited = waited.map(tracing::field::debug),
            "session up"
        );
        let resume_for = session.peer.resume_for;
        self.held.set((!resume_for.is_zero()).then_some(resumption));
        self.state = State::Up(Up { wire, order, resume_for });
        self.events.send(Event::Up(Box::new(session))).await.map_err(|_| OwnerGone)
    }

    /// Leaves what there was for a session that has come up: its flows go on, or they end.
    async fn leave(&mut self, goes_on: bool, peer: &super::PeerInfo) -> Result<(), OwnerGone> {
        let reason = match std::mem::replace(&mut self.state, State::Down) {
            State::Down => return Ok(()),
            State::Up(up) => {
                let former = up.wire.connection();
                let ended = former.close_reason();
                if ended.is_none() && !goes_on {
                    warn!(
                        peer = peer.site,
                        former = %former.remote_address(),
                        now = %peer.address,
                        "a new session replaces one that is up"
                    );
                }
                up.wire.close(close::REPLACED, b"replaced by a new session");
                let reason = ended.as_ref().map_or(DownReason::Replaced, down_reason);
                if goes_on {
                    return self.lose(reason, up.resume_for).await;
                }
                reason
            }
            lost @ State::Lost { .. } if goes_on => {
                self.state = lost;
                return Ok(());
            }
            // Whatever it was lost by: who is there now is another process.
            State::Lost { .. } => DownReason::Restarted,
        };
        self.down(reason).await
    }

    /// Waits for the next message, the connection's end, or the end of the flows' patience. May be
    /// cancelled at any time. Never returns if there is nothing to wait for.
    pub(super) async fn next(&mut self) -> Result<Message, Lost> {
        match &mut self.state {
            State::Up(up) => up.wire.next().await,
            State::Lost { until, .. } => {
                sleep_until(*until).await;
                Err(Lost::Silent)
            }
            State::Down => std::future::pending().await,
        }
    }

    pub(super) async fn handle(&mut self, received: Result<Message, Lost>) -> Result<(), OwnerGone> {
        let State::Up(Up { wire, resume_for, .. }) = &self.state else {
            return self.give_up().await;
        };
        let resume_for = *resume_for;
        let reason = match received {
            Ok(Message::Goodbye(reason)) => {
                wire.close(close::GOODBYE, &[reason.wire()]);
                DownReason::Goodbye(reason)
            }
            Ok(other) => {
                let error = MessageError::OutOfOrder(other.kind());
                wire.close(close::PROTOCOL, error.to_string().as_bytes());
                DownReason::Protocol(error)
            }
            Err(Lost::Message(error)) => {
                wire.close(close::PROTOCOL, error.to_string().as_bytes());
                DownReason::Protocol(error)
            }
            Err(Lost::Spent) => {
                wire.close(close::SPENT, b"keys used up");
                DownReason::Spent
            }
            Err(Lost::Stream | Lost::Silent) => {
                wire.close(close::PROTOCOL, b"control stream ended");
                DownReason::Connection("the peer ended the control stream".to_owned())
            }
            Err(Lost::Connection(error)) => down_reason(&error),
        };
        if reason.ends_flows() || resume_for.is_zero() {
            return self.down(reason).await;
        }
        self.lose(reason, resume_for).await
    }

    /// Ends the session if its peer's certificate has been revoked. Its flows wait for a peer that
    /// is the same process, and has another certificate.
    pub(super) async fn turn_away(&mut self, credentials: &Credentials) -> Result<(), OwnerGone> {
        let State::Up(Up { wire, resume_for, .. }) = &self.state else { return Ok(()) };
        if !credentials.turn_away(&wire.connection()) {
            return Ok(());
        }
        let resume_for = *resume_for;
        wire.close(close::REVOKED, b"the certificate is revoked");
        if resume_for.is_zero() {
            return self.down(DownReason::Revoked).await;
        }
        self.lose(DownReason::Revoked, resume_for).await
    }

    /// Flows have waited for long enough.
    async fn give_up(&mut self) -> Result<(), OwnerGone> {
        match std::mem::replace(&mut self.state, State::Down) {
            State::Lost { reason, .. } => self.down(reason).await,
            State::Down | State::Up(_) => Ok(()),
        }
    }

    async fn lose(&mut self, reason: DownReason, resume_for: Duration) -> Result<(), OwnerGone> {
        // The owner tells of it, who knows which flows wait.
        debug!(%reason, ?resume_for, "session lost; its flows wait");
        let since = Instant::now();
        self.state = State::Lost { reason: reason.clone(), since, until: since + resume_for };
        self.events.send(Event::Lost(reason)).await.map_err(|_| OwnerGone)
    }

    async fn down(&mut self, reason: DownReason) -> Result<(), OwnerGone> {
        info!(%reason, "session down");
        self.state = State::Down;
        self.held.set(None);
        self.events.send(Event::Down(reason)).await.map_err(|_| OwnerGone)
    }
}

fn down_reason(error: &ConnectionError) -> DownReason {
    match error {
        ConnectionError::TimedOut => DownReason::Silent,
        ConnectionError::Reset => DownReason::Restarted,
        ConnectionError::ApplicationClosed(closed) if closed.error_code == close::GOODBYE => {
            let reason = closed.reason.first().copied().unwrap_or_default();
            DownReason::Goodbye(GoodbyeReason::from_wire(reason))
        }
        ConnectionError::ApplicationClosed(closed) if closed.error_code == close::REPLACED => {
            DownReason::Replaced
        }
        ConnectionError::ApplicationClosed(closed) if closed.error_code == close::SPENT => DownReason::Spent,
        other => DownReason::Connection(other.to_string()),
    }
}
