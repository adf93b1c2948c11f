//! A connected queue pair and the thread behind it, whatever the back end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::Wake;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::blob::Agreed;
use crate::engine::ControlPath;
use crate::receive::RecvQp;
use crate::send::SendQp;

/// A connected queue pair of a back end whose counters are `S`.
///
/// Its parts may go to different threads. It lives as long as its [`Link`].
pub struct QueuePair<S> {
    /// The sending side, if this side sends to one that receives.
    pub send: Option<SendQp>,
    /// The receiving side, if the peer sends and this side receives.
    pub receive: Option<RecvQp>,
    /// The control path.
    pub control: ControlPath,
    /// The thread behind it.
    pub link: Link<S>,
    /// Terms that both sides agreed on.
    pub agreed: Agreed,
}

/// The thread of a queue pair. Dropped, it says goodbye to the peer and ends.
pub struct Link<S> {
    alarm: Arc<Alarm>,
    stats: Arc<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S> Link<S> {
    pub(crate) fn new(alarm: Arc<Alarm>, stats: Arc<S>, thread: JoinHandle<()>) -> Self {
        Link { alarm, stats, thread: Some(thread) }
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> &S {
        &self.stats
    }
}

impl<S> Drop for Link<S> {
    fn drop(&mut self) {
        self.alarm.stop.store(true, Relaxed);
        self.alarm.ring();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

/// Wakes the thread from its wait.
pub(crate) struct Alarm {
    pub(crate) event: OwnedFd,
    /// True while the thread waits, or is about to.
    pub(crate) asleep: AtomicBool,
    pub(crate) stop: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Alarm { event, asleep: AtomicBool::new(false), stop: AtomicBool::new(false) })
    }

    pub(crate) fn ring(&self) {
        if self.asleep.swap(false, SeqCst) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
