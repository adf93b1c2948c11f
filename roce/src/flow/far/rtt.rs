//! Responder side: round-trip time on the LAN and the retransmission timeout drawn from it (as
//! TCP's, RFC 6298).

use std::time::{Duration, Instant};

use super::FarConfig;
use crate::wire::Psn;

#[serde_with::serde_as]
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    /// Timeouts since the last sample. Progress does not clear them (Karn's algorithm, RFC 6298,
    /// 5.7): a busy target, which takes longer than the timeout for every READ, would otherwise
    /// never be waited for long enough to be measured, and be asked for each READ several times.
    backoff: u32,
    /// Timeouts since the last progress.
    silent: u32,
    /// A PSN sent once, with AckReq, and when.
    #[serde_as(as = "Option<(_, snapshot::At)>")]
    probe: Option<(Psn, Instant)>,
}

impl Rtt {
    pub(super) fn timeout(&self, config: &FarConfig) -> Duration {
        let base = self.smoothed.map_or(config.rto_initial, |smoothed| smoothed + 4 * self.variation);
        let most = config.rto_max.max(config.rto_min);
        let base = base.clamp(config.rto_min, most);
        base.saturating_mul(1 << self.backoff.min(16)).min(most)
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.silent = self.silent.saturating_add(1);
        self.probe = None;
    }

    /// There was a timeout since the target was last heard.
    pub(super) fn is_overdue(&self) -> bool {
        self.silent > 0
    }

    /// The target has been silent for two timeouts.
    pub(super) fn is_silent(&self) -> bool {
        self.silent > 1
    }

    pub(super) fn sent(&mut self, psn: Psn, now: Instant) {
        if self.probe.is_none() {
            self.probe = Some((psn, now));
        }
    }

    /// The target says something, be it that it is not ready.
    pub(super) fn heard(&mut self) {
        self.silent = 0;
    }

    /// Something is sent again: an answer could be to either copy.
    pub(super) fn spoil(&mut self) {
        self.probe = None;
    }

    /// The target acknowledged everything before `to`.
    pub(super) fn progressed(&mut self, to: Psn, now: Instant) {
        self.silent = 0;
        let Some((psn, sent)) = self.probe else {
            return;
        };
        if !psn.is_before(to) {
            return;
        }
        self.probe = None;
        self.backoff = 0;
        let sample = now.saturating_duration_since(sent);
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(sample), sample / 2),
            Some(smoothed) => {
                self.variation = self.variation * 3 / 4 + smoothed.abs_diff(sample) / 4;
                self.smoothed = Some(smoothed * 7 / 8 + sample / 8);
            }
        }
    }
}
