//! The place of a running gateway, taken by this process.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::LanMode;
use session::control::Control;
use socket2::SockRef;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::workers::{Restored, Threads};
use super::{RunError, locked_interface};
use crate::events::EventKind;
use crate::lan::guard;
use crate::service::Notifier;
use crate::telemetry::{SessionState, Telemetry};
use crate::upgrade::{Announcement, Given, Heir, NotTaken, Part, Place, Room, Taken};

/// Takes the socket for this, which has to be bound there.
///
/// # Errors
/// [`NotTaken::Differs`], or there is none.
pub(super) fn socket(
    heir: &mut Heir,
    place: Place,
    what: &'static str,
    address: SocketAddr,
) -> Result<UdpSocket, NotTaken> {
    taken_socket(heir, place, what, address).inspect_err(|why| heir.refuse(&crate::causes::chain(why)))
}

fn taken_socket(
    heir: &mut Heir,
    place: Place,
    what: &'static str,
    address: SocketAddr,
) -> Result<UdpSocket, NotTaken> {
    let none = || NotTaken::Unable(format!("it has no socket {address} for {what}: that takes a restart"));
    let socket = heir.take(place).ok_or_else(none)?;
    let there = SockRef::from(&socket).local_addr().ok().and_then(|there| there.as_socket());
    if there != Some(address) {
        let there = there.map_or_else(|| "unknown".to_owned(), |there| there.to_string());
        return Err(NotTaken::Differs { what, here: address.to_string(), there });
    }
    Ok(socket.into())
}

/// The interface that the process before works on.
#[derive(Debug)]
pub enum Former {
    /// There is none.
    None,
    /// The interface of this one, with the same rules.
    Same,
    /// Another one, by its name. No gateway begins there as long as its lock lives.
    Other(String, UnixListener),
}

impl Former {
    pub(super) fn is_same(&self) -> bool {
        matches!(self, Self::Same)
    }

    /// Takes back the rules that the process before has left to this one, on an interface that this
    /// one does not work on. Blocks for some system calls.
    pub(super) fn clear(self) {
        let Self::Other(interface, lock) = self else { return };
        match guard::remove_earlier(&interface) {
            Ok(()) => info!(interface, "rules for the interface used before are taken back"),
            Err(error) => warn!(
                interface,
                "rules for the interface used before remain: {}",
                crate::causes::chain(&error)
            ),
        }
        drop(lock);
    }
}

/// Takes the lock of the LAN's interface, if the process before works on the same.
#[must_use]
pub fn inherited_lock(heir: &mut Heir, lan: &config::Lan) -> (Option<UnixListener>, Former) {
    let Some(lock) = heir.take(Place::Lock).map(UnixListener::from) else {
        return (None, Former::None);
    };
    let address = lock.local_addr().ok();
    let there = address.as_ref().and_then(|address| locked_interface(address.as_abstract_name()?));
    match (&lan.mode, there) {
        (_, None) => (None, Former::None),
        (LanMode::Packet { interface }, Some(there)) if interface == there => (Some(lock), Former::Same),
        (_, Some(there)) => (None, Former::Other(there.to_owned(), lock)),
    }
}

/// Takes the admin listener if it listens there.
pub(super) fn admin_listener(heir: &mut Heir, address: SocketAddr) -> Option<TcpListener> {
    let listener = TcpListener::from(heir.take(Place::Admin)?);
    (listener.local_addr().ok() == Some(address)).then_some(listener)
}

/// Takes the flows over, and returns when they are this process's alone.
///
/// # Errors
/// The old process goes on.
pub(super) fn take_over(
    mut heir: Heir,
    limits: &Limits,
    threads: &Threads,
    controls: Vec<Control>,
    (notifier, telemetries, announce): Told<'_>,
) -> Result<Vec<Control>, RunError> {
    heir.await_copied()?;
    threads.prepare()?;
    let begun = Instant::now();
    let taken = take(&mut heir, limits, threads);
    let (claims, restored, rooms) = taken.inspect_err(|why| heir.refuse(&crate::causes::chain(why)))?;
    heir.conclude()?;
    // From here on nobody else has them.
    let stood_still = begun.elapsed();
    let gates: Vec<_> = controls.iter().map(Control::gate).collect();
    let controls = controls.into_iter().zip(claims).zip(telemetries).map(|((control, held), telemetry)| {
        if held.is_some() {
            let why = "another process had it".to_owned();
            telemetry.session(SessionState::Lost, Some(why), Instant::now());
        }
        held.into_iter().fold(control, Control::holding)
    });
    let controls = controls.collect();
    threads.go_on()?;
    gates.iter().for_each(session::control::Gate::open);
    let taken = tell(&heir, &restored, stood_still, telemetries);
    notifier.is_main_process();
    // Nobody may care to know any more.
    let _ = announce.map(|announce| announce.send(taken));
    heir.dismiss();
    // Unmapping what nobody refers to takes time that flows need not wait for.
    drop(rooms);
    Ok(controls)
}

/// Limits by this process's files for what may be taken over.
pub(super) struct Limits {
    /// Bytes of all snapshots at most.
    pub(super) memory: usize,
    /// How long each peer's flows wait for a session to go on.
    pub(super) resume_for: Vec<Duration>,
}

impl Limits {
    /// A session that is handed over is gone on with by another one. With no time for that its
    /// flows would end.
    fn admit(&self, claims: &Claims) -> Result<(), NotTaken> {
        let ends = |(claim, time): (&Option<_>, &Duration)| claim.is_some() && time.is_zero();
        if claims.iter().zip(&self.resume_for).any(ends) {
            let why = "peer.resume_for is 0 s in the files, and flows would end with their session: that takes \
                       a restart";
            return Err(NotTaken::State(why.to_owned()));
        }
        Ok(())
    }
}

/// Who hears of it: the service manager, the events, whoever started this process.
type Told<'a> = (&'a Arc<Notifier>, &'a [Arc<Telemetry>], Option<oneshot::Sender<Announcement>>);

type Claims = Vec<Option<session::resumption::Resumption>>;

fn take(
    heir: &mut Heir,
    limits: &Limits,
    threads: &Threads,
) -> Result<(Claims, Restored, Vec<Arc<Room>>), RunError> {
    let Given { claims, parts, sites } = heir.receive(limits.memory)?;
    limits.admit(&claims)?;
    let rooms = parts.iter().filter_map(Part::room).map(Arc::clone).collect();
    let are_held: Vec<_> = claims.iter().map(Option::is_some).collect();
    let restored = threads.restore((parts, sites), &are_held)?;
    Ok((claims, restored, rooms))
}

fn tell(
    heir: &Heir,
    restored: &Restored,
    stood_still: Duration,
    telemetries: &[Arc<Telemetry>],
) -> Announcement {
    let stand = heir.stand();
    let Restored { flows, bytes } = restored;
    info!(
        pid = stand.pid,
        version = stand.build,
        flows,
        bytes,
        ?stood_still,
        "took over from the gateway that ran here"
    );
    let taken = Announcement::from(Taken::new(stand, *flows, *bytes, stood_still));
    if let Some(telemetry) = telemetries.first() {
        telemetry.events().about_all().push(EventKind::Upgraded, &taken.text);
    }
    taken
}
