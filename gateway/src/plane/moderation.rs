//! Moderation of wake-ups, as NICs do it for interrupts.

use std::time::{Duration, Instant};

/// Under a steady stream of packets, which would wake the thread for each, it rests from one
/// wake-up to the next whatever comes, and then takes what has come at once. What comes now and
/// then, or a few packets in a row, wakes it at once.
///
/// The slower the stream, the longer the rest: until some packets have come, but no longer than a
/// small part of the round-trip time, and not at all where it would hardly ever spare a wake-up.
/// Nor does it rest, once in a while, when it has handed a message's last packet to a target: that
/// is about to answer, and of a message alone nothing else is awaited.
pub(super) struct InterruptModeration {
    /// The longest there may be.
    most: Duration,
    /// From one wake-up to the next.
    period: Option<Duration>,
    woken: Instant,
    /// Start of the present counts: wake-ups, and the arrivals there had been.
    since: Instant,
    wakes: u32,
    arrivals: u64,
    /// Messages handed over when it last was about to sleep, and when it last did without a rest
    /// for one.
    handed_over: u64,
    skipped: Option<Instant>,
}

impl InterruptModeration {
    /// The longest period is a round-trip time divided by this, within these bounds.
    const PART: u32 = 64;
    const LEAST: Duration = Duration::from_micros(50);
    const MOST: Duration = Duration::from_micros(300);
    /// Room that a socket needs for more than the shortest rest: for what comes in the longest at
    /// 50 Gbit/s.
    const ROOM: usize = 2 << 20;
    /// So many wake-ups in quick succession are a steady stream; and it is judged anew after as
    /// many.
    const STEADY: u32 = 16;
    /// Arrivals wanted for a wake-up.
    const BATCH: u32 = 16;
    /// Rests of which one may be left out for a message that is handed over.
    const SPARED: u32 = 4;

    pub(super) fn new(now: Instant) -> Self {
        Self {
            most: Self::LEAST,
            period: None,
            woken: now,
            since: now,
            wakes: 0,
            arrivals: 0,
            handed_over: 0,
            skipped: None,
        }
    }

    /// The path's round-trip time is this by now, and the sockets hold so many bytes that nobody
    /// has received.
    pub(super) fn set_path(&mut self, rtt: Duration, room: usize) {
        let most = if room < Self::ROOM { Self::LEAST } else { Self::MOST };
        self.most = (rtt / Self::PART).clamp(Self::LEAST, most);
    }

    /// The thread wakes up; what it took in before were so many arrivals, each of which would have
    /// woken it.
    pub(super) fn woken(&mut self, arrivals: u64, now: Instant) {
        let pause = now.saturating_duration_since(self.woken);
        self.woken = now;
        if pause >= 2 * self.most {
            self.period = None;
            self.count_from(arrivals, now);
            return;
        }
        self.wakes += 1;
        if self.wakes >= Self::STEADY {
            self.judge(arrivals.saturating_sub(self.arrivals), now);
            self.count_from(arrivals, now);
        }
    }

    fn count_from(&mut self, arrivals: u64, now: Instant) {
        (self.since, self.wakes, self.arrivals) = (now, 0, arrivals);
    }

    fn judge(&mut self, arrivals: u64, now: Instant) {
        let Some(arrivals) = u32::try_from(arrivals).ok().filter(|arrivals| *arrivals > 0) else {
            self.period = None;
            return;
        };
        let gap = now.saturating_duration_since(self.since) / arrivals;
        let period = (gap * Self::BATCH).clamp(Self::LEAST, self.most);
        // At least one and a half arrivals in it.
        self.period = (2 * period >= 3 * gap).then_some(period);
    }

