//! Histograms of one data-plane thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use reliability::times::{BUCKETS, Times};

/// A [`Times`] that one thread stores and anyone loads.
#[derive(Debug, Default)]
pub(super) struct TimesCells {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl TimesCells {
    /// Adds the growth since `last`. By the one thread that stores.
    pub(super) fn advance(&self, last: &Self, now: &Times) {
        for ((total, last), now) in self.counts.iter().zip(&last.counts).zip(now.counts) {
            // Most classes rest most of the time.
            if last.load(Relaxed) != now {
                advance(total, last, now);
            }
        }
        advance(&self.sum, &last.sum, now.sum);
    }

    pub(super) fn store(&self, times: &Times) {
        self.counts.iter().zip(times.counts).for_each(|(cell, count)| cell.store(count, Relaxed));
        self.sum.store(times.sum, Relaxed);
    }

    pub(super) fn load(&self) -> Times {
        let mut times = Times { sum: self.sum.load(Relaxed), ..Times::default() };
        times.counts.iter_mut().zip(&self.counts).for_each(|(count, cell)| *count = cell.load(Relaxed));
        times
    }
}

/// Adds the growth since `last`, all of `now` if that began anew.
fn advance(total: &AtomicU64, last: &AtomicU64, now: u64) {
    let before = last.load(Relaxed);
    last.store(now, Relaxed);
    let growth = now.checked_sub(before).unwrap_or(now);
    total.store(total.load(Relaxed).saturating_add(growth), Relaxed);
}
