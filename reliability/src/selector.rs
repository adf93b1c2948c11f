//! Chooses the scheme for a class of messages, from what is known of the link.
//!
//! What is best changes with the loss rate by steps, and the loss rate is known badly. So a
//! [`Selector`] weighs the whole range in which it may lie, and gives up a choice only for one that
//! is clearly better, for some time, and not too often.

mod candidates;
mod decision;
mod load;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use decision::{Decision, Judged, Reason};
pub use load::Load;

use self::load::Queue;
use crate::link::Link;
use crate::model::{Candidate, Completion, Timers, completion};

/// Smallest bucket: messages up to this many bytes.
const SMALLEST: u64 = 1 << 10;
/// Candidates within this share of the fastest one count as equally fast.
const EQUAL: f64 = 0.005;
/// The model errs as if the loss rate were known no better than to this factor: where a percentile
/// is about to rise by a round trip, it does not tell on which side of the step the link is
/// (`longhaul-lab simulate --plane`).
const UNSURE: f64 = 1.25;
/// Candidates whose whole range of loss rates is looked at.
const FINALISTS: usize = 6;
/// Less overhead is given so many times longer to prove itself than less time: nobody waits for it.
const SAVING_PATIENCE: u32 = 4;

/// An estimate of a link: the likely loss rate stands in `link`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The link as it most likely is.
    pub link: Link,
    /// The loss rate is probably no lower ...
    pub drop_low: f64,
    /// ... and no higher.
    pub drop_high: f64,
}

impl Estimate {
    /// A link that is known exactly.
    #[must_use]
    pub const fn exact(link: Link) -> Self {
        Self { link, drop_low: link.drop, drop_high: link.drop }
    }

    /// Low, likely and high, in order even if they were not, and the high one as high as it would
    /// have to be if the loss rate were known exactly.
    fn drops(&self) -> [f64; 3] {
        let likely = self.link.drop();
        let low = self.link.with_drop(self.drop_low).drop().min(likely);
        let high = self.link.with_drop(self.drop_high.max(likely * UNSURE)).drop().max(likely);
        [low, likely, high]
    }
}

/// The objective of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// The percentile of the completion time to be small, in percent.
    pub percentile: f64,
    /// Parity packets per data packet at most.
    pub max_overhead: f64,
    /// Data packets per block at most. Below 4 there is no parity.
    pub max_block: u8,
    /// The schemes that may be chosen. If there is none, selective repeat is.
    pub allowed: Allowed,
}

/// Kinds of schemes that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Allowed {
    /// Selective repeat.
    pub sr: bool,
    /// XOR parity.
    pub xor: bool,
    /// Reed-Solomon parity.
    pub mds: bool,
    /// Parity for the end of a transfer.
    pub hybrid: bool,
}

impl Allowed {
    /// All of them.
    pub const ALL: Self = Self { sr: true, xor: true, mds: true, hybrid: true };
}

/// How reluctant a [`Selector`] is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// A change has to gain this share of the completion time, or half of it and save packets, with
    /// which the sum is as much; or save as many packets per data packet without costing time.
    pub gain: f64,
    /// In so many evaluations in a row.
    pub persist: u32,
    /// After a change, the next one has to wait this long; after the first choice, a fifth of it.
    pub dwell: Duration,
    /// The streams' settings.
    pub timers: Timers,
}

impl Config {
    /// How long a choice stays at least. What the `first` one rests on, the load above all, was
    /// seen for a moment only, so it may be corrected sooner.
    #[must_use]
    pub fn rest(&self, first: bool) -> Duration {
        if first { self.dwell / 5 } else { self.dwell }
    }
}

impl Default for Config {
    /// A tenth, three times in a row, no more often than every five seconds.
    fn default() -> Self {
        Self { gain: 0.1, persist: 3, dwell: Duration::from_secs(5), timers: Timers::default() }
    }
}

/// Message sizes that share a decision: up to 1 KiB, and then by powers of four, the last one
/// without an upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u8);

impl Bucket {
    /// Up to 1 KiB, ..., above 16 GiB.
    pub const COUNT: usize = 14;

    /// The bucket of a message.
    #[must_use]
    pub fn of(size: u64) -> Self {
        let ratio = size.max(1).div_ceil(SMALLEST);
        let fours = u64::BITS - (ratio - 1).leading_zeros();
        Self(fours.div_ceil(2).min(Self::COUNT as u32 - 1) as u8)
    }

    /// All of them, by size.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its place among all of them, by size: below [`Bucket::COUNT`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The size that stands for the bucket: the largest, for its completion time is the longest.
    #[must_use]
    pub fn size(self) -> u64 {
        SMALLEST << (2 * u32::from(self.0))
    }
}

