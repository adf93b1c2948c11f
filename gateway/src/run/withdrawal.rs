//! The time between the word to stop and the drain.
//!
//! The gateway is not healthy, and carries everything as before. Checks of routers and of VRRP see
//! that, and lead hosts elsewhere before a flow is touched.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::info;

use crate::telemetry::Telemetry;

/// A gateway's withdrawal.
pub(super) struct Withdrawal {
    time: Duration,
    ends: Option<Instant>,
}

impl Withdrawal {
    /// Takes `limits.withdraw`.
    pub(super) fn new(time: Duration) -> Self {
        Self { time, ends: None }
    }

    /// Returns true from the word to stop on.
    pub(super) fn has_begun(&self) -> bool {
        self.ends.is_some()
    }

    /// Takes the word to stop: the gateway is not healthy from now on.
    pub(super) fn begin(&mut self, telemetries: &[Arc<Telemetry>], now: Instant) {
        telemetries.iter().for_each(|telemetry| telemetry.leave(now.into_std()));
        if !self.time.is_zero() {
            info!(within = ?self.time, "told to stop: not healthy, everything is still carried");
        }
        self.ends = Some(now + self.time);
    }

    /// Waits for the end of a withdrawal that has begun.
    pub(super) async fn end(&self) {
        match self.ends {
            Some(end) => sleep_until(end).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn it_ends_its_time_after_the_word_and_never_before() {
        let now = Instant::now();
        let telemetries = [Arc::new(Telemetry::new(now.into_std()))];
        let mut withdrawal = Withdrawal::new(TIME);
        tokio::select! {
            biased;
            () = withdrawal.end() => panic!("nobody said so"),
            () = std::future::ready(()) => {}
        }
        assert!(!withdrawal.has_begun() && telemetries[0].leaving().is_none());
        withdrawal.begin(&telemetries, now);
        assert_eq!((withdrawal.has_begun(), withdrawal.ends), (true, Some(now + TIME)));
        assert_eq!(telemetries[0].leaving(), Some(now.into_std()));
        // Without such a time, the drain begins at once.
        let mut withdrawal = Withdrawal::new(Duration::ZERO);
        withdrawal.begin(&telemetries, Instant::now());
        withdrawal.end().await;
        assert_eq!(telemetries[0].leaving(), Some(now.into_std()), "the first word counts");
    }
}
