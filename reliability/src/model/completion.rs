//! The distribution of a completion time, in closed form.
//!
//! A transfer is complete when the last of its parts is. Most parts are alike: *units* (packets,
//! clusters of them, or groups of blocks) that become ready one after the other at equal distances,
//! and each of which is repaired in rounds ([`Train`]). What stands at the end behaves differently
//! ([`Tail`]). All are independent, so the logarithms of their distribution functions add up;
//! between two *knots*, the times at which some unit's next round ends, the sum is linear in time.
//! Mean and quantiles follow segment by segment.

use std::time::Duration;

/// Rounds beyond this many are taken to succeed.
const MAX_ROUNDS: usize = 256;
/// Probability below which being incomplete is taken to be complete.
const NEGLIGIBLE: f64 = 1e-14;
/// So that logarithms stay finite: an event less certain than certainty by less than `f64` can
/// tell.
const NEARLY_ONE: f64 = 1.0 - f64::EPSILON;

/// When a message is complete. All of it in seconds.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Nothing is complete before.
    pub(crate) floor: f64,
    pub(crate) trains: Vec<Train>,
    pub(crate) tail: Tail,
    /// Expected packets sent beyond one per data packet, per data packet.
    pub(crate) overhead: f64,
}

/// Units that become ready at equal distances, the last one `lead` before the floor and the first
/// one `lead + span` before.
#[derive(Clone, Debug)]
pub(crate) struct Train {
    units: f64,
    lead: f64,
    span: f64,
    /// When the rounds of a unit end, after it became ready, and by how much the logarithm of its
    /// distribution function rises then.
    rounds: Vec<(f64, f64)>,
}

/// The part that completes after the floor, not in rounds alike: times, ascending, and the
/// logarithm of the probability of being complete until then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    steps: Vec<(f64, f64)>,
}

impl Train {
    /// `units` at a distance of `spacing`, the last one ready `lead` before the floor. After 0, 1,
    /// 2, ... rounds a unit is incomplete with the probabilities of `incomplete`, which descend;
    /// the rounds end `first`, `first + again`, ... after it became ready.
    pub(crate) fn new(
        units: f64,
        spacing: f64,
        lead: f64,
        (first, again): (f64, f64),
        incomplete: impl IntoIterator<Item = f64>,
    ) -> Self {
        let worth = incomplete.into_iter().take(MAX_ROUNDS).take_while(|open| open * units > NEGLIGIBLE);
        let logs: Vec<f64> = worth.map(|open| (-open.min(NEARLY_ONE)).ln_1p()).collect();
        let after = logs.iter().copied().skip(1).chain([0.0]);
        let rounds = logs.iter().zip(after).enumerate();
        let rounds =
            rounds.map(|(round, (log, after))| (first + round as f64 * again, after - log)).collect();
        Self { units, lead, span: (units - 1.0).max(0.0) * spacing, rounds }
    }

    /// Logarithm of the probability that all units are complete `time` after the floor. `within`
    /// lies in the same segment as `time`, and decides on which side of a jump it is.
    fn log(&self, time: f64, within: f64) -> f64 {
        let mut sum = 0.0;
        for &(end, rise) in self.rounds.iter().rev() {
            if end - within <= self.lead {
                break;
            }
            let share =
                if self.span > 0.0 { ((end - time - self.lead) / self.span).clamp(0.0, 1.0) } else { 1.0 };
            sum += self.units * share * rise;
        }
        -sum
    }

    fn knots(&self, knots: &mut Vec<f64>) {
        for &(end, _) in &self.rounds {
            knots.push(end - self.lead);
            if self.span > 0.0 {
                knots.push(end - self.lead - self.span);
            }
        }
    }
}

impl Tail {
    /// From how much later than the floor the tail is complete, and with what probability. The rest
    /// is complete at the floor.
    pub(crate) fn new(mut later: Vec<(f64, f64)>) -> Self {
        later.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let mut incomplete = 0.0;
        for (_, probability) in &mut later {
            incomplete += probability.max(0.0);
            *probability = (-incomplete.min(NEARLY_ONE)).ln_1p();
        }
        later.reverse();
        Self { steps: later }
    }

    fn log(&self, within: f64) -> f64 {
        let step = self.steps.partition_point(|&(end, _)| end <= within);
        self.steps.get(step).map_or(0.0, |&(_, log)| log)
    }

    fn knots(&self, knots: &mut Vec<f64>) {
        knots.extend(self.steps.iter().map(|&(end, _)| end));
    }
}