    /// How long to sleep whatever comes, if at all. So many messages have been handed over by now.
    pub(super) fn before_sleeping(&mut self, handed_over: u64, now: Instant) -> Option<Duration> {
        let awaits = std::mem::replace(&mut self.handed_over, handed_over) != handed_over;
        let period = self.period?;
        let left = (self.woken + period).saturating_duration_since(now);
        if left.is_zero() {
            return None;
        }
        let may_spare = |last: Instant| now.saturating_duration_since(last) >= Self::SPARED * period;
        if awaits && self.skipped.is_none_or(may_spare) {
            self.skipped = Some(now);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that wakes up for arrivals so far apart, unless it rests, for a while: how often it woke
    /// up, for how many arrivals.
    fn wake_ups(rest: &mut InterruptModeration, start: Instant, gap: Duration, time: Duration) -> (u32, u32) {
        let (mut now, mut wakes, mut arrived) = (start, 0, 0);
        while now < start + time {
            let next = start + gap * (arrived + 1);
            now = rest.before_sleeping(0, now).map_or(next, |left| now + left);
            arrived = arrived.max(u32::try_from((now - start).as_nanos() / gap.as_nanos()).unwrap());
            wakes += 1;
            rest.woken(arrived.into(), now);
        }
        (wakes, arrived)
    }

    fn over(rtt: Duration, gap: Duration) -> f64 {
        let start = Instant::now();
        let mut rest = InterruptModeration::new(start);
        rest.set_path(rtt, InterruptModeration::ROOM);
        let (wakes, arrived) = wake_ups(&mut rest, start, gap, Duration::from_millis(200));
        f64::from(arrived) / f64::from(wakes)
    }

    #[test]
    fn the_slower_the_stream_the_longer_the_rest_within_bounds() {
        let micros = Duration::from_micros;
        // Round-trip time, from one packet to the next, and packets for each wake-up: those of 50
        // us, sixteen, those of 300 us, those of a 64th of the round-trip time; and one where there
        // would hardly be two.
        for (rtt, gap, packets) in [
            (25_000, 1, 50.0),
            (25_000, 10, 16.0),
            (25_000, 72, 4.1),
            (25_000, 190, 1.6),
            (25_000, 210, 1.0),
            (10_000, 50, 3.1),
            (1_000, 10, 5.0),
            (1_000, 72, 1.0),
            (0, 72, 1.0),
        ] {
            let seen = over(micros(rtt), micros(gap));
            assert!((packets * 0.93..packets * 1.05).contains(&seen), "{rtt} {gap}: {seen}");
        }
    }

    #[test]
    fn what_comes_now_and_then_or_after_a_pause_wakes_at_once() {
        let start = Instant::now();
        let mut rest = InterruptModeration::new(start);
        rest.set_path(Duration::from_millis(25), InterruptModeration::ROOM);
        let (few, gap, pause) =
            (InterruptModeration::STEADY - 1, Duration::from_micros(30), Duration::from_millis(2));
        let mut now = start;
        for _ in 0..20 {
            for arrived in 1..=few {
                now += gap;
                rest.woken(arrived.into(), now);
                assert_eq!(rest.before_sleeping(0, now), None);
            }
            now += pause;
        }
        wake_ups(&mut rest, now, gap, pause);
        assert!(rest.period.is_some());
        now += 2 * pause;
        rest.woken(0, now);
        assert_eq!(rest.before_sleeping(0, now), None);
    }

    #[test]
    fn what_is_handed_over_spares_one_rest_of_a_few() {
        let start = Instant::now();
        let mut rest = InterruptModeration::new(start);
        rest.set_path(Duration::from_millis(25), InterruptModeration::ROOM);
        let (gap, time) = (Duration::from_micros(30), Duration::from_millis(5));
        wake_ups(&mut rest, start, gap, time);
        let period = rest.period.unwrap();
        let mut now = start + time;
        assert!(rest.before_sleeping(0, now).is_some());
        assert_eq!(rest.before_sleeping(1, now), None);
        assert!(rest.before_sleeping(1, now).is_some());
        for handed_over in 2..2 + u64::from(InterruptModeration::SPARED) {
            now = rest.woken + period / 2;
            let rests = handed_over < 1 + u64::from(InterruptModeration::SPARED);
            assert_eq!(rest.before_sleeping(handed_over, now).is_some(), rests, "{handed_over}");
            rest.woken = now + period / 2;
        }
    }

    #[test]
    fn where_little_can_wait_rests_are_short() {
        let mut rest = InterruptModeration::new(Instant::now());
        for (room, most) in [
            (InterruptModeration::ROOM - 1, InterruptModeration::LEAST),
            (InterruptModeration::ROOM, InterruptModeration::MOST),
        ] {
            rest.set_path(Duration::from_millis(25), room);
            assert_eq!(rest.most, most);
        }
    }

    #[test]
    fn timers_alone_are_no_stream() {
        let start = Instant::now();
        let mut rest = InterruptModeration::new(start);
        for wake in 1..100 {
            let now = start + Duration::from_micros(20) * wake;
            rest.woken(7, now);
            assert_eq!(rest.before_sleeping(0, now), None);
        }
    }
}
