//! From sendings and reports to a rate and a window.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::cubic::SEGMENT;
use super::drain::Drain;
use super::modes::{Law, Mode, Verdict};
use super::round::{Least, Round};
use super::sent::{Mark, Sent};
use crate::estimator::{Clock, PathReport, report_interval};
use crate::stream::Malformed;

/// The base round-trip time is the least of the last one to two of these: routes change, and queues
/// that others keep up are left for a share of it.
const BASE_TIME: u64 = 15_000_000;
/// Reports are wanted so often in a round trip.
const REPORTS: u32 = 4;
/// Segments that a session begins with in a round trip (RFC 6928 has 10; these are paced).
const FIRST: f64 = 32.0;
/// Bytes that may always be under way: fewer packets bring about no early report.
const LEAST_WINDOW: f64 = 16.0 * SEGMENT;
/// Packets that may leave at each timeout while no report comes.
const PROBES: u32 = 4;
const LONGEST_SILENCE: u64 = 10_000_000;
/// Reports of which one at least shows the path without its jitter.
const SURE: u32 = 3;
/// A drain takes no longer than so many base round trips: where others keep the queue it has no end
/// of its own.
const LONGEST_DRAIN: f64 = 32.0;
/// While draining, this part of the rate.
const DRAIN: f64 = 0.5;
/// Who sends less than this part of what it may has nothing more to send.
const BUSY: f64 = 0.8;
/// Packets whose loss means nothing that are remembered.
const EXCUSED: usize = 32;
/// Time for which knowledge of the path is believed without being used, in microseconds.
const STALE: u64 = 10_000_000;

/// The settings of a [`Controller`] at its start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most that is ever sent, in bit/s.
    pub ceiling: u64,
    /// Round-trip time to assume before the first measurement.
    pub rtt: Duration,
}

/// A snapshot of a [`Controller`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// How it shares the path.
    pub mode: Mode,
    /// Bit/s.
    pub rate: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Bytes that are, as far as is known.
    pub in_flight: u64,
    /// The least of the last round trip.
    pub queueing: Duration,
    /// Round-trip time without queues.
    pub base: Duration,
    /// The rate at which packets arrived in the last round trip, in bit/s.
    pub delivered: u64,
    /// How often it has yielded to congestion.
    pub yields: u64,
    /// How often reports have failed to come.
    pub silences: u64,
}

/// Finds the rate and the window at which a session shares the bottleneck of its path. All rates
/// count what [`Controller::sent`] is told.
///
/// # Driver contract
/// [`Controller::sent`] for every packet number used, in order. [`Controller::handle_report`] for
/// every PATH packet, of which one that was overtaken changes nothing; the peer must have been
/// asked for reports every [`Controller::interval`]. Send at [`Controller::rate`], and only while
/// [`Controller::may_send`]; what must not wait (reports, probes) is told and sent all the same.
/// Call [`Controller::handle_timeout`] at [`Controller::next_timeout`]. `now` must not run
/// backwards; if it does, it is taken as standing still.
///
/// # Bounds
/// Fixed memory, about 100 KiB. Work per packet is constant, per report logarithmic.
#[derive(Debug)]
pub struct Controller {
    ceiling: f64,
    clock: Clock,
    now: u64,
    sent: Sent,
    /// Bytes sent below the newest number that is known to have arrived.
    passed: u64,
    last: Option<PathReport>,
    base: Least,
    /// Assumed, until measured.
    hint: f64,
    /// Latest measured.
    trip: f64,
    /// The longest time between two reports of the last round: what arrives meanwhile counts as in
    /// flight.
    spacing: f64,
    law: Law,
    drain: Option<Drain>,
    /// The outcome as of the last change: the rate in bytes per second, and the window.
    pace: f64,
    most: f64,
    gathered: Gathered,
    round: Round,
    silence: Silence,
    /// When traffic was sent last.
    sent_at: u64,
    /// Numbers of packets that may get lost for what they are; the oldest is forgotten.
    excused: VecDeque<u64>,
}

