//! Certificate, key, authority and `peer.revoked` read again while the gateway runs: on a reload,
//! and by themselves when the files of the identity have changed.
//!
//! A file with an error changes nothing. A session that is up goes on; the next one shows the new
//! certificate. Reading is left to a thread that nobody waits for longer than [`PATIENCE`].

mod files;
mod outlook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use session::control;
use session::identity::{Date, Identity, IdentityError, SerialNumber};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::events::EventKind;
use crate::telemetry::{Telemetry, Validity};
use files::Found;

/// Whoever checks hears so long before a certificate expires.
pub(crate) const SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);
pub use files::Stamp;
pub use outlook::Outlook;

/// Files that cannot be read within this time are refused. Together with the policy file's this
/// is less than a client waits.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Seconds between two looks at the files. A change counts once it is there at two looks, since
/// certificate and key are seldom replaced at one moment.
const LOOK_EVERY: u32 = 5;

/// The files that a reload has read.
#[derive(Debug)]
pub struct Read {
    identity: Identity,
    stamp: Stamp,
    revoked: Vec<SerialNumber>,
    /// Warnings about the gateway file.
    pub warnings: String,
}

/// Knows the identity in force, and goes over to another.
pub struct Renewal {
    file: PathBuf,
    gateway: Arc<config::Gateway>,
    control: control::Renewal,
    telemetry: Arc<Telemetry>,
    outlook: Outlook,
    identity: Identity,
    revoked: Vec<SerialNumber>,
    stamp: Stamp,
    /// At the last look, if it was another one than that in force.
    seen: Option<Stamp>,
    /// Files that were read and found bad.
    refused: Option<Stamp>,
    ticks: u32,
    /// A look that has not ended, and one that took longer than a reload waits.
    looking: Option<JoinHandle<Found>>,
    overdue: Option<JoinHandle<()>>,
}

impl Renewal {
    /// With the gateway file, and what was read at the start. The stamp was taken before that.
    pub fn new(
        file: PathBuf,
        gateway: &config::Gateway,
        (identity, stamp): (Identity, Stamp),
        control: control::Renewal,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        show(&telemetry, &identity);
        Self {
            revoked: serials(gateway),
            file,
            gateway: Arc::new(gateway.clone()),
            control,
            telemetry,
            outlook: Outlook::default(),
            identity,
            stamp,
            seen: None,
            refused: None,
            ticks: 0,
            looking: None,
            overdue: None,
        }
    }

    /// The same towards another peer than the first, which tells of what is the same for all.
    #[must_use]
    pub fn of_another_peer(self) -> Self {
        Self { outlook: Outlook::of_peer_alone(), ..self }
    }

