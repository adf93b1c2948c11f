//! The laws that turn a round's measurements into a rate, and which of them is in force.

use super::cubic::{Cubic, SEGMENT};
use super::round::Round;

/// A queue of this part of the base round trip, and of this many seconds, is one too many: what the
/// estimator calls inflated.
const TARGET: f64 = 1.0 / 8.0;
const LEAST_TARGET: f64 = 1e-3;
/// The part of the rate that a yield gives up.
const YIELD: f64 = 1.0 / 8.0;
/// Growth in a round is the root of so many windows, in segments.
const GROWTH: f64 = 0.5;
const MOST_GROWTH: f64 = 0.25;
/// Rounds without any queue after which growth doubles from round to round.
const CALM: u32 = 6;
/// A loss of this share is one of congestion even if no delay shows it.
const HEAVY: f64 = 0.12;
/// Segments in a round trip, the least there is: with fewer nothing can be told.
const LEAST_FLIGHT: f64 = 4.0;
/// Seconds; what seems to take longer is nothing to reckon with.
const LONGEST_TRIP: f64 = 10.0;
/// Drains in vain after which there is somebody who does not yield to delay.
const IN_VAIN: u32 = 3;
/// A loss so many rounds after a yield, or less, shows that who shares the queue does not yield to
/// losses: CUBIC takes several times that long to come back, even with a window of 50 segments. So
/// many in a row, and nothing is yielded.
const SOON: u32 = 12;
const UNHEEDED: u32 = 3;
/// Rounds from one drain to the next where the queue is others'.
const TEST: u32 = 24;
/// The same while it holds, and drains after which it looks anew whether losses are heeded.
const HELD_TEST: u32 = 48;
const HELD_TESTS: u32 = 4;
/// Where the queue has fallen to this part of what it was, somebody may be draining it. Who is
/// halfway to a drain of its own joins in: together they see whether the queue is theirs.
const FALLEN: f64 = 0.75;
/// Rounds without a queue, and seconds, after which nobody fills it: BBR leaves it empty for 0.2 s
/// and a round trip every 10 s (ProbeRTT).
const ALONE: u32 = 8;
const ALONE_TIME: f64 = 0.5;
/// Beside others nobody's fair share is more than half of the path. With a little more, for it is
/// measured roughly, one has too much.
const FAIR: f64 = 0.5;
const TOO_MUCH: f64 = 0.55;
/// Minimum multiplicative decrease (CUBIC's beta, 0.7).
const LEAST_KEPT: f64 = 0.7;

/// How a session shares the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Doubles its rate until the path is full.
    Startup,
    /// Yields to queueing delay.
    Delay,
    /// Yields to losses as CUBIC does: somebody fills the queue.
    Cubic,
    /// Holds what it has as BBR does: somebody fills the queue and yields to nothing.
    Hold,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Startup, Self::Delay, Self::Cubic, Self::Hold];

    /// For operators.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Delay => "delay",
            Self::Cubic => "cubic",
            Self::Hold => "hold",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    /// Send less until the queue is gone that is one's own.
    Drain,
}

#[derive(Debug)]
pub(super) struct Law {
    mode: Mode,
    /// Bytes per second.
    rate: f64,
    ceiling: f64,
    /// Rounds without a queue, and seconds; rounds in which nothing more arrived.
    calm: u32,
    quiet: f64,
    stalled: u32,
    best: f64,
    /// Share that is lost while there is no queue.
    noise: f64,
    in_vain: u32,
    /// Others filled the queue until now; the next yield shows whether they still do.
    doubted: bool,
    /// As who yields to nothing.
    held_before: bool,
    /// The rate that arrived before the first of the yields that were in vain.
    before: f64,
    delay: Delay,
    cubic: Cubic,
    /// Rounds since the last drain, and since the last yield.
    tested: u32,
    yielded: u32,
    /// Yields that ended no losses.
    unheeded: u32,
    /// Drains since it holds.
    held: u32,
    arrived: Arrived,
    yields: u64,
}

/// Queueing delay.
#[derive(Debug)]
struct Delay {
    /// The least since the last yield.
    least: f64,
    /// The most of the last round.
    highest: f64,
}

