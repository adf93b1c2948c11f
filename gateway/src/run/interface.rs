//! Watches the LAN's interface: its carrier, and its addresses. Never waits for the kernel.

use std::future::pending;
use std::io;
use std::sync::Arc;

use config::LanMode;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::debug;

use crate::lan::usable::{self, Fault};
use crate::telemetry::Telemetry;

/// The interface that is looked after.
pub(super) struct Interface {
    /// Packet mode's; socket mode has none.
    lan: Option<Arc<(config::Lan, String)>>,
    /// A thread asks the kernel, which may make it wait.
    looking: Option<JoinHandle<io::Result<Option<Fault>>>>,
    /// Found by the last look.
    found: Option<Option<Fault>>,
}

impl Interface {
    /// The interface of this LAN, if it has one. All peers' telemetry learns its name.
    pub(super) fn of(lan: &config::Lan, telemetries: &[Arc<Telemetry>]) -> Self {
        let interface = match &lan.mode {
            LanMode::Packet { interface } => Some(interface.clone()),
            LanMode::Socket { .. } => None,
        };
        if let Some(name) = &interface {
            telemetries.iter().for_each(|telemetry| telemetry.name_lan(name));
        }
        Self {
            lan: interface.map(|interface| Arc::new((lan.clone(), interface))),
            looking: None,
            found: None,
        }
    }

    /// Begins a look, unless one is under way.
    pub(super) fn look(&mut self) {
        let Some(lan) = self.lan.as_ref().filter(|_| self.looking.is_none()) else { return };
        let lan = Arc::clone(lan);
        self.looking = Some(spawn_blocking(move || usable::look(&lan.0, &lan.1)));
    }

    /// Returns true while a look is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    /// Waits for the end of a look, and sets what it found. Returns true if that is news. May be
    /// dropped at any time.
    pub(super) async fn ended(&mut self, telemetries: &[Arc<Telemetry>]) -> bool {
        let Some(looking) = &mut self.looking else { return pending().await };
        let ended = looking.await;
        self.looking = None;
        match ended {
            Ok(Ok(fault)) => {
                telemetries.iter().for_each(|telemetry| telemetry.set_lan_fault(fault));
                self.found.replace(fault) != Some(fault)
            }
            // What was known before holds.
            Ok(Err(error)) => {
                debug!("the kernel does not tell of the LAN interface: {error}");
                false
            }
            Err(_) => false,
        }
    }
}
