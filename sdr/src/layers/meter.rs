//! Round trip and rate of a path, as both layers measure them all the time.

use std::time::{Duration, Instant};

use super::Timing;
use super::letter::Letter;
use crate::engine::ControlPath;
use crate::shape::MAX_RTT;

/// Pings in a round trip while a message is under way.
const BUSY_PINGS: u32 = 2;
/// Round trips between two pings otherwise.
const IDLE_PAUSE: u32 = 32;
/// Looks at the rate in a round trip.
const WINDOWS: u32 = 8;
/// Pings, and looks at the rate, are no closer than this.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Pings are no further apart than this until the first echo: the round trip that was told may be
/// wrong.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A timeout is longer than the round trip by this at least (RFC 9002, 6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);

/// Round trip and rate as they are at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub deviation: Duration,
    /// Rate of the sender while it had something to send, in bit/s.
    pub rate: u64,
    /// Round trips measured so far. The values above are those of the start while it is 0.
    pub samples: u64,
}

impl Path {
    /// Returns the path as the planner and [`super::choose`] take it.
    ///
    /// `drop` is the loss probability of packets of `packet` bytes.
    #[must_use]
    pub fn link(&self, drop: f64, packet: usize) -> reliability::link::Link {
        reliability::link::Link::new(self.rate, self.rtt, drop, packet)
    }
}

/// Measures a path, and derives the timers from it.
pub(super) struct Meter {
    /// Timers at the start: their ratios to the round trip stay.
    first: Timing,
    timing: Timing,
    path: Path,
    start: Instant,
    next_ping: Instant,
    /// When the rate's window began, and the bytes that had left by then.
    window: Option<(Instant, u64)>,
    rate_is_measured: bool,
}

impl Meter {
    pub(super) fn new(first: Timing, now: Instant) -> Self {
        let path = Path { rtt: first.rtt, deviation: Duration::ZERO, rate: first.rate, samples: 0 };
        Meter {
            first,
            timing: first,
            path,
            start: now,
            next_ping: now,
            window: None,
            rate_is_measured: false,
        }
    }

    pub(super) fn timing(&self) -> Timing {
        self.timing
    }

    pub(super) fn path(&self) -> Path {
        self.path
    }

    /// Sends a ping if one is due.
    pub(super) fn ping(&mut self, control: &ControlPath, is_busy: bool, now: Instant) {
        let pause = if is_busy { self.path.rtt / BUSY_PINGS } else { self.path.rtt * IDLE_PAUSE };
        let pause = if self.path.samples == 0 { pause.min(FIRST_PAUSE) } else { pause };
        let pause = pause.max(SHORTEST_PAUSE);
        // A message that begins does not wait for the end of a long pause.
        self.next_ping = self.next_ping.min(now + pause);
        if now < self.next_ping {
            return;
        }
        self.next_ping = now + pause;
        let stamp = now.saturating_duration_since(self.start).as_nanos() as u64;
        // The next one measures as well.
        let _ = control.send(&Letter::Ping { stamp, rate: self.path.rate }.encode());
    }

    /// Takes in the echo of a ping, as RFC 6298 smooths round trips.
    pub(super) fn pong(&mut self, stamp: u64, now: Instant) {
        let sent = Duration::from_nanos(stamp);
        let Some(rtt) = now.saturating_duration_since(self.start).checked_sub(sent) else {
            return;
        };
        if rtt > MAX_RTT {
            return;
        }
        let path = &mut self.path;
        if path.samples == 0 {
            (path.rtt, path.deviation) = (rtt, rtt / 2);
        } else {
            path.deviation = (path.deviation * 3 + rtt.abs_diff(path.rtt)) / 4;
            path.rtt = (path.rtt * 7 + rtt) / 8;
        }
        path.samples += 1;
        self.derive();
    }

    /// Takes the rate that the sender measured.
    pub(super) fn peer_rate(&mut self, rate: u64) {
        self.path.rate = rate.max(1);
        self.derive();
    }

    /// Counts `injected` bytes that have left so far.
    /// `was_busy` says that bytes waited all the time since the last call.
    pub(super) fn left(&mut self, injected: u64, was_busy: bool, now: Instant) {
        // What leaves at once after a pause is not the rate.
        let Some((since, before)) = self.window.filter(|_| was_busy) else {
            self.window = was_busy.then_some((now, injected));
            return;
        };
        let time = now.saturating_duration_since(since);
        if time < (self.path.rtt / WINDOWS).max(SHORTEST_PAUSE) {
            return;
        }
        let bits = u128::from(injected.saturating_sub(before)) * 8;
        let rate = u64::try_from(bits * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX);
        let old = if self.rate_is_measured { self.path.rate } else { rate };
        self.rate_is_measured = true;
        self.path.rate = (old / 4 * 3).saturating_add(rate / 4).max(1);
        self.window = Some((now, injected));
        self.derive();
    }

    fn derive(&mut self) {
        self.timing = self.first.at(self.path.rtt, self.path.rate);
        // A path whose delay varies needs more patience than its mean, and so do programs that are
        // not looked at all the time.
        let slack = (self.path.deviation * 4).max(GRANULARITY);
        self.timing.rto = self.timing.rto.max(self.path.rtt + slack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> (Meter, Instant) {
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let now = Instant::now();
        (Meter::new(Timing::new(Duration::from_millis(25), 1_000_000_000), now), now)
    }

    #[test]
    fn timers_follow_the_round_trip_and_keep_their_ratios() {
        let (mut meter, mut now) = meter();
        let start = now;
        for (rtt, rounds) in [(4, 30), (80, 60), (10, 60)] {
            let rtt = Duration::from_millis(rtt);
            for _ in 0..rounds {
                let stamp = now.duration_since(start).as_nanos() as u64;
                now += rtt;
                meter.pong(stamp, now);
            }
            let timing = meter.timing();
            assert!(timing.rtt.abs_diff(rtt) < rtt / 50, "{:?} {:?}", timing.rtt, rtt);
            assert!(timing.rto.abs_diff(rtt * 3) < rtt / 10, "{timing:?}");
            assert!(timing.reorder.abs_diff(rtt / 8) < rtt / 100, "{timing:?}");
        }
        // A peer next door, or one that says so, is given time all the same.
        for _ in 0..100 {
            let stamp = now.duration_since(start).as_nanos() as u64;
            meter.pong(stamp, now);
        }
        assert!(meter.timing().rto >= GRANULARITY, "{:?}", meter.timing());
        // An echo of the future, and one beyond all patience, measure nothing.
        let before = meter.path();
        meter.pong(u64::MAX, now);
        meter.pong(0, now + MAX_RTT * 2);
        assert_eq!(meter.path(), before);
    }

    #[test]
    fn the_rate_is_what_leaves_while_something_waits() {
        let (mut meter, mut now) = meter();
        // A burst after a pause, which is not the rate.
        let mut injected = 65_536;
        meter.left(injected, true, now);
        // 100 Mbit/s for two seconds, then a pause, which says nothing of the rate.
        for _ in 0..2000 {
            now += Duration::from_millis(1);
            injected += 12_500;
            meter.left(injected, true, now);
        }
        assert!(meter.path().rate.abs_diff(100_000_000) < 1_000_000, "{:?}", meter.path());
        let before = meter.path();
        for _ in 0..2000 {
            now += Duration::from_millis(1);
            meter.left(injected, false, now);
        }
        assert_eq!(meter.path(), before);
    }
}
