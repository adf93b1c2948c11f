//! How many lines one place in the program may write, since what makes it write may be anybody's
//! doing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Level, Metadata};

/// Lines at once.
const BURST: u32 = 100;
/// One more each time this has passed.
const INTERVAL: Duration = Duration::from_secs(1);

/// A token bucket for each place that logs. There are as many as the program has, whatever others
/// do.
#[derive(Debug, Default)]
pub(super) struct Limiter(Mutex<HashMap<Identifier, Bucket>>);

#[derive(Debug)]
struct Bucket {
    left: u32,
    /// When `left` was last raised.
    raised: Instant,
    left_out: u64,
}

impl Limiter {
    /// Decides if a line may be written, and returns how many of its place were left out since the
    /// last one; `None` if it may not.
    pub(super) fn admit(&self, place: &Metadata<'_>, now: Instant) -> Option<u64> {
        // Who asks for more than `info` wants all of it, and the queue is bounded.
        if *place.level() > Level::INFO {
            return Some(0);
        }
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(place.callsite()).or_insert_with(|| Bucket::new(now)).take(now)
    }
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { left: BURST, raised: now, left_out: 0 }
    }

    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = now.saturating_duration_since(self.raised);
        let intervals = u32::try_from(since.as_secs() / INTERVAL.as_secs()).unwrap_or(u32::MAX);
        if intervals > 0 {
            self.left = self.left.saturating_add(intervals).min(BURST);
            self.raised += INTERVAL.saturating_mul(intervals);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out = self.left_out.saturating_add(1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_hundred_lines_and_then_one_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let written = (0..100_000).filter(|ms| bucket.take(start + Duration::from_millis(*ms)).is_some());
        assert_eq!(written.count(), 100 + 99);
        assert_eq!(bucket.take(start + Duration::from_secs(100)), Some(999));
        let later = start + Duration::from_secs(1000);
        assert_eq!((0..1000).filter(|_| bucket.take(later).is_some()).count(), 100);
    }
}