    /// Reads the gateway file's `peer.revoked` and the three files of the identity, and judges
    /// them. Nothing is in force yet.
    ///
    /// # Errors
    /// What is wrong with which file, as text.
    pub async fn read(&mut self) -> Result<Read, String> {
        if self.overdue.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err("the identity's files are still being read since an earlier reload".to_owned());
        }
        let (file, gateway) = (self.file.clone(), Arc::clone(&self.gateway));
        let mut reading = spawn_blocking(move || files::read(&file, &gateway));
        match timeout(PATIENCE, &mut reading).await {
            Ok(read) => read.map_err(|error| error.to_string())?,
            Err(_) => {
                self.overdue = Some(tokio::spawn(async move { drop(reading.await) }));
                Err(format!("reading the gateway file and the identity's files took more than {PATIENCE:?}"))
            }
        }
    }

    /// Puts in force what was read. Returns what has changed, one a line.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn adopt(&mut self, read: Read) -> Result<Vec<String>, String> {
        let Read { identity, stamp, revoked, .. } = read;
        let mut changes = Vec::new();
        if !is_same(&identity, &self.identity) {
            changes.push(format!(
                "certificate {}, expires at {}",
                serial(&identity),
                identity
                    .valid_until()
                    .map_or_else(|| "an unknown time".to_owned(), |at| Date(at).to_string())
            ));
        }
        if !identity.has_authority_of(&self.identity) {
            changes.push("another authority".to_owned());
        }
        if revoked != self.revoked {
            changes.push(format!("peer.revoked: {} -> {} certificates", self.revoked.len(), revoked.len()));
        }
        if changes.is_empty() && stamp == self.stamp {
            return Ok(changes);
        }
        self.control.adopt(&identity, &revoked).map_err(|error| crate::causes::chain(&error))?;
        show(&self.telemetry, &identity);
        (self.identity, self.revoked, self.stamp) = (identity, revoked, stamp);
        (self.seen, self.refused) = (None, None);
        for change in &changes {
            info!("identity: {change}");
            self.telemetry.events().push(EventKind::Identity, change);
        }
        Ok(changes)
    }

    /// Called about every second. Takes files that have changed, and warns of certificates that
    /// are about to expire. Waits for nothing.
    pub async fn look(&mut self) {
        self.outlook.tell(&self.telemetry, &self.gateway);
        if let Some(looking) = self.looking.take_if(|looking| looking.is_finished())
            && let Ok(found) = looking.await
        {
            self.take(found);
        }
        self.ticks += 1;
        if self.looking.is_none() && self.ticks >= LOOK_EVERY {
            self.ticks = 0;
            let (gateway, known) = (Arc::clone(&self.gateway), self.stamp.clone());
            let seen = self.seen.clone();
            self.looking = Some(spawn_blocking(move || files::look(&gateway, &known, seen.as_ref())));
        }
    }

    fn take(&mut self, found: Found) {
        let (stamp, loaded) = match found {
            Found::Known => {
                self.seen = None;
                return;
            }
            Found::Changing(stamp) => {
                self.seen = Some(stamp);
                return;
            }
            Found::Changed(stamp, loaded) => (stamp, loaded),
        };
        self.seen = Some(stamp.clone());
        let read = loaded.map(|identity| Read {
            identity: *identity,
            stamp: stamp.clone(),
            revoked: self.revoked.clone(),
            warnings: String::new(),
        });
        let outcome = read.and_then(|read| self.adopt(read));
        // Once for each state of the files. Those whose time is still to come are read again.
        if let Err(why) = outcome
            && self.refused.replace(stamp.clone()) != Some(stamp)
        {
            warn!("the files of the identity have changed, and the former identity stays: {why}");
            self.telemetry.events().push(EventKind::Identity, &format!("refused: {why}"));
        }
    }
}

fn serials(gateway: &config::Gateway) -> Vec<SerialNumber> {
    gateway.peer.revoked.iter().map(|serial| SerialNumber::new(serial.as_bytes())).collect()
}

fn serial(identity: &Identity) -> String {
    let serial = identity.certificate().and_then(SerialNumber::of);
    serial.map_or_else(|| "without a number".to_owned(), |serial| serial.to_string())
}

fn is_same(one: &Identity, other: &Identity) -> bool {
    one.certificate() == other.certificate()
}

fn show(telemetry: &Telemetry, identity: &Identity) {
    telemetry.set_expiry(Validity::Own, identity.valid_until());
    telemetry.set_expiry(Validity::Authority, identity.authority_valid_until());
}

/// With what to do about it.
fn told(error: &IdentityError) -> String {
    format!("{}; {}", crate::causes::chain(error), identity_remedy(error))
}

/// Returns what an operator can do about an identity that cannot be used.
pub(crate) fn identity_remedy(error: &IdentityError) -> String {
    match error {
        IdentityError::Exposed { path, .. } => {
            format!("`chmod o= {}`, and make new keys if anybody may have read it", path.display())
        }
        IdentityError::NotYetValid { .. } => "set this machine's clock: `timedatectl`".to_owned(),
        _ => "`longhaul keys --dir DIR --force NAME` makes a site's certificate and key anew".to_owned(),
    }
}
