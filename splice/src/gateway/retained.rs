//! The gateway's hold on what outlives its process.

use std::time::Instant;

use super::Gateway;
use crate::retention::Retention;

impl Gateway {
    /// From now on requests that requesters are acknowledged inside a message are retained here,
    /// for classes that want it (`survive = "process"`). To be called before the first packet, and
    /// with what the process before retained, if any. After [`Gateway::restore`] flows find their
    /// own there.
    pub fn retain(&mut self, mut retention: Retention) {
        retention.regroup(self.common.settings.grouping);
        self.common.retention = Some(retention);
        self.near.adopt_retained(&mut self.common.retention);
    }

    /// Returns what is retained, with counts; `None`: nothing is.
    #[must_use]
    pub fn retention(&self) -> Option<&Retention> {
        self.common.retention.as_ref()
    }

    /// Takes what is retained away, as if this process had ended.
    pub fn take_retention(&mut self) -> Option<Retention> {
        self.common.retention.take()
    }

    /// Notes the time of the driver's clock: see [`Retention::note_time`].
    pub fn note_time(&mut self, time: u64) {
        if let Some(retention) = &mut self.common.retention {
            retention.note_time(time);
        }
    }

    pub(super) fn retention_timeout(&self) -> Option<Instant> {
        self.common.retention.as_ref()?.next_timeout()
    }

    pub(super) fn forget_orphans(&mut self, now: Instant) {
        if let Some(retention) = &mut self.common.retention {
            retention.handle_timeout(now);
        }
    }
}
