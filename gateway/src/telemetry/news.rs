//! Flows that have begun, or ended in an error, on their way from workers to log and events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use config::Policy;
use splice::{FlowFailure, FlowOpening, OpenedBetween};

/// News that wait to be told of; of more, only the number is known.
pub const WAITING: usize = 256;

/// A flow that failed, and the policy that its class is of.
pub type Failed = (FlowFailure, Arc<Policy>);

/// Flows that have begun, or gone on.
#[derive(Clone, Copy, Debug)]
pub enum Opened {
    /// One.
    Flow(FlowOpening),
    /// As many between two hosts.
    Between(OpenedBetween),
    /// One that has gone on after the end of a process.
    Restored(FlowOpening),
}

/// Both ends of a queue that no worker waits for.
#[derive(Debug)]
pub struct NewsQueue<T> {
    sender: NewsSender<T>,
    receiver: Mutex<Receiver<T>>,
}

/// A worker's end.
#[derive(Debug)]
pub struct NewsSender<T> {
    queue: SyncSender<T>,
    missed: Arc<AtomicU64>,
}

impl<T> NewsSender<T> {
    /// Adds a piece of news; if there is no room, it is counted only.
    pub fn send(&self, news: T) {
        self.send_many(news, 1);
    }

    /// Adds a piece that stands for so many.
    pub fn send_many(&self, news: T, number: u64) {
        if self.queue.try_send(news).is_err() {
            self.miss(number);
        }
    }

    /// Counts news of which nothing else is known.
    pub fn miss(&self, number: u64) {
        self.missed.fetch_add(number, Relaxed);
    }
}

impl<T> Clone for NewsSender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), missed: Arc::clone(&self.missed) }
    }
}

impl<T> NewsQueue<T> {
    /// Returns an end for a worker.
    #[must_use]
    pub fn sender(&self) -> NewsSender<T> {
        self.sender.clone()
    }

    /// Hands out the first `most` that wait, and returns how many there were besides since the last
    /// call.
    pub fn take(&self, most: usize, mut take: impl FnMut(T)) -> u64 {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_iter().take(most).for_each(&mut take);
        receiver.try_iter().take(WAITING).count() as u64 + self.sender.missed.swap(0, Relaxed)
    }
}

impl<T> Default for NewsQueue<T> {
    fn default() -> Self {
        let (queue, receiver) = sync_channel(WAITING);
        let sender = NewsSender { queue, missed: Arc::default() };
        Self { sender, receiver: Mutex::new(receiver) }
    }
}
