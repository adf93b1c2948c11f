//! How long the streams take to notice and to repair.

use super::Timers;
use crate::link::Link;
use crate::model::candidate::Candidate;
use crate::stream::loss::{MAX_BACKOFF, MAX_PROBE_COPIES, MAX_TIMEOUT};
use crate::stream::{quiet, report_interval};

/// A report is due after so many packets.
const REPORT_PACKETS: f64 = 128.0;
/// Least part of a timeout that is left for the variation of the round-trip time, in seconds.
const LEAST_SLACK: f64 = 1e-3;
/// Probes looked at.
const PROBES: i32 = 64;

/// Seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    /// From the end of a packet or group that others follow until its repair could have arrived in
    /// its place.
    pub(super) repair: f64,
    /// From there to the next repair's.
    pub(super) again: f64,
    /// To `hybrid`, so much of a transfer is its tail.
    pub(super) tail: f64,
    /// For the last group: until the first repair, and to the next.
    pub(super) silence: f64,
    pub(super) again_at_end: f64,
    /// The retransmission timeout, of one packet sent last or of the last group.
    pub(super) timeout: f64,
    /// Wait for a report that the sender asked for.
    pub(super) report: f64,
    pub(super) flush: f64,
    /// After the last packet.
    pub(super) quiet: f64,
}

impl Delays {
    pub(super) fn new(link: &Link, timers: &Timers, candidate: Candidate, packet: f64) -> Self {
        let rtt = link.rtt_seconds();
        let reorder = timers.reorder_time.as_secs_f64();
        let interval = report_interval(link.rtt).as_secs_f64();
        let alpha = match candidate {
            Candidate::Sr => timers.alpha.clamp(0.0, 100.0),
            Candidate::Hybrid(_) => 1.0,
            Candidate::Xor(_) | Candidate::Mds(_) => 2.0,
        };
        // The receiver notes how far the stream has come every eighth of the reordering time.
        let noticed = reorder * (1.0 + 1.0 / 16.0) + packet;
        let regular = interval.min(REPORT_PACKETS * packet);
        let spacing = (interval / 8.0).clamp(100e-6, 1e-3);
        let alarm = if regular <= spacing { regular / 2.0 } else { spacing * spacing / (2.0 * regular) };
        // While only repairs arrive, reports come by the clock.
        let fallback = reorder + timers.beta.clamp(0.0, 100.0) * rtt;
        Self {
            repair: rtt + noticed + alarm,
            again: rtt + reorder + interval / 2.0,
            tail: rtt + reorder + interval + LEAST_SLACK,
            silence: rtt + fallback,
            again_at_end: rtt + fallback.max(interval),
            timeout: rtt * (1.0 + alpha) + reorder.max(LEAST_SLACK) + interval,
            report: spacing,
            flush: timers.flush.as_secs_f64(),
            quiet: quiet(link.rtt).as_secs_f64(),
        }
    }

    /// When probes are sent after the packet that was never acknowledged, and of how many packets
    /// each is, with its copies.
    pub(super) fn probes(&self) -> impl Iterator<Item = (f64, u8)> {
        let longest = MAX_TIMEOUT.as_secs_f64();
        let (timeout, mut at) = (self.timeout.min(longest), 0.0);
        (0..PROBES).map(move |probe| {
            let doubled = 2.0_f64.powi((probe - 1).clamp(0, MAX_BACKOFF.into()));
            at += (timeout * doubled).min(longest);
            (at, u8::try_from(probe + 2).unwrap_or(u8::MAX).min(1 + MAX_PROBE_COPIES))
        })
    }
}
