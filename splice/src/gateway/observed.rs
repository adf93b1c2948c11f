//! What can be seen of a gateway: counters, the way to the peer, each class's streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Policy;
use reliability::estimator::Summary;
use reliability::stream::{Alternation, ReceiverStats, Scheme, Sender, SenderStats};
use reliability::trace::Entry;

use super::Gateway;
use crate::path::PathStats;
use crate::sizes::Sizes;
use crate::stats::Stats;

/// A class's streams as counted by this gateway; each array is the prompt stream's and the bulk stream's.
#[derive(Clone, Debug)]
pub struct ClassStats {
    /// The class's name.
    pub name: String,
    /// What was sent, since the session began. Streams that another class had before count on.
    pub sent: [SenderStats; 2],
    /// What was received of the peer's streams of the same numbers, since the session began: its class of the same index, unless either policy was
    /// changed meanwhile.
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
}

impl Gateway {
    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        self.classes.policy()
    }

    /// Sessions begun.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.sessions
    }

    /// Counters and gauges.
    pub fn stats(&mut self) -> &Stats {
        let stats = &mut self.stats;
        stats.near_flows = self.near.len() as u64;
        stats.far_flows = self.far.len() as u64;
        (stats.near, stats.far) = (self.near.counted(), self.far.counted());
        stats.unpaired_flows = self.pairings.waiting() as u64;
        stats.timers =
            (self.near.timers() + self.far.timers() + self.numbering.timers() + self.ordering.timers())
                as u64;
        stats.buffers = self.pool.buffers_in_use() as u64;
        stats.buffer_bytes = self.pool.bytes_in_use() as u64;
        let reorder_bytes =
            [self.near.reorder_bytes(), self.far.reorder_bytes(), self.ordering.reorder_bytes()];
        let [used, held] =
            [0, 1].map(|which| reorder_bytes.iter().filter_map(|bytes| bytes.get(which)).sum::<usize>());
        (stats.reorder_bytes_used, stats.reorder_bytes) = (used as u64, held as u64);
        stats.calls_refused = self.pairings.refused_calls();
        stats.received_bytes = self.receivers.memory() as u64;
        stats.contradictions = self.receivers.contradictions();
        stats.lan_queue = self.lan.len() as u64;
        stats.lan_queue_dropped = self.lan.dropped;
        stats.remembered = self.memory.len() as u64;
        stats.forgotten = self.memory.forgotten;
        let (streams, bytes) = self.senders.draining();
        (stats.draining_streams, stats.draining_bytes) = (streams as u64, bytes as u64);
        stats.lan_mtu = self.settings.lan_mtu as u64;
        stats
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

    /// Runs of arrivals and losses on the way from the peer, judged since the last call. Call it about every 100 ms or lose some: then they
    /// hold a break.
    pub fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        self.paths.drain_runs(take);
    }

    /// Each class's streams, in the policy's order.
    pub fn classes(&self) -> impl Iterator<Item = ClassStats> + '_ {
        let classes = self.classes.policy().classes().iter().enumerate();
        classes.map(|(index, class)| self.class(index, &class.name))
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
        }
    }

    /// Returns the round trip as the class's stream measures it, or as the path does where that has
    /// carried nothing yet.
    fn class_rtt(&self, index: usize) -> Duration {
        let measured = self.senders.class(index).map(|[_, bulk]| bulk.rtt());
        let measured = measured.filter(|rtt| rtt.samples() > 0);
        measured.map_or(self.settings.rtt, |rtt| rtt.smoothed())
    }
}
