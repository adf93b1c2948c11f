//! Pacing to a configured rate.

use std::time::{Duration, Instant};

const BITS_PER_BYTE_NS: u128 = 8 * 1_000_000_000;
/// Divisor of the burst that lateness has added: the part that being in time once takes away.
const IN_TIME: u32 = 256;

/// A token bucket, kept as the time at which the link would have sent everything consumed so far
/// (GCRA).
///
/// Driver: send while [`Pacer::ready`], telling [`Pacer::consume`] of every packet; otherwise wait
/// until [`Pacer::next_ready`]. A packet is let go when the bucket is not empty, and may overdraw
/// it by itself; the debt is paid before the next one. Exact to the bit over any time: what does
/// not divide into nanoseconds is carried along.
///
/// A driver that comes back later than the burst lasts leaves the link idle, and what it then
/// missed cannot be made up for. One that says when packets wait ([`Pacer::hold`]) gets a burst
/// that covers its own lateness, up to [`Pacer::with_most_burst`]: it grows by what the link stood
/// idle, and shrinks while the driver is in time, so that on a punctual machine the bottleneck's
/// queue stays as short as the least burst. Packets that wait may be made to leave several at a
/// time ([`Pacer::with_quantum`]), which spares the driver a wake-up for each.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: u64,
    burst: Duration,
    least_burst: Duration,
    most_burst: Duration,
    /// How much of the burst there has to be before a packet that waits may leave.
    quantum: Duration,
    /// Packets have waited for the time to come since the last one left.
    held: bool,
    overhead: usize,
    busy_until: Instant,
    /// Bit-nanoseconds consumed beyond `busy_until`, less than `rate`.
    remainder: u128,
}

impl Pacer {
    /// `rate` in bits per second (at least 1 is assumed), `burst` in bytes that may leave at once
    /// after a pause, `overhead` in bytes that every packet costs on the wire beyond what is passed
    /// to `consume` (Ethernet, IP, UDP, seal).
    #[must_use]
    pub fn new(rate: u64, burst: usize, overhead: usize, now: Instant) -> Self {
        let burst = Duration::from_nanos(to_nanos(burst, rate.max(1)));
        Self::with_burst_time(rate, burst, overhead, now)
    }

    /// As [`Pacer::new`], the burst given as the time during which the rate would send it.
    #[must_use]
    pub fn with_burst_time(rate: u64, burst: Duration, overhead: usize, now: Instant) -> Self {
        Self {
            rate: rate.max(1),
            burst,
            least_burst: burst,
            most_burst: burst,
            quantum: Duration::ZERO,
            held: false,
            overhead,
            busy_until: now,
            remainder: 0,
        }
    }

    /// For a driver that calls [`Pacer::hold`]: `burst` in bytes, which its lateness may make of
    /// the one given before if that is less.
    #[must_use]
    pub fn with_most_burst(self, burst: usize) -> Self {
        let most = Duration::from_nanos(to_nanos(burst, self.rate));
        Self { most_burst: most.max(self.least_burst), ..self }
    }

    /// For a driver that calls [`Pacer::hold`]: packets that have to wait do so until what would be
    /// sent in this time may leave together; half of the burst at most. One that finds the bucket
    /// not empty does not wait.
    #[must_use]
    pub fn with_quantum(self, quantum: Duration) -> Self {
        Self { quantum: quantum.min(self.least_burst / 2), ..self }
    }

    /// From now on, so many bits per second. Bursts keep their times.
    pub fn set_rate(&mut self, rate: u64) {
        // What does not divide by one rate is less than a nanosecond of it.
        (self.rate, self.remainder) = (rate.max(1), 0);
    }

    /// Returns true if a packet may leave now.
    #[must_use]
    pub fn ready(&self, now: Instant) -> bool {
        self.next_ready() <= now
    }

    /// When the next packet may leave; in the past if it may leave at once.
    #[must_use]
    pub fn next_ready(&self) -> Instant {
        let full = if self.held { self.burst - self.quantum } else { self.burst };
        self.busy_until.checked_sub(full).unwrap_or(self.busy_until)
    }

    /// Says whether packets wait that may not leave yet; they do not if the time has come and they
    /// still do not go.
    pub fn hold(&mut self, waiting: bool) {
        self.held = waiting;
    }

    /// Returns true if packets wait for the time to come, as [`Pacer::hold`] was told since the
    /// last one left.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// A packet of `bytes`, not counting the configured overhead, leaves now.
    pub fn consume(&mut self, bytes: usize, now: Instant) {
        if std::mem::take(&mut self.held) {
            let idle = now.saturating_duration_since(self.busy_until);
            let in_time = (self.burst - self.least_burst) / IN_TIME;
            self.burst =
                if idle.is_zero() { self.burst - in_time } else { self.most_burst.min(self.burst + idle) };
        }
        if self.busy_until < now {
            self.busy_until = now;
            self.remainder = 0;
        }
        let rate = u128::from(self.rate);
        let due = (bytes + self.overhead) as u128 * BITS_PER_BYTE_NS + self.remainder;
        self.remainder = due % rate;
        self.busy_until += Duration::from_nanos(u64::try_from(due / rate).unwrap_or(u64::MAX / 2));
    }
}

