//! Waiting at the start for what a booting machine has a little later, and remedies for the rest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use session::control::StartError;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{info, warn};

use super::RunError;
use super::front::Front;
use crate::events::EventKind;
use crate::lan::guard::GuardError;
use crate::lan::usable::Fault;
use crate::service::Notifier;
use crate::telemetry::Telemetry;

/// Between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// Whom a wait is told.
pub(super) struct Teller<'a> {
    pub(super) notifier: &'a Arc<Notifier>,
    /// Towards each peer.
    pub(super) telemetries: &'a [Arc<Telemetry>],
    /// Answers from the beginning of a wait on.
    pub(super) front: Option<Front<'a>>,
    /// False: what is missing now is an error.
    pub(super) is_patient: bool,
}

impl Teller<'_> {
    /// It waits, and goes on waiting.
    fn waits(&self) {
        self.telemetries.iter().for_each(|telemetry| telemetry.pulse_waiting());
    }

    /// It begins to wait: whoever started the gateway need not.
    fn begins(&mut self, error: &RunError, why: &str) {
        self.notifier.status(&format!("waiting for what is missing on this machine: {why}"));
        self.notifier.ready(self.telemetries);
        self.say(Missing::of(error), Some(why));
        let Some(front) = &mut self.front else { return };
        if let Err(error) = front.open(None).and_then(|()| front.answer()) {
            warn!("nobody is answered while the gateway waits: {}", crate::causes::chain(&error));
        }
    }

    /// One side's address or interface is missing, and why, or it is there. Workers judge it later.
    fn say(&self, missing: Missing, why: Option<&str>) {
        let now = Instant::now();
        let kind = match missing {
            Missing::Wan => {
                self.telemetries.iter().for_each(|to| drop(to.judge_wan(why.map(str::to_owned), now)));
                if why.is_some() { EventKind::WanDown } else { EventKind::WanUp }
            }
            Missing::Lan(interface) => {
                for telemetry in self.telemetries {
                    telemetry.name_lan(&interface);
                    telemetry.set_lan_fault(why.map(|_| Fault::Gone));
                    drop(telemetry.judge_lan(now));
                }
                if why.is_some() { EventKind::LanDown } else { EventKind::LanUp }
            }
            Missing::Other => return,
        };
        if let Some(telemetry) = self.telemetries.first() {
            telemetry
                .events()
                .about_all()
                .push(kind, why.unwrap_or("what was missing at the start is there"));
        }
    }
}

/// A thing that a machine may have a little later.
enum Missing {
    /// The address of the control connection.
    Wan,
    /// The interface of this name.
    Lan(String),
    Other,
}

impl Missing {
    fn of(error: &RunError) -> Self {
        match error {
            RunError::Control(_) | RunError::Bulk { .. } => Self::Wan,
            RunError::Lan { what, .. } if what.parse::<SocketAddr>().is_err() => Self::Lan(what.clone()),
            _ => Self::Other,
        }
    }
}

/// Tries until what is missing is there: an interface, an address. `None`: the gateway is to stop.
///
/// # Errors
/// What waiting does not mend.
pub(super) async fn until_there<T>(
    stop: &mut oneshot::Receiver<()>,
    teller: &mut Teller<'_>,
    attempt: impl FnMut() -> Result<T, RunError>,
) -> Result<Option<T>, RunError> {
    try_every(RETRY, stop, teller, attempt).await
}

