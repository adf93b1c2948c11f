//! Which size of message speaks for a class, and what these messages find before them.

use std::time::{Duration, Instant};

use reliability::selector::{Bucket, Load};
use reliability::stream::Alternation;
use splice::{Sent, Sizes};

/// Age in seconds at which messages count half.
const HALF_LIFE: f64 = 10.0;
/// Another bucket has to be in the middle so many times in a row.
const PERSIST: u32 = 3;

/// A class has one bulk stream, so one bucket speaks for all its messages: the one in which the
/// median byte of the last seconds lies. It changes only when another one has been there three
/// times in a row, and no more often than decisions may.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    /// As of the last call.
    seen: Sizes,
    alternation_seen: Alternation,
    at: Option<Instant>,
    /// Messages sent in each bucket, older ones counting less.
    recent: [Recent; Bucket::COUNT],
    /// [`Alternation`] of late, of all messages: of one's own, of others.
    alternation: [f64; 2],
    bucket: Option<Bucket>,
    changed: Option<Instant>,
    /// The bucket that would be in the middle, and how often in a row it was.
    other: Option<(Bucket, u32)>,
}

/// [`Sent`] of late.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    messages: f64,
    bytes: f64,
    waiting: f64,
    same: f64,
    under_way: f64,
}

impl Recent {
    /// Adds the counts since they were `seen`, and lets the older ones fade.
    fn follow(&mut self, now: &Sent, seen: &Sent, fading: f64) {
        for (recent, now, seen) in [
            (&mut self.messages, now.messages, seen.messages),
            (&mut self.bytes, now.bytes, seen.bytes),
            (&mut self.waiting, now.waiting, seen.waiting),
            (&mut self.same, now.same, seen.same),
            (&mut self.under_way, now.under_way, seen.under_way),
        ] {
            count(recent, now, seen, fading);
        }
    }
}

/// Likewise of one count.
fn count(recent: &mut f64, now: u64, seen: u64, fading: f64) {
    *recent = *recent * fading + now.saturating_sub(seen) as f64;
}

/// Returns the mean of what adds up to `sum`.
fn mean(sum: f64, among: f64) -> f64 {
    if among > 0.0 { sum / among } else { 0.0 }
}

impl Spread {
    /// The bucket; `None` before the first message.
    pub(super) fn bucket(&self) -> Option<Bucket> {
        self.bucket
    }

    /// Returns the load that messages of the bucket find before them, and between their packets.
    pub(super) fn load(&self, bucket: Bucket) -> Load {
        let Some(recent) = self.recent.get(bucket.index()) else { return Load::default() };
        let [own, others] = self.alternation;
        Load {
            waiting: mean(recent.waiting, recent.messages),
            same: mean(recent.same, recent.messages),
            under_way: mean(recent.under_way, recent.messages),
            between: mean(others, own),
        }
    }

    /// The session's counts are now these.
    pub(super) fn follow(&mut self, sizes: &Sizes, alternation: Alternation, dwell: Duration, now: Instant) {
        let elapsed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let fading = (-elapsed / HALF_LIFE).exp2();
        for (recent, (now, seen)) in self.recent.iter_mut().zip(sizes.iter().zip(&self.seen)) {
            recent.follow(now, seen, fading);
        }
        let [own, others] = &mut self.alternation;
        count(own, alternation.own, self.alternation_seen.own, fading);
        count(others, alternation.others, self.alternation_seen.others, fading);
        (self.seen, self.alternation_seen, self.at) = (*sizes, alternation, Some(now));
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
        let half = self.recent.iter().map(|recent| recent.bytes).sum::<f64>() / 2.0;
        let mut below = 0.0;
        let reaches = |(_, recent): &(Bucket, &Recent)| {
            below += recent.bytes;
            below >= half
        };
        // Less than a byte is what is left of nothing.
        (half > 0.5).then(|| Bucket::all().zip(&self.recent).find(reaches))?.map(|(bucket, _)| bucket)
    }
}
