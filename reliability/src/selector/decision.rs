//! A decision, and the reasons for it.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Bucket, Estimate, Load, Objective};
use crate::human;
use crate::model::Candidate;
use crate::model::seconds;

/// A decision for a bucket: the choice, its inputs, and the alternatives. `Display` gives it in
/// short for an operator, not in full sentences.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// For which messages.
    pub bucket: Bucket,
    /// The load that these messages find before them and between their packets.
    pub load: Load,
    /// The estimate of the link at that time.
    pub estimate: Estimate,
    /// The class's objective.
    pub objective: Objective,
    /// The choice.
    pub chosen: Judged,
    /// The best of each other kind that was allowed, best first; at most three.
    pub runners_up: Vec<Judged>,
    /// Why now.
    pub reason: Reason,
}

/// A candidate and what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The scheme.
    pub candidate: Candidate,
    /// Expected packets beyond one per data packet, per data packet.
    pub overhead: f64,
    /// The objective's percentile at the low, the likely and the high loss rate.
    pub(super) seconds: [f64; 3],
    /// The value minimised, in seconds: the likely time has twice the weight of either other.
    pub(super) score: f64,
}

/// Why a decision was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// There was none before.
    First,
    /// The choice before was slower, again and again.
    Faster {
        /// It.
        was: Candidate,
        /// Share of its time that is saved.
        gain: f64,
    },
    /// The choice before was no faster and sent more, again and again.
    Leaner {
        /// It.
        was: Candidate,
        /// Packets saved per data packet.
        saved: f64,
    },
    /// The choice before is allowed only as long as nothing else fits.
    Forbidden {
        /// It.
        was: Candidate,
    },
}

impl Judged {
    pub(super) fn new(candidate: Candidate, seconds: [f64; 3], overhead: f64) -> Self {
        let [low, likely, high] = seconds;
        Self { candidate, overhead, seconds, score: low / 4.0 + likely / 2.0 + high / 4.0 }
    }

    /// Returns the order of equally fast ones: by overhead, and where that is the same, by the
    /// shape of the blocks.
    pub(super) fn expense(&self) -> f64 {
        self.overhead + 0.01 * self.candidate.parity()
    }

    /// The objective's percentile at the low, the likely and the high loss rate.
    #[must_use]
    pub fn times(&self) -> [Duration; 3] {
        self.seconds.map(seconds)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.estimate.link;
        let [low, likely, high] = self.chosen.times().map(human::time);
        writeln!(f, "{}: {}", self.bucket, self.chosen.candidate)?;
        writeln!(
            f,
            "  expected  {} % within {likely} ({low} to {high} over the loss rates), overhead {}",
            self.objective.percentile,
            human::share(self.chosen.overhead)
        )?;
        let others: Vec<String> = self
            .runners_up
            .iter()
            .map(|one| format!("{} {}", one.candidate, human::time(one.times()[1])))
            .collect();
        let others = if others.is_empty() { "nothing else is allowed".to_owned() } else { others.join(", ") };
        writeln!(f, "  else      {others}")?;
        writeln!(
            f,
            "  link      {}, RTT {}, loss {} ({} to {}) in runs of {:.1}, packets of {} B",
            human::rate(link.rate as f64),
            human::time(link.rtt),
            human::share(link.drop()),
            human::share(self.estimate.drop_low),
            human::share(self.estimate.drop_high),
            link.burst(),
            link.payload(),
        )?;
        let [waiting, under_way] = [self.load.waiting, self.load.under_way].map(|bytes| bytes as u64);
        if waiting + under_way > 0 {
            let [waiting, under_way] = [waiting, under_way].map(human::size);
            writeln!(
                f,
                "  load      {waiting} wait and {under_way} are under way as a message comes, in the mean; {:.1} B of others' leave between for each B of its own",
                self.load.between
            )?;
        }
        write!(f, "  because   {}", self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "it is the first choice"),
            Self::Faster { was, gain } => {
                write!(f, "{was} has become slower: this saves {}", human::share(*gain))
            }
            Self::Leaner { was, saved } => {
                write!(f, "{was} is no faster and sends {} more", human::share(*saved))
            }
            Self::Forbidden { was } => write!(f, "{was} was allowed only while nothing else fitted"),
        }
    }
}

/// `messages of 16 KiB to 64 KiB`.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = human::size(self.size());
        if *self == Self::of(0) {
            write!(f, "messages up to {size}")
        } else if *self == Self::of(u64::MAX) {
            write!(f, "messages above {}", human::size(self.size() / 4))
        } else {
            write!(f, "messages of {} to {size}", human::size(self.size() / 4))
        }
    }
}
