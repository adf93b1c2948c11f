//! How long a packet and its answer take on the requester's LAN.

use std::time::{Duration, Instant};

use super::Near;

/// The LAN turn as measured: a requester that had nothing under way was answered, and sent its next
/// request.
///
/// Its program's own time is in each sample, so the measure errs upwards, and
/// [`NearConfig::lan_turn`](super::NearConfig::lan_turn) bounds it. What it decides is only whether
/// a repeat is dropped or asked of the target; it never confirms anything. Where what was sent
/// before the requester heard is told from what came after, only the shortest turn counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LanTurn {
    /// Microseconds, smoothed; 0 before the first sample.
    smoothed: u32,
    /// The shortest sample in microseconds; 0 before the first.
    least: u32,
}

/// No host turns faster.
const LEAST: u32 = 5;

impl LanTurn {
    /// Takes a sample of at most `most`.
    pub(super) fn observe(&mut self, sample: Duration, most: Duration) {
        let sample = u32::try_from(sample.min(most).as_micros()).unwrap_or(u32::MAX).max(LEAST);
        self.least = if self.least == 0 { sample } else { self.least.min(sample) };
        self.smoothed = match self.smoothed {
            0 => sample,
            smoothed => smoothed - smoothed / 8 + sample / 8,
        };
    }

    /// Returns the shortest turn there was, zero before it was measured.
    pub(super) fn least(self) -> Duration {
        Duration::from_micros(self.least.into())
    }

    /// Returns the turn, `most` before it was measured.
    pub(super) fn get(self, most: Duration) -> Duration {
        if self.smoothed == 0 { most } else { Duration::from_micros(self.smoothed.into()).min(most) }
    }
}

impl Near {
    pub(super) fn lan_turn(&self) -> Duration {
        self.turn.get(self.config.lan_turn)
    }

    /// Two LAN turns, but no more than a quarter of the round trip between the sites: asking the
    /// target costs no more than that then.
    pub(super) fn crossing(&self) -> Duration {
        (2 * self.lan_turn()).min(self.config.rtt / 4)
    }

    /// Returns true in the time in which what comes was sent before the requester can have heard
    /// what it was told last.
    pub(super) fn is_within_turn(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.told_at) <= self.turn.least().min(self.config.rtt / 8)
    }

    /// Takes a sample if the requester waited for what it was told, and now sends its next request.
    pub(super) fn measure_turn(&mut self, now: Instant) {
        if self.heard + self.lan_turn() < self.told_at {
            self.turn.observe(now.saturating_duration_since(self.told_at), self.config.lan_turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_is_the_bound_until_measured_and_follows_samples() {
        let most = Duration::from_millis(1);
        let mut turn = LanTurn::default();
        assert_eq!(turn.least(), Duration::ZERO);
        assert_eq!(turn.get(most), most);
        turn.observe(Duration::from_micros(40), most);
        assert_eq!(turn.get(most), Duration::from_micros(40));
        assert_eq!(turn.least(), Duration::from_micros(40));
        for _ in 0..100 {
            turn.observe(Duration::from_secs(3), most);
        }
        assert!(turn.get(most) > Duration::from_micros(900), "{turn:?}");
        assert_eq!(turn.least(), Duration::from_micros(40), "what is slow proves nothing");
        for _ in 0..100 {
            turn.observe(Duration::ZERO, most);
        }
        assert!(turn.get(most) < Duration::from_micros(20), "{turn:?}");
    }
}
