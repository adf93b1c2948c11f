//! The common part of relay and bridge: a thread to be stopped, links of both directions that may
//! be changed, counters.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::udp::wait;
use linksim::impair::{Link, LinkSpec, LinkStats};

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
    /// Dropped by the kernel before a bridge saw them: it was too slow. Known only when it has
    /// stopped.
    pub overrun: u64,
    /// Dropped by a bridge: a batch of segmentation offload that it cannot cut.
    pub uncut: u64,
    /// Counters of the link, or of all links together; datagrams that passed a relay's perfect link
    /// are not counted here.
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
    /// Which of the links are to be what from now on; `None`: all.
    links: Mutex<Vec<(Option<usize>, [LinkSpec; 2])>>,
    stats: Mutex<[DirectionStats; 2]>,
}

/// The thread's end: both directions' links (0 is from A to B) and their counters.
pub(super) struct Core {
    shared: Arc<Shared>,
    pub(super) links: [Vec<Link>; 2],
    pub(super) stats: [DirectionStats; 2],
}

impl Handle {
    /// Starts a thread that runs `work` until it returns, with so many links in each direction.
    pub(super) fn start(
        specs: [LinkSpec; 2],
        lanes: usize,
        seed: u64,
        work: impl FnOnce(Core) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let [a_to_b, b_to_a] = specs;
        let core = Core {
            shared: Arc::clone(&shared),
            links: [(a_to_b, seed), (b_to_a, seed ^ 0x5bd1_e995)].map(|(spec, seed)| {
                (0..lanes.max(1) as u64).map(|lane| Link::new(spec, seed.wrapping_add(lane << 32))).collect()
            }),
            stats: Default::default(),
        };
        let builder = std::thread::Builder::new().name("link-emulator".into());
        let thread = Some(builder.spawn(move || work(core))?);
        Ok(Self { shared, thread })
    }

    pub(super) fn set_links(&self, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        self.change(None, [a_to_b, b_to_a]);
    }

    /// Changes the links of one lane.
    pub(super) fn set_lane(&self, lane: usize, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        self.change(Some(lane), [a_to_b, b_to_a]);
    }

    fn change(&self, lane: Option<usize>, specs: [LinkSpec; 2]) {
        lock(&self.shared.links).push((lane, specs));
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
        if self.shared.changed.swap(false, Ordering::AcqRel) {
            for (lane, specs) in lock(&self.shared.links).drain(..) {
                for (links, spec) in self.links.iter_mut().zip(specs) {
                    let all = links.iter_mut().enumerate();
                    let meant = all.filter(|(index, _)| lane.is_none_or(|lane| lane == *index));
                    meant.for_each(|(_, link)| link.set_spec(spec));
                }
            }
        }
        !self.shared.stop.load(Ordering::Acquire)
    }

    /// Makes the counters visible outside.
    pub(super) fn publish(&mut self) {
        for (stats, links) in self.stats.iter_mut().zip(&self.links) {
            stats.link = LinkStats::default();
            links.iter().for_each(|link| stats.link += *link.stats());
        }
        *lock(&self.shared.stats) = self.stats;
    }

    /// Waits for something to read or a packet to come out.
    pub(super) fn sleep(&self, fds: &mut [PollFd<'_>]) -> io::Result<()> {
        let next = self.links.iter().flatten().filter_map(Link::next_timeout).min();
        let until = |at: Instant| at.saturating_duration_since(Instant::now()).min(MAX_SLEEP);
        wait(fds, next.map_or(MAX_SLEEP, until))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for EmulatorStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name, stats: &DirectionStats| {
            let link = &stats.link;
            write!(
                f,
                "{name}: {} in, {} out; lost {}, queue full {}, too long {}, corrupted {}, duplicated {}, reordered {}; not sent {} + {}, no peer {}, uncut {}, overrun {}",
                stats.received,
                stats.forwarded,
                link.lost,
                link.queue_full,
                link.too_long,
                link.corrupted,
                link.duplicated,
                link.reordered,
                stats.send_full,
                stats.refused,
                stats.no_peer,
                stats.uncut,
                stats.overrun
            )
        };
        line(f, "A to B", &self.a_to_b)?;
        writeln!(f)?;
        line(f, "B to A", &self.b_to_a)
    }
}
