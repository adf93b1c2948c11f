//! Requester side: how long a packet and its answer take on the requester's LAN.

use std::time::{Duration, Instant};

use super::Near;

/// The LAN turn as measured: a requester that had nothing under way was answered, and sent its next
/// request.
///
/// Its program's own time is in each sample, and where it was told several things, all the time
/// since the first of them. So the measure errs upwards, and
/// [`NearConfig::lan_turn`](super::NearConfig::lan_turn) bounds it. Where what was sent before the
/// requester heard is told from what came after, only the shortest time counts since the last thing
/// it was told.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct LanTurn {
    /// Microseconds, smoothed; 0 before the first sample.
    smoothed: u32,
    /// The shortest sample in microseconds; 0 before the first.
    least: u32,
}

/// No host turns faster.
const LEAST: u32 = 5;

impl LanTurn {
    /// Takes a sample of at most `most`: the times since the first and since the last thing that
    /// the requester was told.
    pub(super) fn observe(&mut self, first: Duration, last: Duration, most: Duration) {
        let micros =
            |sample: Duration| u32::try_from(sample.min(most).as_micros()).unwrap_or(u32::MAX).max(LEAST);
        let (sample, least) = (micros(first), micros(last));
        self.least = if self.least == 0 { least } else { self.least.min(least) };
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
        self.told.age(now) <= self.turn.least().min(self.config.rtt / 8)
    }

    /// Takes a sample if the requester waited for what it was told, and now sends its next request.
    pub(super) fn measure_turn(&mut self, now: Instant) {
        let Some(first) = self.told.first().filter(|first| self.requester.heard() + self.lan_turn() < *first)
        else {
            return;
        };
        let (first, last) = (now.saturating_duration_since(first), self.told.age(now));
        self.turn.observe(first, last, self.config.lan_turn);
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
        turn.observe(Duration::from_micros(40), Duration::from_micros(40), most);
        assert_eq!(turn.get(most), Duration::from_micros(40));
        assert_eq!(turn.least(), Duration::from_micros(40));
        for _ in 0..100 {
            turn.observe(Duration::from_secs(3), Duration::from_secs(3), most);
        }
        assert!(turn.get(most) > Duration::from_micros(900), "{turn:?}");
        assert_eq!(turn.least(), Duration::from_micros(40), "what is slow proves nothing");
        for _ in 0..100 {
            turn.observe(Duration::ZERO, Duration::ZERO, most);
        }
        assert!(turn.get(most) < Duration::from_micros(20), "{turn:?}");
    }

    /// A requester's next packet may answer the first of several things that it was told.
    #[test]
    fn the_turn_counts_from_the_first_thing_told_and_its_least_from_the_last() {
        let most = Duration::from_millis(1);
        let mut turn = LanTurn::default();
        turn.observe(Duration::from_micros(60), Duration::from_micros(6), most);
        assert_eq!((turn.get(most), turn.least()), (Duration::from_micros(60), Duration::from_micros(6)));
    }
}
