//! Flows that have ended in an error, on their way from workers to log and events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use splice::FlowFailure;

/// Failures that wait to be told of; of more, only the number is known.
const WAITING: usize = 256;

/// Both ends of a queue that no worker waits for.
#[derive(Debug)]
pub struct FailureQueue {
    sender: FailureSender,
    receiver: Mutex<Receiver<FlowFailure>>,
}

/// A worker's end.
#[derive(Clone, Debug)]
pub struct FailureSender {
    queue: SyncSender<FlowFailure>,
    missed: Arc<AtomicU64>,
}

impl FailureSender {
    /// Adds a failure; if there is no room, it is counted only.
    pub fn send(&self, failure: FlowFailure) {
        if self.queue.try_send(failure).is_err() {
            self.miss(1);
        }
    }

    /// Counts failures of which nothing else is known.
    pub fn miss(&self, failures: u64) {
        self.missed.fetch_add(failures, Relaxed);
    }
}

impl FailureQueue {
    /// Returns an end for a worker.
    #[must_use]
    pub fn sender(&self) -> FailureSender {
        self.sender.clone()
    }

    /// Hands out the first `most` failures that wait, and returns how many there were besides since
    /// the last call.
    pub fn take(&self, most: usize, mut take: impl FnMut(FlowFailure)) -> u64 {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_iter().take(most).for_each(&mut take);
        receiver.try_iter().take(WAITING).count() as u64 + self.sender.missed.swap(0, Relaxed)
    }
}

impl Default for FailureQueue {
    fn default() -> Self {
        let (queue, receiver) = sync_channel(WAITING);
        let sender = FailureSender { queue, missed: Arc::default() };
        Self { sender, receiver: Mutex::new(receiver) }
    }
}
