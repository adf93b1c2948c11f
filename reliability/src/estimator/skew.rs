//! By how much some lanes are slower than others.

use std::time::{Duration, Instant};

use super::extents::Recent;
use super::{Clock, LaneId, stamp};
use crate::stream::TIME_UNIT;

/// Length of a generation in microseconds: packets of the last one to two count.
const GENERATION: u64 = 30_000_000;
/// The longest lateness that counts, in microseconds: what is overtaken by more was not sent about
/// when the other was.
const LONGEST: i32 = 1_000_000;
/// Packets tell the low 24 bits of their sending times. They stand at the top of a word here, so
/// that differences wrap as the times do.
const UNTOLD_BITS: u32 = 8;
/// Steps of such a word in a microsecond.
const STEPS: u32 = (1 << UNTOLD_BITS) / TIME_UNIT as u32;

/// Sees packets that others of other lanes have overtaken, from the times at which they were sent.
/// Within a lane the [`PathObserver`](super::PathObserver) sees them.
///
/// # Bounds
/// A fixed size for each lane. Work per overtaken packet is linear in the lanes, and constant for
/// any other.
#[derive(Debug)]
pub struct Skew {
    clock: Clock,
    now: u64,
    /// By lane, of the packet sent last: when, and how much later it came by clocks that are not
    /// the same; in steps.
    newest: Vec<Option<(u32, u32)>>,
    /// When the packet sent last of all was sent, in steps.
    latest: Option<u32>,
    lateness: Recent,
    arrived: u64,
    /// Before the young generation, and before the old one.
    arrived_before: [u64; 2],
    aged: u64,
}

impl Skew {
    /// Creates one for so many lanes.
    #[must_use]
    pub fn new(lanes: u8, origin: Instant) -> Self {
        Self {
            clock: Clock::new(origin),
            now: 0,
            newest: vec![None; usize::from(lanes)],
            latest: None,
            lateness: Recent::new(),
            arrived: 0,
            arrived_before: [0; 2],
            aged: 0,
        }
    }

    /// A packet came on this lane that was sent then, as it tells
    /// ([`sending_time`](crate::stream::sending_time)).
    pub fn observe(&mut self, lane: LaneId, sent_at: u32, now: Instant) {
        if self.newest.len() < 2 {
            return;
        }
        self.now = self.now.max(self.clock.micros(now));
        self.arrived += 1;
        let sent_at = sent_at << UNTOLD_BITS;
        let delay = stamp(self.now).wrapping_mul(STEPS).wrapping_sub(sent_at);
        let lane = usize::from(lane.0);
        let later = |(other, newest): (usize, &Option<(u32, u32)>)| {
            let (sent_then, delay_then) = newest.filter(|_| other != lane)?;
            let overtaken = sent_then.wrapping_sub(sent_at) as i32 > 0;
            overtaken.then_some(delay.wrapping_sub(delay_then) as i32 / STEPS as i32)
        };
        // As long as nothing overtakes, nobody looks at the other lanes.
        let is_latest = self.latest.is_none_or(|latest| sent_at.wrapping_sub(latest) as i32 >= 0);
        if is_latest {
            self.latest = Some(sent_at);
        } else {
            let late = self.newest.iter().enumerate().filter_map(later).max();
            if let Some(late) = late.filter(|late| (1..LONGEST).contains(late)) {
                self.lateness.add(u64::from(late.unsigned_abs()));
            }
        }
        if let Some(newest) = self.newest.get_mut(lane)
            && newest.is_none_or(|(sent_then, _)| sent_at.wrapping_sub(sent_then) as i32 >= 0)
        {
            *newest = Some((sent_at, delay));
        }
    }

    /// As [`PathObserver::lateness_beyond`](super::PathObserver::lateness_beyond).
    pub fn lateness_beyond(&mut self, share: f64) -> Duration {
        self.age();
        let [_, before] = self.arrived_before;
        let spared = (self.arrived - before) as f64 * share;
        let late = self.lateness.total() as f64;
        if late <= spared {
            return Duration::ZERO;
        }
        Duration::from_micros(self.lateness.quantile(1.0 - spared / late))
    }

    fn age(&mut self) {
        for _ in 0..((self.now - self.aged) / GENERATION).min(2) {
            self.lateness.age();
            let [young, _] = self.arrived_before;
            self.arrived_before = [self.arrived, young];
        }
        if self.now >= self.aged + GENERATION {
            self.aged = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn origin() -> Instant {
        Instant::now()
    }

    /// Packets take the lanes in turn, 100 us apart, with these delays; the peer's clock is about
    /// to wrap.
    fn after(delays: &[Duration], packets: u32) -> Duration {
        let start = origin();
        let mut skew = Skew::new(delays.len() as u8, start);
        let mut coming: Vec<_> = (0..packets)
            .map(|number| {
                let (lane, sent) = (number as usize % delays.len(), Duration::from_micros(100) * number);
                let told = (sent.as_micros() as u32 / TIME_UNIT as u32).wrapping_sub(1250) & 0x00ff_ffff;
                (sent + delays[lane], lane, told)
            })
            .collect();
        coming.sort();
        for (at, lane, sent_at) in coming {
            skew.observe(LaneId(lane as u16), sent_at, start + at);
        }
        skew.lateness_beyond(0.002)
    }

    #[test]
    fn the_slowest_lane_is_waited_for() {
        let waits = after(&[25 * MS, 27 * MS, 25 * MS, 26 * MS], 4000);
        assert!((2 * MS..=3 * MS).contains(&waits), "{waits:?}");
    }

    #[test]
    fn lanes_alike_need_no_patience() {
        assert_eq!(after(&[25 * MS; 4], 4000), Duration::ZERO);
        assert_eq!(after(&[25 * MS], 4000), Duration::ZERO, "one is enough for itself");
    }
}
