//! When a gap is taken for a loss.
//!
//! A missing packet counts as lost once `packets` later ones have arrived and `time` has passed
//! since the first of them; after `time` without any arrival, the number of later ones no longer
//! matters.

use std::collections::VecDeque;
use std::time::Duration;

use super::Window;

/// Follows how far the stream had come `time` ago. All times in microseconds of the receiver's
/// clock.
///
/// Rule: `docs/protocol.md#rule-lost`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Gaps {
    time: u64,
    packets: u64,
    /// When, and how far the stream had come then. Kept only while something is missing, and no
    /// denser than an eighth of `time`.
    marks: VecDeque<(u64, u64)>,
    /// The stream had come this far at least `time` ago.
    passed: u64,
    /// Below this, what is missing is lost.
    horizon: u64,
}

impl Gaps {
    pub(super) fn new(time: Duration, packets: usize) -> Self {
        Self {
            time: time.as_micros() as u64,
            packets: packets as u64,
            marks: VecDeque::new(),
            passed: 0,
            horizon: 0,
        }
    }

    pub(super) fn set_time(&mut self, time: Duration) {
        self.time = time.as_micros() as u64;
    }

    /// Below this, what is missing is lost.
    pub(super) fn horizon(&self) -> u64 {
        self.horizon
    }

    /// Notes how far the stream has come.
    pub(super) fn arrived(&mut self, window: &Window, now: u64) {
        if window.cumulative == window.highest {
            self.marks.clear();
            return;
        }
        if self.marks.back().is_some_and(|&(_, highest)| highest >= window.highest) {
            return;
        }
        // The last mark is moved along until it is an eighth of `time` behind its predecessor.
        let predecessor = self.marks.len().checked_sub(2).and_then(|index| self.marks.get(index));
        if predecessor.is_some_and(|&(at, _)| now < at + self.time / 8) {
            self.marks.pop_back();
        }
        self.marks.push_back((now, window.highest));
    }

    /// Moves the horizon; where it stood, if it moved over something.
    pub(super) fn update(&mut self, window: &Window, now: u64, last_arrival: u64) -> Option<u64> {
        while let Some(&(at, highest)) = self.marks.front() {
            if at + self.time > now {
                break;
            }
            self.passed = self.passed.max(highest);
            self.marks.pop_front();
        }
        let silent = last_arrival + self.time <= now;
        let followed = if silent { window.highest } else { window.highest.saturating_sub(self.packets) };
        let from = self.horizon.max(window.cumulative);
        let to = self.passed.min(followed);
        if to <= from {
            return None;
        }
        self.horizon = to;
        Some(from)
    }

    /// When the horizon may move next.
    pub(super) fn next_timeout(&self, window: &Window, last_arrival: u64) -> Option<u64> {
        if window.cumulative == window.highest || self.horizon >= window.highest {
            return None;
        }
        let mark = self.marks.front().map(|&(at, _)| at + self.time);
        Some(mark.unwrap_or(last_arrival + self.time))
    }
}
