//! `longhaul check`: what `config` checks, and what only a machine with the files and interfaces
//! can tell.

use std::path::Path;

use config::{Content, Gateway, LanMode, Report};
use rustls_pki_types::UnixTime;
use session::identity::{Identity, IdentityError};

/// Checks a gateway or policy file. Beyond [`config::check`], a gateway file's certificate, key and
/// authority have to be there, be usable and prove the site's name. A missing interface is a
/// warning: it may appear before the gateway starts.
pub fn check(path: &Path) -> Report {
    let mut report = config::check(path);
    if let Some(Content::Gateway(gateway, _)) = report.content() {
        let gateway = gateway.clone();
        identity(&mut report, &gateway);
        interface(&mut report, &gateway);
    }
    report
}

fn identity(report: &mut Report, gateway: &Gateway) {
    let files = &gateway.identity;
    let mut missing = false;
    for (key, file) in [
        ("identity.certificate", &files.certificate),
        ("identity.key", &files.key),
        ("identity.authority", &files.authority),
    ] {
        if let Err(error) = std::fs::File::open(file) {
            missing = true;
            let help =
                "the path is relative to this file's folder; `longhaul keys` makes all three".to_owned();
            report.error_at(
                key,
                format!("cannot open {}: {error}", file.display()),
                "named here",
                Some(help),
            );
        }
    }
    if missing {
        return;
    }
    let outcome = Identity::load(&files.certificate, &files.key, &files.authority)
        .and_then(|identity| identity.verify(&gateway.site.name, UnixTime::now()));
    if let Err(error) = outcome {
        let help = match &error {
            IdentityError::Exposed { path, .. } => {
                format!("`chmod o= {}`, and make new keys if anybody may have read it", path.display())
            }
            _ => "`longhaul keys --dir DIR --force NAME` makes a site's certificate and key anew".to_owned(),
        };
        report.error_at(blamed(&error, gateway), error.to_string(), "named here", Some(help));
    }
}

/// The key that names the file an error is about.
fn blamed(error: &IdentityError, gateway: &Gateway) -> &'static str {
    match error {
        IdentityError::File { path, .. } | IdentityError::Authority { path, .. }
            if *path == gateway.identity.authority =>
        {
            "identity.authority"
        }
        IdentityError::File { path, .. } if *path == gateway.identity.key => "identity.key",
        IdentityError::Exposed { .. } => "identity.key",
        IdentityError::Name(_) => "site.name",
        _ => "identity.certificate",
    }
}

fn interface(report: &mut Report, gateway: &Gateway) {
    let LanMode::Packet { interface } = &gateway.lan.mode else { return };
    if !Path::new("/sys/class/net").join(interface).exists() {
        let help = "see `ip link`; the gateway needs it when it starts".to_owned();
        report.warning_at(
            "lan.interface",
            format!("there is no interface {interface} on this machine"),
            "named here",
            Some(help),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::keys;

    fn gateway_file(folder: &Path, site: &str, interface: &str) -> std::path::PathBuf {
        let path = folder.join("gateway.toml");
        let text = format!(
            "[site]\nname = \"{site}\"\n[lan]\ninterface = \"{interface}\"\nremote = [\"10.0.1.0/24\"]\n\
             [wan]\nlisten = \"10.9.0.1:4792\"\n[peer]\nname = \"b\"\naddress = \"10.9.0.2:4792\"\nrate = \"1 Gbit/s\"\n\
             [identity]\ncertificate = \"a.crt\"\nkey = \"a.key\"\nauthority = \"ca.crt\"\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn messages(report: &Report) -> Vec<&str> {
        report.problems().iter().map(|problem| problem.message()).collect()
    }

    #[test]
    fn keys_and_interface_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = gateway_file(folder.path(), "a", "lo");
        let report = check(&path);
        assert!(!report.is_valid());
        assert_eq!(report.problems().len(), 3, "{:?}", messages(&report));
        assert!(report.problems().iter().all(|problem| problem.message().starts_with("cannot open ")));
        assert_eq!(report.problems()[1].position(), Some((14, 7)));

        let sites = ["a".to_owned(), "b".to_owned()];
        keys::generate(&keys::Request { dir: folder.path(), sites: &sites, force: false }).unwrap();
        let report = check(&path);
        assert!(report.problems().is_empty(), "{:?}", messages(&report));

        let report = check(&gateway_file(folder.path(), "a", "no-such-if0"));
        assert!(report.is_valid());
        assert_eq!(messages(&report), ["there is no interface no-such-if0 on this machine"]);
        assert_eq!(report.problems()[0].position(), Some((4, 13)));

        let report = check(&gateway_file(folder.path(), "c", "lo"));
        assert!(!report.is_valid());
        assert_eq!(report.problems()[0].position(), Some((13, 15)));

        let key = folder.path().join("a.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o604)).unwrap();
        let report = check(&gateway_file(folder.path(), "a", "lo"));
        assert_eq!(report.problems()[0].position(), Some((14, 7)), "{:?}", messages(&report));
        assert!(messages(&report)[0].contains("others may read it (mode 0604)"), "{:?}", messages(&report));
        // A group is the operator's choice.
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(check(&gateway_file(folder.path(), "a", "lo")).is_valid());

        fs::write(&key, "no key").unwrap();
        let report = check(&gateway_file(folder.path(), "a", "lo"));
        assert_eq!(report.problems()[0].position(), Some((14, 7)), "{:?}", messages(&report));
    }
}
