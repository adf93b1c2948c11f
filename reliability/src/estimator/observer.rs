//! The receiving end: what the packet numbers tell of the path.

use std::time::{Duration, Instant};

use super::extents::Recent;
use super::marks::Marks;
use super::report::{Echo, Extents, Newest, PATH_PACKET, PathReport};
use super::runs::Runs;
use super::sizes::ArrivedSizes;
use super::{Arrival, Clock, Ecn, LaneId, report_interval, stamp};
use crate::bitmap::{Bitmap, WORD};
use crate::trace::Entry;

/// Packet numbers below the highest that are told apart, unless configured otherwise: 85 ms at 400
/// Gbit/s and 4 KiB a packet.
pub const WINDOW: u64 = 1 << 20;

/// A leap of more numbers is no loss: 16 million packets are more than a second at 400 Gbit/s.
const MAX_JUMP: u64 = 1 << 24;
/// A number is missing for so long at least and at most before it is taken for lost.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Length of a generation: patience is twice the lateness of the latest packet in the last one to
/// two.
const GENERATION: Duration = Duration::from_secs(30);
/// Reports repeated after the last packet, ever more rarely; one more when the last number missing
/// is judged.
const REPEATS: u32 = 3;
/// Longest time between repeated reports.
const LONGEST: u64 = 1_000_000;
/// Reports as often as the peer wants are at least so far apart, and come only if so many packets
/// have arrived since the last one: then they take two parts in a hundred of what they report on,
/// at most.
const SOONEST: u64 = 1000;
const WORTH_A_REPORT: u64 = 8;
/// A time stamp held longer is not echoed: it may have wrapped.
const ECHO_VALID: u64 = 60_000_000;

/// How a [`PathObserver`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct ObserverConfig {
    /// The lane observed.
    pub lane: LaneId,
    /// The round-trip time assumed until [`PathObserver::set_rtt`].
    pub rtt: Duration,
    /// Packet numbers below the highest that are told apart.
    pub window: u64,
}

impl ObserverConfig {
    /// For lane 0.
    #[must_use]
    pub fn new(rtt: Duration) -> Self {
        Self { lane: LaneId(0), rtt, window: WINDOW }
    }
}

/// The effect of an arrival on the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// DATA, PARITY, REPORT: reports follow, and are repeated when it ends.
    Traffic,
    /// PROBE: one report follows.
    Probe,
    /// PATH, or nothing known: no report follows, or two idle gateways would report to each other
    /// for ever.
    Silent,
}

/// Counts arrivals, losses, bursts and reordering of the packet numbers of one direction, from
/// authentic datagrams only.
///
/// A number is *missing* once a later one has arrived, and *lost* when it has been missing for a
/// *patience*: a round trip or twice the longest time that one was late by of late, whichever is
/// more, within 10 ms and 1 s. One that arrives later still is taken off the losses again. So a
/// path that only reorders shows no loss, and shows some for a patience at most when it begins to
/// reorder more than ever.
///
/// # Driver contract
/// [`PathObserver::observe`] every authentic datagram; call [`PathObserver::poll_report`] after
/// inputs and at [`PathObserver::next_timeout`], and send what it writes. `now` must not run
/// backwards; if it does, it is taken as standing still.
///
/// # Bounds
/// Memory is fixed by [`ObserverConfig::window`]: a bit for each number, plus about 0.5 MiB.
/// Numbers below the window are judged whatever their patience, and what arrives there counts as a
/// copy. Numbers that leap by more than 2^24 are no loss but a *jump*: counting goes on at the new
/// number. Work per packet is constant, but for a leap's, which is that of clearing the window at
/// most.
#[derive(Debug)]
pub struct PathObserver {
    config: ObserverConfig,
    clock: Clock,
    /// Microseconds; never runs backwards.
    now: u64,
    /// Which of the numbers from `next - window` on have arrived.
    bits: Bitmap,
    /// The first number seen: what was sent before the session stood on both sides is no loss.
    base: u64,
    /// Numbers below are judged.
    horizon: u64,
    /// The number after the highest.
    next: u64,
    /// Packets from `horizon` to `next` that have not arrived.
    missing: u64,
    marks: Marks,
    runs: Runs,
    sizes: ArrivedSizes,
    /// Counts of arrivals; the other fields are filled in for each report.
    counts: PathReport,
    lateness: Recent,
    distance: Recent,
    aged: u64,
    /// Arrivals before the young generation, and before the old one.
    arrived_before: [u64; 2],
    /// The newest time stamp of the other side, and when it came.
    stamp: Option<(u32, u64)>,
    rtt: Duration,
    /// When `next - 1` arrived.
    newest_at: u64,
    reports: Reports,
}

