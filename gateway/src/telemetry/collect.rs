//! From the counters of the parts to a [`Snapshot`].

use std::time::Duration;

use reliability::congestion::{self, EcnState, Mode};
use reliability::estimator::{Range, Summary};
use reliability::lanes::{Cause, State};
use reliability::mtu;
use splice::retention::Retention;
use splice::{ClassStats, PathStats, Stats};

use super::table::{FAR, NEAR, Snapshot, Unit};
use crate::choose;
use crate::lan::Lan;
use crate::lan::socket::SocketStats;
use crate::plane::{Counts, MemberCounts};
use crate::retention::NoRetention;
use crate::wan::BulkStats;

impl Snapshot {
    /// Takes over the numbers of what outlives the process, if anything does.
    pub fn set_retention(&mut self, retention: Option<&Retention>) {
        let Some(retention) = retention else { return };
        self.retention_packets = retention.used().into();
        self.retention_room_packets = retention.slots().into();
        self.retention_bytes = retention.bytes();
        self.retention_limit_bytes = retention.most_bytes();
        self.retention_flows = retention.flows();
        self.retention_orphans = retention.orphans() as u64;
        self.retention_unretained = retention.unretained();
        self.retention_carried = retention.carried();
        let forgotten = retention.found().wrong().and_then(|(reason, count)| {
            self.retention_forgotten.get_mut(reason).map(|counter| (counter, count))
        });
        if let Some((counter, count)) = forgotten {
            *counter = count;
        }
    }

    /// Takes over why nothing outlives the process, though a class wants it.
    pub fn set_retention_off(&mut self, why: &NoRetention) {
        if let Some(off) = self.retention_off.get_mut(why.index()) {
            *off = 1;
        }
    }

    /// Takes over the core's numbers.
    pub fn set_core(&mut self, stats: &Stats) {
        self.lan_dropped = stats.lan_drops;
        self.lan_queue_dropped = stats.lan_queue_dropped;
        self.lan_queue_packets = stats.lan_queue;
        self.requests_carried = stats.requests;
        self.responses_carried = stats.responses;
        self.datagrams_carried = stats.datagrams;
        self.datagrams_in_turn = stats.mads_in_turn;
        self.vendor_options_cleared = stats.vendor_options;
        self.requests_replayed = stats.replays;
        self.wan_malformed = stats.bad_packets;
        self.records_malformed = stats.bad_records;
        self.records_late = stats.late_records;
        self.records_contradicted = stats.contradictions;
        self.connections_unlearned = stats.calls_refused;
        self.set_flows(stats);
        self.set_halves(stats);
        self.buffers = stats.buffers;
        self.buffer_bytes = stats.buffer_bytes;
        self.reorder_bytes = stats.reorder_bytes;
        self.received_bytes = stats.received_bytes;
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
        self.cnps_carried = stats.cnps_carried;
    }

    fn set_flows(&mut self, stats: &Stats) {
        self.flows = sides(stats.near_flows, stats.far_flows);
        self.flows_opened = sides(stats.near_opened, stats.far_opened);
        self.flows_unpaired = stats.unpaired_flows;
        self.flows_remembered = stats.remembered;
        self.flows_forgotten = stats.forgotten;
        self.flows_paired = stats.paired;
        self.flows_idle_closed = stats.idle_closed;
        self.flows_rnr_given_up = stats.rnr_given_up;
        self.flows_replaced = stats.replaced;
        self.flows_evicted = stats.evicted;
        let [naks, reasons @ ..] = stats.failed;
        let [session, given @ .., nak, process] = &mut self.flows_failed;
        (*session, *given, *nak, *process) = (stats.session_failed, reasons, naks, stats.process_failed);
        self.flows_restoring = stats.restoring + stats.awaited;
        (self.flows_restored, self.flows_unrestored) = (stats.restored, stats.unrestored);
        self.flows_silenced = stats.silenced;
        self.requests_refused = stats.doomed;
    }

    /// Counts of what the flows' two halves have said on their LANs.
    fn set_halves(&mut self, stats: &Stats) {
        let (near, far) = (&stats.near, &stats.far);
        self.requesters_told = [
            near.acks,
            near.mid_acks,
            near.repeated_acks,
            near.sequence_naks,
            near.rnr_naks,
            near.fatal_naks,
            near.responses,
            near.gaps_named,
            near.resent,
        ];
        self.targets_asked = [
            far.sent,
            far.retransmitted,
            far.timeouts,
            far.sequence_naks,
            far.rnr_naks,
            far.fatal_naks,
            far.response_gaps,
            far.slowed,
        ];
    }