/// Decides per message-size bucket.
///
/// # Driver contract
/// Call [`Selector::evaluate`] for the buckets in use at regular intervals, with their load and the
/// newest estimate; `now` must not run backwards. It answers with the bucket's decision, which
/// stays the same until a change is due: apply it if its `at` is new. An evaluation takes about a
/// millisecond, a few where losses are frequent and in bursts.
///
/// # Bounds
/// One decision per bucket; at most 181 candidates per evaluation, of which the best six, and the
/// present choice, are looked at over the whole range of loss rates. A faster candidate is taken at
/// the `persist`-th evaluation in a row, unless the bucket changed within `dwell`; then, at the
/// first one after. Selective repeat that is not allowed, for want of what fits, is left as soon as
/// something does.
#[derive(Clone, Debug)]
pub struct Selector {
    objective: Objective,
    config: Config,
    states: BTreeMap<Bucket, State>,
}

/// A bucket.
#[derive(Clone, Debug, Default)]
struct State {
    decision: Option<Decision>,
    /// Evaluations in a row in which something else would have been faster, or somewhat faster and
    /// leaner ...
    slower: u32,
    /// ... or as fast, with less overhead.
    wasteful: u32,
}

impl Selector {
    /// A selector that has decided nothing.
    #[must_use]
    pub fn new(objective: Objective, config: Config) -> Self {
        Self { objective, config, states: BTreeMap::new() }
    }

    /// Returns the objective of the class.
    #[must_use]
    pub fn objective(&self) -> &Objective {
        &self.objective
    }

    /// The streams are set like this from the next evaluation on.
    pub fn set_timers(&mut self, timers: Timers) {
        self.config.timers = timers;
    }

    /// The decision in force, if there has been an evaluation.
    #[must_use]
    pub fn decision(&self, bucket: Bucket) -> Option<&Decision> {
        self.states.get(&bucket)?.decision.as_ref()
    }

    /// Looks whether the choice for a bucket is still right, and answers with the one in force.
    pub fn evaluate(&mut self, bucket: Bucket, load: &Load, estimate: &Estimate, now: Instant) -> &Decision {
        let state = self.states.entry(bucket).or_default();
        let overhead = state.decision.as_ref().map_or(0.0, |decision| decision.chosen.overhead);
        let queue = load.queue(bucket.size(), &estimate.link, overhead);
        let judge =
            Judge { objective: &self.objective, timers: &self.config.timers, bucket, load, queue, estimate };
        state.evaluate(&judge, &self.config, now)
    }
}

impl State {
    fn evaluate(&mut self, judge: &Judge<'_>, config: &Config, now: Instant) -> &Decision {
        let present = self.decision.as_ref().map(|decision| decision.chosen.candidate);
        let candidates = judge.candidates();
        let may_stay = |candidate: &Candidate| {
            candidates::allows(judge.objective, *candidate) || candidates.contains(candidate)
        };
        let allowed = present.filter(may_stay);
        let field = judge.field(candidates, allowed);
        let reason = match (present, allowed.and_then(|present| field.find(present))) {
            (None, _) => Some(Reason::First),
            (Some(was), None) => Some(Reason::Forbidden { was }),
            (Some(_), Some(present)) => self.reconsider(present, &field.best, config, now),
        };
        match reason {
            Some(reason) => {
                (self.slower, self.wasteful) = (0, 0);
                self.decision.insert(judge.decide(field, reason, now))
            }
            None => self.decision.get_or_insert_with(|| judge.decide(field, Reason::First, now)),
        }
    }

    /// Why to change from the present choice to the best one, if it is time to.
    fn reconsider(
        &mut self,
        present: &Judged,
        best: &Judged,
        config: &Config,
        now: Instant,
    ) -> Option<Reason> {
        let gain = 1.0 - best.score / present.score;
        let saved = present.overhead - best.overhead;
        // What saves both need not save as much of each.
        let saves_both = gain > config.gain / 2.0 && gain + saved.max(0.0) > config.gain;
        let faster = present.score > best.score * (1.0 + config.gain) || saves_both;
        let leaner = !faster && saved > config.gain && best.score <= present.score * (1.0 + EQUAL);
        self.slower = if faster { self.slower.saturating_add(1) } else { 0 };
        self.wasteful = if leaner { self.wasteful.saturating_add(1) } else { 0 };
        let rests = |decision: &Decision| {
            now.saturating_duration_since(decision.at) < config.rest(decision.reason == Reason::First)
        };
        if self.decision.as_ref().is_some_and(rests) {
            return None;
        }
        let was = present.candidate;
        if self.slower >= config.persist.max(1) {
            Some(Reason::Faster { was, gain })
        } else if self.wasteful >= config.persist.max(1).saturating_mul(SAVING_PATIENCE) {
            Some(Reason::Leaner { was, saved })
        } else {
            None
        }
    }
}

