//! A stream's time: microseconds since it began.

use std::time::{Duration, Instant};

/// Microseconds since an instant, which never run backwards.
///
/// Many packets come or leave in one instant, for which the difference is taken once.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Clock {
    #[serde_as(as = "snapshot::At")]
    origin: Instant,
    micros: u64,
    /// The instant that `micros` was last set for.
    #[serde(skip)]
    latest: Option<Instant>,
}

impl Clock {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin, micros: 0, latest: None }
    }

    pub(super) fn advance(&mut self, now: Instant) {
        if self.latest.replace(now) == Some(now) {
            return;
        }
        let elapsed = now.saturating_duration_since(self.origin).as_micros();
        self.micros = self.micros.max(u64::try_from(elapsed).unwrap_or(u64::MAX));
    }

    /// The microseconds up to the last [`Clock::advance`].
    pub(super) fn micros(&self) -> u64 {
        self.micros
    }

    /// The instant after so many microseconds; `None` if there is none.
    pub(super) fn at(&self, micros: u64) -> Option<Instant> {
        self.origin.checked_add(Duration::from_micros(micros))
    }
}