    /// Takes over what the data plane itself counted.
    pub fn set_counts(&mut self, counts: &Counts) {
        self.lan_received_packets = counts.lan_packets;
        self.lan_received_bytes = counts.lan_bytes;
        self.lan_sent_bytes = counts.lan_sent_bytes;
        self.lan_rejected = counts.lan_rejects;
        self.wan_rejected = counts.wan_rejects;
        self.wan_opened = counts.wan_opened.0;
        self.wan_no_session = counts.wan_no_session;
        self.lan_up = counts.lan_up;
        self.sleeps = counts.sleeps;
        self.seal_failures = counts.seal_failures;
        self.set_members(&counts.members);
    }

    fn set_members(&mut self, members: &MemberCounts) {
        let MemberCounts { takes_part, live, pairs, site } = members;
        self.member_takes_part = *takes_part;
        self.members_live = *live;
        self.host_pairs = *pairs;
        self.host_pairs_moved = site.moved;
        self.flows_moved = site.flows_moved;
        self.lan_handed_over = site.handed_over;
        self.members_dropped = [site.not_yet, site.strays, site.full];
        self.member_words_refused = site.malformed;
    }

    /// Takes over the bulk socket's numbers.
    pub fn set_wan(&mut self, stats: &BulkStats) {
        self.wan_sent_packets = stats.sent;
        self.wan_sent_bytes = stats.sent_bytes;
        self.wan_received_packets = stats.received;
        self.wan_received_bytes = stats.received_bytes;
        self.wan_received_ce_packets = stats.received_ce;
        self.wan_blocked = stats.blocked;
        self.wan_offload_refused = stats.offload_refused;
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
                let failed = sent.failed.saturating_add(sent.not_ip);
                [
                    sent.too_big,
                    sent.unreachable,
                    sent.link_down,
                    sent.no_room,
                    failed,
                    sent.no_neighbour,
                    sent.wait_full,
                ]
            }
            Lan::Socket(socket) => {
                let stats = socket.stats();
                (self.lan_unknown_host, self.lan_other_thread) = (stats.unknown_host, stats.other_thread);
                let [too_big, unreachable, link_down, no_room, failed] = unsent(socket.udp_stats());
                let SocketStats { no_neighbour, wait_full, .. } = *socket.stats();
                [too_big, unreachable, link_down, no_room, failed, no_neighbour, wait_full]
            }
        };
        for (total, refused) in self.lan_unsent.iter_mut().zip(refused) {
            *total += refused;
        }
    }

    /// Takes over what is known of the way to the peer, over all lanes.
    pub fn set_way(&mut self, summary: Option<&Summary>) {
        let Some((summary, age)) = summary.and_then(|summary| Some((summary, summary.age?))) else { return };
        let Summary { drop, drop_long_run, burst, drop_by_size, rtt, reordering, .. } = summary;
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
        self.path_drop = bounds(drop).map(billionths);
        self.path_drop_long_run = bounds(drop_long_run).map(billionths);
        self.path_drop_by_size = drop_by_size.map(|drop| billionths(drop.likely));
        let burst = burst.as_ref().map_or([0.0; 3], bounds);
        self.path_burst = burst.map(|packets| (packets * Unit::MeanPackets.scale()) as u64);
        self.path_rtt_micros = [rtt.minimum, rtt.smoothed, rtt.variation].map(micros);
        self.path_extent_packets = [reordering.packets_p99, reordering.packets_max].map(u64::from);
        self.path_extent_micros = [reordering.time_p99, reordering.time_max].map(micros);
    }

    /// Takes over the path as one thread knows it: the one that has sent the most lately, and heard
    /// of it. Packets are as long as each thread has found; the shortest are told of.
    pub fn set_path_of(&mut self, threads: &[Self]) {
        let age = |thread: &Self| {
            (thread.path_age_micros > 0).then(|| Duration::from_micros(thread.path_age_micros))
        };
        let worth = |thread: &&Self| choose::worth(age(thread), thread.path_delivered_peak_bytes as f64);
        let best = threads.iter().max_by_key(worth);
        if let Some(best) = best {
            self.path_age_micros = best.path_age_micros;
            self.path_packets = best.path_packets;
            self.path_congestive = best.path_congestive;
            self.path_reordered = best.path_reordered;
            self.path_duplicates = best.path_duplicates;
            self.path_ce = best.path_ce;
            self.path_drop = best.path_drop;
            self.path_drop_long_run = best.path_drop_long_run;
            self.path_drop_by_size = best.path_drop_by_size;
            self.path_burst = best.path_burst;
            self.path_rtt_micros = best.path_rtt_micros;
            self.path_extent_packets = best.path_extent_packets;
            self.path_extent_micros = best.path_extent_micros;
        }
        let known = threads.iter().filter(|thread| thread.wan_mtu.iter().any(|mtu| *mtu > 0));
        if let Some(least) = known.min_by_key(|thread| thread.wan_mtu) {
            (self.wan_mtu, self.mtu_state) = (least.wan_mtu, least.mtu_state);
        }
    }

    /// Returns the smoothed round trip of the path, in microseconds, as long as the peer reports.
    /// Otherwise it is 0: the handshake's is another path's, and an old one says nothing of now.
    pub fn session_rtt(&self) -> u64 {
        let [_, smoothed, _] = self.path_rtt_micros;
        let is_live = (1..micros(choose::STALE)).contains(&self.path_age_micros);
        if is_live { smoothed } else { 0 }
    }

    /// Takes over what is known of a lane of the thread whose first one has this number.
    pub fn set_lane(&mut self, first: usize, lane: &PathStats) {
        let State { left, usable, share, leaves } = lane.health;
        // From 1: 0 is a lane that does not exist.
        let state = match left {
            None => 2 - u64::from(usable),
            Some(Cause::Silent) => 3,
            Some(Cause::Lossy) => 4,
            Some(Cause::Slow) => 5,
        };
        let Summary { drop, rtt, .. } = &lane.summary;
        let place = first + usize::from(lane.lane.0);
        let set =
            |cells: &mut [u64], value| cells.iter_mut().skip(place).take(1).for_each(|cell| *cell = value);
        set(&mut self.lane_state, state);
        set(&mut self.lane_share, billionths(share));
        set(&mut self.lane_drop, billionths(drop.likely));
        set(&mut self.lane_rtt_micros, micros(rtt.smoothed));
        set(&mut self.lane_leaves, leaves);
        set(&mut self.lane_ecn, lane.ecn.map_or(0, ecn_state));
        self.reports_thinned_bytes += lane.thinned.unwrap_or(0);
        self.add_mtu(lane);
        if let Some(state) = lane.congestion.as_ref().filter(|_| usable) {
            self.add_congestion(state);
        }
    }

    /// Packets are as long as all lanes in use carry them.
    fn add_mtu(&mut self, lane: &PathStats) {
        let mtu = &lane.mtu;
        self.mtu_probes += mtu.probes;
        self.mtu_probes_lost += mtu.lost;
        self.mtu_black_holes += mtu.black_holes;
        // Both ways the same is added to a packet.
        let theirs = usize::from(lane.peer_packet);
        let theirs = if theirs > 0 { theirs + (mtu.mtu - mtu.packet) } else { 0 };
        let [ours_known, theirs_known] = &mut self.wan_mtu;
        let is_less = |mtu: usize, known: u64| mtu > 0 && (known == 0 || (mtu as u64) < known);
        if is_less(theirs, *theirs_known) {
            *theirs_known = theirs as u64;
        }
        if lane.health.usable && is_less(mtu.mtu, *ours_known) {
            *ours_known = mtu.mtu as u64;
            self.mtu_state = match mtu.state {
                mtu::State::Fixed => 0,
                mtu::State::Base => 1,
                mtu::State::Searching => 2,
                mtu::State::Complete => 3,
                mtu::State::Error => 4,
            };
        }
    }

    /// Adds a lane's congestion control: the rates add up, of the delays the most counts, and the
    /// mode is the first lane's.
    fn add_congestion(&mut self, state: &congestion::State) {
        if self.congestion_mode == 0 {
            // From 1: 0 is `fixed`.
            self.congestion_mode =
                Mode::ALL.iter().take_while(|mode| **mode != state.mode).count() as u64 + 1;
        }
        self.congestion_rate_bytes += state.rate / 8;
        self.congestion_window_bytes += state.window;
        self.congestion_in_flight_bytes += state.in_flight;
        self.congestion_queueing_micros = self.congestion_queueing_micros.max(micros(state.queueing));
        self.congestion_base_micros = self.congestion_base_micros.max(micros(state.base));
        self.congestion_yields += state.yields;
        self.congestion_silences += state.silences;
    }

    /// Takes over how often `auto` changed a class's schemes. A cell that does not exist is
    /// ignored.
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
            class.queueing.add(&sent.queueing);
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
        class.completion = stats.completions;
        class.backlog_bytes = stats.backlog as u64;
        class.in_flight_bytes = stats.in_flight as u64;
        class.rtt_micros = micros(stats.rtt);
    }
}

/// From 1: 0 is a lane whose packets are not marked.
fn ecn_state(state: EcnState) -> u64 {
    match state {
        EcnState::Testing => 1,
        EcnState::Capable => 2,
        EcnState::Suspended => 3,
        EcnState::Failed => 4,
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

/// In the order of the `reason` labels: too big, unreachable, link down (which a UDP socket reports
/// as unreachable), no room (where it is not asked again), error.
fn unsent(stats: &BulkStats) -> [u64; 5] {
    [stats.too_big, stats.unreachable, 0, stats.lane_full, stats.send_failed]
}

/// In the order of the `side` labels.
fn sides(near: u64, far: u64) -> [u64; 2] {
    const { assert!(NEAR == 0 && FAR == 1) }
    [near, far]
}
