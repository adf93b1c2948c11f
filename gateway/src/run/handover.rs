//! This gateway's place, handed to another process.
//!
//! Up to the word "yours" this process goes on as if nothing had been, whatever happens: its
//! threads and its control connections only stood still.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use session::control::{Control, Gate};
use session::resumption::Resumption;
use snapshot::Written;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use super::supervisor::{Ask, Holding};
use super::{RunError, Running};
use crate::events::EventKind;
use crate::plane::Frozen;
use crate::requests::Claimant;
use crate::retention::RetainedFiles;
use crate::service::Notifier;
use crate::upgrade::{
    Broken, Channel, Giver, Place, STAND_STILL, Stand, Waiting, control_group, executable, peer_threads,
};

/// How long a session may take until it stands still.
const STANDING: Duration = Duration::from_secs(1);

/// Needs of the process that takes this one's place, besides the flows.
pub(super) struct Legacy {
    stand: Stand,
    /// Copies of sockets that no thread has.
    sockets: Vec<(Place, OwnedFd)>,
    /// The ways to keep control connections from receiving.
    pub(super) gates: Vec<Gate>,
}

impl Legacy {
    pub(super) fn new(gateway: &config::Gateway, notifier: &Notifier, retained: &RetainedFiles) -> Self {
        let stand = Stand {
            // Both as agreed on.
            protocol: 0,
            snapshot: 0,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            executable: executable(),
            pid: std::process::id(),
            control_group: notifier.is_heard().then(control_group).flatten(),
            watchdog: notifier.watchdog_micros(),
            site: gateway.site.name.clone(),
            peers: gateway.peers().map(|peer| peer.name.clone()).collect(),
            threads: gateway.data_plane.threads,
            peer_threads: peer_threads(gateway),
            sockets: 0,
            waiting: Vec::new(),
            retained: Some(retained.ids()),
            is_member: gateway.is_member(),
        };
        Self { stand, sockets: Vec::new(), gates: Vec::new() }
    }

    /// Keeps copies of everything that no thread has.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn keep_all(
        &mut self,
        controls: &[Control],
        sockets: Vec<UdpSocket>,
        lock: Option<&UnixListener>,
        admin: Vec<(Place, OwnedFd)>,
    ) -> Result<(), RunError> {
        self.gates.extend(controls.iter().map(Control::gate));
        let sockets = (0..).zip(sockets);
        self.sockets.extend(sockets.map(|(nth, socket)| (Place::Control(nth), socket.into())));
        if let Some(lock) = lock {
            let copy = lock.as_fd().try_clone_to_owned().map_err(RunError::System)?;
            self.sockets.push((Place::Lock, copy));
        }
        self.sockets.extend(admin);
        Ok(())
    }
}

/// A process that prepares itself to take over.
pub(super) type Preparing = (JoinHandle<Result<Giver, Broken>>, OwnedSemaphorePermit);

/// Why nobody takes over from a gateway that is to end.
pub(super) const STOPPING: &str = "the running gateway was told to stop";

/// Tells who wants to take over why that cannot be.
pub(super) fn turn_away(claimant: Claimant, why: String) {
    let Claimant { stream, place } = claimant;
    // Writing to it may block for a while.
    drop(spawn_blocking(move || {
        if let Ok(mut channel) = Channel::new(stream, Duration::from_secs(1)) {
            channel.refuse(&why);
        }
        drop(place);
    }));
}

/// Waits for a process that prepares itself, for ever if there is none.
pub(super) async fn prepared(
    preparing: &mut Option<Preparing>,
) -> (Result<Giver, Broken>, Option<OwnedSemaphorePermit>) {
    let Some((task, _)) = preparing.as_mut() else { return std::future::pending().await };
    let prepared = task.await.unwrap_or(Err(Broken::Gone));
    (prepared, preparing.take().map(|(_, place)| place))
}

/// Why another process does not take over.
#[derive(Debug, thiserror::Error)]
enum NotGiven {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("{0}")]
    Unable(String),
}

impl Running {
    /// Greets a process that wants to take over; that takes as long as it prepares itself.
    pub(super) async fn greet(&self, claimant: Claimant) -> Option<Preparing> {
        let Claimant { stream, place } = claimant;
        let lent = self.lend().await;
        let (sockets, waiting) = match lent {
            Ok(lent) => lent,
            Err(error) => {
                warn!(%error, "no process can take over: sockets cannot be copied");
                turn_away(Claimant { stream, place }, format!("its sockets cannot be copied: {error}"));
                return None;
            }
        };
        let stand = Stand { waiting, ..self.legacy.0.stand.clone() };
        let copier = self.threads.copier();
        let prepare = move || Giver::prepare(stream, stand, &sockets, |offers| copier.copy(offers));
        Some((spawn_blocking(prepare), place))
    }

    async fn lend(&self) -> std::io::Result<(Vec<(Place, OwnedFd)>, Vec<Waiting>)> {
        let mut sockets = Vec::new();
        for (place, socket) in &self.legacy.0.sockets {
            sockets.push((*place, socket.as_fd().try_clone_to_owned()?));
        }
        let (lent, waiting) = self.threads.lend().await?;
        sockets.extend(lent);
        Ok((sockets, waiting))
    }

