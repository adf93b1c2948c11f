//! The declaration of every metric.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use reliability::estimator::SIZE_BOUNDS;
use reliability::times::Times;
use roce::ip::Reject;
use session::Rejected;
use session::control::Refusal;
use splice::record::Reason;
use splice::retention::Found;
use splice::{Cause, LanDrop};

use super::MAX_CLASSES;
use super::times::TimesCells;
use crate::logs::Lost;
use crate::retention::NoRetention;

/// A metric as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its Prometheus name.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The unit of its values.
    pub unit: Unit,
    /// The label that tells its series apart, if it has several, and the label's values; a class's
    /// name stands as no value.
    pub label: Option<(&'static str, &'static [&'static str])>,
    /// Its meaning, in a sentence without a full stop.
    pub meaning: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; summed over threads.
    Counter,
    /// Goes up and down; summed over threads.
    Gauge,
    /// Goes up and down; the largest of all threads.
    Peak,
    /// Only grows, as far as whoever scrapes sees; its source begins at 0 with each session. Summed
    /// over threads.
    Restarting,
    /// Counts of times by bucket, and their sum; otherwise like [`Kind::Restarting`].
    Histogram,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets (LAN) or datagrams (WAN).
    Packets,
    /// Bytes.
    Bytes,
    /// Microseconds here, seconds in Prometheus.
    Seconds,
    /// Billionths here, a share from 0 to 1 in Prometheus.
    Share,
    /// Thousandths of packets here, packets in Prometheus.
    MeanPackets,
    /// Queue pairs' flows.
    Flows,
    /// Anything else that is counted.
    Count,
    /// 0 or 1.
    Bool,
    /// 0 here while it is not known, and there is no series; otherwise one more than in Prometheus,
    /// where it is 0 or 1.
    Known,
}

/// Index of flows whose requester is at this site.
pub const NEAR: usize = 0;
/// Index of flows whose target is at this site.
pub const FAR: usize = 1;

const SIDES: [&str; 2] = ["near", "far"];
/// Packets to a requester: ACKs of whole messages, within one, and repeated; NAKs; responses of
/// READs and atomics.
const TOLD: [&str; 9] = [
    "ack",
    "mid_ack",
    "repeated_ack",
    "sequence_nak",
    "rnr_nak",
    "fatal_nak",
    "response",
    "gap_named",
    "response_again",
];
/// Packets to a target, and what it makes of them.
const ASKED: [&str; 8] =
    ["sent", "sent_again", "timeout", "sequence_nak", "rnr_nak", "fatal_nak", "response_lost", "slowed"];
/// Outcomes of reading a policy file again.
const RELOADS: [&str; 2] = ["ok", "refused"];
/// Bounds of an estimate.
const BOUNDS: [&str; 3] = ["low", "likely", "high"];
/// Statistics of round-trip times.
const RTTS: [&str; 3] = ["minimum", "smoothed", "variation"];
/// Statistics of reordering.
const EXTENTS: [&str; 2] = ["p99", "max"];
/// Reasons of a site of several gateways to drop a packet.
const MEMBERS_DROPPED: [&str; 3] = ["no_speaker", "stray", "full"];
/// Ways over the long link.
const DIRECTIONS: [&str; 2] = ["to_peer", "from_peer"];
/// Largest packet of each size, in bytes.
const SIZES: [&str; SIZE_BOUNDS.len() + 1] = ["256", "1536", "4608", "more"];
const _: () = assert!(matches!(SIZE_BOUNDS, [256, 1536, 4608]));
/// Lanes by number.
#[rustfmt::skip]
const LANES: [&str; config::Wan::MOST_LANES as usize] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
    "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31",
    "32", "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43", "44", "45", "46", "47",
    "48", "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63",
];
/// Reasons why a packet was not sent; those longer than `lan.mtu` the kernel never sees.
const UNSENT: [&str; 5] = ["too_big", "unreachable", "link_down", "no_room", "error"];
/// The same towards local hosts. The last two: nobody answers for the link-layer address, and too
/// many packets wait for such an answer.
const LAN_UNSENT: [&str; 7] =
    ["too_big", "unreachable", "link_down", "no_room", "error", "no_neighbour", "wait_full"];

macro_rules! names {
    ($all:expr, $name:ident) => {{
        #[expect(
            clippy::indexing_slicing,
            reason = "evaluated by the compiler, which refuses an index out of bounds"
        )]
        const NAMES: [&str; $all.len()] = {
            let mut names = [""; $all.len()];
            let mut index = 0;
            while index < names.len() {
                names[index] = $all[index].$name();
                index += 1;
            }
            names
        };
        NAMES
    }};
}

