//! Watches the rules that keep the kernel from forwarding, without ever waiting for the kernel.

use std::future::pending;
use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use super::PART;
use crate::events::EventKind;
use crate::lan::guard::{Guard, GuardError};
use crate::telemetry::Telemetry;

/// A guard that is looked after.
pub(super) enum Guarding {
    /// Socket mode has none.
    None,
    /// Nobody asks the kernel.
    Idle(Guard),
    /// A thread asks the kernel, which may make it wait.
    Looking(JoinHandle<(Guard, Result<u64, GuardError>)>),
}

impl Guarding {
    pub(super) fn new(guard: Option<Guard>) -> Self {
        guard.map_or(Self::None, Self::Idle)
    }

    /// Begins a look, unless one is under way.
    pub(super) fn look(&mut self) {
        *self = match std::mem::replace(self, Self::None) {
            Self::Idle(mut guard) => Self::Looking(spawn_blocking(move || {
                let restored = guard.restore();
                (guard, restored)
            })),
            other => other,
        };
    }

    /// Returns true while a look is under way.
    pub(super) fn is_looking(&self) -> bool {
        matches!(self, Self::Looking(_))
    }

    /// Waits for the end of a look, and tells what it found. May be dropped at any time.
    pub(super) async fn ended(&mut self, telemetries: &[Arc<Telemetry>]) {
        let Self::Looking(look) = self else { return pending().await };
        let ended = look.await;
        *self = Self::None;
        let Ok((guard, restored)) = ended else { return };
        *self = Self::Idle(guard);
        if let Some(telemetry) = telemetries.first() {
            tell(restored, telemetry);
        }
    }

    /// Leaves the rules to another process that has them as well.
    pub(super) async fn leave(self) {
        if let Some(mut guard) = self.end().await {
            guard.share(true);
        }
    }

    /// Keeps the rules, which were shared with the process before, and no others of it.
    pub(super) fn own(&mut self) {
        if let Self::Idle(guard) = self {
            guard.share(false);
            if let Err(error) = guard.remove_stale() {
                warn!("rules of the process before remain: {}", crate::causes::chain(&error));
            }
        }
    }

    /// Returns the guard, to be removed. A look that takes too long keeps it.
    pub(super) async fn end(self) -> Option<Guard> {
        match self {
            Self::None => None,
            Self::Idle(guard) => Some(guard),
            Self::Looking(look) => timeout(PART, look).await.ok()?.ok().map(|(guard, _)| guard),
        }
    }
}

fn tell(restored: Result<u64, GuardError>, telemetry: &Telemetry) {
    match restored {
        Ok(0) => {}
        Ok(rules) => {
            telemetry.guard_restored(rules);
            let text = format!("rules missing, and put back: {rules}");
            telemetry.events().about_all().push(EventKind::GuardRestored, &text);
            warn!(rules, "rules that keep the kernel from forwarding RoCE were missing, and are back");
        }
        Err(error) => {
            info!(
                "rules that keep the kernel from forwarding RoCE may be missing: {}",
                crate::causes::chain(&error)
            );
        }
    }
}
