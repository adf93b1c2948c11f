//! Observation of a gateway: counters, the way to the peer, each class's streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Policy;
use reliability::estimator::Summary;
use reliability::trace::Entry;
use transport::{ClassStats, PathStats};

use super::Gateway;
use crate::failures::FlowFailure;
use crate::flow_report::FlowReport;
use crate::near_side::Patience;
use crate::openings::{FlowOpening, OpenedBetween};
use crate::stats::Stats;

impl Gateway {
    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        self.common.classes.policy()
    }

    /// Sessions begun.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.sessions
    }

    /// Requesters' flows that keep READs or atomics of before in mind, which have no answer.
    #[must_use]
    pub fn owing_flows(&self) -> usize {
        self.near.owing()
    }

    /// Counters and gauges.
    pub fn stats(&mut self) -> &Stats {
        let stats = &mut self.common.stats;
        stats.near_flows = self.near.len() as u64;
        stats.far_flows = self.far.len() as u64;
        (stats.near, stats.far) = (self.near.counted(), self.far.counted());
        stats.unpaired_flows = self.common.pairings.waiting() as u64;
        stats.timers =
            (self.near.timers() + self.far.timers() + self.numbering.timers() + self.ordering.timers())
                as u64;
        stats.buffers = self.common.pool.buffers_in_use() as u64;
        stats.buffer_bytes = self.common.pool.bytes_in_use() as u64;
        let reorder_bytes =
            [self.near.reorder_bytes(), self.far.reorder_bytes(), self.ordering.reorder_bytes()];
        let [used, held] =
            [0, 1].map(|which| reorder_bytes.iter().filter_map(|bytes| bytes.get(which)).sum::<usize>());
        (stats.reorder_bytes_used, stats.reorder_bytes) = (used as u64, held as u64);
        stats.calls_refused = self.common.pairings.refused_calls();
        stats.received_bytes = self.wan.received_bytes() as u64;
        stats.contradictions = self.wan.contradictions();
        stats.lan_queue = self.common.lan.len() as u64;
        stats.lan_queue_dropped = self.common.lan.dropped;
        stats.remembered = self.common.stale_flows.len() as u64;
        stats.awaited = self.common.stale_flows.awaited() as u64;
        stats.forgotten = self.common.stale_flows.forgotten;
        let (streams, bytes) = self.wan.draining();
        (stats.draining_streams, stats.draining_bytes) = (streams as u64, bytes as u64);
        stats.lan_mtu = self.common.settings.lan_mtu as u64;
        stats
    }

    /// Hands out flows that have ended in an error since the last call, but for those of ended
    /// sessions. Returns how many there were besides. Call it about every 100 ms.
    pub fn take_failures(&mut self, take: &mut dyn FnMut(FlowFailure)) -> u64 {
        self.common.failures.take(take)
    }

    /// Hands out the first flows that were opened since the last call, and of the others how many
    /// between which hosts. Returns how many there were besides. Call it about every 100 ms.
    pub fn take_openings(
        &mut self,
        first: &mut dyn FnMut(FlowOpening),
        between: &mut dyn FnMut(OpenedBetween),
    ) -> u64 {
        self.common.openings.take(first, between)
    }

    /// Hands out the first flows that have gone on since the last call after the end of a process.
    /// Returns how many there were besides. Call it about every 100 ms.
    pub fn take_restored(&mut self, take: &mut dyn FnMut(FlowOpening)) -> u64 {
        self.common.openings.take_restored(take)
    }

    /// The way to the peer, over all lanes in use; `None` without a session.
    #[must_use]
    pub fn way(&self, now: Instant) -> Option<Summary> {
        self.wan.way(now)
    }

    /// The round-trip time to the peer, over the longest way that is used; zero without a session.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.wan.rtt()
    }

    /// The session's lanes; none without a session.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = PathStats> + '_ {
        self.wan.paths(now)
    }

    /// Runs of arrivals and losses on the way from the peer, judged since the last call. Call it
    /// about every 100 ms or lose some: then they hold a break.
    pub fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        self.wan.drain_runs(take);
    }

    /// How patient the requester of each flow from the LAN is.
    pub fn patience(&self) -> impl Iterator<Item = Patience> + '_ {
        self.near.patience(&self.common.pairings)
    }

    /// Each half of a flow that is here, as it stands. Those whose session ended are not among
    /// them.
    pub fn reports(&self) -> impl Iterator<Item = FlowReport> + '_ {
        let (classes, is_parked) = (&self.common.classes, self.is_parked());
        self.near.reports(classes, is_parked).chain(self.far.reports(classes, is_parked))
    }

    /// Each class's streams, in the policy's order.
    pub fn classes(&self) -> impl Iterator<Item = ClassStats> + '_ {
        self.wan.classes()
    }
}