const LAN_REJECTS: [&str; Reject::ALL.len()] = names!(Reject::ALL, name);
const LAN_DROPS: [&str; LanDrop::ALL.len()] = names!(LanDrop::ALL, name);
const WAN_REJECTS: [&str; Rejected::ALL.len()] = names!(Rejected::ALL, label);
const LOST_LINES: [&str; Lost::ALL.len()] = names!(Lost::ALL, label);
/// Names by the number of a `splice::record::Reason`; 0 stands for flows that ended with their
/// session, and the last two for those that a fatal NAK or the end of a process ended.
const FAILURES: [&str; Reason::ALL.len() + 3] = {
    let mut names = ["session"; Reason::ALL.len() + 3];
    let [_, reasons @ .., nak, process] = &mut names;
    *reasons = names!(Reason::ALL, name);
    (*nak, *process) = (Cause::Nak.name(), Cause::Process.name());
    names
};
const FORGOTTEN: [&str; Found::WRONG.len()] = Found::WRONG;
const NO_RETENTION: [&str; NoRetention::NAMES.len()] = NoRetention::NAMES;
const REFUSALS: [&str; Refusal::ALL.len()] = names!(Refusal::ALL, label);

/// See the invocation below for the form.
macro_rules! metrics {
    (
        plain { $($field:ident: $kind:ident $unit:ident $name:literal $meaning:literal)* }
        labelled { $($many:ident[$label:literal $values:ident]: $many_kind:ident $many_unit:ident $many_name:literal $many_meaning:literal)* }
        class { $($each:ident: $each_kind:ident $each_unit:ident $each_name:literal $each_meaning:literal)* }
        histogram { $($times:ident: $times_name:literal $times_meaning:literal)* }
    ) => {
        /// All numbers at one time. Counters are totals since the start; times are in microseconds.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Snapshot {
            $(#[doc = $meaning] pub $field: u64,)*
            $(#[doc = $many_meaning] pub $many: [u64; $values.len()],)*
            /// Per class, in the cells of [`Cells`](crate::cells::Cells).
            pub classes: [ClassSnapshot; MAX_CLASSES],
        }

        impl Default for Snapshot {
            fn default() -> Self {
                Self {
                    $($field: 0,)*
                    $($many: [0; $values.len()],)*
                    classes: Default::default(),
                }
            }
        }

        /// The numbers of one class.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ClassSnapshot {
            $(#[doc = $each_meaning] pub $each: u64,)*
            $(#[doc = $times_meaning] pub $times: Times,)*
        }

        /// The numbers of one data-plane thread: it alone stores, anyone loads. Aligned so that no
        /// other thread's data shares a cache line (or the pair of them that x86 fetches) with it.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct WorkerCounters {
            /// Times that the thread has stored.
            stores: AtomicU64,
            now: Cells,
            /// The numbers stored last, of those that begin anew with each session.
            before: Cells,
            classes: [ClassCells; MAX_CLASSES],
            /// Values of the classes stored last: they count from 0 in each session, their series
            /// go on.
            last: [ClassCells; MAX_CLASSES],
        }

        #[derive(Debug)]
        struct Cells {
            $($field: AtomicU64,)*
            $($many: [AtomicU64; $values.len()],)*
        }

        impl Default for Cells {
            fn default() -> Self {
                Self {
                    $($field: AtomicU64::new(0),)*
                    $($many: [const { AtomicU64::new(0) }; $values.len()],)*
                }
            }
        }

        #[derive(Debug, Default)]
        struct ClassCells {
            $($each: AtomicU64,)*
            $($times: TimesCells,)*
        }

        impl WorkerCounters {
            /// Publishes the thread's numbers: some hundred relaxed stores, so once per loop
            /// iteration or per millisecond, not per packet.
            pub fn store(&self, snapshot: &Snapshot) {
                let Self { now, before, .. } = self;
                self.stores.fetch_add(1, Relaxed);
                $(Kind::$kind.keep(&now.$field, &before.$field, snapshot.$field);)*
                $(for ((cell, last), value) in now.$many.iter().zip(&before.$many).zip(snapshot.$many) {
                    Kind::$many_kind.keep(cell, last, value);
                })*
                for ((cells, last), values) in self.classes.iter().zip(&self.last).zip(&snapshot.classes) {
                    $(Kind::$each_kind.advance(&cells.$each, &last.$each, values.$each);)*
                    $(cells.$times.advance(&last.$times, &values.$times);)*
                }
            }

            /// A class's cell begins at 0, for another class, whose streams have counted so much
            /// before. By the thread that stores.
            pub fn restart(&self, cell: usize, counted: &ClassSnapshot) {
                if let (Some(cells), Some(last)) = (self.classes.get(cell), self.last.get(cell)) {
                    $(cells.$each.store(0, Relaxed);)*
                    $(last.$each.store(counted.$each, Relaxed);)*
                    $(cells.$times.store(&Times::default());)*
                    $(last.$times.store(&counted.$times);)*
                }
            }

            /// Counts how often the thread has stored.
            pub(super) fn stores(&self) -> u64 {
                self.stores.load(Relaxed)
            }

            /// Adds the thread's numbers to those of others.
            pub(super) fn add_to(&self, snapshot: &mut Snapshot) {
                $(Kind::$kind.join(&mut snapshot.$field, self.now.$field.load(Relaxed));)*
                $(for (cell, value) in self.now.$many.iter().zip(&mut snapshot.$many) {
                    Kind::$many_kind.join(value, cell.load(Relaxed));
                })*
                for (cells, values) in self.classes.iter().zip(&mut snapshot.classes) {
                    $(Kind::$each_kind.join(&mut values.$each, cells.$each.load(Relaxed));)*
                    $(values.$times.add(&cells.$times.load());)*
                }
            }
        }

        /// Every metric.
        pub const METRICS: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, unit: Unit::$unit, label: None, meaning: $meaning },)*
            $(Metric {
                name: $many_name,
                kind: Kind::$many_kind,
                unit: Unit::$many_unit,
                label: Some(($label, &$values)),
                meaning: $many_meaning,
            },)*
            $(Metric {
                name: $each_name,
                kind: Kind::$each_kind,
                unit: Unit::$each_unit,
                label: Some(("class", &[])),
                meaning: $each_meaning,
            },)*
            $(Metric {
                name: $times_name,
                kind: Kind::Histogram,
                unit: Unit::Seconds,
                label: Some(("class", &[])),
                meaning: $times_meaning,
            },)*
        ];

        impl Snapshot {
            /// Sets every number, in the order of [`Snapshot::values`] with the first `classes`
            /// cells.
            #[cfg(test)]
            pub(super) fn fill(&mut self, classes: usize, next: &mut dyn FnMut() -> u64) {
                $(self.$field = next();)*
                $(self.$many.fill_with(&mut *next);)*
                $(for class in self.classes.iter_mut().take(classes) {
                    class.$each = next();
                })*
            }

            /// Every series' value, in the order of [`METRICS`] without histograms, then of the
            /// label's values or of the classes' cells.
            pub(super) fn values(&self, cells: &[usize]) -> Vec<u64> {
                let classes = || cells.iter().filter_map(|cell| self.classes.get(*cell));
                let mut values = Vec::with_capacity(METRICS.len() * 4);
                $(values.push(self.$field);)*
                $(values.extend(self.$many);)*
                $(values.extend(classes().map(|class| class.$each));)*
                values
            }

            /// The histograms in the order of [`METRICS`], each of the classes' cells.
            pub(super) fn histograms(&self, cells: &[usize]) -> Vec<Vec<Times>> {
                let classes = || cells.iter().filter_map(|cell| self.classes.get(*cell));
                vec![$(classes().map(|class| class.$times).collect(),)*]
            }
        }
    };
}