    /// Hands everything over to a process that is prepared. `None`: this one goes on.
    pub(super) async fn hand_over(&mut self, prepared: Result<Giver, Broken>) -> Option<Giver> {
        let begun = Instant::now();
        let mut giver = match prepared {
            Ok(giver) => giver,
            // It may have had nothing to do.
            Err(why @ Broken::Gone) => {
                info!(%why, "a process that might have taken over did not: nothing has changed");
                return None;
            }
            Err(why) => {
                self.goes_on(&crate::causes::chain(&why), begun.elapsed());
                return None;
            }
        };
        let (holdings, verdicts) = hold_all(&self.asks).await;
        let given = match holdings {
            Ok(claims) => self.give(giver, claims).await,
            Err(why) => {
                giver.refuse(&why);
                Err(NotGiven::Unable(why))
            }
        };
        for verdict in verdicts {
            // Whoever is gone needs none.
            let _ = verdict.send(given.is_ok());
        }
        match given {
            Ok(giver) => {
                info!(after = ?begun.elapsed(), "another process takes over");
                Some(giver)
            }
            Err(why) => {
                self.goes_on(&crate::causes::chain(&why), begun.elapsed());
                None
            }
        }
    }

    fn goes_on(&self, why: &str, stood_still: Duration) {
        warn!(?stood_still, "another process wanted to take over, and has not: {why}");
        if let Some(telemetry) = self.telemetries.first() {
            telemetry.events().about_all().push(EventKind::UpgradeFailed, why);
        }
    }

    /// Has the threads stand still, and hands their state over. Returns once nothing here goes on.
    async fn give(&self, giver: Giver, claims: Claims) -> Result<Giver, NotGiven> {
        let (verdicts, frozen) = self.threads.freeze();
        let frozen = timeout(STAND_STILL, frozen.all()).await;
        let states: Vec<_> = frozen.unwrap_or_default();
        let gates = self.legacy.0.gates.clone();
        let is_whole = states.len() == verdicts.len();
        let given = match is_whole {
            true => spawn_blocking(move || give(giver, &claims, states, &gates)).await,
            false => Ok(Err((giver, NotGiven::Unable("not all threads stand still".to_owned())))),
        };
        let given = match given {
            Ok(Ok(giver)) => Ok(giver),
            Ok(Err((mut giver, why))) => {
                giver.refuse(&why.to_string());
                self.legacy.0.gates.iter().for_each(Gate::open);
                // Unmapping its rooms takes time that flows need not wait for.
                drop(spawn_blocking(move || drop(giver)));
                Err(why)
            }
            Err(_) => {
                self.legacy.0.gates.iter().for_each(Gate::open);
                Err(NotGiven::Unable("the hand-over broke off".to_owned()))
            }
        };
        for verdict in verdicts {
            // A thread that has ended is told of by the watchdog.
            let _ = verdict.send(given.is_ok());
        }
        given
    }
}

type Claims = Vec<Option<Arc<Resumption>>>;

/// Has all sessions stand still. Each verdict is to be sent.
async fn hold_all(asks: &[mpsc::Sender<Ask>]) -> (Result<Claims, String>, Vec<oneshot::Sender<bool>>) {
    let (mut standing, mut verdicts) = (Vec::new(), Vec::new());
    for ask in asks {
        let (reply, answer) = oneshot::channel();
        let (verdict, taken) = oneshot::channel();
        if ask.send(Ask::Hold(Holding { standing: reply, taken })).await.is_ok() {
            standing.push(answer);
            verdicts.push(verdict);
        }
    }
    let mut claims = Vec::new();
    for answer in standing {
        match timeout(STANDING, answer).await {
            Ok(Ok(Ok(claim))) => claims.push(claim),
            Ok(Ok(Err(why))) => return (Err(why), verdicts),
            Ok(Err(_)) | Err(_) => return (Err("a session does not stand still".to_owned()), verdicts),
        }
    }
    if claims.len() < asks.len() {
        return (Err(STOPPING.to_owned()), verdicts);
    }
    (Ok(claims), verdicts)
}

fn give(
    mut giver: Giver,
    claims: &Claims,
    states: Vec<Frozen>,
    gates: &[Gate],
) -> Result<Giver, (Giver, NotGiven)> {
    match try_to_give(&mut giver, claims, states, gates) {
        Ok(()) => Ok(giver),
        Err(why) => Err((giver, why)),
    }
}

fn try_to_give(
    giver: &mut Giver,
    claims: &Claims,
    states: Vec<Frozen>,
    gates: &[Gate],
) -> Result<(), NotGiven> {
    // First of all: leases run while this crosses.
    for (thread, frozen) in (0..).zip(&states) {
        for site in frozen.sites.as_ref().map_err(|why| NotGiven::Unable(why.clone()))? {
            giver.site(thread, frozen.since, site)?;
        }
    }
    for (peer, claim) in (0..).zip(claims) {
        if let Some(held) = claim {
            giver.claim(peer, held)?;
        }
    }
    for Frozen { since: taken, states, .. } in states {
        for ([peer, thread], (state, room)) in states.map_err(NotGiven::Unable)? {
            match state {
                Written::There(len) => giver.state_in_room(thread, peer, taken, len)?,
                Written::Apart(state) => giver.state(thread, peer, taken, &state)?,
            }
            room.into_iter().for_each(|room| giver.keep(room));
        }
    }
    giver.ask_if_taken()?;
    gates.iter().for_each(Gate::shut);
    Ok(giver.commit()?)
}