/// When the next report is due, and what it answers to.
#[derive(Debug, Default)]
struct Reports {
    due: Option<u64>,
    /// When the last one was written.
    last: Option<u64>,
    repeats: u32,
    /// Microseconds between reports that the peer wants; 0: as usual.
    wanted: u64,
    /// Packets that had arrived at the last report.
    reported: u64,
    /// Microseconds between the peer's reports that are wanted here.
    ask: u32,
    /// Microseconds between reports at least, since the way back carries no more.
    apart: u64,
}

impl PathObserver {
    /// Has seen nothing. `origin` is the session's begin, the same as for the
    /// [`super::PathEstimate`] and the [`super::Prober`] at this gateway.
    #[must_use]
    pub fn new(mut config: ObserverConfig, origin: Instant) -> Self {
        config.window = config.window.clamp(WORD, 1 << 26);
        Self {
            clock: Clock::new(origin),
            now: 0,
            bits: Bitmap::new(config.window as usize),
            base: 0,
            horizon: 0,
            next: 0,
            missing: 0,
            marks: Marks::new(),
            runs: Runs::new(),
            sizes: ArrivedSizes::new(config.window),
            counts: PathReport { lane: config.lane, ..PathReport::default() },
            lateness: Recent::new(),
            distance: Recent::new(),
            aged: 0,
            arrived_before: [0; 2],
            stamp: None,
            rtt: config.rtt,
            newest_at: 0,
            reports: Reports::default(),
            config,
        }
    }

    /// The path's round-trip time, as it is known by now.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// The peer's report said how often it wants to hear from here while it sends
    /// ([`PathReport::wanted`]).
    pub fn set_wanted(&mut self, micros: u32) {
        self.reports.wanted = u64::from(micros);
    }

    /// Reports from here are so far apart at least: the way back carries no more.
    pub fn set_apart(&mut self, apart: Duration) {
        self.reports.apart = u64::try_from(apart.as_micros()).unwrap_or(u64::MAX).min(LONGEST);
    }

    /// Sets how often reports from here ask to be answered: [`PathReport::wanted`].
    pub fn ask(&mut self, interval: Duration) {
        self.reports.ask = u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
    }

    /// An authentic datagram. `activity` says what it held.
    pub fn observe(&mut self, arrival: &Arrival, activity: Activity, now: Instant) {
        self.now = self.now.max(self.clock.micros(now));
        self.hear(activity);
        let number = arrival.number;
        if number == self.next && (1..u64::MAX).contains(&number) {
            self.make_room(number);
            self.bits.set(number);
            self.next = number + 1;
            self.newest_at = self.now;
        } else if !self.place(number) {
            self.counts.duplicates += 1;
            return;
        }
        self.counts.arrived += 1;
        self.counts.bytes += arrival.bytes as u64;
        self.sizes.arrived(number, arrival.bytes);
        match arrival.ecn {
            Ecn::NotEct => {}
            Ecn::Ect => self.counts.ect += 1,
            Ecn::Ce => {
                self.counts.ect += 1;
                self.counts.ce += 1;
            }
        }
    }

    /// A datagram came whose number was taken in before; whoever keeps the replay window knows, and
    /// has refused it.
    pub fn observe_copy(&mut self) {
        self.counts.duplicates += 1;
    }

    /// So many datagrams were dropped by this machine before anybody could observe them. Tell
    /// before the report on what came after them.
    pub fn observe_overrun(&mut self, datagrams: u64) {
        self.counts.overrun += datagrams;
    }

