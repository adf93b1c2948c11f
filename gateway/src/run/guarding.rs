//! Watches the rules that keep the kernel from forwarding, without ever waiting for the kernel.

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

    /// Takes the result of the last look, and begins the next; about every second.
    pub(super) async fn look(&mut self, telemetry: &Telemetry) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::None,
            Self::Looking(look) if !look.is_finished() => Self::Looking(look),
            Self::Looking(look) => match look.await {
                Ok((guard, restored)) => {
                    tell(restored, telemetry);
                    Self::Idle(guard)
                }
                Err(_) => Self::None,
            },
            Self::Idle(mut guard) => Self::Looking(spawn_blocking(move || {
                let restored = guard.restore();
                (guard, restored)
            })),
        };
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