fn to_nanos(bytes: usize, rate: u64) -> u64 {
    u64::try_from(bytes as u128 * BITS_PER_BYTE_NS / u128::from(rate)).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn origin() -> Instant {
        Instant::now()
    }

    /// Bytes that leave within `time` when there is always something to send.
    fn saturate(pacer: &mut Pacer, start: Instant, time: Duration, size: usize) -> usize {
        let mut now = start;
        let mut sent = 0;
        while now < start + time {
            while pacer.ready(now) {
                pacer.consume(size, now);
                sent += size;
            }
            now = now.max(pacer.next_ready());
        }
        sent
    }

    #[test]
    fn the_rate_is_exact_even_where_a_packet_takes_few_nanoseconds() {
        let start = origin();
        let mut pacer = Pacer::new(399_999_999_989, 0, 38, start);
        let sent = saturate(&mut pacer, start, Duration::from_millis(2), 1400);
        let wire = sent / 1400 * 1438;
        let expected = 399_999_999_989_usize / 8 / 500;
        assert!(wire.abs_diff(expected) <= 2 * 1438, "{wire} for {expected}");
    }

    #[test]
    fn a_pause_earns_the_burst_and_no_more() {
        let start = origin();
        let mut pacer = Pacer::new(8_000_000, 10_000, 0, start); // 1 byte per microsecond
        let later = start + Duration::from_secs(5);
        let mut sent = 0;
        while pacer.ready(later) {
            pacer.consume(1000, later);
            sent += 1000;
        }
        assert_eq!(sent, 11_000, "the burst and the packet that overdraws it");
        assert_eq!(pacer.next_ready(), later + Duration::from_micros(1000));
    }

    /// Returns what a driver that comes every so often sends within two seconds, as a share of what
    /// the link could carry; and the burst in the end.
    fn keep(pacer: &mut Pacer, start: Instant, every: Duration) -> (f64, Duration) {
        let (mut now, mut sent) = (start, 0);
        while now < start + Duration::from_secs(2) {
            while pacer.ready(now) {
                pacer.consume(100, now);
                sent += 100;
            }
            pacer.hold(true);
            now += every;
        }
        (f64::from(sent) / 2e6, pacer.burst)
    }

    #[test]
    fn a_late_driver_gets_a_burst_that_covers_its_lateness() {
        let start = origin();
        let late = Duration::from_millis(5);
        let fixed = Pacer::new(8_000_000, 1000, 0, start); // 1 byte per microsecond
        let (share, burst) = keep(&mut fixed.clone(), start, late);
        assert!(share < 0.25 && burst == Duration::from_millis(1), "{share}, {burst:?}");

        let mut adaptive = fixed.clone().with_most_burst(10_000);
        let (share, burst) = keep(&mut adaptive, start, late);
        assert!(share > 0.98, "{share}");
        assert!((late / 5 * 4..late * 2).contains(&burst), "{burst:?}");
        // In time again, it becomes what it was.
        let (_, burst) = keep(&mut adaptive, start + Duration::from_secs(2), Duration::from_micros(500));
        assert!(burst < Duration::from_micros(1010), "{burst:?}");

        let (share, burst) = keep(&mut fixed.with_most_burst(10_000), start, 4 * late);
        assert!(share < 0.52 && burst == 2 * late, "{share}, {burst:?}");
    }

    /// The driver comes when it is told to: packets leave at the same rate, but several at a time.
    #[test]
    fn what_waits_leaves_by_quanta() {
        let start = origin();
        let (quantum, time) = (Duration::from_micros(500), Duration::from_secs(1));
        let plain = Pacer::new(8_000_000, 2000, 0, start); // 1 byte per microsecond
        let mut visits = Vec::new();
        for mut pacer in [plain.clone(), plain.with_quantum(quantum)] {
            let (mut now, mut sent, mut times) = (start, 0, 0);
            while now < start + time {
                while pacer.ready(now) {
                    pacer.consume(100, now);
                    sent += 100;
                }
                pacer.hold(true);
                times += 1;
                now = now.max(pacer.next_ready());
            }
            assert!((1_000_000..=1_002_100).contains(&sent), "{sent}");
            assert_eq!(pacer.burst, Duration::from_millis(2), "it was never late");
            visits.push(times);
        }
        assert!((9_900..=10_100).contains(&visits[0]) && (1_600..=2_100).contains(&visits[1]), "{visits:?}");
    }

    #[test]
    fn who_finds_the_bucket_not_empty_does_not_wait_for_a_quantum() {
        let start = origin();
        let mut pacer = Pacer::new(8_000_000, 2000, 0, start).with_quantum(Duration::from_secs(1));
        pacer.consume(1900, start);
        assert!(pacer.ready(start));
        pacer.consume(200, start);
        assert_eq!(pacer.next_ready(), start + Duration::from_micros(100), "nothing waits");
        pacer.hold(true);
        assert_eq!(pacer.next_ready(), start + Duration::from_micros(1100), "half of the burst");
    }

    #[test]
    fn who_had_nothing_to_send_was_not_late() {
        let start = origin();
        let mut pacer = Pacer::new(8_000_000, 1000, 0, start).with_most_burst(100_000);
        for second in 0..10 {
            pacer.consume(100, start + Duration::from_secs(second));
            // Held, and then it is not the pacer that holds it.
            pacer.hold(true);
            pacer.hold(false);
        }
        assert_eq!(pacer.burst, Duration::from_millis(1));
    }

    #[test]
    fn burst_as_time_equals_burst_as_bytes() {
        let start = origin();
        let a = Pacer::new(8_000_000, 10_000, 0, start);
        let b = Pacer::with_burst_time(8_000_000, Duration::from_millis(10), 0, start);
        assert_eq!(a.burst, b.burst);
    }

    #[test]
    fn a_rate_of_zero_is_slow_and_not_a_division_by_zero() {
        let start = origin();
        let mut pacer = Pacer::new(0, 0, 0, start);
        pacer.consume(1, start);
        assert_eq!(pacer.next_ready(), start + Duration::from_secs(8));
    }
}