    /// The packet just observed was stamped by the other side's clock.
    pub fn observe_stamp(&mut self, sent_at: u32) {
        let newer =
            |(last, at): (u32, u64)| sent_at.wrapping_sub(last) as i32 >= 0 || at + ECHO_VALID < self.now;
        if self.stamp.is_none_or(newer) {
            self.stamp = Some((sent_at, self.now));
        }
    }

    /// Enters a number that is not the next one; false if it is a copy.
    fn place(&mut self, number: u64) -> bool {
        // No sealer uses the last number; without it no sum overflows.
        if number == u64::MAX {
            return false;
        }
        if self.next == 0 {
            self.begin(number);
        } else if number >= self.next {
            if number - self.next > MAX_JUMP {
                self.counts.jumps = self.counts.jumps.saturating_add(1);
                self.judge(self.next);
                self.runs.interrupt();
                self.begin(number);
            } else {
                self.leap(number);
            }
        } else {
            return self.come_late(number);
        }
        true
    }

    /// Counts from `number` on.
    fn begin(&mut self, number: u64) {
        let window = self.config.window;
        self.bits.clear(number.saturating_sub(window), number);
        self.bits.set(number);
        (self.base, self.horizon, self.next, self.missing) = (number, number, number + 1, 0);
        self.newest_at = self.now;
        self.marks.clear();
        self.sizes.begin(number);
    }

    /// `number` came before some that are below it.
    fn leap(&mut self, number: u64) {
        self.make_room(number);
        let from = self.next.max(self.horizon);
        self.bits.clear(from, number);
        self.bits.set(number);
        self.missing += number - from;
        self.next = number + 1;
        self.newest_at = self.now;
        if number > from {
            self.marks.gap(number, self.now, self.patience());
        }
    }

    /// Judges what no longer fits into the window once `number` is in it.
    fn make_room(&mut self, number: u64) {
        let keep = (number + 1).saturating_sub(self.config.window);
        if keep > self.horizon {
            self.judge(keep);
        }
    }

    /// `number` comes after one above it; false if it is a copy, or too old to be told from one.
    fn come_late(&mut self, number: u64) -> bool {
        if self.next - number > self.config.window || !self.bits.set(number) {
            return false;
        }
        self.counts.reordered += 1;
        self.distance.add(self.next - 1 - number);
        if let Some(noticed) = self.marks.noticed(number) {
            self.lateness.add(self.now - noticed);
        }
        if number >= self.horizon {
            self.missing -= 1;
        } else if number >= self.base {
            let oldest = self.base.max(self.next.saturating_sub(self.config.window));
            let before = number > oldest && !self.bits.get(number - 1);
            let last = number + 1 == self.horizon;
            let after = !last && !self.bits.get(number + 1);
            self.runs.found(before, after, last);
        }
        true
    }

    /// Judges all numbers below `to`, which may lie beyond `next`: those have not come at all.
    fn judge(&mut self, to: u64) {
        let known = to.min(self.next);
        if self.missing == 0 && known > self.horizon {
            self.runs.arrived(known - self.horizon);
            self.horizon = known;
        }
        while self.horizon < known {
            let end = known.min((self.horizon | (WORD - 1)).saturating_add(1));
            let count = (end - self.horizon) as u32;
            let word = self.bits.word(self.horizon) >> (self.horizon % WORD);
            let lost = self.runs.lost;
            self.runs.word(word, count);
            self.missing -= self.runs.lost - lost;
            self.horizon = end;
        }
        if to > known {
            self.runs.lost(to - known);
        }
        self.horizon = self.horizon.max(to);
        self.sizes.judge(self.horizon);
    }

    /// How long a number is missing before it is lost, in microseconds.
    fn patience(&self) -> u64 {
        let late = Duration::from_micros(self.lateness.largest().saturating_mul(2));
        self.rtt.max(late).clamp(PATIENCE.0, PATIENCE.1).as_micros() as u64
    }

    /// How long to wait for a packet that others have overtaken before it is asked for, if no more
    /// than `share` of the packets may be asked for in vain; zero as long as fewer are overtaken at
    /// all. From what came late of late, rounded up to the half of a power of two.
    #[must_use]
    pub fn lateness_beyond(&self, share: f64) -> Duration {
        let [_, before] = self.arrived_before;
        let spared = (self.counts.arrived - before) as f64 * share;
        let late = self.lateness.total() as f64;
        if late <= spared {
            return Duration::ZERO;
        }
        Duration::from_micros(self.lateness.quantile(1.0 - spared / late))
    }