metrics! {
    plain {
        // Field: kind, unit, name, meaning.
        uptime_micros: Peak Seconds "longhaul_uptime_seconds" "Time since the gateway started"
        session_up: Peak Bool "longhaul_session_up" "Whether the session with the peer is up, and no way of its data path is known to be dead"
        sessions_established: Counter Count "longhaul_sessions_established_total" "Sessions set up with the peer"
        sessions_resumed: Counter Count "longhaul_sessions_resumed_total" "Sessions in which the flows of the one before went on"
        session_lost_micros: Peak Seconds "longhaul_session_lost_seconds" "Time since the session was lost whose flows wait for the next one; 0: none wait"
        session_rtt_micros: Peak Seconds "longhaul_session_rtt_seconds" "Smoothed round-trip time to the peer, as the data path measures it now"
        certificate_expiry_micros: Peak Seconds "longhaul_certificate_expiry_timestamp_seconds" "When this site's certificate, or one above it, expires, since 1970"
        peer_certificate_expiry_micros: Peak Seconds "longhaul_peer_certificate_expiry_timestamp_seconds" "When the certificate that the peer showed last, or one above it, expires, since 1970"
        authority_expiry_micros: Peak Seconds "longhaul_authority_expiry_timestamp_seconds" "When the authority, or the last of several, expires, since 1970"
        admin_certificate_expiry_micros: Peak Seconds "longhaul_admin_certificate_expiry_timestamp_seconds" "When the admin listener's certificate, or one above it in its file, expires, since 1970"
        link_rate_bytes: Peak Bytes "longhaul_link_rate_bytes_per_second" "The rate that the link is provisioned for: peer.rate"
        buffer_limit_bytes: Peak Bytes "longhaul_buffer_limit_bytes" "Bytes of packet buffers for local hosts at most: limits.total_buffer"
        flows_limit: Peak Flows "longhaul_flows_limit" "Flows of each side at most: limits.flows"
        lan_up: Peak Known "longhaul_lan_up" "Whether the LAN interface is up, with a carrier and an address for its hosts"
        lan_rdma_devices: Peak Count "longhaul_lan_rdma_devices" "RDMA devices on the LAN interface or below it, whose RoCE engines may take packets before the gateway sees them"
        lan_rdma_packets: Counter Packets "longhaul_lan_rdma_packets_total" "Packets that such devices took since the gateway saw them first"
        wan_up: Peak Known "longhaul_wan_up" "Whether this machine has the address of wan.listen, and a route from there to the peer"
        clock_sets: Counter Count "longhaul_clock_sets_total" "Times that this machine's clock was set by two seconds or more, forward or back"
        guard_restored: Counter Count "longhaul_guard_rules_restored_total" "Rules that keep the kernel from forwarding RoCE found missing, and put back"
        control_unanswered: Counter Count "longhaul_control_unanswered_total" "Datagrams of the control port to others than the peer that were not sent: they get 32 at once, and 8 a second"
        policy_generation: Peak Count "longhaul_policy_generation" "Policy files adopted: 1 at the start, one more with each reload"
        policy_loaded_micros: Peak Seconds "longhaul_policy_loaded_timestamp_seconds" "When the policy in force was read, since 1970"
        reports_thinned_bytes: Gauge Bytes "longhaul_wan_reports_thinned_bytes_per_second" "What reports on the peer's packets are thinned to, since the way to the peer carries no more; 0: not thinned"
        draining_streams: Gauge Count "longhaul_streams_draining" "Streams of classes that a reload removed which still hold something"
        draining_bytes: Gauge Bytes "longhaul_streams_draining_bytes" "Bytes in streams of classes that a reload removed, waiting or not yet acknowledged"
        lan_received_packets: Counter Packets "longhaul_lan_received_packets_total" "Packets taken from local hosts, before any check"
        lan_received_bytes: Counter Bytes "longhaul_lan_received_bytes_total" "Bytes taken from local hosts, from the IP header on, before any check"
        lan_sent_packets: Counter Packets "longhaul_lan_sent_packets_total" "Packets handed over to be sent to local hosts"
        lan_sent_bytes: Counter Bytes "longhaul_lan_sent_bytes_total" "Bytes handed over to be sent to local hosts, from the IP header on"
        lan_ring_dropped: Counter Packets "longhaul_lan_ring_dropped_packets_total" "Packets from local hosts the kernel dropped because the gateway was too slow to take them"
        lan_ring_truncated: Counter Packets "longhaul_lan_ring_truncated_packets_total" "Packets from the LAN skipped because they are longer than any RoCEv2 packet"
        lan_unknown_host: Counter Packets "longhaul_lan_unknown_host_packets_total" "Socket mode: packets dropped because it is not known where their destination listens"
        lan_other_thread: Counter Packets "longhaul_lan_other_thread_packets_total" "Socket mode with several threads: packets dropped because their sender had joined them with some of another thread's"
        lan_queue_dropped: Counter Packets "longhaul_lan_queue_dropped_packets_total" "Packets to local hosts dropped because the queue was full"
        lan_queue_packets: Gauge Packets "longhaul_lan_queue_packets" "Packets waiting to be sent to local hosts"
        lan_marked: Counter Packets "longhaul_lan_marked_packets_total" "Packets of flows from local hosts marked Congestion Experienced"
        lan_backlog_marked: Counter Packets "longhaul_lan_backlog_marked_packets_total" "Packets from local hosts that came while so much waited for the link that their sender is to be told"
        lan_cnps: Counter Packets "longhaul_lan_congestion_notifications_total" "Congestion notifications sent to local hosts whose packets meet congestion"
        cnps_carried: Counter Packets "longhaul_congestion_notifications_carried_total" "Congestion notifications of local hosts carried to the peer, for queue pairs that are not terminated"
        lan_mtu_bytes: Peak Bytes "longhaul_lan_mtu_bytes" "Longest IP packet sent to local hosts; longer ones are dropped and end their flow"
        requests_carried: Counter Packets "longhaul_requests_carried_total" "RC request packets handed to the streams"
        responses_carried: Counter Packets "longhaul_responses_carried_total" "RC response packets handed to the streams"
        datagrams_carried: Counter Packets "longhaul_datagrams_carried_total" "Packets handed to the streams without being terminated: UD, UC, connection management"
        datagrams_in_turn: Counter Packets "longhaul_management_in_turn_total" "Packets carried to queue pair 1 that waited for their turn: no management datagrams, or beyond their host's share"
        vendor_options_cleared: Counter Packets "longhaul_cm_vendor_options_cleared_total" "CM messages whose vendor options (ECE) were cleared"
        requests_replayed: Counter Packets "longhaul_requests_replayed_total" "Requests carried again because the requester sent them again"
        retention_packets: Gauge Packets "longhaul_retention_packets" "Requests that are retained beyond the process: acknowledged inside a message, and not by their target"
        retention_room_packets: Gauge Packets "longhaul_retention_room_packets" "Requests that there is room for to be retained; 0: long messages end if the process is killed"
        retention_bytes: Gauge Bytes "longhaul_retention_bytes" "Bytes of the requests that are retained beyond the process"
        retention_limit_bytes: Gauge Bytes "longhaul_retention_limit_bytes" "Bytes of requests that there is room for to be retained, if each is as long as it may be"
        retention_flows: Gauge Flows "longhaul_retention_flows" "Flows of which requests are retained"
        retention_orphans: Gauge Flows "longhaul_retention_orphaned_flows" "Flows among these that the process before knew, and whose requesters have not come back"
        retention_unretained: Counter Packets "longhaul_retention_unretained_total" "Requests that were not retained for want of room, so that their requesters waited for the target"
        retention_carried: Counter Count "longhaul_retention_carried_total" "Times that a target lacked what was retained, and was sent it"
        wan_sent_packets: Counter Packets "longhaul_wan_sent_packets_total" "Bulk datagrams sent to the peer"
        wan_sent_bytes: Counter Bytes "longhaul_wan_sent_bytes_total" "Bytes of bulk datagrams sent to the peer, UDP payload"
        wan_received_packets: Counter Packets "longhaul_wan_received_packets_total" "Datagrams received on the bulk port, before any check"
        wan_received_bytes: Counter Bytes "longhaul_wan_received_bytes_total" "Bytes received on the bulk port, UDP payload, before any check"
        wan_received_ce_packets: Counter Packets "longhaul_wan_received_ce_packets_total" "Datagrams received on the bulk port that were marked Congestion Experienced"
        wan_blocked: Counter Count "longhaul_wan_send_blocked_total" "Times the kernel had no room for datagrams; they were kept and sent later"
        wan_offload_refused: Counter Count "longhaul_wan_offload_refused_total" "Batches that the kernel refused to cut into datagrams (GSO); from then on, each datagram of the lane is a system call"
        wan_no_session: Counter Packets "longhaul_wan_no_session_packets_total" "Datagrams received while there was no session to open them"
        sleeps: Counter Count "longhaul_plane_sleeps_total" "Times a data-plane thread found nothing to do and slept"
        seal_failures: Counter Packets "longhaul_wan_seal_failures_total" "Packets that could not be sealed because the session's packet numbers were used up"
        wan_overrun: Counter Packets "longhaul_wan_overrun_packets_total" "Datagrams from the peer the kernel dropped because the gateway was too slow to take them; those that GRO had joined count once"
        path_age_micros: Peak Seconds "longhaul_path_age_seconds" "Time since the peer last reported on the path; 0 before it has"
        path_packets: Peak Packets "longhaul_path_judged_packets" "Packets the drop rate rests on: those since the path last changed, ten minutes at most"
        path_changes: Restarting Count "longhaul_path_changes_total" "Times the path was found to have changed"
        path_overrun: Restarting Packets "longhaul_path_overrun_packets_total" "Packets that the peer's machine dropped because it was too slow; no losses of the path"
        path_congestive: Peak Share "longhaul_path_congestive_ratio" "Share of the losses that came with an inflated round-trip time or with marks of congestion"
        path_delivered_bytes: Gauge Bytes "longhaul_path_delivered_bytes_per_second" "What arrives at the peer, headers included, over about a second"
        path_delivered_peak_bytes: Gauge Bytes "longhaul_path_delivered_peak_bytes_per_second" "The most that arrived at the peer in the last half minute to minute, headers included"
        path_reordered: Peak Share "longhaul_path_reordered_ratio" "Share of packets that arrive after one sent later"
        path_duplicates: Peak Share "longhaul_path_duplicate_ratio" "Share of packets that arrive twice"
        path_ce: Peak Share "longhaul_path_ce_ratio" "Share of ECN-capable packets that arrive marked Congestion Experienced"
        congestion_mode: Peak Count "longhaul_congestion_mode" "With peer.congestion = adaptive: 1 starts, 2 yields to delay, 3 yields to losses as CUBIC, 4 holds its part as BBR; 0: fixed"
        congestion_rate_bytes: Gauge Bytes "longhaul_congestion_rate_bytes_per_second" "The rate at which congestion control lets the gateway send, headers included; 0: fixed"
        congestion_window_bytes: Gauge Bytes "longhaul_congestion_window_bytes" "Bytes that congestion control lets be in flight; 0: fixed"
        congestion_in_flight_bytes: Gauge Bytes "longhaul_congestion_in_flight_bytes" "Bytes in flight, as congestion control counts: sent since the newest packet that the peer has reported on"
        congestion_queueing_micros: Peak Seconds "longhaul_congestion_queueing_seconds" "The least queueing delay of the last round trip, as congestion control sees it"
        congestion_base_micros: Peak Seconds "longhaul_congestion_base_rtt_seconds" "The round-trip time without queues, the least of 15 to 30 s"
        congestion_yields: Restarting Count "longhaul_congestion_yields_total" "Times that congestion control sent less because of congestion"
        congestion_silences: Restarting Count "longhaul_congestion_silences_total" "Times that the peer's reports failed to come to congestion control"
        mtu_state: Peak Count "longhaul_wan_mtu_state" "Whether the path's MTU is found: 1 not confirmed yet, 2 longer packets are tried, 3 complete, 4 less than any path should carry; 0: fixed"
        mtu_probes: Restarting Packets "longhaul_wan_mtu_probes_total" "Packets sent to find or confirm the path's MTU"
        mtu_probes_lost: Restarting Packets "longhaul_wan_mtu_probes_lost_total" "Probes of the path's MTU that were longer than what was in use and did not arrive"
        mtu_black_holes: Restarting Count "longhaul_wan_mtu_black_holes_total" "Times that the path came to carry shorter packets than it did"
        wan_malformed: Counter Packets "longhaul_wan_malformed_packets_total" "Authentic datagrams that break the protocol's format"
        records_malformed: Counter Count "longhaul_records_malformed_total" "Records from the peer that break the format or name an address not behind it"
        records_late: Counter Count "longhaul_records_late_total" "Records of flows that had just ended"
        records_contradicted: Counter Count "longhaul_records_contradicted_total" "Pieces of records from the peer dropped because they state another length than others of their record"
        connections_unlearned: Counter Count "longhaul_connections_unlearned_total" "Connection requests not remembered until their reply, since as many were as there may be, of all hosts or of one"
        member_takes_part: Peak Known "longhaul_member_live" "Whether the peer, another gateway of this site, takes part in it; no series for other peers"
        members_live: Peak Count "longhaul_members_live" "Gateways of this site that take part in what goes to the peer's; 0: each of the two sites has one"
        host_pairs: Gauge Count "longhaul_host_pairs" "Pairs of hosts that this gateway speaks for; with the first gateway of the peer's site"
        host_pairs_moved: Counter Count "longhaul_host_pairs_moved_total" "Pairs of hosts whose flows went to another gateway of the peer's site, or were forgotten since another one had spoken here"
        flows_moved: Counter Flows "longhaul_flows_moved_total" "Flows of these pairs of hosts"
        lan_handed_over: Counter Packets "longhaul_lan_handed_over_packets_total" "Packets of local hosts handed over to another gateway of this site, which speaks for them"
        member_words_refused: Counter Count "longhaul_member_words_refused_total" "Messages of members of sites that break the format or are about other hosts"
        flows_unpaired: Gauge Flows "longhaul_flows_unpaired" "Flows to local targets whose requester's queue pair is not known yet, or asked for anew"
        flows_waiting: Gauge Flows "longhaul_flows_waiting" "Flows that wait for a lost session to go on, with something under way"
        flows_remembered: Gauge Flows "longhaul_flows_remembered" "Flows of earlier sessions whose further requests are refused"
        flows_forgotten: Counter Flows "longhaul_flows_forgotten_total" "Flows of ended sessions not remembered because twice limits.flows were; after a restart their programs are told nothing"
        flows_paired: Counter Flows "longhaul_flows_paired_total" "Flows whose partner queue pair was found"
        flows_idle_closed: Counter Flows "longhaul_flows_idle_closed_total" "Flows forgotten because they were idle"
        flows_rnr_given_up: Counter Flows "longhaul_flows_rnr_given_up_total" "Flows whose requester gave up a target that was not ready to receive"
        flows_replaced: Counter Flows "longhaul_flows_replaced_total" "Flows replaced by a newer queue pair of the same number, or, after a second at rest, by what may be one"
        flows_evicted: Counter Flows "longhaul_flows_evicted_total" "Flows that had failed, or whose target had never spoken, forgotten early for want of room in limits.flows"
        flows_silenced: Counter Flows "longhaul_flows_silenced_total" "Flows that ended with their session, and whose requesters get no answer for 30 s before they are refused"
        flows_restoring: Gauge Flows "longhaul_flows_restoring" "Flows of local requesters that are to go on after a process of either gateway has ended, and have not yet"
        flows_restored: Counter Flows "longhaul_flows_restored_total" "Flows of local requesters that went on after a process of either gateway had ended"
        flows_unrestored: Counter Flows "longhaul_flows_unrestored_total" "Flows that were to go on after a process of either gateway had ended, and ended in an error first"
        requests_refused: Counter Flows "longhaul_requests_refused_total" "Flows refused with an error when they were tried again, because they ended with an earlier session"
        buffers: Gauge Count "longhaul_buffers" "Packet buffers held for local targets"
        buffer_bytes: Gauge Bytes "longhaul_buffer_bytes" "Bytes in packet buffers held for local targets; bounded by limits.total_buffer"
        reorder_bytes: Gauge Bytes "longhaul_reorder_bytes" "Memory to keep records in order, without the records themselves; bounded by three eighths of limits.total_buffer"
        received_bytes: Gauge Bytes "longhaul_received_bytes" "Records and blocks from the peer that are not whole, and memory kept for them; bounded by 1.25 limits.total_buffer, 128 MiB at least"
        timers: Gauge Count "longhaul_timers" "Flow timers pending"
    }
    labelled {
        // Field[label VALUES]: kind, unit, name, meaning.
        log_lost["reason" LOST_LINES]: Counter Count "longhaul_log_lines_lost_total" "Lines of the log that were not written"
        sessions_refused["reason" REFUSALS]: Counter Count "longhaul_sessions_refused_total" "Attempts to set a session up, of either side, that came to none"
        lan_rejected["reason" LAN_REJECTS]: Counter Packets "longhaul_lan_rejected_packets_total" "Packets from the LAN that are not whole RoCEv2 packets"
        lan_dropped["reason" LAN_DROPS]: Counter Packets "longhaul_lan_dropped_packets_total" "RoCEv2 packets from local hosts that were dropped"
        lan_unsent["reason" LAN_UNSENT]: Counter Packets "longhaul_lan_unsent_packets_total" "Packets to local hosts that were not sent: longer than lan.mtu or the interface's MTU, or refused by the kernel"
        members_dropped["reason" MEMBERS_DROPPED]: Counter Packets "longhaul_members_dropped_packets_total" "Packets from and to local hosts dropped for want of a speaker, since another gateway speaks for them, or since there were too many pairs of hosts"
        data_path["direction" DIRECTIONS]: Peak Known "longhaul_data_path_up" "Whether authentic data arrives at the other gateway; no series while nothing shows it"
        wan_opened["lane" LANES]: Counter Packets "longhaul_wan_opened_packets_total" "Datagrams from the peer that were authentic and new, by the peer's lane"
        wan_rejected["reason" WAN_REJECTS]: Counter Packets "longhaul_wan_rejected_packets_total" "Datagrams on the bulk port that are not authentic and new"
        wan_unsent["reason" UNSENT]: Counter Packets "longhaul_wan_unsent_packets_total" "Datagrams to the peer the kernel refused to send"
        wan_mtu["direction" DIRECTIONS]: Peak Bytes "longhaul_wan_mtu_bytes" "Longest IP packet sent to the peer, and that the peer says to send; 0: not known"
        path_drop["bound" BOUNDS]: Peak Share "longhaul_path_drop_ratio" "Share of packets to the peer that are lost, since the path last changed"
        path_drop_long_run["bound" BOUNDS]: Peak Share "longhaul_path_drop_long_run_ratio" "Share of packets to the peer that are lost, over ten minutes, whatever changed"
        path_drop_by_size["bytes" SIZES]: Peak Share "longhaul_path_drop_by_size_ratio" "Share of packets to the peer that are lost, by packet size with all headers, over the session, likely value; the label is the largest size"
        path_burst["bound" BOUNDS]: Peak MeanPackets "longhaul_path_burst_packets" "Mean number of packets lost in a row; 0 while none is lost"
        path_rtt_micros["statistic" RTTS]: Peak Seconds "longhaul_path_rtt_seconds" "Round-trip time to the peer and back: the smallest of five to ten minutes, smoothed, variation"
        path_extent_packets["statistic" EXTENTS]: Peak Packets "longhaul_path_reordering_packets" "How far reordered packets lag behind, in packets"
        path_extent_micros["statistic" EXTENTS]: Peak Seconds "longhaul_path_reordering_seconds" "How long reordered packets lag behind"
        lane_state["lane" LANES]: Peak Count "longhaul_lane_state" "How the lane to the peer stands: 1 in use, 2 nothing was heard of the lane lately, so it gets no data; left since it is 3 silent, 4 lossy, 5 slow; 0: there is none"
        lane_share["lane" LANES]: Peak Share "longhaul_lane_share_ratio" "Part of the packets to the peer that the lane is given"
        lane_drop["lane" LANES]: Peak Share "longhaul_lane_drop_ratio" "Share of the lane's packets that are lost, since the lane last changed, likely value"
        lane_rtt_micros["lane" LANES]: Peak Seconds "longhaul_lane_rtt_seconds" "Smoothed round-trip time of what is sent on the lane, whichever lane the answer takes"
        lane_ecn["lane" LANES]: Peak Count "longhaul_lane_ecn_state" "Whether the lane carries ECN-capable packets: 1 not known yet, 2 yes, 3 given up for now, 4 no, so none is marked; 0: none is marked with peer.congestion = fixed"
        lane_leaves["lane" LANES]: Restarting Count "longhaul_lane_leaves_total" "Times that the lane was left"
        flows["side" SIDES]: Gauge Flows "longhaul_flows" "Flows open, by whether the requester (near) or the target (far) is at this site"
        flows_opened["side" SIDES]: Counter Flows "longhaul_flows_opened_total" "Flows opened"
        policy_reloads["result" RELOADS]: Counter Count "longhaul_policy_reloads_total" "Times the policy file was read again, by whether it was adopted"
        requesters_told["what" TOLD]: Counter Packets "longhaul_requesters_told_total" "What the gateway said to local requesters in their targets' name; response_again are READ responses given once more from here; rnr_nak also where there was no room and rdma_cm had told that the requester takes it without end"
        targets_asked["what" ASKED]: Counter Packets "longhaul_targets_asked_total" "What the gateway sent to local targets in their requesters' name, and what came of that: requests that the LAN lost are sent again"
        retention_off["reason" NO_RETENTION]: Peak Bool "longhaul_retention_off" "Whether a class is to survive a process (survive = process), and nothing is retained for it, by why"
        retention_forgotten["reason" FORGOTTEN]: Counter Count "longhaul_retention_forgotten_total" "Files that the process before left, or single requests (damaged), that this process would not have written so, and forgot at the start"
        flows_failed["reason" FAILURES]: Counter Flows "longhaul_flows_failed_total" "Flows ended in an error that the programs see"
    }
    class {
        // Field: kind, unit, name, meaning.
        records_sent: Counter Count "longhaul_stream_sent_records_total" "Records taken by the class's streams"
        records_sent_bytes: Counter Bytes "longhaul_stream_sent_record_bytes_total" "Bytes of records taken by the class's streams"
        records_refused: Counter Count "longhaul_stream_refused_records_total" "Records refused because the stream was full"
        sent_data: Counter Packets "longhaul_stream_sent_data_packets_total" "Data packets sent for the first time"
        sent_repairs: Counter Packets "longhaul_stream_sent_repair_packets_total" "Data packets sent again"
        sent_repairs_spurious: Counter Packets "longhaul_stream_sent_spurious_repair_packets_total" "Data packets sent again that the receiver turned out not to have needed"
        sent_parity: Counter Packets "longhaul_stream_sent_parity_packets_total" "Parity packets sent"
        sent_bytes: Counter Bytes "longhaul_stream_sent_bytes_total" "Bytes of all packets sent, before sealing"
        short_blocks: Counter Count "longhaul_stream_short_blocks_total" "Blocks closed before they were full"
        timeouts: Counter Count "longhaul_stream_timeouts_total" "Retransmission timeouts that led to a repair"
        backlog_bytes: Gauge Bytes "longhaul_stream_backlog_bytes" "Bytes waiting to be sent for the first time"
        in_flight_bytes: Gauge Bytes "longhaul_stream_in_flight_bytes" "Bytes sent and not yet acknowledged"
        received_data: Counter Packets "longhaul_stream_received_data_packets_total" "Data packets received, each counted once"
        received_repaired: Counter Packets "longhaul_stream_received_repaired_packets_total" "Data packets received that came as a repair"
        received_duplicates: Counter Packets "longhaul_stream_received_duplicate_packets_total" "Data packets that had already arrived or been decoded"
        received_late: Counter Packets "longhaul_stream_received_late_packets_total" "Data packets dropped because they lie outside the window"
        received_parity: Counter Packets "longhaul_stream_received_parity_packets_total" "Parity packets received"
        received_parity_unused: Counter Packets "longhaul_stream_received_parity_unused_packets_total" "Parity packets received whose block needed none any more"
        decoded: Counter Packets "longhaul_stream_decoded_packets_total" "Data packets recovered from parity"
        nacked: Counter Packets "longhaul_stream_nacked_packets_total" "Packets asked for again, repetitions included"
        abandoned: Counter Packets "longhaul_stream_abandoned_packets_total" "Packets lost for good: missing when the sender gave them up"
        records_received: Counter Count "longhaul_stream_received_records_total" "Records delivered"
        records_received_bytes: Counter Bytes "longhaul_stream_received_record_bytes_total" "Bytes of records delivered"
        scheme_switches: Counter Count "longhaul_scheme_switches_total" "Times auto changed the scheme of one of the class's streams"
        rtt_micros: Peak Seconds "longhaul_stream_rtt_seconds" "Smoothed round-trip time as the class's stream measures it"
    }
    histogram {
        // Field: name, meaning. Of the class.
        queueing: "longhaul_stream_queueing_seconds" "Time that data packets waited here before they were first sent, from their first record on"
        completion: "longhaul_message_completion_seconds" "Time from a message's first packet until its target acknowledged or answered the whole message, of one message at a time of each flow from local hosts"
    }
}

