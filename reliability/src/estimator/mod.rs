//! Estimates what a path to a peer does to packets: loss, bursts, reordering, delay, delivered
//! bandwidth. They are measured from the packet numbers of the session, whatever the scheme.
//!
//! Every sealed datagram has a number, one more than the one before on its lane. At the receiving
//! end a [`PathObserver`] sees the numbers of the authentic ones and tells the sender about once a
//! round trip what it counted, in a [`PathReport`]. At the sending end a [`PathEstimate`] makes of
//! these and of round-trip times what the path is like now, with bounds ([`Summary`]). A [`Prober`]
//! keeps both going when nothing else is sent.
//!
//! How soon a change shows: a loss is known half a round trip, the observer's patience (a round
//! trip, or twice the reordering seen) and a report later; [`PathEstimate`] says how many losses a
//! change of the drop rate takes to be told from chance.

mod buckets;
mod estimate;
mod extents;
mod history;
mod interval;
mod marks;
mod observer;
mod path_rtt;
mod probe;
mod report;
mod runs;
mod sizes;
mod skew;
mod summary;
mod unsent;

use std::time::{Duration, Instant};

pub use estimate::{EstimateConfig, PathEstimate};
pub use interval::Range;
pub use observer::{Activity, ObserverConfig, PathObserver, WINDOW};
pub use probe::{ProbeConfig, Prober};
pub use report::{Echo, Extents, Newest, PATH_PACKET, PROBE_PACKET, PathReport, parse_probe};
pub use sizes::{SIZE_BOUNDS, SIZES};
pub use skew::Skew;
pub use summary::{Reordering, Rtt, Summary};

/// Lane (UDP port pair) of a session, in one direction. Each has packet numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneId(pub u16);

/// ECN codepoint of a datagram's IP header (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECT(0) or ECT(1).
    Ect,
    /// Congestion Experienced.
    Ce,
}

/// An authentic datagram as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The lane it came on.
    pub lane: LaneId,
    /// Its packet number, which is the lane's.
    pub number: u64,
    /// Its length in bytes, counted as the sender counts it in [`PathEstimate::sent`].
    pub bytes: usize,
    /// Its ECN bits.
    pub ecn: Ecn,
}

/// Reports follow one another by a round trip, within these bounds.
pub(crate) fn report_interval(rtt: Duration) -> Duration {
    rtt.clamp(Duration::from_millis(10), Duration::from_secs(1))
}

/// Microseconds since the session began, by this end's clock. Both ends of a path at one gateway
/// share the origin: what one stamps comes back to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new(origin: Instant) -> Self {
        Self { origin }
    }

    pub(crate) fn micros(self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn instant(self, micros: u64) -> Instant {
        self.origin + Duration::from_micros(micros)
    }
}

/// As it stands on the wire: modulo 2^32.
fn stamp(micros: u64) -> u32 {
    micros as u32
}
