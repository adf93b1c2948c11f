//! What relay and bridge have in common: a thread to be stopped, two links that may be changed, counters.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::impair::{Link, LinkSpec, LinkStats};
use crate::udp::wait;

/// Longest sleep, so that stopping and changing the link take effect soon.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// Counters of one direction, in datagrams or frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Received from the near side.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Sent to the far side.
    pub forwarded: u64,
    /// Bytes sent.
    pub forwarded_bytes: u64,
    /// Dropped by a relay: the far side has no fixed address and has not sent yet.
    pub no_peer: u64,
    /// Dropped: the kernel's send queue stayed full.
    pub send_full: u64,
    /// Dropped: refused by the kernel, e.g. too long for the interface.
    pub refused: u64,
    /// Dropped by the kernel before a bridge saw them: it was too slow. Known only when it has stopped.
    pub overrun: u64,
    /// Dropped by a bridge: a batch of segmentation offload that it cannot cut.
    pub uncut: u64,
    /// What the link did; datagrams that passed a relay's perfect link are not counted here.
    pub link: LinkStats,
}

/// Counters of both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmulatorStats {
    /// From A to B.
    pub a_to_b: DirectionStats,
    /// From B to A.
    pub b_to_a: DirectionStats,
}

/// The outside's end of a running emulator. Stops the thread when dropped.
#[derive(Debug)]
pub(super) struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    changed: AtomicBool,
    links: Mutex<Option<[LinkSpec; 2]>>,
    stats: Mutex<[DirectionStats; 2]>,
}

/// The thread's end: both links (0 is from A to B) and their counters.
pub(super) struct Core {
    shared: Arc<Shared>,
    pub(super) links: [Link; 2],
    pub(super) stats: [DirectionStats; 2],
}

impl Handle {
    /// Starts a thread that runs `work` with the links until it returns.
    pub(super) fn start(
        specs: [LinkSpec; 2],
        seed: u64,
        work: impl FnOnce(Core) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let [a_to_b, b_to_a] = specs;
        let core = Core {
            shared: Arc::clone(&shared),
            links: [Link::new(a_to_b, seed), Link::new(b_to_a, seed ^ 0x5bd1_e995)],
            stats: Default::default(),
        };
        let builder = std::thread::Builder::new().name("link-emulator".into());
        let thread = Some(builder.spawn(move || work(core))?);
        Ok(Self { shared, thread })
    }

    pub(super) fn set_links(&self, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        *lock(&self.shared.links) = Some([a_to_b, b_to_a]);
        self.shared.changed.store(true, Ordering::Release);
    }

    pub(super) fn stats(&self) -> EmulatorStats {
        let [a_to_b, b_to_a] = *lock(&self.shared.stats);
        EmulatorStats { a_to_b, b_to_a }
    }

    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn stop(mut self) -> io::Result<EmulatorStats> {
        self.finish()?;
        Ok(self.stats())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the emulator's thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to hear of an error.
        let _ = self.finish();
    }
}

impl Core {
    /// Takes over changed links; false when it is time to end.
    pub(super) fn goes_on(&mut self) -> bool {
        if self.shared.changed.swap(false, Ordering::AcqRel)
            && let Some(specs) = lock(&self.shared.links).take()
        {
            for (link, spec) in self.links.iter_mut().zip(specs) {
                link.set_spec(spec);
            }
        }
        !self.shared.stop.load(Ordering::Acquire)
    }

    /// Makes the counters visible outside.
    pub(super) fn publish(&mut self) {
        for (stats, link) in self.stats.iter_mut().zip(&self.links) {
            stats.link = *link.stats();
        }
        *lock(&self.shared.stats) = self.stats;
    }

    /// Waits for something to read or a packet to come out.
    pub(super) fn sleep(&self, fds: &mut [PollFd<'_>]) -> io::Result<()> {
        let next = self.links.iter().filter_map(Link::next_timeout).min();
        let until = |at: Instant| at.saturating_duration_since(Instant::now()).min(MAX_SLEEP);
        wait(fds, next.map_or(MAX_SLEEP, until))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
