//! A gateway's knowledge of a link.

use std::str::FromStr;
use std::time::Instant;

use gateway::choose::estimate_of;
use gateway::simulate::SimulateError;
use linksim::transfer::Told;
use reliability::estimator::{EstimateConfig, PathEstimate, PathReport};
use reliability::link::Link;
use reliability::selector::Estimate;

/// How well the link is known to the selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its loss rate and bursts are what they are.
    Exactly,
    /// As the production estimator tells after so many packets, of which as many were lost, in as
    /// many runs, as is to be expected.
    After(u64),
}

impl FromStr for Known {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "exact" => Ok(Self::Exactly),
            Ok(packets) if (1..=1_000_000_000).contains(&packets) => Ok(Self::After(packets)),
            _ => Err("a number of packets from 1 to 1,000,000,000, or `exact`".to_owned()),
        }
    }
}

/// Knowledge of links; each kind of losses is observed once.
#[derive(Debug)]
pub(super) struct Knowledge {
    known: Known,
    seen: Vec<(Losses, Estimate)>,
}

/// Drop rate and mean run.
type Losses = (f64, f64);

impl Knowledge {
    pub(super) fn new(known: Known) -> Self {
        Self { known, seen: Vec::new() }
    }

    /// Returns the estimate that the selector is given.
    ///
    /// # Errors
    /// A gateway would not choose yet.
    pub(super) fn estimate(&mut self, link: &Link) -> Result<Estimate, SimulateError> {
        let Known::After(packets) = self.known else { return Ok(Estimate::exact(*link)) };
        let losses = (link.drop, link.burst);
        let seen = match self.seen.iter().find(|(seen, _)| *seen == losses) {
            Some((_, seen)) => *seen,
            None => {
                let seen = observed(link, packets)?;
                self.seen.push((losses, seen));
                seen
            }
        };
        let Link { drop, burst, .. } = seen.link;
        Ok(Estimate { link: Link { drop, burst, ..*link }, ..seen })
    }
}

/// Returns what a gateway tells the streams whose scheme it chose, see [`choose`](gateway::choose).
pub(super) fn told(estimate: &Estimate) -> Told {
    Told { drop: estimate.drop_high, burst: estimate.link.burst() }
}

/// The peer has judged so many packets, and reported once.
fn observed(link: &Link, packets: u64) -> Result<Estimate, SimulateError> {
    let now = Instant::now();
    let mut path = PathEstimate::new(EstimateConfig::new(link.rtt), now);
    for _ in 0..packets {
        path.sent(link.payload() + link.overhead);
    }
    let lost = (packets as f64 * link.drop()).round();
    let runs = (lost / link.burst()).round().max(lost.min(1.0));
    let report = PathReport {
        number: 1,
        horizon: packets,
        judged: packets,
        lost: lost as u64,
        runs: runs as u64,
        arrived: packets - lost as u64,
        ..PathReport::default()
    };
    path.handle_report(&report, now).map_err(|error| SimulateError::Usage(error.to_string()))?;
    estimate_of(&path.summary(now), link).map_err(|missing| {
        SimulateError::Usage(format!("--observed: a gateway would not choose yet: {missing}"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn more_packets_tell_more() {
        let link = Link { burst: 4.0, ..Link::new(1 << 30, Duration::from_millis(1), 1e-3, 4096) };
        let width = |known: Known| {
            let Estimate { link: seen, drop_low, drop_high } = Knowledge::new(known).estimate(&link).unwrap();
            assert!((seen.drop - 1e-3).abs() < 1e-9 && (seen.burst() - 4.0).abs() < 0.1, "{seen:?}");
            assert_eq!((seen.rtt, seen.rate, seen.packet), (link.rtt, link.rate, link.packet));
            assert!(drop_low <= 1e-3 && drop_high >= 1e-3);
            drop_high / drop_low
        };
        let widths = [Known::After(100_000), Known::After(1_000_000), Known::Exactly].map(width);
        assert!(widths[0] > widths[1] && widths[1] > widths[2] && widths[2] == 1.0, "{widths:?}");
        assert!(Knowledge::new(Known::After(10)).estimate(&link).is_err());
    }

    #[test]
    fn as_text() {
        assert_eq!(["exact", "1000000"].map(str::parse), [Ok(Known::Exactly), Ok(Known::After(1_000_000))]);
        assert!(["", "0", "none", "1e6"].iter().all(|text| text.parse::<Known>().is_err()));
    }
}
