//! How much reports may take of a way back that carries less than it should.

use std::time::{Duration, Instant};

use reliability::estimator::PathReport;

/// Reports of a lane take so many bytes a second at least: enough to tell, once in a while.
const LEAST: u64 = 2000;
/// Shortest time that is judged.
const WINDOW: Duration = Duration::from_millis(100);
/// Fewest packets that are judged, ...
const PACKETS: u64 = 8;
/// ... and the time after which fewer are.
const LONGEST: Duration = Duration::from_secs(2);
/// Queueing on the way back that is no concern, in microseconds; more is on a long path.
const QUEUEING: u64 = 1000;
/// Share of losses that tells of a full way without a queue: a policer's.
const LOSS: f64 = 0.5;
/// The part of a full way that reports may take in any case: a sixteenth.
const PART: u64 = 16;
/// The least delay holds for one to two times as long; clocks drift.
const GENERATION: Duration = Duration::from_secs(15);

/// Decides how many bytes a second reports may take on one lane.
///
/// Reports do not wait for the peer's window or for congestion control.
/// Where they queue on the way back, more of them make those that arrive older, not more.
/// So they yield to what arrives, and come back slowly.
///
/// The peer's reports tell the way back's delay by itself: when it received a packet, by its clock,
/// less when that was sent, by ours. The clocks' difference is constant for long enough.
#[derive(Debug)]
pub(crate) struct Thinning {
    most: u64,
    rate: u64,
    /// Bytes a second of reports with which the way was last full.
    full: Option<u64>,
    delays: Delays,
    /// The most queueing since the present window began, in microseconds.
    queueing: u64,
    /// Until then, what waited when reports yielded last has yet to leave.
    yields_until: Option<Instant>,
    sample: Option<Sample>,
}

/// The peer's counts when the present window began.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    judged: u64,
    lost: u64,
    bytes: u64,
}

/// The least delays of this generation and of the one before, in microseconds of both clocks.
#[derive(Debug, Default)]
struct Delays {
    least: [Option<u32>; 2],
    since: Option<Instant>,
}

impl Delays {
    /// Takes a delay; returns how much of it is queueing.
    fn add(&mut self, delay: u32, now: Instant) -> u64 {
        let since = *self.since.get_or_insert(now);
        let [young, old] = &mut self.least;
        if now.saturating_duration_since(since) >= GENERATION {
            (*old, self.since) = (young.take(), Some(now));
        }
        // The clocks' difference may be anything; how far apart delays are wraps with it.
        let is_less = |than: u32| (delay.wrapping_sub(than) as i32) < 0;
        if young.is_none_or(is_less) {
            *young = Some(delay);
        }
        let above = |least: u32| delay.wrapping_sub(least) as i32;
        let queueing = [*young, *old].into_iter().flatten().map(above).max().unwrap_or(0);
        u64::try_from(queueing).unwrap_or(0)
    }
}

impl Sample {
    fn of(report: &PathReport, at: Instant) -> Self {
        Self { at, judged: report.judged, lost: report.lost, bytes: report.bytes }
    }
}

impl Thinning {
    /// Lets reports take `most` bytes a second as long as they arrive.
    pub(crate) fn new(most: u64) -> Self {
        let most = most.max(LEAST);
        Self {
            most,
            rate: most,
            full: None,
            delays: Delays::default(),
            queueing: 0,
            yields_until: None,
            sample: None,
        }
    }

