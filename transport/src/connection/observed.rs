//! Statistics of a connection: the way to the peer, each class's streams.

use std::time::{Duration, Instant};

use reliability::estimator::Summary;
use reliability::stream::{Alternation, ReceiverStats, Scheme, Sender, SenderStats};
use reliability::times::Times;
use reliability::trace::Entry;

use super::Connection;
use crate::path::PathStats;
use crate::sizes::Sizes;

/// A class's streams as counted at this end; each array is the prompt stream's and the bulk
/// stream's.
#[derive(Clone, Debug)]
pub struct ClassStats {
    /// The class's name.
    pub name: String,
    /// Sent since the session began. Streams that another class had before count on.
    pub sent: [SenderStats; 2],
    /// Received of the peer's streams of the same numbers since the session began: its
    /// class of the same index, unless either end's classes were changed meanwhile.
    pub received: [ReceiverStats; 2],
    /// Bytes waiting to be sent for the first time.
    pub backlog: usize,
    /// Bytes sent and not yet acknowledged.
    pub in_flight: usize,
    /// Smoothed round-trip time of the bulk stream: the hint, until measured.
    pub rtt: Duration,
    /// How long the peer waits for a packet of the class that others have overtaken, as it says.
    pub reorder_time: Duration,
    /// The schemes of the prompt stream and the bulk stream; `None` without a session.
    pub schemes: Option<[Scheme; 2]>,
    /// The messages that the bulk stream took, or will, since the session began.
    pub sizes: Sizes,
    /// How its sources took turns, since the session began.
    pub alternation: Alternation,
    /// How long its messages took, of those whose time was taken, since the session began: see
    /// [`Senders::note_completion`](crate::Senders::note_completion).
    pub completions: Times,
}

impl Connection {
    /// The longest packet of [`Connection::poll_transmit`] that the path is known to carry; what is
    /// longer is a probe.
    #[inline]
    #[must_use]
    pub fn packet(&self) -> usize {
        self.packet
    }

    /// Returns the bytes that a packet of `len` plaintext bytes takes on the wire, as the pacer
    /// counts it.
    #[inline]
    #[must_use]
    pub fn wire_bytes(&self, len: usize) -> usize {
        len + self.config.packet_overhead
    }

    /// True if there is nothing to send and nothing unacknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.senders.is_idle()
    }

    /// The way to the peer, over all lanes in use; `None` without a session.
    #[must_use]
    pub fn way(&self, now: Instant) -> Option<Summary> {
        self.paths.summary(now)
    }

    /// The round-trip time to the peer, over the longest way that is used; zero without a session.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.paths.rtt()
    }

    /// The session's lanes; none without a session.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = PathStats> + '_ {
        self.paths.stats(now)
    }

    /// Runs of arrivals and losses on the way from the peer, judged since the last call. Call it
    /// about every 100 ms or lose some: then they hold a break.
    pub fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        self.paths.drain_runs(take);
    }

    /// Streams of classes that are gone which still hold something, and how many bytes.
    #[must_use]
    pub fn draining(&self) -> (usize, usize) {
        self.senders.draining()
    }

    /// Bytes held for records and blocks from the peer that are not whole.
    #[must_use]
    pub fn received_bytes(&self) -> usize {
        self.receivers.memory()
    }

    /// Pieces of records from the peer that contradict others of their record.
    #[must_use]
    pub fn contradictions(&self) -> u64 {
        self.receivers.contradictions()
    }

    /// Each class's streams, in the order of the classes.
    pub fn classes(&self) -> impl Iterator<Item = ClassStats> + '_ {
        self.classes.iter().enumerate().map(|(index, class)| self.class(index, &class.name))
    }

    fn class(&self, index: usize, name: &str) -> ClassStats {
        let senders = self.senders.class(index);
        let mut received = self.receivers.stats(self.senders.place(index).unwrap_or(index)).cloned();
        ClassStats {
            name: name.to_owned(),
            sent: senders.map(|pair| pair.map(|sender| sender.stats().clone())).unwrap_or_default(),
            received: [received.next().unwrap_or_default(), received.next().unwrap_or_default()],
            backlog: senders.map_or(0, |pair| pair.iter().map(|sender| sender.backlog()).sum()),
            in_flight: senders.map_or(0, |pair| pair.iter().map(|sender| sender.in_flight()).sum()),
            rtt: self.class_rtt(index),
            reorder_time: senders.into_iter().flatten().map(Sender::reorder_time).max().unwrap_or_default(),
            schemes: senders.map(|pair| pair.map(Sender::scheme)),
            sizes: self.senders.sizes(index),
            alternation: self.senders.alternation(index),
            completions: self.senders.completions(index),
        }
    }

    /// Returns the round trip as the class's stream measures it, or as the path does where that has
    /// carried nothing yet.
    fn class_rtt(&self, index: usize) -> Duration {
        let measured = self.senders.class(index).map(|[_, bulk]| bulk.rtt());
        let measured = measured.filter(|rtt| rtt.samples() > 0);
        measured.map_or(self.config.rtt, |rtt| rtt.smoothed())
    }
}
