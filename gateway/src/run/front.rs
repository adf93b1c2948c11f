//! The admin listeners. They answer while the gateway waits at its start, too: whoever asks sees
//! what is missing.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener as Listening;

use super::{RunError, Towards, takeover};
use crate::admin::{Admin, Doors, Listener, Serving};
use crate::renewal::ListenerRenewal;
use crate::requests::Requests;
use crate::upgrade::{Heir, Place};

/// The admin listeners of a gateway that starts: closed, open, and then answering.
pub(super) struct Front<'a> {
    address: Option<SocketAddr>,
    peers: &'a [Towards],
    requests: &'a Requests,
    stage: Stage,
    /// Copies of the open ones, for a process that takes this one's place.
    copies: Vec<(Place, OwnedFd)>,
}

enum Stage {
    /// The socket in the file system is open, unlike the TCP listener.
    Closed(Doors),
    Open(Option<TcpListener>, Doors),
    Answering(Answering),
    /// It failed in between.
    Gone,
}

/// The admin listeners at work.
#[derive(Default)]
pub(super) struct Answering {
    /// Who reads the TCP listener's certificate again, if it has one.
    pub(super) listener: Option<ListenerRenewal>,
    /// For each peer.
    pub(super) admins: Vec<Arc<Admin>>,
    pub(super) serving: Serving,
}

impl<'a> Front<'a> {
    pub(super) fn new(
        gateway: &config::Gateway,
        doors: Doors,
        peers: &'a [Towards],
        requests: &'a Requests,
    ) -> Self {
        let address = gateway.admin.as_ref().and_then(|admin| admin.listen);
        Self { address, peers, requests, stage: Stage::Closed(doors), copies: Vec::new() }
    }

    /// Opens the TCP listener, where the gateway file asks for it, unless it is open.
    ///
    /// # Errors
    /// It cannot be opened, and may be tried again.
    pub(super) fn open(&mut self, heir: Option<&mut Heir>) -> Result<(), RunError> {
        if !matches!(self.stage, Stage::Closed(_)) {
            return Ok(());
        }
        let listener = self.address.map(|address| listen(address, heir)).transpose()?;
        if let Some(listener) = &listener {
            self.keep(Place::Admin, listener.as_fd())?;
        }
        if let Stage::Closed(doors) = std::mem::replace(&mut self.stage, Stage::Gone) {
            if let Some(socket) = doors.socket() {
                self.keep(Place::AdminSocket, socket.as_fd())?;
            }
            self.stage = Stage::Open(listener, doors);
        }
        Ok(())
    }

    fn keep(&mut self, place: Place, socket: BorrowedFd<'_>) -> Result<(), RunError> {
        self.copies.push((place, socket.try_clone_to_owned().map_err(RunError::System)?));
        Ok(())
    }

    /// Begins to answer by what is open, unless it does.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn answer(&mut self) -> Result<(), RunError> {
        let (listener, doors) = match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Open(listener, doors) => (listener, doors),
            other => {
                self.stage = other;
                return Ok(());
            }
        };
        let telemetry = self.peers.first().map(|peer| Arc::clone(&peer.telemetry));
        let renewal = doors.tls().zip(telemetry);
        let renewal = renewal.map(|(tls, telemetry)| ListenerRenewal::new(Arc::clone(tls), telemetry));
        let (admins, serving) = serve(listener, doors, self.peers, self.requests)?;
        self.stage = Stage::Answering(Answering { listener: renewal, admins, serving });
        Ok(())
    }

    /// Returns copies of what is open, with their places. It has none afterwards.
    pub(super) fn copies(&mut self) -> Vec<(Place, OwnedFd)> {
        std::mem::take(&mut self.copies)
    }

    /// Returns what answers, if it does.
    pub(super) fn into_answering(self) -> Answering {
        match self.stage {
            Stage::Answering(answering) => answering,
            Stage::Closed(_) | Stage::Open(..) | Stage::Gone => Answering::default(),
        }
    }
}

fn listen(address: SocketAddr, heir: Option<&mut Heir>) -> Result<TcpListener, RunError> {
    let failed = |source| RunError::Admin { address, source };
    let inherited = heir.and_then(|heir| takeover::admin_listener(heir, address));
    let listener = inherited.map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Begins to answer. Returns what answers for each peer.
fn serve(
    listener: Option<TcpListener>,
    doors: Doors,
    peers: &[Towards],
    requests: &Requests,
) -> Result<(Vec<Arc<Admin>>, Serving), RunError> {
    let (socket, token, tls) = doors.into_parts();
    let Some(first) = peers.first().filter(|_| listener.is_some() || socket.is_some()) else {
        return Ok((Vec::new(), Serving::new()));
    };
    let admin_of = |peer: &Towards| {
        let Towards { gateway, policy, telemetry, recorder, .. } = peer;
        let (telemetry, recorder) = (Arc::clone(telemetry), Arc::clone(recorder));
        Admin::new(gateway, policy, telemetry, recorder, requests.clone(), Instant::now())
    };
    let others: Vec<_> = peers.iter().skip(1).map(|peer| Arc::new(admin_of(peer))).collect();
    let admin = Arc::new(admin_of(first).with_token(token).with_others(others.clone()));
    let listener = listener.map(Listening::from_std).transpose().map_err(RunError::System)?;
    let listener = listener.map(|listener| match tls {
        Some(tls) => Listener::Tls(listener, tls),
        None => Listener::Tcp(listener),
    });
    let serving = admin.start(listener, socket).map_err(RunError::System)?;
    Ok((std::iter::once(admin).chain(others).collect(), serving))
}
