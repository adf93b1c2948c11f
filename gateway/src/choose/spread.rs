//! Which size of message speaks for a class.

use std::time::{Duration, Instant};

use reliability::selector::Bucket;
use splice::Sizes;

/// What was sent this long ago counts half.
const HALF_LIFE: f64 = 10.0;
/// Another bucket has to be in the middle so many times in a row.
const PERSIST: u32 = 3;

/// A class has one bulk stream, so one bucket speaks for all its messages: the one in which the median byte of the last seconds lies. It changes
/// only when another one has been there three times in a row, and no more often than decisions may.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    /// As of the last call.
    seen: Sizes,
    at: Option<Instant>,
    /// Bytes of each bucket, older ones counting less.
    weights: [f64; Bucket::COUNT],
    bucket: Option<Bucket>,
    changed: Option<Instant>,
    /// What would be in the middle, and how often in a row it was.
    other: Option<(Bucket, u32)>,
}

impl Spread {
    /// The bucket; `None` before the first message.
    pub(super) fn bucket(&self) -> Option<Bucket> {
        self.bucket
    }

    /// The session's counts are now these.
    pub(super) fn follow(&mut self, sizes: &Sizes, dwell: Duration, now: Instant) {
        let elapsed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let fading = (-elapsed / HALF_LIFE).exp2();
        let counts = sizes.bytes.iter().zip(&self.seen.bytes);
        for (weight, (bytes, seen)) in self.weights.iter_mut().zip(counts) {
            *weight = *weight * fading + bytes.saturating_sub(*seen) as f64;
        }
        (self.seen, self.at) = (*sizes, Some(now));
        let Some(median) = self.median() else { return };
        if self.bucket == Some(median) {
            self.other = None;
            return;
        }
        let times = self.other.filter(|(other, _)| *other == median).map_or(0, |(_, times)| times);
        self.other = Some((median, times.saturating_add(1)));
        let resting = self.changed.is_some_and(|at| now.saturating_duration_since(at) < dwell);
        if self.bucket.is_none() || (times + 1 >= PERSIST && !resting) {
            (self.bucket, self.changed, self.other) = (Some(median), Some(now), None);
        }
    }

    fn median(&self) -> Option<Bucket> {
        let half = self.weights.iter().sum::<f64>() / 2.0;
        let mut below = 0.0;
        let reaches = |(_, weight): &(Bucket, &f64)| {
            below += **weight;
            below >= half
        };
        // Less than a byte is what is left of nothing.
        (half > 0.5).then(|| Bucket::all().zip(&self.weights).find(reaches))?.map(|(bucket, _)| bucket)
    }
}