/// Measurements that reports have brought since the round began.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    /// The round ends when a number from here on has arrived.
    until: u64,
    from: Option<PathReport>,
    began: u64,
    sent: u64,
    queue: f64,
    highest: f64,
    /// Reports, and the longest time between two.
    reports: u32,
    spacing: f64,
    /// The window was full at a report.
    full: bool,
    /// Bytes that the rate allowed.
    allowed: f64,
    at: u64,
}

/// Reports that fail to come.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// Timeouts since the last report.
    count: u32,
    due: Option<u64>,
    /// Packets that may leave beyond the window.
    probes: u32,
    total: u64,
}

impl Controller {
    /// Knows nothing of the path. `origin` is the session's begin, the same as for the estimator at
    /// this gateway.
    #[must_use]
    pub fn new(config: Config, origin: Instant) -> Self {
        let ceiling = config.ceiling.max(8) as f64 / 8.0;
        let hint = config.rtt.as_secs_f64().max(1e-4);
        let mut controller = Self {
            ceiling,
            clock: Clock::new(origin),
            now: 0,
            sent: Sent::new(),
            passed: 0,
            last: None,
            base: Least::new(BASE_TIME),
            hint,
            trip: hint,
            spacing: report_interval(config.rtt).as_secs_f64(),
            law: Law::new((FIRST * SEGMENT / hint).min(ceiling), ceiling),
            drain: None,
            pace: 0.0,
            most: 0.0,
            gathered: Gathered::new(0, 0, 0),
            round: Round::default(),
            silence: Silence { count: 0, due: None, probes: 0, total: 0 },
            sent_at: 0,
            excused: VecDeque::with_capacity(EXCUSED),
        };
        controller.settle();
        controller
    }

