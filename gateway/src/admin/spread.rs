//! How long messages took of late, and how long packets waited.

use std::time::{Duration, Instant};

use reliability::times::Times;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::{ClassSnapshot, Snapshot};

/// Times are shown of this long to twice as long.
const PERIOD: Duration = Duration::from_secs(60);

/// Times of the last one to two minutes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Half of them are no longer.
    pub median: f64,
    /// All but one of a hundred are no longer.
    pub p99: f64,
    /// How many there were.
    pub count: u64,
}

/// The histograms of classes as they were, by cell.
#[derive(Clone, Debug)]
pub(super) struct Window {
    since: Instant,
    /// At the last two beginnings of a period, the older one first.
    before: [Vec<Histograms>; 2],
}

/// Those of a class: queueing and completion.
type Histograms = [Times; 2];

fn histograms(class: &ClassSnapshot) -> Histograms {
    [class.queueing, class.completion]
}

impl Window {
    pub(super) fn new(snapshot: &Snapshot, now: Instant) -> Self {
        let first: Vec<_> = snapshot.classes.iter().map(histograms).collect();
        Self { since: now, before: [first.clone(), first] }
    }

    /// Begins another period if it is time.
    pub(super) fn tick(&mut self, snapshot: &Snapshot, now: Instant) {
        if now.saturating_duration_since(self.since) >= PERIOD {
            let [_, last] = std::mem::take(&mut self.before);
            self.before = [last, snapshot.classes.iter().map(histograms).collect()];
            self.since = now;
        }
    }

    /// Returns the class's queueing and completion, `None` where there was nothing.
    pub(super) fn spreads(&self, cell: usize, class: &ClassSnapshot) -> [Option<Spread>; 2] {
        let [oldest, _] = &self.before;
        let [queueing, completion] = histograms(class);
        let [queued, completed] = oldest.get(cell).copied().unwrap_or_default();
        [spread(&queueing, &queued), spread(&completion, &completed)]
    }
}

/// Returns what came since a histogram was `earlier`. One that another class had before is taken
/// whole.
fn spread(times: &Times, earlier: &Times) -> Option<Spread> {
    let mut lately = *times;
    let counts = times.counts.iter().zip(&earlier.counts);
    if counts.clone().all(|(now, before)| now >= before) {
        for (count, (now, before)) in lately.counts.iter_mut().zip(counts) {
            *count = now - before;
        }
    }
    let [median, p99] = [0.5, 0.99].map(|share| lately.quantile(share).map(|time| time.as_secs_f64()));
    Some(Spread { median: median?, p99: p99?, count: lately.total() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_of_the_last_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut snapshot = Snapshot::default();
        let mut window = Window::new(&snapshot, start);
        assert_eq!(window.spreads(0, &snapshot.classes[0]), [None, None]);
        (0..100).for_each(|_| snapshot.classes[0].completion.note(40_000));
        let [none, completion] = window.spreads(0, &snapshot.classes[0]);
        let completion = completion.unwrap();
        assert_eq!((none, completion.count), (None, 100));
        assert!((0.025..=0.05).contains(&completion.median) && completion.p99 <= 0.05, "{completion:?}");
        // It is still shown a period later, and not two periods later.
        for (seconds, count) in [(59, 100), (61, 100), (122, 0)] {
            window.tick(&snapshot, at(seconds));
            let [_, completion] = window.spreads(0, &snapshot.classes[0]);
            assert_eq!(completion.map_or(0, |completion| completion.count), count, "{seconds}");
        }
        // Another class has the cell.
        snapshot.classes[0] = ClassSnapshot::default();
        snapshot.classes[0].completion.note(7);
        let [_, completion] = window.spreads(0, &snapshot.classes[0]);
        assert_eq!(completion.map(|completion| completion.count), Some(1));
    }
}
