//! From the counters of the parts to a [`Snapshot`].

use std::time::Duration;

use reliability::congestion::{self, Mode};
use reliability::estimator::{Range, Summary};
use reliability::mtu::State;
use splice::{ClassStats, PathStats, Stats};

use super::table::{FAR, NEAR, Snapshot, Unit};
use crate::lan::Lan;
use crate::plane::Counts;
use crate::wan::BulkStats;

impl Snapshot {
    /// Takes over the core's numbers.
    pub fn set_core(&mut self, stats: &Stats) {
        self.lan_dropped = stats.lan_drops;
        self.lan_queue_dropped = stats.lan_queue_dropped;
        self.lan_queue_packets = stats.lan_queue;
        self.requests_carried = stats.requests;
        self.responses_carried = stats.responses;
        self.datagrams_carried = stats.datagrams;
        self.reads_replayed = stats.replays;
        self.wan_malformed = stats.bad_packets;
        self.records_malformed = stats.bad_records;
        self.records_late = stats.late_records;
        self.flows = sides(stats.near_flows, stats.far_flows);
        self.flows_opened = sides(stats.near_opened, stats.far_opened);
        self.flows_unpaired = stats.unpaired_flows;
        self.flows_remembered = stats.remembered;
        self.flows_forgotten = stats.forgotten;
        self.flows_paired = stats.paired;
        self.flows_idle_closed = stats.idle_closed;
        self.flows_replaced = stats.replaced;
        self.flows_evicted = stats.evicted;
        self.flows_failed = stats.failed;
        if let Some(session) = self.flows_failed.first_mut() {
            *session = stats.session_failed;
        }
        self.requests_refused = stats.doomed;
        let (near, far) = (&stats.near, &stats.far);
        self.requesters_told = [
            near.acks,
            near.mid_acks,
            near.repeated_acks,
            near.sequence_naks,
            near.rnr_naks,
            near.fatal_naks,
            near.responses,
            near.results_replayed,
        ];
        self.targets_asked = [
            far.sent,
            far.retransmitted,
            far.timeouts,
            far.sequence_naks,
            far.rnr_naks,
            far.fatal_naks,
            far.response_gaps,
        ];
        self.buffers = stats.buffers;
        self.buffer_bytes = stats.buffer_bytes;
        self.reorder_bytes = stats.reorder_bytes;
        self.timers = stats.timers;
        self.draining_streams = stats.draining_streams;
        self.draining_bytes = stats.draining_bytes;
        self.lan_sent_packets = stats.lan_emitted;
        self.lan_mtu_bytes = stats.lan_mtu;
        let [too_big, ..] = &mut self.lan_unsent;
        *too_big += stats.lan_too_long;
        self.lan_marked = stats.lan_marked;
        self.lan_backlog_marked = stats.backlog_marked;
        self.lan_cnps = stats.cnps;
    }

    /// Takes over what the data plane itself counted.
    pub fn set_counts(&mut self, counts: &Counts) {
        self.lan_received_packets = counts.lan_packets;
        self.lan_received_bytes = counts.lan_bytes;
        self.lan_sent_bytes = counts.lan_sent_bytes;
        self.lan_rejected = counts.lan_rejects;
        self.wan_rejected = counts.wan_rejects;
        self.wan_no_session = counts.wan_no_session;
        self.sleeps = counts.sleeps;
        self.seal_failures = counts.seal_failures;
    }

    /// Takes over the bulk socket's numbers.
    pub fn set_wan(&mut self, stats: &BulkStats) {
        self.wan_sent_packets = stats.sent;
        self.wan_sent_bytes = stats.sent_bytes;
        self.wan_received_packets = stats.received;
        self.wan_received_bytes = stats.received_bytes;
        self.wan_received_ce_packets = stats.received_ce;
        self.wan_blocked = stats.blocked;
        self.wan_overrun = stats.overrun;
        self.wan_unsent = unsent(stats);
    }

    /// Takes over the numbers of the interface or socket towards local hosts.
    pub fn set_lan(&mut self, lan: &Lan) {
        let refused = match lan {
            Lan::Packet(packet) => {
                let ring = packet.ring_stats();
                self.lan_ring_dropped = ring.dropped;
                self.lan_ring_truncated = ring.truncated;
                let sent = packet.transmit_stats();
                [sent.too_big, sent.unreachable, sent.link_down, sent.failed.saturating_add(sent.not_ip)]
            }
            Lan::Socket(socket) => {
                self.lan_unknown_host = socket.stats().unknown_host;
                unsent(socket.udp_stats())
            }
        };
        for (total, refused) in self.lan_unsent.iter_mut().zip(refused) {
            *total += refused;
        }
    }

