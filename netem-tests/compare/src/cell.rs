//! The cells of the comparison: each a load under conditions of the link.

use std::time::Duration;

use linksim::impair::{LinkSpec, Loss};
use reliability::human;
use serde::{Deserialize, Serialize};

use crate::job::Job;

/// Mean length of a burst of losses, packets.
pub(crate) const BURST: f64 = 8.0;
/// Ethernet; IPv4 and UDP.
const FRAME: f64 = 14.0;
const HEADERS: f64 = 28.0;
/// Not measured, unless the whole run is.
pub(crate) const WARM_UP: Duration = Duration::from_millis(700);
/// Further for `auto`, which has to learn the link first.
const LEARNING: Duration = Duration::from_secs(6);

/// With several outstanding: each place's messages in the time measured.
const ROUNDS: f64 = 8.0;

/// How packets are lost, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drops {
    /// Share of packets.
    pub(crate) share: f64,
    /// In bursts rather than one by one.
    pub(crate) bursty: bool,
}

/// A link, and messages on it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Round-trip time of the link, milliseconds.
    pub(crate) rtt: u32,
    /// Bytes of an IP packet on it, at most.
    pub(crate) mtu: u16,
    /// bit/s.
    pub(crate) rate: u64,
    /// Losses.
    pub(crate) drops: Drops,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Messages at a time.
    pub(crate) outstanding: u32,
}

impl std::fmt::Display for Drops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { share: 0.0, .. } => f.write_str("0"),
            Self { share, bursty: false } => write!(f, "{share:e}"),
            Self { share, bursty: true } => write!(f, "{share:e} in bursts"),
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rtt, mtu, rate, drops, size, outstanding } = self;
        let (rate, size) = (rate_name(*rate), human::size(*size));
        write!(f, "{rate}, {rtt} ms, MTU {mtu}, drop {drops}, {size} x {outstanding}")
    }
}

/// A rate as people write it.
pub(crate) fn rate_name(rate: u64) -> String {
    if rate.is_multiple_of(1_000_000_000) {
        format!("{} Gbit/s", rate / 1_000_000_000)
    } else {
        format!("{} Mbit/s", rate / 1_000_000)
    }
}

impl Cell {
    /// Round-trip time.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_millis(self.rtt.into())
    }

    /// The link, with a queue of one bandwidth-delay product.
    pub(crate) fn link(&self) -> LinkSpec {
        let Drops { share, bursty } = self.drops;
        let loss = match bursty {
            _ if share == 0.0 => Loss::None,
            false => Loss::Random(share),
            true => Loss::GilbertElliott {
                to_bad: share / (BURST * (1.0 - share)),
                to_good: 1.0 / BURST,
                loss_bad: 1.0,
                loss_good: 0.0,
            },
        };
        let queue = self.rate as f64 * self.rtt().as_secs_f64() / 8.0;
        LinkSpec {
            delay: self.rtt() / 2,
            loss,
            rate: Some(self.rate),
            limit_bytes: Some(queue as usize),
            ..LinkSpec::default()
        }
    }

    /// Seconds that the link is busy with one message in packets of its MTU, with their Ethernet,
    /// IP and UDP headers and nothing else.
    pub(crate) fn serialisation(&self) -> f64 {
        let mtu = f64::from(self.mtu);
        let wire = self.size as f64 * (mtu + FRAME) / (mtu - HEADERS);
        wire * 8.0 / self.rate as f64
    }

    /// Seconds that a message takes without losses: it is sent, and a round trip passes; among
    /// others, the link is shared.
    pub(crate) fn ideal(&self) -> f64 {
        self.completion(self.serialisation())
    }

    /// Likewise, of one who sends so many bytes for each of a message's, parity and all.
    pub(crate) fn ideal_with(&self, wire: f64) -> f64 {
        self.completion(self.size as f64 * wire * 8.0 / self.rate as f64)
    }

    /// Messages that take the link for so many seconds each.
    fn completion(&self, own: f64) -> f64 {
        (own + self.rtt().as_secs_f64()).max(own * f64::from(self.outstanding))
    }

    /// Goodput without losses, bit/s.
    pub(crate) fn ideal_goodput(&self) -> f64 {
        self.size as f64 * 8.0 * f64::from(self.outstanding) / self.ideal()
    }
}

/// How long things are measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Messages wanted in a cell with one at a time.
    pub(crate) messages: f64,
    /// Seconds of measurement at least and at most.
    pub(crate) seconds: (f64, f64),
    /// Seconds that a sender waits for what is outstanding, at least.
    pub(crate) patience: f64,
    /// Every content is checked.
    pub(crate) verify: bool,
}

/// A job, and what of it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// The job.
    pub(crate) job: Job,
    /// Messages completed within this time from the start are not counted. `None`: from first to
    /// last, everything counts.
    pub(crate) warm_up: Option<Duration>,
}

impl Effort {
    /// A time is cut out of a longer run; where that would take too long, as many messages as are
    /// outstanding are sent, and everything counts.
    pub(crate) fn schedule(&self, cell: &Cell, connections: u32, learns: bool) -> Schedule {
        let ideal = cell.ideal();
        let (least, most) = self.seconds;
        let (wanted, whole) = match cell.outstanding {
            1 => ((ideal * self.messages).clamp(least, most), false),
            _ => ((ideal * ROUNDS).max(least), ideal * ROUNDS > most),
        };
        let seconds = Duration::from_secs_f64;
        let mut job = Job {
            size: cell.size,
            outstanding: cell.outstanding,
            connections,
            time: seconds(wanted),
            count: u64::MAX,
            patience: seconds((2.0 * ideal).max(self.patience)),
            verify: self.verify,
        };
        if whole {
            // The whole must end within a few times the ideal.
            (job.count, job.time) = (u64::from(cell.outstanding), seconds(ideal * 2.0));
            return Schedule { job, warm_up: None };
        }
        let warm_up = if learns { WARM_UP + LEARNING } else { WARM_UP };
        job.time += warm_up;
        Schedule { job, warm_up: Some(warm_up) }
    }
}