impl Kind {
    fn join(self, total: &mut u64, value: u64) {
        *total = match self {
            Self::Counter | Self::Restarting | Self::Histogram | Self::Gauge => total.saturating_add(value),
            Self::Peak => value.max(*total),
        };
    }

    /// Adds the growth since `last` to a counter's `total`, and takes over a gauge. By the one
    /// thread that stores.
    fn advance(self, total: &AtomicU64, last: &AtomicU64, now: u64) {
        let before = last.load(Relaxed);
        last.store(now, Relaxed);
        let total_now = match self {
            Self::Counter | Self::Restarting | Self::Histogram => {
                total.load(Relaxed).saturating_add(now.checked_sub(before).unwrap_or(now))
            }
            Self::Gauge | Self::Peak => now,
        };
        total.store(total_now, Relaxed);
    }

    /// Takes over a number of the whole gateway. By the one thread that stores.
    fn keep(self, total: &AtomicU64, last: &AtomicU64, now: u64) {
        match self {
            Self::Restarting | Self::Histogram => self.advance(total, last, now),
            Self::Counter | Self::Gauge | Self::Peak => total.store(now, Relaxed),
        }
    }

    /// As Prometheus calls it.
    pub const fn prometheus(self) -> &'static str {
        match self {
            Self::Counter | Self::Restarting => "counter",
            Self::Gauge | Self::Peak => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Unit {
    /// Returns the divisor of a value here for Prometheus.
    pub const fn scale(self) -> f64 {
        match self {
            Self::Seconds => 1e6,
            Self::Share => 1e9,
            Self::MeanPackets => 1e3,
            Self::Packets | Self::Bytes | Self::Flows | Self::Count | Self::Bool | Self::Known => 1.0,
        }
    }

    /// As documentation calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Share => "0 to 1",
            Self::MeanPackets => "packets",
            Self::Flows => "flows",
            Self::Count => "1",
            Self::Bool | Self::Known => "0 or 1",
        }
    }
}