    /// Judges what has been missing for long enough.
    fn settle(&mut self) {
        let generation = GENERATION.as_micros() as u64;
        // What is older than two of them is forgotten, however long nothing was settled.
        for _ in 0..((self.now - self.aged) / generation).min(2) {
            self.lateness.age();
            self.distance.age();
            let [young, _] = self.arrived_before;
            self.arrived_before = [self.counts.arrived, young];
        }
        if self.now >= self.aged + generation {
            self.aged = self.now;
        }
        if let Some(to) = self.marks.pass(self.now, self.patience()) {
            self.judge(to.max(self.horizon));
        }
        if self.missing == 0 {
            self.judge(self.next);
        }
    }

    fn hear(&mut self, activity: Activity) {
        match activity {
            Activity::Traffic => self.reports.repeats = REPEATS,
            Activity::Probe => {}
            Activity::Silent => return,
        }
        let at = self.reports.last.map_or(self.now, |last| last + self.spacing());
        self.reports.due = Some(self.reports.due.map_or(at, |due| due.min(at)).max(self.now));
    }

    fn interval(&self) -> u64 {
        report_interval(self.rtt).as_micros() as u64
    }

    /// From the last report to the next one while packets arrive.
    fn spacing(&self) -> u64 {
        let worth = self.reports.wanted > 0 && self.counts.arrived - self.reports.reported >= WORTH_A_REPORT;
        let spacing =
            if worth { self.reports.wanted.max(SOONEST).min(self.interval()) } else { self.interval() };
        spacing.max(self.reports.apart)
    }

    /// Writes the report that is due; its length.
    pub fn poll_report(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.now = self.now.max(self.clock.micros(now));
        if self.reports.due.is_none_or(|due| due > self.now) {
            return None;
        }
        let out = out.first_chunk_mut::<PATH_PACKET>()?;
        self.settle();
        let mut report = self.observed();
        report.sent_at = stamp(self.now);
        report.echo = self
            .stamp
            .filter(|(_, at)| at + ECHO_VALID > self.now)
            .map(|(sent_at, at)| Echo { sent_at, held: (self.now - at) as u32 });
        report.newest = (self.next > 0).then(|| Newest {
            next: self.next,
            age: u32::try_from(self.now - self.newest_at).unwrap_or(u32::MAX),
        });
        report.wanted = self.reports.ask;
        report.emit(out);
        self.reports.reported = self.counts.arrived;
        self.counts.number = self.counts.number.wrapping_add(1);
        self.reports.last = Some(self.now);
        self.reports.due = if self.reports.repeats > 0 {
            Some(self.now + (self.interval() << (REPEATS - self.reports.repeats)).min(LONGEST))
        } else {
            // Once all is judged there is nothing to add.
            self.marks.last().map(|last| (last + self.patience()).max(self.now + self.interval()))
        };
        self.reports.repeats = self.reports.repeats.saturating_sub(1);
        Some(PATH_PACKET)
    }

    /// When a report is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.reports.due.map(|due| self.clock.instant(due))
    }

    /// Returns the counts up to the last report's judgement, without times.
    #[must_use]
    pub fn observed(&self) -> PathReport {
        let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let (size_horizon, by_size) = self.sizes.totals();
        PathReport {
            horizon: self.horizon,
            judged: self.runs.judged,
            lost: self.runs.lost,
            runs: self.runs.count.min(self.runs.lost),
            longest: short(self.runs.longest),
            extents: Extents {
                packets_p99: short(self.distance.quantile(0.99)),
                packets_max: short(self.distance.largest()),
                micros_p99: short(self.lateness.quantile(0.99)),
                micros_max: short(self.lateness.largest()),
            },
            size_horizon,
            by_size,
            ..self.counts
        }
    }

    /// Runs of arrivals and losses judged since the last call, in the order of the numbers. What
    /// arrives after it was judged lost changes nothing of them. 16384 are kept; a break stands for
    /// what comes beyond.
    pub fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        self.runs.drain(take);
    }
}