    /// Takes over what is known of the path.
    pub fn set_path(&mut self, path: &PathStats) {
        let Summary { drop, drop_long_run, burst, drop_by_size, rtt, reordering, .. } = path.summary;
        let summary = &path.summary;
        if let Some(state) = &path.congestion {
            self.set_congestion(state);
        }
        self.set_mtu(path);
        let Some(age) = summary.age else { return };
        self.path_age_micros = micros(age);
        self.path_packets = summary.packets as u64;
        self.path_changes = summary.changes;
        self.path_overrun = summary.overrun;
        self.path_congestive = billionths(summary.congestive);
        self.path_delivered_bytes = (summary.delivered / 8.0) as u64;
        self.path_delivered_peak_bytes = (summary.delivered_peak / 8.0) as u64;
        self.path_reordered = billionths(reordering.share);
        self.path_duplicates = billionths(summary.duplicates);
        self.path_ce = billionths(summary.ce);
        self.path_drop = bounds(&drop).map(billionths);
        self.path_drop_long_run = bounds(&drop_long_run).map(billionths);
        self.path_drop_by_size = drop_by_size.map(|drop| billionths(drop.likely));
        let burst = burst.as_ref().map_or([0.0; 3], bounds);
        self.path_burst = burst.map(|packets| (packets * Unit::MeanPackets.scale()) as u64);
        self.path_rtt_micros = [rtt.minimum, rtt.smoothed, rtt.variation].map(micros);
        self.path_extent_packets = [reordering.packets_p99, reordering.packets_max].map(u64::from);
        self.path_extent_micros = [reordering.time_p99, reordering.time_max].map(micros);
    }

    fn set_mtu(&mut self, path: &PathStats) {
        let mtu = &path.mtu;
        self.mtu_state = match mtu.state {
            State::Fixed => 0,
            State::Base => 1,
            State::Searching => 2,
            State::Complete => 3,
            State::Error => 4,
        };
        (self.mtu_probes, self.mtu_probes_lost, self.mtu_black_holes) =
            (mtu.probes, mtu.lost, mtu.black_holes);
        // Both ways the same is added to a packet.
        let theirs = usize::from(path.peer_packet);
        let theirs = if theirs > 0 { theirs + (mtu.mtu - mtu.packet) } else { 0 };
        self.wan_mtu = [mtu.mtu, theirs].map(|mtu| mtu as u64);
    }

    fn set_congestion(&mut self, state: &congestion::State) {
        // From 1: 0 is `fixed`.
        self.congestion_mode = Mode::ALL.iter().take_while(|mode| **mode != state.mode).count() as u64 + 1;
        self.congestion_rate_bytes = state.rate / 8;
        self.congestion_window_bytes = state.window;
        self.congestion_in_flight_bytes = state.in_flight;
        self.congestion_queueing_micros = micros(state.queueing);
        self.congestion_base_micros = micros(state.base);
        self.congestion_yields = state.yields;
        self.congestion_silences = state.silences;
    }

    /// Takes over how often `auto` changed a class's schemes. A cell that does not exist is ignored.
    pub fn set_switches(&mut self, cell: usize, switches: u64) {
        if let Some(class) = self.classes.get_mut(cell) {
            class.scheme_switches = switches;
        }
    }

    /// Takes over a class's numbers. A cell that does not exist is ignored.
    pub fn set_class(&mut self, cell: usize, stats: &ClassStats) {
        let Some(class) = self.classes.get_mut(cell) else { return };
        for sent in &stats.sent {
            class.records_sent += sent.records;
            class.records_sent_bytes += sent.record_bytes;
            class.records_refused += sent.refused;
            class.sent_data += sent.data_packets;
            class.sent_repairs += sent.repairs;
            class.sent_repairs_spurious += sent.spurious_repairs;
            class.sent_parity += sent.parity_packets;
            class.sent_bytes += sent.bytes;
            class.short_blocks += sent.short_blocks;
            class.timeouts += sent.rto_firings;
        }
        for received in &stats.received {
            class.received_data += received.data_packets;
            class.received_repaired += received.repaired;
            class.received_duplicates += received.duplicates;
            class.received_late += received.late + received.beyond_window;
            class.received_parity += received.parity_packets;
            class.received_parity_unused += received.parity_unused;
            class.decoded += received.decoded;
            class.nacked += received.nacks;
            class.abandoned += received.abandoned;
            class.records_received += received.records;
            class.records_received_bytes += received.record_bytes;
        }
        class.backlog_bytes = stats.backlog as u64;
        class.in_flight_bytes = stats.in_flight as u64;
        class.rtt_micros = micros(stats.rtt);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn billionths(share: f64) -> u64 {
    (share * Unit::Share.scale()).round() as u64
}

/// In the order of the `bound` labels.
fn bounds(range: &Range) -> [f64; 3] {
    [range.low, range.likely, range.high]
}

/// In the order of the `reason` labels: too big, unreachable, link down (which a UDP socket reports as unreachable), error.
fn unsent(stats: &BulkStats) -> [u64; 4] {
    [stats.too_big, stats.unreachable, 0, stats.send_failed]
}

/// In the order of the `side` labels.
fn sides(near: u64, far: u64) -> [u64; 2] {
    const { assert!(NEAR == 0 && FAR == 1) }
    [near, far]
}
