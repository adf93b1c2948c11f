//! The state of one lane, as observed.

use std::time::{Duration, Instant};

use super::{Cause, LATELY, LEFT_AFTER, SUSPECT_AFTER};
use crate::estimator::PathReport;

/// Reports follow each other by this much at least where few packets come: a shorter round trip
/// counts as so long.
const LEAST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// Round trips over which losses are looked at, older ones less.
const MEMORY: f64 = 16.0;
/// Fewer packets say nothing of a lane that is in use, and of one that was left.
const ENOUGH: f64 = 50.0;
const ENOUGH_TO_RETURN: f64 = 8.0;
/// A lane that was left returns after so many round trips in which it was good, twice as many each
/// time it has to be left again soon.
const REST: u32 = 16;
const MOST_STRIKES: u32 = 6;
/// Beyond this much more loss than the best lane's, and this much longer a round trip, a lane is
/// left.
const LOSSY: f64 = 0.05;
/// Lanes are alike up to this ratio of their losses: those that all suffer, a cut for instance, are
/// told of each in its turn.
const ALIKE: f64 = 1.25;
const SLOW: (f64, Duration) = (1.5, Duration::from_millis(10));
/// One is too lossy, or too slow, only when it has been so for so many round trips.
const LOSSY_FOR: u32 = 4;
const SLOW_FOR: u32 = 16;
/// It returns below this.
const FAST: (f64, Duration) = (1.25, Duration::from_millis(5));
/// A lane in use gets no smaller part of the packets than this, compared to the best.
const LEAST_WEIGHT: f64 = 1.0 / 16.0;

/// One lane, from what was sent on it and what the peer tells of it.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// Its round-trip time.
    pub(super) rtt: Duration,
    /// Packets sent, and up to where they bring about a report.
    numbers: u64,
    asked: u64,
    /// Up to where they are known to have arrived.
    next: u64,
    /// Since when a report is awaited.
    waiting: Option<Instant>,
    /// When one that came without delay would have told of the last arrival.
    pub(super) heard: Option<Instant>,
    /// Since when others have been heard of, without a pause, and this one was waited for.
    missed: Option<Instant>,
    /// When others were last heard of.
    others: Option<Instant>,
    /// Since when it gets no data for that.
    pub(super) suspect: Option<Instant>,
    /// True if it has been suspect for too long.
    silent: bool,
    losses: Losses,
    /// Since when it has lost too much, and taken too long.
    lossy: Option<Instant>,
    slow: Option<Instant>,
    /// The same of the session, as last told.
    told: (u64, u64),
    /// Packets whose loss says nothing.
    excused: u64,
    pub(super) left: Option<Left>,
    /// Times it was left again soon.
    strikes: u32,
    /// When it was last left or taken into use.
    since: Instant,
    pub(super) leaves: u64,
}

/// Packets judged and lost of late.
#[derive(Clone, Copy, Debug)]
struct Losses {
    judged: f64,
    lost: f64,
    counted: Instant,
}

/// A lane out of use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) cause: Cause,
    /// Since when nothing spoke against its return.
    good: Instant,
}

/// The best of the lanes, by which the others are judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Best {
    /// `None`: too little is known of any.
    pub(super) loss: Option<f64>,
    pub(super) rtt: Duration,
}

impl Health {
    pub(super) fn new(rtt: Duration, now: Instant) -> Self {
        Self {
            rtt,
            numbers: 0,
            asked: 0,
            next: 0,
            waiting: None,
            heard: None,
            missed: None,
            others: None,
            suspect: None,
            silent: false,
            losses: Losses { judged: 0.0, lost: 0.0, counted: now },
            lossy: None,
            slow: None,
            told: (0, 0),
            excused: 0,
            left: None,
            strikes: 0,
            since: now,
            leaves: 0,
        }
    }

