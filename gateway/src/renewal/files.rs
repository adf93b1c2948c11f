//! The files of an identity: whether they have changed, and what is in them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use config::{Gateway, Style};
use rustls_pki_types::UnixTime;
use session::control::role;
use session::identity::Identity;

use super::{Read, serials, told};

/// Tells one state of some files from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp(Vec<Option<State>>);

/// Device, inode, size, and the times of the last change of content and of metadata, in seconds and
/// nanoseconds.
type State = (u64, u64, u64, [i64; 4]);

impl Stamp {
    /// Asks for the identity's files as they are now.
    pub fn of(files: &config::Identity) -> Self {
        Self::of_files(&[&files.certificate, &files.key, &files.authority])
    }

    /// The same for those of the admin listener.
    pub fn of_admin(files: &config::AdminTls) -> Self {
        Self::of_files(&[&files.certificate, &files.key])
    }

    fn of_files(files: &[&Path]) -> Self {
        let state = |path: &&Path| std::fs::metadata(path).ok().map(|metadata| state_of(&metadata));
        Self(files.iter().map(state).collect())
    }
}

fn state_of(metadata: &Metadata) -> State {
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    (metadata.dev(), metadata.ino(), metadata.size(), times)
}

/// The outcome of a look.
pub(super) enum Found<T> {
    /// The files are those in force.
    Known,
    /// They are others than at the last look.
    Changing(Stamp),
    /// They have changed and come to rest: what is in them, or what is wrong.
    Changed(Stamp, Result<T, String>),
}

impl<T> Found<T> {
    /// Judges if files in this state are others than those `known`, and as they were `seen` last.
    pub(super) fn of(
        stamp: Stamp,
        known: &Stamp,
        seen: Option<&Stamp>,
        load: impl FnOnce() -> Result<T, String>,
    ) -> Self {
        if stamp == *known {
            return Self::Known;
        }
        if seen != Some(&stamp) {
            return Self::Changing(stamp);
        }
        Self::Changed(stamp, load())
    }
}

/// Reads the gateway file and the identity's files, which are those that it named at the start.
pub(super) fn read(file: &Path, started: &Gateway, in_force: &Identity) -> Result<Read, String> {
    let newest = Gateway::load_again(file).map_err(|invalid| invalid.render(Style::Plain))?;
    let name = &started.peer.name;
    // A peer that has gone from the file stays until a restart.
    let newest = newest.views().into_iter().find(|view| view.peer.name == *name);
    let newest = newest.unwrap_or_else(|| Gateway {
        // Another than that at the start in any case.
        others: vec![started.peer.clone()],
        ..started.clone()
    });
    let revoked = serials(&newest);
    let mut others = newest;
    others.peer.revoked.clone_from(&started.peer.revoked);
    let mut warnings = if others == *started {
        String::new()
    } else {
        let file = file.display();
        format!("warning: {file}: of this file's changes only peer.revoked is taken without a restart\n")
    };
    // Before the files are read: what changes meanwhile is noticed later.
    let stamp = Stamp::of(&started.identity);
    let (identity, warning) = load(started, in_force)?;
    warnings.extend(warning.map(|warning| format!("warning: {warning}\n")));
    Ok(Read { identity, stamp, revoked, warnings })
}

/// Reads the identity's files. What is in force already stays so whatever the clock says, with a
/// warning. Without that, no policy and no revocation could be adopted any more.
pub(super) fn load(gateway: &Gateway, in_force: &Identity) -> Result<(Identity, Option<String>), String> {
    load_at(gateway, in_force, UnixTime::now())
}

fn load_at(
    gateway: &Gateway,
    in_force: &Identity,
    now: UnixTime,
) -> Result<(Identity, Option<String>), String> {
    let files = &gateway.identity;
    let (site, peer) = (&gateway.site.name, &gateway.peer.name);
    let identity = Identity::load(&files.certificate, &files.key, &files.authority);
    let identity = identity.map_err(|error| told(&error))?;
    // What is wrong with the certificate by itself does not name its file.
    let wrong = |error| format!("{}: {}", files.certificate.display(), told(&error));
    match identity.verify(site, role(site, peer), now) {
        Ok(()) => Ok((identity, None)),
        Err(error) if error.is_of_time() && identity.is_judged_like(in_force) => {
            Ok((identity, Some(wrong(error))))
        }
        Err(error) => Err(wrong(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Request, generate};

    #[test]
    fn a_certificate_that_is_refused_is_named_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let sites = ["a".to_owned(), "c".to_owned()];
        generate(&Request { dir: folder.path(), sites: &sites, force: false }).unwrap();
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        let mut gateway = Gateway::parse(Path::new("gateway.toml"), text).unwrap();
        let of = |name: &str| folder.path().join(name);
        let files = &mut gateway.identity;
        (files.certificate, files.key, files.authority) = (of("a.crt"), of("a.key"), of("ca.crt"));
        let identity = Identity::load(&of("a.crt"), &of("a.key"), &of("ca.crt")).unwrap();
        assert!(load(&gateway, &identity).is_ok_and(|(_, warning)| warning.is_none()));
        // The clock was set to 1970 or 2100. What is in force stays, and what is new waits.
        for (year, why) in [(0, "valid from"), (130, "expired at")] {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(year * 31_557_600));
            let (_, warning) = load_at(&gateway, &identity, now).unwrap();
            let warning = warning.unwrap();
            assert!(warning.contains(why) && warning.contains("a.crt"), "{warning}");
            let others = tempfile::tempdir().unwrap();
            generate(&Request { dir: others.path(), sites: &sites, force: false }).unwrap();
            let [certificate, key, authority] =
                ["a.crt", "a.key", "ca.crt"].map(|name| others.path().join(name));
            let other = Identity::load(&certificate, &key, &authority).unwrap();
            assert!(load_at(&gateway, &other, now).unwrap_err().contains(why));
        }
        gateway.identity.certificate = of("c.crt");
        gateway.identity.key = of("c.key");
        let why = load(&gateway, &identity).unwrap_err();
        assert!(why.starts_with(&of("c.crt").display().to_string()), "{why}");
    }
}
