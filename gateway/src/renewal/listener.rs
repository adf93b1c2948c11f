//! Certificate and key of the admin listener, read again as those of the identity are.

use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use super::PATIENCE;
use super::certified::{Certified, Tls};
use super::files::Stamp;
use super::looks::Looks;
use crate::events::EventKind;
use crate::telemetry::{Telemetry, Validity};

/// Knows the certificate of the admin listener, if it has one, and goes over to another.
pub struct ListenerRenewal {
    tls: Arc<Tls>,
    telemetry: Arc<Telemetry>,
    looks: Looks<Certified>,
    /// A reading that took longer than a reload waits.
    overdue: Option<JoinHandle<()>>,
}

impl ListenerRenewal {
    /// With what was read at the start.
    pub fn new(tls: Arc<Tls>, telemetry: Arc<Telemetry>) -> Self {
        let current = tls.current();
        telemetry.set_expiry(Validity::Admin, current.valid_until());
        Self { tls, telemetry, looks: Looks::new(current.stamp().clone()), overdue: None }
    }

    /// Reads both files. Nothing is in force yet.
    ///
    /// # Errors
    /// A line with the file, the fault and the remedy.
    pub async fn read(&mut self) -> Result<Certified, String> {
        if self.overdue.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err(
                "the admin listener's certificate is still being read since an earlier reload".to_owned()
            );
        }
        let files = self.tls.files().clone();
        let mut reading = spawn_blocking(move || Certified::read(&files));
        match timeout(PATIENCE, &mut reading).await {
            Ok(read) => read.map_err(|error| error.to_string())?,
            Err(_) => {
                self.overdue = Some(tokio::spawn(async move { drop(reading.await) }));
                Err(format!("reading the admin listener's certificate took more than {PATIENCE:?}"))
            }
        }
    }

    /// Puts in force what was read. Returns what has changed, in a line.
    pub fn adopt(&mut self, certified: Certified) -> Option<String> {
        let (stamp, until) = (certified.stamp().clone(), certified.valid_until());
        let change = self.tls.adopt(certified);
        self.telemetry.set_expiry(Validity::Admin, until);
        self.looks.adopted(stamp);
        if let Some(change) = &change {
            info!("{change}");
            self.telemetry.events().about_all().push(EventKind::Identity, change);
        }
        change
    }

    /// Called about every second. Takes files that have changed. Waits for nothing.
    pub async fn look(&mut self) {
        let [files, same] = [(); 2].map(|()| self.tls.files().clone());
        let changed = self.looks.tick(move || Stamp::of_admin(&files), move || Certified::read(&same)).await;
        match changed {
            None => {}
            Some((_, Ok(certified))) => drop(self.adopt(certified)),
            Some((stamp, Err(why))) => self.refuse(stamp, &why),
        }
    }

    fn refuse(&mut self, stamp: Stamp, why: &str) {
        if self.looks.refused(stamp) {
            warn!("the admin listener's files have changed, and its former certificate stays: {why}");
            self.telemetry.events().about_all().push(EventKind::Identity, &format!("refused: {why}"));
        }
    }
}