    /// Returns the round-trip time to reckon with, within bounds.
    pub(super) fn trip(&self) -> Duration {
        self.rtt.clamp(LEAST, LONGEST)
    }

    pub(super) fn sent(&mut self, asks: bool, now: Instant) {
        self.numbers += 1;
        if asks {
            self.asked = self.numbers;
            self.waiting.get_or_insert(now);
        }
    }

    pub(super) fn exclude(&mut self, packets: u64) {
        self.excused += packets;
    }

    pub(super) fn include(&mut self, packets: u64) {
        self.excused = self.excused.saturating_sub(packets);
    }

    /// `others`: when another lane was last heard of.
    pub(super) fn handle_report(
        &mut self,
        report: &PathReport,
        rtt: Duration,
        others: Option<Instant>,
        now: Instant,
    ) {
        self.rtt = rtt;
        let next = report.told().next;
        if next > self.next {
            if self.left.is_some() && self.suspect.is_some() {
                // Lost while it was dead, for which it was left.
                self.excused += (next - self.next).saturating_sub(1);
            }
            // Those before it may have been lost: what it tells may be old.
            let age = report.newest.map_or(0, |newest| newest.age);
            let at = now.checked_sub(Duration::from_micros(u64::from(age))).unwrap_or(now);
            self.next = next;
            self.heard = Some(at);
            self.waiting = (next < self.asked).then_some(at);
            self.missed = self.waiting.filter(|at| others > Some(*at));
            if !self.is_missed(others) {
                (self.suspect, self.silent) = (None, false);
            }
        }
        let (judged, lost) = self.told;
        if report.judged > judged {
            self.told = (report.judged, report.lost);
            self.count(report.judged - judged, report.lost as f64 - lost as f64, now);
        }
    }

    /// From when on others have been heard of for so long without this one that its report is late,
    /// however little is sent.
    pub(super) fn doubtful_from(&self) -> Option<Instant> {
        self.missed.map(|missed| missed + self.trip() * LATELY)
    }

    /// Returns true if others were heard of for too long without this one.
    fn is_missed(&self, others: Option<Instant>) -> bool {
        let least = self.trip().mul_f64(SUSPECT_AFTER);
        self.missed.zip(others).is_some_and(|(missed, others)| missed + least <= others)
    }

    /// Looks at when others were last heard of.
    pub(super) fn doubt(&mut self, others: Option<Instant>, now: Instant) {
        let patience = self.trip() * LATELY;
        let paused = self.others.zip(others).is_some_and(|(before, others)| before + patience * 2 < others);
        self.others = self.others.max(others);
        if self.waiting.is_some_and(|waiting| others > Some(waiting)) {
            self.missed = self.missed.filter(|_| !paused).or(others);
        }
        if others.is_none_or(|others| others + patience < now) {
            return;
        }
        if self.is_missed(others) {
            self.suspect.get_or_insert(now);
        }
        self.silent |= self.left_at().is_some_and(|at| at <= now);
    }

    /// When it may be left for that.
    pub(super) fn left_at(&self) -> Option<Instant> {
        let suspect = self.suspect.filter(|_| !self.silent)?;
        Some(suspect + self.trip().mul_f64(LEFT_AFTER))
    }

    fn count(&mut self, judged: u64, lost: f64, now: Instant) {
        let excused = self.excused.min(lost.max(0.0) as u64);
        self.excused -= excused;
        let elapsed = now.saturating_duration_since(self.losses.counted).as_secs_f64();
        let faded = match self.left {
            Some(_) => 1.0,
            None => (-elapsed / (MEMORY * self.trip().as_secs_f64())).exp(),
        };
        self.losses.counted = now;
        self.losses.judged = self.losses.judged * faded + judged as f64;
        self.losses.lost = (self.losses.lost * faded + lost - excused as f64).clamp(0.0, self.losses.judged);
    }

