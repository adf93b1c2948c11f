//! Tells systemd how the gateway stands: ready, stopping, alive (`sd_notify`).
//!
//! Datagrams go to the socket that `NOTIFY_SOCKET` names, and none where it names none.
//! The usual crates open a socket for each datagram, which the filter of system calls refuses.
//! So [`Notifier::from_environment`] opens one before. It never blocks.
//!
//! The watchdog is fed only while all threads that matter make progress: each data-plane thread,
//! the supervisor, the control connection, and the runtime's thread that control and this run on.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use crate::logs::printable;
use crate::telemetry::Telemetry;

/// Between two attempts to say what systemd had no room for.
const RETRY: Duration = Duration::from_millis(100);
/// Looks at the threads within the time that the watchdog allows.
const LOOKS: u32 = 4;

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The silence after which the service manager ends this process.
    watchdog: Option<Duration>,
    /// It has been told, or is about to be, that the gateway is ready.
    is_ready: AtomicBool,
}

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, and opens the socket. To be
    /// called before system calls are filtered.
    ///
    /// # Errors
    /// The name is none, or the system has no socket to give.
    pub fn from_environment() -> io::Result<Self> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        // The variables may have been meant for the process that started this one.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 0);
        Self::new(&name, watchdog.map(Duration::from_micros))
    }

    fn new(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some((socket, address)), watchdog, is_ready: AtomicBool::new(false) })
    }

    /// Returns true if there is a service manager.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns the watchdog's time in microseconds, for a process that takes over.
    #[must_use]
    pub fn watchdog_micros(&self) -> Option<u64> {
        self.watchdog.and_then(|time| u64::try_from(time.as_micros()).ok())
    }

    /// The same with the watchdog of the process whose place this one takes: the service manager
    /// tells its main process only.
    #[must_use]
    pub fn with_watchdog(mut self, micros: Option<u64>) -> Self {
        if self.is_heard() {
            self.watchdog = self.watchdog.or(micros.map(Duration::from_micros));
        }
        self
    }

    /// Says that this process is the gateway from now on. Blocks for a second at most, if there is
    /// no room: the process before may end then.
    pub fn is_main_process(&self) {
        let state = format!("MAINPID={}", std::process::id());
        let mut tries = 0..10;
        while tries.next().is_some() && !self.tell(&state) {
            std::thread::sleep(RETRY);
        }
    }

    /// Says that the gateway is stopping.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Says in one line what the gateway does.
    pub fn status(&self, text: &str) {
        self.tell(&format!("STATUS={}", printable(text)));
    }

    /// Says, once, that the gateway is ready, and from then on, in a task, that it is alive.
    ///
    /// A gateway that waits for its interface is ready as well: it does all that it can, and what
    /// starts after it must not wait.
    /// `telemetries`: towards each peer.
    pub fn ready(self: &Arc<Self>, telemetries: &[Arc<Telemetry>]) {
        if self.socket.is_some() && !self.is_ready.swap(true, Relaxed) {
            let (notifier, telemetries) = (Arc::clone(self), telemetries.to_vec());
            tokio::spawn(async move { notifier.attend(&telemetries).await });
        }
    }

    async fn attend(&self, telemetries: &[Arc<Telemetry>]) {
        while !self.tell("READY=1") {
            sleep(RETRY).await;
        }
        let Some(watchdog) = self.watchdog else { return };
        let mut looks = interval((watchdog / LOOKS).max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = Progress::default();
        loop {
            looks.tick().await;
            self.look(telemetries, &mut progress);
        }
    }

    /// Feeds the watchdog if all threads have done something since it was fed last.
    fn look(&self, telemetries: &[Arc<Telemetry>], progress: &mut Progress) {
        if progress.has_moved(telemetries.iter().flat_map(|telemetry| telemetry.pulses()).collect()) {
            // Without room, the last ones wait there unread.
            self.tell("WATCHDOG=1");
        }
    }

    /// Returns false if there was no room, and it should be said again.
    fn tell(&self, state: &str) -> bool {
        let Some((socket, address)) = &self.socket else { return true };
        match socket.send_to_addr(state.as_bytes(), address) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                warn!(%error, state, "the service manager cannot be told");
                true
            }
        }
    }
}

/// Pulses of all threads when each was last seen to have done something.
#[derive(Debug, Default)]
struct Progress(Vec<u64>);