    /// How often reports are wanted.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.base()) / REPORTS
    }

    /// The next number is used, by a packet of so many bytes on the wire; `traffic`: of what waits
    /// to be sent, no report or probe.
    pub fn sent(&mut self, bytes: usize, traffic: bool, now: Instant) {
        self.advance(now);
        if traffic {
            if self.now > self.sent_at + STALE {
                self.law.forget(FIRST * SEGMENT / self.base());
                self.settle();
            }
            self.sent_at = self.now;
        }
        self.sent.push(bytes, self.now, (self.trip * 1e6) as u64);
        self.silence.probes = self.silence.probes.saturating_sub(1);
        if self.silence.due.is_none() {
            self.silence.due = Some(self.now + self.patience());
        }
    }

    /// Should the packet last sent get lost, that is no sign of congestion: a probe longer than the
    /// path carries (RFC 8899, section 3).
    pub fn exclude(&mut self) {
        if self.excused.len() >= EXCUSED {
            self.excused.pop_front();
        }
        self.excused.extend(self.sent.numbers.checked_sub(1));
    }

    /// Returns true if a packet may leave as far as the window goes.
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.silence.probes > 0 || (self.in_flight() as f64) < self.most
    }

    /// In bit/s.
    #[must_use]
    pub fn rate(&self) -> u64 {
        (self.pace * 8.0) as u64
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.most as u64
    }

    /// Bytes sent since the newest packet that is known to have arrived.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.sent.bytes - self.passed
    }

    /// For whoever watches.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            mode: self.law.mode(),
            rate: self.rate(),
            window: self.window(),
            in_flight: self.in_flight(),
            queueing: Duration::from_secs_f64(self.round.queue.clamp(0.0, 1e3)),
            base: Duration::from_secs_f64(self.base()),
            delivered: (self.round.delivered * 8.0) as u64,
            yields: self.law.yields(),
            silences: self.silence.total,
        }
    }

    /// A report of the peer.
    ///
    /// # Errors
    /// [`Malformed`], and nothing has changed, if it tells of packets never sent.
    pub fn handle_report(&mut self, report: &PathReport, now: Instant) -> Result<(), Malformed> {
        let newest = report.told();
        if newest.next > self.sent.numbers {
            return Err(Malformed::Path);
        }
        if self.last.is_some_and(|last| report.number.wrapping_sub(last.number) as i32 <= 0) {
            return Ok(());
        }
        self.advance(now);
        let before = self.last.replace(*report);
        if let Some(before) = before {
            let apart = f64::from(report.sent_at.wrapping_sub(before.sent_at)) / 1e6;
            self.gathered.spacing = self.gathered.spacing.max(apart);
        }
        let renewed = before.is_none_or(|last| last.newest.is_none_or(|old| old.next < newest.next));
        if newest.next == 0 || !renewed {
            return Ok(());
        }
        let mark = self.sent.before(newest.next - 1);
        let trip = self.now.saturating_sub(mark.at).saturating_sub(u64::from(newest.age)) as f64 / 1e6;
        self.trip = trip;
        self.base.add(trip, self.now);
        if let Some(drain) = &mut self.drain {
            drain.measure(mark, trip);
        }
        self.passed = self.passed.max(self.sent.before(newest.next).bytes);
        self.hear();
        self.take(report, newest.next, (trip - self.base()).max(0.0));
        self.settle();
        Ok(())
    }

    /// Looks at a queueing delay that was measured, and ends the round if it is time.
    fn take(&mut self, report: &PathReport, next: u64, queue: f64) {
        let base = self.base();
        let full = self.in_flight() as f64 > 0.75 * self.window_bytes();
        let gathered = &mut self.gathered;
        gathered.queue = gathered.queue.min(queue);
        gathered.highest = gathered.highest.max(queue);
        gathered.full |= full;
        gathered.reports += 1;
        // All of the last reports, half a round trip's, tell the same.
        let sure = gathered.reports >= SURE && self.law.is_congested(gathered.queue, base);
        self.law.see(queue);
        if self.end_drain(next) {
            return;
        }
        if next < self.gathered.until && (!sure || self.drain.is_some()) {
            return;
        }
        let (from, gathered) = (self.gathered.from, self.gathered);
        let allowed = gathered.allowed + self.since_allowed();
        self.gathered = Gathered::new(self.sent.numbers, self.now, self.sent.bytes);
        self.gathered.from = Some(*report);
        if gathered.spacing > 0.0 {
            let most = 2.0 * report_interval(Duration::from_secs_f64(base)).as_secs_f64();
            self.spacing = gathered.spacing.min(most);
        }
        let Some(from) = from.filter(|from| from.jumps == report.jumps) else { return };
        let next_before = from.told().next;
        let arrived = report.arrived.saturating_sub(from.arrived) as f64;
        let grown = |count: fn(&PathReport) -> u64| count(report).saturating_sub(count(&from)) as f64;
        let time = f64::from(report.sent_at.wrapping_sub(from.sent_at)) / 1e6;
        let numbers = next.saturating_sub(next_before) as f64;
        let overrun = grown(|report| report.overrun);
        // As many as got lost of these, at most; there are few.
        let excused =
            self.excused.iter().filter(|number| (next_before..next).contains(number)).count() as f64;
        self.round = Round {
            time: (self.now - gathered.began) as f64 / 1e6,
            queue: gathered.queue,
            highest: gathered.highest,
            delivered: grown(|report| report.bytes) / time.max(1e-6),
            numbers,
            lost: (numbers - arrived - overrun - excused).max(0.0),
            marked: grown(|report| report.ce) / grown(|report| report.ect).max(1.0),
            limited: gathered.full
                || (self.sent.bytes - gathered.sent) as f64 + 2.0 * SEGMENT > BUSY * allowed,
        };
        if self.drain.is_some() {
            return;
        }
        let verdict = self.law.handle_round(&self.round, self.base());
        if verdict == Verdict::Drain {
            self.begin_drain();
        }
    }

    /// Sends less until no more is in flight than the path holds by itself of what arrives.
    fn begin_drain(&mut self) {
        let base = self.base();
        let delivered = self.round.delivered.min(self.ceiling);
        let excess = (self.in_flight() as f64 - delivered * base).max(0.0);
        let longest = (2.0 * excess / delivered.max(1.0) / DRAIN + base).min(LONGEST_DRAIN * base);
        self.drain = Some(Drain {
            target: delivered * base,
            until: self.now + (longest * 1e6) as u64,
            over: None,
            began: Mark { at: self.now, number: self.sent.numbers, bytes: self.sent.bytes },
            delivered,
            trip: self.trip,
            share: 0.0,
        });
    }

    /// The drain ends in two steps: less is in flight, and then what was sent from there on has
    /// arrived. A round begins with this report if it did.
    fn end_drain(&mut self, next: u64) -> bool {
        let in_flight = self.in_flight() as f64;
        let Some(drain) = &mut self.drain else { return false };
        match drain.over {
            None if in_flight <= drain.target || self.now >= drain.until => {
                drain.over = Some(self.sent.numbers);
            }
            Some(over) if next >= over => {
                let share = drain.share;
                self.drain = None;
                self.law.handle_drained(self.base(), share);
                self.gathered = Gathered::new(self.sent.numbers, self.now, self.sent.bytes);
                self.gathered.from = self.last;
                return true;
            }
            _ => {}
        }
        false
    }

    /// When [`Controller::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.silence.due.map(|due| self.clock.instant(due))
    }

    /// Where no report comes, a few packets leave all the same, ever more rarely: what is in
    /// flight, or the reports on it, may be lost.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        if self.silence.due.is_none_or(|due| due > self.now) {
            return;
        }
        // What nobody waits for may go without a report: the peer does not report on reports alone.
        if (self.in_flight() as f64) < self.most {
            self.silence.due = None;
            return;
        }
        self.silence.total += u64::from(self.silence.count == 0);
        self.silence.count += 1;
        self.silence.probes = PROBES;
        self.silence.due = Some(self.now + self.patience());
    }

    fn hear(&mut self) {
        if self.silence.count > 0 {
            self.law.resume(self.base());
        }
        let idle = self.in_flight() == 0;
        self.silence.count = 0;
        self.silence.probes = 0;
        self.silence.due = (!idle).then(|| self.now + self.patience());
    }

    /// How long reports may fail to come: some round trips, since they come once in a round trip if
    /// little is sent, and one may be lost; doubling.
    fn patience(&self) -> u64 {
        let interval = report_interval(Duration::from_secs_f64(self.trip.min(10.0)));
        let least = 2.0 * self.trip + 2.0 * interval.as_secs_f64() + 0.05;
        ((least * 1e6) as u64).saturating_mul(1 << self.silence.count.min(8)).min(LONGEST_SILENCE)
    }

    fn base(&self) -> f64 {
        self.base.get().unwrap_or(self.hint).max(1e-5)
    }

    fn settle(&mut self) {
        (self.pace, self.most) = (self.pacing(), self.window_bytes());
    }

    fn pacing(&self) -> f64 {
        let rate = self.law.rate(self.trip, self.base());
        let draining = self.drain.is_some_and(|drain| drain.over.is_none());
        (if draining { rate * DRAIN } else { rate }).min(self.ceiling)
    }

    fn window_bytes(&self) -> f64 {
        self.law.window(self.trip, self.base(), self.spacing).max(LEAST_WINDOW)
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(self.clock.micros(now));
        if self.now > self.gathered.at {
            self.gathered.allowed += self.since_allowed();
            self.gathered.at = self.now;
        }
    }

    fn since_allowed(&self) -> f64 {
        (self.now - self.gathered.at) as f64 / 1e6 * self.pace
    }
}

impl Gathered {
    fn new(until: u64, now: u64, sent: u64) -> Self {
        Self {
            until,
            from: None,
            began: now,
            sent,
            queue: f64::INFINITY,
            highest: 0.0,
            reports: 0,
            spacing: 0.0,
            full: false,
            allowed: 0.0,
            at: now,
        }
    }
}
