//! Decides if enough is known of the link to choose.

use std::fmt;

use reliability::estimator::Summary;
use reliability::link::Link;
use reliability::selector::Estimate;

use super::{PathSnapshot, STALE};

/// A loss rate that is surely no higher is known well enough, however little else is ...
const LOW_ENOUGH: f64 = 0.01;
/// ... and so is one whose upper bound is so many times the likely value.
const TIGHT_ENOUGH: f64 = 4.0;

/// Why nothing is chosen, or nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There is no session.
    Session,
    /// The peer has not reported on the path yet.
    Path,
    /// It has not reported for long.
    Stale,
    /// Too few packets were sent for a loss rate.
    Losses {
        /// So many were.
        packets: u64,
    },
    /// The class has sent no message, so its messages' size is not known.
    Messages,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session => write!(f, "there is no session"),
            Self::Path => write!(f, "the peer has not reported on the path yet"),
            Self::Stale => write!(f, "the peer has not reported on the path for long"),
            Self::Losses { packets } => write!(f, "{packets} packets are too few to tell the loss rate"),
            Self::Messages => write!(f, "the class has sent no message in this session yet"),
        }
    }
}

/// The link as it is known, if it is.
pub(super) fn estimate(sighting: &PathSnapshot) -> Result<Estimate, Missing> {
    sighting.session.ok_or(Missing::Session)?;
    estimate_of(sighting.path.as_ref().ok_or(Missing::Path)?, &sighting.link)
}

/// Returns true if a loss rate is known well enough to choose by, with this upper bound.
pub(crate) fn is_tight(likely: f64, high: f64) -> bool {
    high <= LOW_ENOUGH || high <= TIGHT_ENOUGH * likely
}

/// The way to the peer as assumed, with what is known of the path.
///
/// # Errors
/// [`Missing`]: too little is known to choose by.
pub fn estimate_of(path: &Summary, assumed: &Link) -> Result<Estimate, Missing> {
    let age = path.age.ok_or(Missing::Path)?;
    if age > STALE {
        return Err(Missing::Stale);
    }
    let drop = path.drop;
    if !is_tight(drop.likely, drop.high) {
        return Err(Missing::Losses { packets: path.packets as u64 });
    }
    // The smallest one would stand for minutes after the way has become longer, and packets that
    // overtake may fake it.
    let rtt = Some(path.rtt.smoothed).filter(|rtt| path.rtt.samples > 0 && !rtt.is_zero());
    let link = Link {
        rtt: rtt.unwrap_or(assumed.rtt),
        drop: drop.likely,
        burst: path.burst.map_or(1.0, |burst| burst.likely),
        ..*assumed
    };
    Ok(Estimate { link, drop_low: drop.low, drop_high: drop.high })
}