/// Between two knots: times after the floor, and the distribution function's logarithm at both
/// ends, linear in between.
struct Segment {
    start: f64,
    end: f64,
    log: (f64, f64),
}

impl Completion {
    /// Completion of parts that are all alike and repaired in rounds.
    ///
    /// `units` become ready `spacing` seconds apart, the last one at the `floor`. After 0, 1, 2,
    /// ... rounds a unit is incomplete with the probabilities of `incomplete`, which descend.
    /// Rounds end `first`, `first + again`, ... seconds after the unit became ready; `rounds` holds
    /// these two. `overhead` counts expected packets beyond one per data packet.
    #[must_use]
    pub fn in_rounds(
        floor: f64,
        (units, spacing): (f64, f64),
        rounds: (f64, f64),
        incomplete: impl IntoIterator<Item = f64>,
        overhead: f64,
    ) -> Self {
        let train = Train::new(units, spacing, 0.0, rounds, incomplete);
        Self { floor, trains: vec![train], tail: Tail::default(), overhead }
    }

    /// Expected time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        seconds(self.mean_seconds())
    }

    /// The time within which `percent` per cent of messages are complete. Below 0 is taken as 0;
    /// beyond 99.9999999, as that.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        seconds(self.percentile_seconds(percent))
    }

    /// Probability of being complete within `time`.
    #[must_use]
    pub fn probability(&self, time: Duration) -> f64 {
        self.probability_seconds(time.as_secs_f64())
    }

    /// The time if nothing of the message is lost.
    #[must_use]
    pub fn least(&self) -> Duration {
        seconds(self.floor)
    }

    /// Expected packets sent beyond one per data packet, per data packet: parity and repairs.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.overhead
    }

    /// Returns [`Completion::mean`] in seconds, not rounded.
    #[must_use]
    pub fn mean_seconds(&self) -> f64 {
        self.floor + self.segments().map(|segment| segment.incomplete()).sum::<f64>()
    }

    /// Returns [`Completion::percentile`] in seconds, not rounded.
    #[must_use]
    pub fn percentile_seconds(&self, percent: f64) -> f64 {
        // One message in a thousand may be late: where just as many are, rounding does not decide.
        const ROUNDING: f64 = 1e-13;
        let target = (percent.clamp(0.0, 99.999_999_9) / 100.0).ln() - ROUNDING;
        let mut end = 0.0;
        for segment in self.segments() {
            if let Some(time) = segment.reaches(target) {
                return self.floor + time;
            }
            end = segment.end;
        }
        self.floor + end
    }

    /// Returns [`Completion::probability`] of a time in seconds.
    #[must_use]
    pub fn probability_seconds(&self, time: f64) -> f64 {
        let time = time - self.floor;
        if time < 0.0 { 0.0 } else { self.log(time, time).exp() }
    }

    fn log(&self, time: f64, within: f64) -> f64 {
        self.trains.iter().map(|train| train.log(time, within)).sum::<f64>() + self.tail.log(within)
    }

    fn segments(&self) -> impl Iterator<Item = Segment> {
        let mut knots = vec![0.0];
        self.trains.iter().for_each(|train| train.knots(&mut knots));
        self.tail.knots(&mut knots);
        knots.retain(|&knot| knot >= 0.0 && knot.is_finite());
        knots.sort_unstable_by(f64::total_cmp);
        knots.dedup();
        let mut before = None;
        knots.into_iter().filter_map(move |end| {
            let start = before.replace(end)?;
            let within = start + (end - start) / 2.0;
            Some(Segment { start, end, log: (self.log(start, within), self.log(end, within)) })
        })
    }
}

impl Segment {
    /// Integral of the probability of being incomplete: of 1 - e^(a + (b - a) x), in a form that
    /// keeps the smallest probabilities.
    fn incomplete(&self) -> f64 {
        let (a, b) = self.log;
        let slope = b - a;
        let log_mean = if slope < 1e-8 {
            slope / 2.0
        } else if slope < 500.0 {
            (slope.exp_m1() / slope).ln()
        } else {
            slope - slope.ln()
        };
        (self.end - self.start) * -(a + log_mean).min(0.0).exp_m1()
    }

    /// When the distribution function's logarithm reaches `target`, if it does.
    fn reaches(&self, target: f64) -> Option<f64> {
        let (a, b) = self.log;
        if a >= target {
            Some(self.start)
        } else if b >= target {
            Some(self.start + (self.end - self.start) * ((target - a) / (b - a)).clamp(0.0, 1.0))
        } else {
            None
        }
    }
}

/// Returns seconds as a duration; what does not fit is the longest there is.
#[must_use]
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