impl Progress {
    /// Returns true if every thread has done something since this was last true.
    fn has_moved(&mut self, pulses: Vec<u64>) -> bool {
        let is_new = |nth: usize, pulse: u64| self.0.get(nth).copied().unwrap_or(0) != pulse;
        let moved = (0..).zip(&pulses).all(|(nth, pulse)| is_new(nth, *pulse));
        if moved {
            self.0 = pulses;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::telemetry::{Snapshot, WorkerCounters};

    /// A service manager's end of it.
    fn manager(name: &str) -> (UnixDatagram, Notifier) {
        let name = format!("longhaul-test/{}/{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, Notifier::new(format!("@{name}").as_ref(), None).unwrap())
    }

    /// Returns what has been said since.
    fn heard(socket: &UnixDatagram) -> Vec<String> {
        let mut bytes = [0; 512];
        let next = || socket.recv(&mut bytes).ok().map(|len| String::from_utf8_lossy(&bytes[..len]).into());
        std::iter::from_fn(next).collect()
    }

    fn step(telemetry: &Telemetry, planes: &[&WorkerCounters], [supervisor, control]: [bool; 2]) {
        planes.iter().for_each(|plane| plane.store(&Snapshot::default()));
        if supervisor {
            telemetry.pulse();
        }
        if control {
            telemetry.control_pulse().fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn the_watchdog_is_fed_while_all_threads_make_progress() {
        let (socket, notifier) = manager("fed");
        let telemetry = Arc::new(Telemetry::new(Instant::now()));
        let (one, other) = (telemetry.plane(), telemetry.plane());
        let mut progress = Progress::default();
        let mut look = || {
            notifier.look(std::slice::from_ref(&telemetry), &mut progress);
            heard(&socket)
        };
        assert!(look().is_empty(), "nobody has done anything yet");
        let all = vec![&*one, &*other];
        let stuck = [
            (vec![&*one], [true; 2]),
            (vec![&*other], [true; 2]),
            (all.clone(), [false, true]),
            (all.clone(), [true, false]),
        ];
        for (planes, tasks) in stuck {
            for _ in 0..5 {
                step(&telemetry, &planes, tasks);
                assert!(look().is_empty(), "somebody is stuck");
            }
            step(&telemetry, &[&one, &other], [true; 2]);
            assert_eq!(look(), ["WATCHDOG=1"]);
            assert!(look().is_empty(), "nobody has done anything since");
        }
    }

    #[test]
    fn a_manager_without_room_holds_nothing_up() {
        let (socket, notifier) = manager("full");
        let filled = std::iter::from_fn(|| notifier.tell("EXTEND_TIMEOUT_USEC=1").then_some(())).count();
        assert!(filled > 0 && !notifier.tell("READY=1"), "to be said again");
        assert_eq!(heard(&socket).len(), filled);
        assert!(notifier.tell("READY=1"));
        notifier.stopping();
        assert_eq!(heard(&socket), ["READY=1", "STOPPING=1"]);
        drop(socket);
        notifier.stopping();
    }

    /// As while it waits for an interface: `systemctl start` must not wait with it.
    #[tokio::test]
    async fn who_waits_is_ready_says_for_what_and_stays_alive() {
        let (socket, mut notifier) = manager("waits");
        notifier.watchdog = Some(Duration::from_millis(4));
        let (notifier, telemetry) = (Arc::new(notifier), Arc::new(Telemetry::new(Instant::now())));
        let mut said = Vec::new();
        for _ in 0..2 {
            notifier.status("waiting for eth1\nREADY=0");
            notifier.ready(std::slice::from_ref(&telemetry));
        }
        while said.iter().filter(|word| *word == "WATCHDOG=1").count() < 3 {
            telemetry.pulse_waiting();
            sleep(Duration::from_millis(1)).await;
            said.extend(heard(&socket));
        }
        said.retain(|word| word != "WATCHDOG=1");
        let status = "STATUS=waiting for eth1\\nREADY=0";
        assert_eq!(said, [status, status, "READY=1"]);
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        Notifier::default().stopping();
        assert!(Notifier::new("".as_ref(), None).unwrap().tell("READY=1"));
        assert!(Notifier::new("x".repeat(200).as_ref(), None).is_err());
    }
}