    /// Share lost of late; `None`: too little was sent.
    pub(super) fn loss(&self) -> Option<f64> {
        (self.losses.judged >= ENOUGH).then(|| self.losses.lost / self.losses.judged)
    }

    /// By how much more is lost than on a lane like the best, as far as that is no chance.
    fn excess(&self, best: &Best) -> f64 {
        let (Some(loss), Some(least)) = (self.loss(), best.loss) else { return 0.0 };
        let chance = 2.0 * (loss * (1.0 - loss) / self.losses.judged).sqrt() + 2.0 / self.losses.judged;
        (loss - least * ALIKE - chance).max(0.0)
    }

    /// Why it should be left for another, if it should.
    pub(super) fn fault(&mut self, best: &Best, now: Instant) -> Option<Cause> {
        let is_lossy = self.excess(best) > LOSSY;
        let is_slow = self.rtt > best.rtt.mul_f64(SLOW.0) + SLOW.1;
        self.lossy = is_lossy.then(|| self.lossy.unwrap_or(now));
        self.slow = is_slow.then(|| self.slow.unwrap_or(now));
        let lasts =
            |since: Option<Instant>, trips| since.is_some_and(|since| since + self.trip() * trips <= now);
        if self.silent {
            Some(Cause::Silent)
        } else if lasts(self.lossy, LOSSY_FOR) {
            Some(Cause::Lossy)
        } else if lasts(self.slow, SLOW_FOR) {
            Some(Cause::Slow)
        } else {
            None
        }
    }

    /// Its part of the packets, compared to the best lane's.
    pub(super) fn weight(&self, best: &Best) -> f64 {
        let longer = self.rtt.as_secs_f64() / best.rtt.as_secs_f64().max(1e-6) - 1.1;
        let weight = 1.0 / (1.0 + 100.0 * self.excess(best)) / (1.0 + 4.0 * longer.max(0.0));
        weight.max(LEAST_WEIGHT)
    }

    fn rest(&self) -> Duration {
        self.trip() * (REST << self.strikes)
    }

    pub(super) fn leave(&mut self, cause: Cause, now: Instant) {
        let again = now.saturating_duration_since(self.since) < self.rest() * 8;
        self.strikes = if again && self.leaves > 0 { (self.strikes + 1).min(MOST_STRIKES) } else { 0 };
        self.left = Some(Left { cause, good: now });
        (self.losses.judged, self.losses.lost, self.lossy, self.slow) = (0.0, 0.0, None, None);
        self.since = now;
        self.leaves += 1;
    }

    /// Takes it into use again if it was good for long enough.
    pub(super) fn try_to_return(&mut self, best: &Best, now: Instant) {
        let (rest, silent) = (self.rest(), self.suspect.is_some());
        let slow = self.rtt > best.rtt.mul_f64(FAST.0) + FAST.1;
        let Some(left) = &mut self.left else { return };
        if silent || slow {
            left.good = now;
            return;
        }
        if now.saturating_duration_since(left.good) < rest || self.losses.judged < ENOUGH_TO_RETURN {
            return;
        }
        let tolerable = self.losses.judged * (best.loss.unwrap_or(0.0) * ALIKE + LOSSY) + 1.0;
        if self.losses.lost > tolerable {
            left.good = now;
        } else {
            self.left = None;
            self.since = now;
        }
        (self.losses.judged, self.losses.lost) = (0.0, 0.0);
    }

    /// How often it is probed while it is left: as its return takes, and while it is silent ever
    /// more rarely.
    pub(super) fn rare_probing(&self, now: Instant) -> Duration {
        if self.suspect.is_some() {
            (now.saturating_duration_since(self.since) / REST).clamp(self.trip(), LONGEST)
        } else {
            self.trip() * (1 << self.strikes)
        }
    }

    /// When [`Health::try_to_return`] may find that it has been good for long enough.
    pub(super) fn returns(&self) -> Option<Instant> {
        self.left.map(|left| left.good + self.rest())
    }
}