/// One evaluation's question.
struct Judge<'a> {
    objective: &'a Objective,
    timers: &'a Timers,
    bucket: Bucket,
    load: &'a Load,
    queue: Queue,
    estimate: &'a Estimate,
}

/// Its answer: the best candidate, and others worth naming.
struct Field {
    best: Judged,
    others: Vec<Judged>,
}

impl Field {
    fn find(&self, candidate: Candidate) -> Option<&Judged> {
        std::iter::once(&self.best).chain(&self.others).find(|judged| judged.candidate == candidate)
    }
}

impl Judge<'_> {
    fn candidates(&self) -> Vec<Candidate> {
        let packets = self.estimate.link.packets(self.bucket.size() + self.load.waiting as u64);
        candidates::candidates(self.objective, packets, self.estimate.link.burst())
    }

    /// All candidates at the likely and the high loss rate, then the best ones and the present one
    /// at the low one, too.
    fn field(&self, candidates: Vec<Candidate>, present: Option<Candidate>) -> Field {
        let [low, likely, high] = self.estimate.drops();
        let judged = |candidate| {
            let [likely, high] = [likely, high].map(|drop| self.predict(candidate, drop));
            let overhead = match candidate {
                // It is told the highest rate, and sends what that calls for.
                Candidate::Hybrid(_) => high.overhead(),
                Candidate::Sr | Candidate::Xor(_) | Candidate::Mds(_) => likely.overhead(),
            };
            let [at_likely, at_high] = [likely, high].map(|time| self.seconds(&time, overhead));
            Judged::new(candidate, [at_likely, at_likely, at_high], overhead)
        };
        let mut field: Vec<Judged> = candidates.into_iter().map(judged).collect();
        field.sort_by(|a, b| a.score.total_cmp(&b.score));
        if let Some(present) = present.filter(|present| field.iter().all(|one| one.candidate != *present)) {
            field.push(judged(present));
        }
        let mut kinds = Vec::new();
        let mut rank = 0;
        field.retain(|one| {
            rank += 1;
            let first_of_kind = !kinds.contains(&one.candidate.name());
            if first_of_kind {
                kinds.push(one.candidate.name());
            }
            rank <= FINALISTS || first_of_kind || Some(one.candidate) == present
        });
        if low < likely {
            for one in &mut field {
                let [_, at_likely, at_high] = one.seconds;
                let at_low = self.seconds(&self.predict(one.candidate, low), one.overhead);
                *one = Judged::new(one.candidate, [at_low, at_likely, at_high], one.overhead);
            }
            field.sort_by(|a, b| a.score.total_cmp(&b.score));
        }
        let limit = field.first().map_or(0.0, |first| first.score) * (1.0 + EQUAL);
        let fast = field.iter().enumerate().take_while(|(_, one)| one.score <= limit);
        let leanest = fast.min_by(|(_, a), (_, b)| a.expense().total_cmp(&b.expense()));
        match leanest.map(|(index, _)| index) {
            Some(index) => Field { best: field.remove(index), others: field },
            // There is always a candidate; this one is always right.
            None => Field { best: judged(Candidate::Sr), others: field },
        }
    }

    /// Seconds at the objective's percentile, the wait before included.
    fn seconds(&self, time: &Completion, overhead: f64) -> f64 {
        self.queue.seconds(overhead) + time.percentile_seconds(self.objective.percentile)
    }

    /// A message that waits for nothing but what is beside it.
    fn predict(&self, candidate: Candidate, drop: f64) -> Completion {
        let link = self.estimate.link.with_drop(drop);
        completion(&link, self.timers, candidate, self.load.message(self.bucket.size(), &link))
    }

    /// The best candidate is the decision; of each other kind, the best is a runner-up.
    fn decide(&self, field: Field, reason: Reason, at: Instant) -> Decision {
        let chosen = field.best;
        let mut kinds = vec![chosen.candidate.name()];
        let mut runners_up = field.others;
        runners_up.retain(|one| {
            let name = one.candidate.name();
            let first = !kinds.contains(&name);
            kinds.push(name);
            first
        });
        Decision {
            at,
            bucket: self.bucket,
            load: *self.load,
            estimate: *self.estimate,
            objective: *self.objective,
            chosen,
            runners_up,
            reason,
        }
    }
}

#[cfg(test)]
mod tests;
