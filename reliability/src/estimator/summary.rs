//! What is known of a path, in plain numbers.

use std::time::Duration;

use super::Range;
use super::sizes::SIZES;

/// A path at one time, in the direction to the peer. Ranges hold the truth in 19 of 20 cases.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Summary {
    /// Share of packets lost since the path last changed. `likely` is 0 where nothing was lost: `high` says how little that means.
    pub drop: Range,
    /// The same over all of the memory, older counts less, whatever changed: with what comes and goes.
    pub drop_long_run: Range,
    /// Mean run of losses in packets; `None` while none was seen.
    pub burst: Option<Range>,
    /// Mean arrivals between two runs of losses; `None` while none was seen.
    pub gap: Option<f64>,
    /// The longest run of losses of the session.
    pub longest_burst: u32,
    /// Of the losses in `drop`, the share that came with an inflated round-trip time or with marks of congestion.
    pub congestive: f64,
    /// Share of packets lost by their size (see [`super::SIZE_BOUNDS`]), over the session.
    pub drop_by_size: [Range; SIZES],
    /// Smallest round-trip time of the last five to ten minutes, smoothed, and variation (RFC 6298).
    pub rtt: Rtt,
    /// What arrives, in bit/s, over about a second. Not what could.
    pub delivered: f64,
    /// The most that arrived in a second of the last half minute to minute.
    pub delivered_peak: f64,
    /// Packets out of order.
    pub reordering: Reordering,
    /// Share of packets that came twice.
    pub duplicates: f64,
    /// Share of ECN-capable packets that were marked Congestion Experienced.
    pub ce: f64,
    /// Packets that `drop` rests on.
    pub packets: f64,
    /// Packet numbers used up here for datagrams that never left. They count as no loss.
    pub unsent: u64,
    /// Packets of the session that the peer's machine dropped for want of buffers. They count as no loss either.
    pub overrun: u64,
    /// How often the path was found to have changed.
    pub changes: u64,
    /// Since the last report; `None` before the first.
    pub age: Option<Duration>,
}

/// Round-trip times; the hint while there is no measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rtt {
    /// The smallest of late.
    pub minimum: Duration,
    /// SRTT of RFC 6298.
    pub smoothed: Duration,
    /// RTTVAR of RFC 6298.
    pub variation: Duration,
    /// Measurements taken.
    pub samples: u64,
}

/// Packets that arrived after one sent later (RFC 4737). The extents are of the last half minute to minute.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Reordering {
    /// Their share since the path last changed.
    pub share: f64,
    /// How far below the highest number seen: 99 of 100, in packets.
    pub packets_p99: u32,
    /// The furthest.
    pub packets_max: u32,
    /// How long after they were noticed to be missing: 99 of 100.
    pub time_p99: Duration,
    /// The latest.
    pub time_max: Duration,
}
