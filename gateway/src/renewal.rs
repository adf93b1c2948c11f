//! Certificate, key, authority and `peer.revoked` read again while the gateway runs: on a reload,
//! and by themselves when the files of the identity have changed. So are the admin listener's.
//!
//! A file with an error changes nothing. A session that is up goes on; the next one shows the new
//! certificate. Reading is left to a thread that nobody waits for longer than [`PATIENCE`].

mod certified;
mod files;
mod listener;
mod looks;
mod outlook;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use session::control;
use session::identity::{Date, Identity, IdentityError, IdentityFile, SerialNumber};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::events::EventKind;
use crate::telemetry::{Telemetry, Validity};
use looks::Looks;

/// Whoever checks hears so long before a certificate expires.
pub(crate) const SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);
pub use certified::{Certified, Tls};
pub use files::Stamp;
pub use listener::ListenerRenewal;
pub use outlook::Outlook;

/// Files that cannot be read within this time are refused. Together with the policy file's this
/// is less than a client waits.
const PATIENCE: Duration = Duration::from_millis(1500);

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
    identity: Arc<Identity>,
    revoked: Vec<SerialNumber>,
    looks: Looks<Identity>,
    /// A reading that took longer than a reload waits.
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
            identity: Arc::new(identity),
            looks: Looks::new(stamp),
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
        let in_force = Arc::clone(&self.identity);
        let mut reading = spawn_blocking(move || files::read(&file, &gateway, &in_force));
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
        if changes.is_empty() && stamp == *self.looks.stamp() {
            return Ok(changes);
        }
        self.control.adopt(&identity, &revoked).map_err(|error| crate::causes::chain(&error))?;
        show(&self.telemetry, &identity);
        (self.identity, self.revoked) = (Arc::new(identity), revoked);
        self.looks.adopted(stamp);
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
        let [gateway, same] = [(); 2].map(|()| Arc::clone(&self.gateway));
        let in_force = Arc::clone(&self.identity);
        let load = move || files::load(&same, &in_force).map(|(identity, _)| identity);
        let changed = self.looks.tick(move || Stamp::of(&gateway.identity), load).await;
        if let Some((stamp, loaded)) = changed {
            self.take(stamp, loaded);
        }
    }

    fn take(&mut self, stamp: Stamp, loaded: Result<Identity, String>) {
        let read = loaded.map(|identity| Read {
            identity,
            stamp: stamp.clone(),
            revoked: self.revoked.clone(),
            warnings: String::new(),
        });
        let outcome = read.and_then(|read| self.adopt(read));
        if let Err(why) = outcome
            && self.looks.refused(stamp)
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

/// Returns the file that a symbolic link leads to, or where it would be if that is missing; `None`
/// for what is no link.
pub(crate) fn linked(path: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(path).ok()?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Some(std::fs::canonicalize(path).unwrap_or_else(|_| folder.join(target)))
}

/// Returns what an operator can do about an identity that cannot be used.
pub(crate) fn identity_remedy(error: &IdentityError) -> String {
    if let Some(kind) = error.unreadable() {
        return unreadable(kind).to_owned();
    }
    match error {
        IdentityError::Exposed { path, .. } => {
            let (target, link) = match linked(path) {
                Some(target) => (target, format!(", to which {} is a link", path.display())),
                None => (path.clone(), String::new()),
            };
            format!("`chmod o= {}`{link}, and make new keys if anybody may have read it", target.display())
        }
        IdentityError::Form { form, .. } if form.remedy().is_some() => {
            form.remedy().unwrap_or_default().to_owned()
        }
        // No certificate made anew would mend the authority that it is judged by.
        _ if error.file() == Some(IdentityFile::Authority) => {
            "name the authority's certificate: `longhaul keys` makes it as ca.crt".to_owned()
        }
        IdentityError::AuthorityAsOwn { site } => {
            format!("name the site's own certificate: `longhaul keys` makes it as {site}.crt")
        }
        _ if error.is_mismatch() => {
            "name the key that was made with this certificate, or the certificate of this key".to_owned()
        }
        IdentityError::Role { usage, .. } => {
            format!("have the authority issue it with {usage}, or without extended key usage")
        }
        IdentityError::NotYetValid { .. } => "set this machine's clock: `timedatectl`".to_owned(),
        _ => "`longhaul keys --dir DIR --force NAME` makes a site's certificate and key anew".to_owned(),
    }
}

/// Returns what an operator can do about a file of keys or certificates that the system does not
/// let be read.
fn unreadable(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "name a file that is there; `longhaul keys --dir DIR NAME` makes a site's",
        ErrorKind::PermissionDenied => "let the gateway's user read it: `chgrp longhaul`, mode 0640",
        _ => "mend what keeps the system from reading it",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use session::identity::{Form, Identity};

    use super::*;

    /// None of these is mended by making new keys.
    #[test]
    fn each_fault_has_a_remedy_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            path
        };
        let key = b"-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n";
        let mark = [&[0xef, 0xbb, 0xbf][..], key].concat();
        let missing = folder.path().join("missing");
        for (certificate, key, remedy) in [
            (put("der", &[0x30, 0x82, 1, 0]), missing.clone(), "PEM file"),
            (put("mark", &mark), missing.clone(), "sed"),
            (put("key", key), missing.clone(), "the certificate of this key"),
            (folder.path().to_owned(), missing.clone(), "a regular file"),
            (missing.clone(), missing.clone(), "a file that is there"),
        ] {
            let error = Identity::load(&certificate, &key, Path::new("ca.crt")).unwrap_err();
            let said = identity_remedy(&error);
            assert!(said.contains(remedy) && !said.contains("--force"), "{error}: {said}");
        }
        let (file, path) = (IdentityFile::Key, missing);
        let encrypted = IdentityError::Form { file, path, form: Form::Encrypted };
        assert!(identity_remedy(&encrypted).contains("decrypt it"));
    }
}
