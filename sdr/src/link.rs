//! A connected queue pair and the thread behind it, whatever the back end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use crate::blob::Agreed;
use crate::engine::ControlPath;
use crate::receive::RecvQp;
use crate::send::SendQp;
use crate::udp::Alarm;

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
