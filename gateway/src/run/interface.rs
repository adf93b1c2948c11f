//! Watches the LAN's interface: its carrier, and its addresses. Never waits for the kernel.

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
        Self { lan: interface.map(|interface| Arc::new((lan.clone(), interface))), looking: None }
    }

    /// Takes the result of the last look, and begins the next; about every second.
    pub(super) async fn look(&mut self, telemetries: &[Arc<Telemetry>]) {
        let Some(lan) = &self.lan else { return };
        if let Some(looking) = self.looking.take_if(|looking| looking.is_finished())
            && let Ok(found) = looking.await
        {
            match found {
                Ok(fault) => telemetries.iter().for_each(|telemetry| telemetry.set_lan_fault(fault)),
                // What was known before holds.
                Err(error) => debug!("the kernel does not tell of the LAN interface: {error}"),
            }
        }
        if self.looking.is_none() {
            let lan = Arc::clone(lan);
            self.looking = Some(spawn_blocking(move || usable::look(&lan.0, &lan.1)));
        }
    }
}