    /// Returns bytes a second, if they are less than the most.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.rate < self.most).then_some(self.rate)
    }

    /// Returns bytes a second, if they are less than reports usually take.
    pub(crate) fn below(&self, usual: u64) -> Option<u64> {
        self.rate().filter(|rate| *rate < usual)
    }

    /// Returns bytes a second.
    pub(crate) fn allowed(&self) -> u64 {
        self.rate
    }

    /// The way is full, and carried so many bytes a second, of reports and of all else.
    ///
    /// Others may fill it too, so reports yield until it is full no longer. A part of it they keep.
    fn yield_to(&mut self, carried: u64) {
        let full = self.rate.min(carried).max(LEAST);
        self.full = Some(full);
        self.rate = (full / 4 * 3).max(carried / PART).max(LEAST).min(self.rate);
    }

    /// The peer reports on what it received. `rtt`: of the path, as it is known.
    pub(crate) fn handle_report(&mut self, report: &PathReport, rtt: Duration, now: Instant) {
        if let Some(echo) = report.echo {
            let delay = report.sent_at.wrapping_sub(echo.held).wrapping_sub(echo.sent_at);
            self.queueing = self.queueing.max(self.delays.add(delay, now));
        }
        let Some(before) = self.sample else {
            self.sample = Some(Sample::of(report, now));
            return;
        };
        let elapsed = now.saturating_duration_since(before.at);
        let judged = report.judged.saturating_sub(before.judged);
        let window = WINDOW.max(2 * rtt);
        if elapsed < window || (judged < PACKETS && elapsed < LONGEST) || judged == 0 {
            return;
        }
        self.sample = Some(Sample::of(report, now));
        let loss = report.lost.saturating_sub(before.lost) as f64 / judged as f64;
        let usual = QUEUEING.max(rtt.as_micros() as u64 / 8);
        let queueing = std::mem::take(&mut self.queueing);
        if queueing > usual || loss > LOSS {
            let carried = report.bytes.saturating_sub(before.bytes) as f64 / elapsed.as_secs_f64();
            // Where a quarter less is sent, a queue takes four times its length to leave.
            if self.yields_until.is_none_or(|until| now >= until) {
                self.yield_to(carried as u64);
                self.yields_until = now.checked_add(window + Duration::from_micros(4 * queueing));
            }
            return;
        }
        // Fast where there was room, and slowly beyond.
        let is_near = self.full.is_some_and(|full| self.rate >= full / 4 * 3);
        let step = if is_near { self.rate / 64 } else { self.rate / 8 };
        self.rate = self.rate.saturating_add(step.max(1)).min(self.most);
        if self.rate > self.full.unwrap_or(0).saturating_mul(2) {
            self.full = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use reliability::estimator::Echo;

    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// A way that carries so many bytes a second, and loses this share of what it carries.
    struct Way {
        carries: u64,
        loss: f64,
        /// Bytes a second of anything else.
        others: u64,
    }

    /// Reports take all that they may, for some seconds; the rate then. Where more is sent than
    /// carried, packets queue for 20 ms. The clocks differ by an hour.
    fn run(thinning: &mut Thinning, report: &mut PathReport, way: &Way, seconds: u32) -> u64 {
        let mut now = thinning.sample.map_or_else(crate::test_clock, |sample| sample.at);
        for _ in 0..seconds * 5 {
            now += Duration::from_millis(200);
            let sent = (thinning.rate + way.others) / 5;
            let arrived = (sent.min(way.carries / 5) as f64 * (1.0 - way.loss)) as u64;
            let delay = if sent > way.carries / 5 { 30_000 } else { 10_000 };
            report.bytes += arrived;
            report.judged += sent / 100;
            report.lost += (sent - arrived) / 100;
            report.sent_at = report.sent_at.wrapping_add(200_000);
            let received = report.sent_at.wrapping_sub(77).wrapping_sub(3_600_000_000);
            report.echo = Some(Echo { sent_at: received.wrapping_sub(delay), held: 77 });
            thinning.handle_report(report, RTT, now);
        }
        thinning.rate
    }

    #[test]
    fn reports_take_what_the_way_carries_and_come_back() {
        let mut thinning = Thinning::new(1_000_000);
        let mut report = PathReport::default();
        let wide = Way { carries: 10_000_000, loss: 0.0, others: 0 };
        assert_eq!(run(&mut thinning, &mut report, &wide, 5), 1_000_000);
        assert_eq!(thinning.rate(), None);
        let rate = run(&mut thinning, &mut report, &Way { carries: 50_000, loss: 0.0, others: 0 }, 10);
        assert!((25_000..=60_000).contains(&rate), "{rate}");
        assert_eq!(run(&mut thinning, &mut report, &wide, 120), 1_000_000);
    }

    /// Reports may take six times what they usually take: a way that carries that lacks nothing.
    #[test]
    fn a_way_that_carries_what_reports_usually_take_is_not_told_of() {
        let (mut thinning, mut report) = (Thinning::new(1_000_000), PathReport::default());
        run(&mut thinning, &mut report, &Way { carries: 10_000_000, loss: 0.0, others: 0 }, 5);
        run(&mut thinning, &mut report, &Way { carries: 500_000, loss: 0.0, others: 0 }, 10);
        assert!(thinning.rate().is_some() && thinning.below(160_000).is_none(), "{thinning:?}");
        run(&mut thinning, &mut report, &Way { carries: 50_000, loss: 0.0, others: 0 }, 10);
        assert!(thinning.below(160_000).is_some_and(|rate| rate <= 60_000), "{thinning:?}");
    }

    /// Completions for the other site's hosts take the same way.
    #[test]
    fn reports_leave_room_for_others() {
        let mut thinning = Thinning::new(1_000_000);
        let mut report = PathReport::default();
        run(&mut thinning, &mut report, &Way { carries: 10_000_000, loss: 0.0, others: 40_000 }, 5);
        let way = Way { carries: 100_000, loss: 0.0, others: 40_000 };
        let rates: Vec<u64> = (0..40).map(|_| run(&mut thinning, &mut report, &way, 1)).collect();
        assert!(rates[20..].iter().all(|rate| (30_000..=66_000).contains(rate)), "{rates:?}");
    }

    #[test]
    fn losses_without_queues_thin_nothing() {
        let mut thinning = Thinning::new(1_000_000);
        let way = Way { carries: 10_000_000, loss: 0.3, others: 0 };
        assert_eq!(run(&mut thinning, &mut PathReport::default(), &way, 20), 1_000_000);
    }

    #[test]
    fn something_is_left_whatever_happens() {
        let mut thinning = Thinning::new(1_000_000);
        let wide = Way { carries: 10_000_000, loss: 0.0, others: 0 };
        let mut report = PathReport::default();
        run(&mut thinning, &mut report, &wide, 5);
        let rate = run(&mut thinning, &mut report, &Way { carries: 0, loss: 0.0, others: 0 }, 10);
        assert!((LEAST..2 * LEAST).contains(&rate), "{rate}");
    }
}