async fn try_every<T>(
    pause: Duration,
    stop: &mut oneshot::Receiver<()>,
    teller: &mut Teller<'_>,
    mut attempt: impl FnMut() -> Result<T, RunError>,
) -> Result<Option<T>, RunError> {
    let mut waits_for = None;
    loop {
        match attempt() {
            Ok(opened) => {
                if let Some(missing) = waits_for {
                    info!("what was missing is there");
                    teller.say(missing, None);
                }
                return Ok(Some(opened));
            }
            Err(error) if teller.is_patient && comes_later(&error) => {
                if waits_for.is_none() {
                    let why = crate::causes::chain(&error);
                    warn!("waiting for what is missing on this machine: {why}");
                    teller.begins(&error, &why);
                }
                waits_for = Some(Missing::of(&error));
                teller.waits();
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut *stop => return Ok(None),
        }
    }
}

fn comes_later(error: &RunError) -> bool {
    let later = [Errno::NODEV, Errno::ADDRNOTAVAIL, Errno::NETDOWN];
    system(error).and_then(Errno::from_io_error).is_some_and(|errno| later.contains(&errno))
}

fn system(error: &RunError) -> Option<&io::Error> {
    match error {
        RunError::Control(StartError::Bind { source, .. })
        | RunError::Lan { source, .. }
        | RunError::Bulk { source, .. }
        | RunError::Admin { source, .. }
        | RunError::Guard(
            GuardError::Netlink(source)
            | GuardError::Install { source, .. }
            | GuardError::Forward(source)
            | GuardError::Remove(source),
        ) => Some(source),
        _ => None,
    }
}

/// Returns what an operator can do about an error, if that is known.
pub fn remedy(error: &RunError) -> Option<&'static str> {
    let errno = system(error).and_then(Errno::from_io_error)?;
    match (error, errno) {
        (RunError::Lan { .. }, Errno::PERM | Errno::ACCESS) => {
            Some("packet mode needs CAP_NET_RAW: run as root, or give the unit AmbientCapabilities=")
        }
        (RunError::Guard(_), Errno::PERM | Errno::ACCESS) => {
            Some("packet mode needs CAP_NET_ADMIN: run as root, or give the unit AmbientCapabilities=")
        }
        (_, Errno::ACCESS) => Some("a port below 1024 needs CAP_NET_BIND_SERVICE"),
        (_, Errno::PERM) => Some(
            "if security.filter_system_calls = false mends it, the filter lacks a call: tell us which of \
             `strace -f -Z longhaul gateway ...` ends in EPERM",
        ),
        (_, Errno::ADDRINUSE) => Some("another process has it: `ss -lnptu` names it"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan(errno: Errno) -> RunError {
        RunError::Lan { what: "eth1".to_owned(), source: errno.into() }
    }

    fn nobody() -> (Arc<Notifier>, Arc<Telemetry>) {
        (Arc::default(), Arc::new(Telemetry::new(std::time::Instant::now())))
    }

    #[tokio::test]
    async fn what_is_missing_is_waited_for() {
        let (_stop, mut stopped) = oneshot::channel();
        let mut attempts = 0;
        let (notifier, telemetry) = nobody();
        let telemetries = std::slice::from_ref(&telemetry);
        let mut teller = Teller { notifier: &notifier, telemetries, front: None, is_patient: true };
        let opened = try_every(Duration::ZERO, &mut stopped, &mut teller, || {
            attempts += 1;
            if attempts < 100 { Err(lan(Errno::NODEV)) } else { Ok(attempts) }
        });
        assert_eq!(opened.await.unwrap(), Some(100));
        assert_eq!(telemetry.pulses(), [99, 99], "the watchdog is fed meanwhile");
        let kinds: Vec<_> =
            telemetry.events().since(0).events.iter().map(|event| event.kind.clone()).collect();
        assert_eq!(kinds, [EventKind::LanDown.name(), EventKind::LanUp.name()]);
    }

    #[tokio::test]
    async fn a_signal_ends_the_wait_and_other_errors_do_at_once() {
        let (stop, mut stopped) = oneshot::channel();
        let missing = || Err::<(), _>(lan(Errno::NODEV));
        let mut stop = Some(stop);
        let (notifier, telemetry) = nobody();
        let telemetries = std::slice::from_ref(&telemetry);
        let mut teller = Teller { notifier: &notifier, telemetries, front: None, is_patient: true };
        let ended = try_every(Duration::ZERO, &mut stopped, &mut teller, || {
            drop(stop.take());
            missing()
        });
        assert_eq!(ended.await.unwrap(), None);
        let (_stop, mut stopped) = oneshot::channel();
        let refused = until_there(&mut stopped, &mut teller, || Err::<(), _>(lan(Errno::PERM))).await;
        assert!(matches!(refused, Err(RunError::Lan { .. })));
    }

    #[test]
    fn errors_name_address_and_capability() {
        let address = "10.9.0.1:443".parse().unwrap();
        let admin = RunError::Admin { address, source: Errno::ACCESS.into() };
        assert!(admin.to_string().contains("10.9.0.1:443"));
        for (error, word) in [
            (admin, "CAP_NET_BIND_SERVICE"),
            (RunError::Bulk { address, source: Errno::PERM.into() }, "filter_system_calls"),
            (lan(Errno::PERM), "CAP_NET_RAW"),
            (RunError::Guard(GuardError::Forward(Errno::PERM.into())), "CAP_NET_ADMIN"),
            (RunError::Bulk { address, source: Errno::ADDRINUSE.into() }, "ss -lnptu"),
        ] {
            assert!(remedy(&error).unwrap_or_default().contains(word), "{error}");
        }
        assert_eq!(remedy(&lan(Errno::NODEV)), None);
    }
}
