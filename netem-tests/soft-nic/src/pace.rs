//! A queue pair's pace after congestion notifications, and those that it sends: DCQCN reduced to
//! what it means to the other side.

use std::time::{Duration, Instant};

/// Pause between packets. Each notification doubles it, each millisecond without one halves it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Zero: as fast as it can.
    gap: Duration,
    /// When the last notification came, or the gap was last halved.
    changed: Option<Instant>,
    held_until: Option<Instant>,
}

const LEAST: Duration = Duration::from_micros(2);
const MOST: Duration = Duration::from_micros(500);
const RECOVERY: Duration = Duration::from_millis(1);

impl Pace {
    pub(super) fn slow_down(&mut self, now: Instant) {
        self.gap = (self.gap * 2).clamp(LEAST, MOST);
        self.changed = Some(now);
    }

    /// Returns true if the next packet has to wait.
    pub(super) fn holds(&self) -> bool {
        self.held_until.is_some()
    }

    /// A packet leaves.
    pub(super) fn sent(&mut self, now: Instant) {
        let Some(mut changed) = self.changed else { return };
        while changed + RECOVERY <= now && !self.gap.is_zero() {
            changed += RECOVERY;
            self.gap = if self.gap <= LEAST { Duration::ZERO } else { self.gap / 2 };
        }
        self.changed = (!self.gap.is_zero()).then_some(changed);
        self.held_until = (!self.gap.is_zero()).then(|| now + self.gap);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.held_until
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.held_until = self.held_until.filter(|until| *until > now);
    }
}

/// DCQCN's notification point (SIGCOMM 2015, 3.1): marked packets are told to their sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Notifier {
    told: Option<Instant>,
    is_due: bool,
}

/// The least time between two notifications of a queue pair.
const SPACING: Duration = Duration::from_micros(50);

impl Notifier {
    /// A marked packet has come.
    pub(super) fn marked(&mut self, now: Instant) {
        if self.told.is_none_or(|told| told + SPACING <= now) {
            (self.told, self.is_due) = (Some(now), true);
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns true if a notification is to be sent now.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }
}