/// The largest rates that arrived.
#[derive(Debug)]
struct Arrived {
    /// By round.
    rates: [f64; 10],
    /// The round.
    rounds: usize,
}

/// Factors of the rate, round by round while it holds: one to find out whether there is more, one
/// to take back what that queued.
const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

impl Law {
    pub(super) fn new(rate: f64, ceiling: f64) -> Self {
        Self {
            mode: Mode::Startup,
            rate,
            ceiling,
            calm: 0,
            quiet: 0.0,
            stalled: 0,
            best: 0.0,
            noise: 0.0,
            in_vain: 0,
            doubted: false,
            held_before: false,
            before: 0.0,
            delay: Delay { least: f64::INFINITY, highest: 0.0 },
            cubic: Cubic::new(0.0),
            tested: 0,
            yielded: 0,
            unheeded: 0,
            held: 0,
            arrived: Arrived { rates: [0.0; 10], rounds: 0 },
            yields: 0,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn yields(&self) -> u64 {
        self.yields
    }

    /// Nothing was sent for long: what was known of the path may hold no more.
    pub(super) fn forget(&mut self, first: f64) {
        self.mode = Mode::Startup;
        (self.best, self.stalled, self.calm, self.in_vain) = (0.0, 0, 0, 0);
        (self.doubted, self.held_before, self.delay.least, self.quiet) = (false, false, f64::INFINITY, 0.0);
        self.rate = (self.rate / 2.0).max(first).min(self.ceiling);
    }

    /// Reports come again.
    pub(super) fn resume(&mut self, base: f64) {
        self.rate = (self.rate / 2.0).max(self.floor(base));
        self.calm = CALM;
    }

    /// Bytes per second.
    pub(super) fn rate(&self, trip: f64, base: f64) -> f64 {
        let rate = match self.mode {
            Mode::Startup | Mode::Delay => self.rate,
            Mode::Cubic => self.cubic.bytes() / trip.max(1e-5),
            Mode::Hold => self.bandwidth() * GAINS.get(self.arrived.rounds % GAINS.len()).unwrap_or(&1.0),
        };
        rate.max(self.floor(base))
    }

    /// Bytes in flight, where reports come so far apart: what has arrived since the last one counts
    /// as in flight.
    pub(super) fn window(&self, trip: f64, base: f64, spacing: f64) -> f64 {
        let rate = self.rate(trip, base);
        let apart = base + spacing;
        match self.mode {
            Mode::Startup => rate * apart * 1.5,
            Mode::Delay => rate * (apart + 2.0 * target(base)),
            Mode::Cubic => self.cubic.bytes() * (1.0 + spacing / trip.max(base)),
            Mode::Hold => self.bandwidth() * (base + apart),
        }
    }

    /// The least rate there is.
    fn floor(&self, base: f64) -> f64 {
        (LEAST_FLIGHT * SEGMENT / base).min(self.ceiling)
    }

    fn bandwidth(&self) -> f64 {
        self.arrived.rates.iter().copied().fold(0.0, f64::max)
    }

    pub(super) fn handle_round(&mut self, round: &Round, base: f64) -> Verdict {
        self.arrived.rounds += 1;
        let place = self.arrived.rounds % self.arrived.rates.len();
        if let Some(delivered) = self.arrived.rates.get_mut(place) {
            // Of a round with little to send the path's capacity cannot be told, unless it is more
            // than was known.
            if round.limited || round.delivered > *delivered {
                *delivered = round.delivered;
            }
        }
        let lossy = self.is_lossy(round, base);
        let highest = std::mem::replace(&mut self.delay.highest, round.highest).max(round.highest);
        // Of a round with little to send it is no sign of others' drain that the queue went: one's
        // own packets may have been all of it.
        let fallen = round.limited && round.queue < FALLEN * highest;
        let verdict = match self.mode {
            Mode::Startup => self.start(round, base, lossy),
            Mode::Delay => self.delay(round, base, lossy),
            Mode::Cubic => self.cubic(round, base, lossy, fallen),
            Mode::Hold => self.hold(fallen),
        };
        self.rate = self.rate.clamp(self.floor(base), self.ceiling);
        verdict
    }

    /// Returns true if more was lost than the path loses by itself, while a queue stood; or so much
    /// that the queue must be too short to show.
    fn is_lossy(&mut self, round: &Round, base: f64) -> bool {
        let Round { numbers, lost, .. } = *round;
        if round.highest < target(base) / 2.0 && numbers > 0.0 {
            self.noise += (lost / numbers - self.noise) * (numbers / 1000.0).min(0.125);
        }
        let usual = self.noise * numbers;
        let more = lost > usual + 3.0 * usual.sqrt() + 0.5;
        more && round.highest > target(base) || lost > 16.0 && lost > (HEAVY + self.noise) * numbers
    }

    fn start(&mut self, round: &Round, base: f64, lossy: bool) -> Verdict {
        if !round.limited {
            return Verdict::Go;
        }
        let more = round.delivered > self.best * 1.25;
        self.best = self.best.max(round.delivered);
        self.stalled = if more { 0 } else { self.stalled + 1 };
        // A queue is others' as long as more arrives here from round to round.
        let full = round.queue > target(base) / 2.0 && !more;
        if full || lossy || round.marked > 0.0 || self.stalled >= 3 {
            self.mode = Mode::Delay;
            return self.give(round, 0.0);
        }
        self.rate = (2.0 * round.delivered).max(self.rate);
        Verdict::Go
    }

    fn delay(&mut self, round: &Round, base: f64, lossy: bool) -> Verdict {
        // Who has less to send than it may is not what congests the path, and what arrives of it
        // says nothing of its share.
        if !round.limited {
            return Verdict::Go;
        }
        let target = target(base);
        if round.queue > target || lossy || round.marked > 0.0 {
            let doubted = self.doubted;
            if self.stood(base) {
                self.compete(self.before.max(round.delivered), base + round.queue);
                return Verdict::Go;
            }
            if self.in_vain == 0 || doubted {
                self.before = round.delivered;
            }
            // DCTCP (RFC 8257) has half of the share marked.
            return self.give(round, YIELD.max(round.marked / 2.0));
        }
        self.calm = if round.queue < target / 4.0 { self.calm + 1 } else { 0 };
        let window = (self.rate * base / SEGMENT).max(1.0);
        let faster = f64::from(1_u32 << self.calm.saturating_sub(CALM).min(8));
        // Rounds end with reports, and who gets fewer of them has longer ones: all grow alike in
        // the same time.
        let trips = (round.time / base).clamp(0.5, 3.0);
        let growth = (faster * (GROWTH / window).sqrt() * trips).min(MOST_GROWTH);
        self.rate *= 1.0 + growth;
        Verdict::Go
    }

    /// Returns true if a delay of this much and no less is one too many, so that the round need not
    /// be waited for.
    pub(super) fn is_congested(&self, queue: f64, base: f64) -> bool {
        matches!(self.mode, Mode::Startup | Mode::Delay) && queue > target(base)
    }

    /// A queueing delay was measured.
    pub(super) fn see(&mut self, queue: f64) {
        self.delay.least = self.delay.least.min(queue);
    }

    /// Gives up a part of what arrives, and the queue.
    fn give(&mut self, round: &Round, part: f64) -> Verdict {
        let arriving = round.delivered / (1.0 - self.noise.min(0.5));
        self.rate = self.rate.min(arriving) * (1.0 - part);
        self.calm = 0;
        self.yields += 1;
        Verdict::Drain
    }

    /// Returns true if the queue stood for all of the time since the last yield, however much was
    /// drained.
    fn stood(&mut self, base: f64) -> bool {
        let least = std::mem::replace(&mut self.delay.least, f64::INFINITY);
        if std::mem::take(&mut self.doubted) {
            self.in_vain = IN_VAIN - 1;
            return false;
        }
        self.in_vain = if least < target(base) / 2.0 { 0 } else { self.in_vain + 1 };
        self.held_before &= self.in_vain > 0;
        self.in_vain >= IN_VAIN
    }

    /// Yields to losses from now on; what was given up in vain is taken back (as RFC 4015 does).
    fn compete(&mut self, rate: f64, trip: f64) {
        self.mode = Mode::Cubic;
        self.cubic = Cubic::new(rate.min(self.ceiling) * trip.min(LONGEST_TRIP));
        (self.unheeded, self.yielded, self.tested, self.calm, self.quiet) = (0, 0, 0, 0, 0.0);
        if std::mem::take(&mut self.held_before) {
            self.begin_hold(rate);
        }
    }

    fn begin_hold(&mut self, rate: f64) {
        (self.mode, self.held) = (Mode::Hold, 0);
        self.arrived.rates = [rate; 10];
    }

    /// A drain is over, and has shown what share of the path one had.
    pub(super) fn handle_drained(&mut self, base: f64, share: f64) {
        self.tested = 0;
        if !matches!(self.mode, Mode::Cubic | Mode::Hold) {
            return;
        }
        let least = std::mem::replace(&mut self.delay.least, f64::INFINITY);
        if least < target(base) / 2.0 {
            self.relax();
            return;
        }
        if share > TOO_MUCH {
            self.keep((FAIR / share).max(LEAST_KEPT));
        }
        self.held += 1;
        if self.mode == Mode::Hold && self.held >= HELD_TESTS {
            self.compete(self.bandwidth(), base + least);
            (self.unheeded, self.before) = (UNHEEDED - 1, self.bandwidth());
        }
    }

    /// Gives up what is more than anybody's fair share.
    fn keep(&mut self, part: f64) {
        self.cubic.keep(part);
        self.arrived.rates.iter_mut().for_each(|rate| *rate *= part);
        self.yields += 1;
    }

    /// The queue was one's own: delay tells again.
    fn relax(&mut self) {
        self.rate = self.bandwidth().min(self.ceiling);
        self.held_before = self.mode == Mode::Hold;
        self.mode = Mode::Delay;
        self.in_vain = 0;
        self.calm = 0;
        self.doubted = true;
    }

    fn cubic(&mut self, round: &Round, base: f64, lossy: bool, fallen: bool) -> Verdict {
        self.tested += 1;
        self.yielded += 1;
        self.calm = if round.queue < target(base) / 2.0 { self.calm + 1 } else { 0 };
        self.quiet = if self.calm > 0 { self.quiet + round.time } else { 0.0 };
        if self.calm >= ALONE && self.quiet > ALONE_TIME {
            self.relax();
            return Verdict::Go;
        }
        if lossy && self.yielded > 2 {
            self.unheeded = if self.yielded <= SOON { self.unheeded + 1 } else { 0 };
            if self.unheeded == 0 {
                self.before = round.delivered;
            }
            if self.unheeded >= UNHEEDED {
                self.begin_hold(self.before.max(round.delivered));
                return Verdict::Go;
            }
            self.cubic.shrink();
            self.yielded = 0;
            self.yields += 1;
        } else if round.limited && self.cubic.bytes() < self.ceiling * (base + round.highest) {
            // Beyond the ceiling it would grow without a limit, and yielding would change nothing
            // of what is sent.
            self.cubic.grow(round.time);
        }
        self.test(TEST, fallen)
    }

    /// Drains after so many rounds, or half of them, to see whose the queue is.
    fn test(&mut self, rounds: u32, fallen: bool) -> Verdict {
        if self.tested < rounds / if fallen { 2 } else { 1 } {
            return Verdict::Go;
        }
        self.delay.least = f64::INFINITY;
        Verdict::Drain
    }

    fn hold(&mut self, fallen: bool) -> Verdict {
        self.tested += 1;
        self.test(HELD_TEST, fallen)
    }
}

fn target(base: f64) -> f64 {
    (base * TARGET).max(LEAST_TARGET)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside others who fill the queue, with a rate that it may not exceed, and without a loss for
    /// ten minutes.
    #[test]
    fn the_window_does_not_grow_beyond_the_ceiling() {
        let (base, queue, ceiling) = (0.025, 0.01, 1e7);
        let mut law = Law::new(ceiling / 2.0, ceiling);
        law.compete(ceiling / 2.0, base + queue);
        let round = Round {
            delivered: ceiling,
            queue,
            highest: queue,
            time: base + queue,
            limited: true,
            numbers: 200.0,
            lost: 0.0,
            marked: 0.0,
        };
        for _ in 0..20_000 {
            law.handle_round(&round, base);
        }
        assert_eq!(law.mode(), Mode::Cubic);
        let most = 1.5 * ceiling * (base + queue);
        assert!((ceiling * base..=most).contains(&law.cubic.bytes()), "{} of {most}", law.cubic.bytes());
    }
}
