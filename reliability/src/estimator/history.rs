//! Counts since the path last changed, and in all of the memory.

use std::time::Duration;

use super::buckets::{Bucket, Buckets, Counts};

/// As many packets are judged together; what comes in smaller portions is put together, for a
/// second at most.
const SLICE: f64 = 32.0;
const SLICE_TIME: u64 = 1_000_000;
/// Natural logarithm of how many times better two chains must explain the counts than one does
/// before the path is taken to have changed. The tests are many and overlap;
/// `tests/all/estimator.rs` counts the false alarms that are left.
const EVIDENCE: f64 = 16.0;

/// Two exponential histograms: of all counts within the memory, and of those since the path last
/// changed.
///
/// After each slice every place between two of the latter's buckets is tried: if what came after it
/// differs so much from what came before that no chance explains it, what came before is forgotten
/// there. Where runs of losses come in clusters, chance explains more (quasi-likelihood): once
/// clusters were seen, a change has to outlast them.
#[derive(Debug)]
pub(super) struct History {
    steady: Buckets,
    all: Buckets,
    /// The slice that is too small yet, and when it began.
    pending: Counts,
    since: Option<u64>,
    /// The slice before.
    last: Counts,
    changes: u64,
}

impl History {
    pub(super) fn new(memory: Duration) -> Self {
        let memory = memory.as_micros() as u64;
        Self {
            steady: Buckets::new(memory),
            all: Buckets::new(memory),
            pending: Counts::default(),
            since: None,
            last: Counts::default(),
            changes: 0,
        }
    }

    /// Takes what was counted up to `now`, in microseconds.
    pub(super) fn push(&mut self, counts: &Counts, now: u64) {
        let since = *self.since.get_or_insert(now);
        self.pending.add(counts);
        if self.pending.packets() < SLICE && now < since + SLICE_TIME {
            return;
        }
        self.since = None;
        let counts = std::mem::take(&mut self.pending);
        let slice = Bucket::of(&counts, now, &self.last);
        self.last = counts;
        self.steady.push(&slice);
        self.all.push(&slice);
        while let Some(place) = self.change() {
            self.steady.forget(place);
            self.changes += 1;
        }
    }

    /// Since the last change: counts, and how many times more their runs vary than independent
    /// ones.
    pub(super) fn steady(&self) -> (Counts, f64) {
        self.with_pending(&self.steady)
    }

    /// Within the memory, likewise.
    pub(super) fn all(&self) -> (Counts, f64) {
        self.with_pending(&self.all)
    }

    /// Changes of the path found so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    fn with_pending(&self, buckets: &Buckets) -> (Counts, f64) {
        let mut counts = buckets.sum().counts;
        counts.add(&self.pending);
        (counts, buckets.dispersion())
    }

    /// The first bucket after a change, if there was one.
    fn change(&self) -> Option<usize> {
        // What is before is added up, and what is after is taken off the sum: in the other
        // direction rounding would leave scatter where nothing is left.
        let mut before = Bucket::default();
        let mut after = self.steady.sum();
        // All before, be it before an earlier change: it knows of clusters that come and go.
        let mut past = Bucket::default();
        let mut all = self.all.list().iter().peekable();
        let (mut best, mut most) = (None, EVIDENCE);
        let list = self.steady.list();
        for (place, (older, bucket)) in list.iter().zip(list.iter().skip(1)).enumerate() {
            before.add(older);
            after.take_off(older);
            while let Some(bucket) = all.next_if(|past| past.end() < bucket.end()) {
                past.add(bucket);
            }
            let scatter = before.scatter(&after).max(past.unrest());
            let evidence = before.counts.chain.contrast(&after.counts.chain) / scatter;
            if evidence > most {
                (best, most) = (Some(place + 1), evidence);
            }
        }
        best
    }
}
