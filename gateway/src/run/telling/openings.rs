//! Bounds what is told of flows that are opened.

use std::time::{Duration, Instant};

use splice::{OpenedBetween, OpenedByHosts};

use super::end;
use crate::seldom::Seldom;

/// Flows told of one by one: by and by ten, then one in ten seconds.
const MOST: usize = 10;
/// Between two, and between two tellings of the others.
const EACH: Duration = Duration::from_secs(10);
/// Pairs of hosts told of each time, those with most flows.
const TOLD: usize = 8;

/// Flows that have been opened. A few are told of one by one. The others are gathered by their
/// hosts, and told of together every ten seconds. Bound: that of [`OpenedByHosts`].
#[derive(Debug)]
pub(super) struct Openings {
    told: usize,
    /// When `told` last fell.
    fell: Option<Instant>,
    gathered: OpenedByHosts,
    /// Bounds how often these are told of.
    again: Seldom,
}

impl Default for Openings {
    fn default() -> Self {
        Self { told: 0, fell: None, gathered: OpenedByHosts::default(), again: Seldom::new(EACH) }
    }
}

impl Openings {
    /// Returns how many flows may be told of one by one.
    pub(super) fn left(&mut self, now: Instant) -> usize {
        let fell = *self.fell.get_or_insert(now);
        let passed = now.saturating_duration_since(fell).as_secs() / EACH.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.told = self.told.saturating_sub(passed as usize);
        self.fell = Some(fell + EACH.saturating_mul(passed));
        MOST.saturating_sub(self.told)
    }

    /// One was told of.
    pub(super) fn told(&mut self) {
        self.told += 1;
    }

    /// Those that were not told of.
    pub(super) fn others(&mut self) -> &mut OpenedByHosts {
        &mut self.gathered
    }

    /// Returns what is to be told now of those that were gathered.
    pub(super) fn due(&mut self, now: Instant) -> Vec<String> {
        if self.gathered.is_empty() || !self.again.tell(now) {
            return Vec::new();
        }
        let mut between = Vec::new();
        let others = self.gathered.take(&mut |opened| between.push(opened));
        between.sort_by_key(|between| std::cmp::Reverse(between.count));
        let rest: u64 = between.iter().skip(TOLD).map(|between| between.count).sum();
        let others = others.saturating_add(rest);
        let texts = between.into_iter().take(TOLD).map(|OpenedBetween { side, requester, target, count }| {
            format!("{requester} > {target}: {count} more (the {} is here)", end(side))
        });
        let mut texts: Vec<_> = texts.collect();
        if others > 0 {
            texts.push(format!("{others} more, between other hosts or hosts not known"));
        }
        texts
    }
}
