//! The admin listener's certificate, key, token and socket, as `longhaul check` sees them.

use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use config::{Admin, Gateway, Label, Report};
use rustls_pki_types::UnixTime;
use session::identity::{Date, IdentityError, IdentityFile, ServerIdentity};

use crate::admin::{SOCKET, Token};
use crate::renewal::{SOON, identity_remedy};

/// Bytes of a socket's path at most (`sun_path` of unix(7), which ends with a zero).
const LONGEST_PATH: usize = 107;
/// Mode bits of a file for all users of the machine.
const OTHERS: u32 = 0o007;

const CERTIFICATE: &str = "admin.certificate";
const KEY: &str = "admin.key";

/// Checks that the files can be used, until when, and for the names that clients ask by.
///
/// What keeps clients away is a warning: a gateway carries packets without them.
pub(super) fn check(report: &mut Report, gateway: &Gateway, now: UnixTime) {
    let Some(admin) = &gateway.admin else { return nobody_answers(report) };
    if let Some(path) = &admin.socket {
        socket(report, path);
    }
    // A gateway without TCP reads none of the other files.
    let Some(listen) = admin.listen else { return };
    if let Some(path) = &admin.token {
        token(report, path);
    }
    let Some(tls) = &admin.tls else { return };
    let loaded = ServerIdentity::load(&tls.certificate, &tls.key)
        .and_then(|identity| identity.server_config().map(|_| identity));
    match loaded {
        Ok(identity) => {
            time(report, &identity, now);
            names(report, (admin, listen.ip()), &identity);
        }
        Err(error) => {
            let help = identity_remedy(&error);
            report.error_at(blamed(&error), error.to_string(), Label::NAMED, Some(help));
        }
    }
}

/// Without the section there is no listener, in the unit's runtime directory either.
fn nobody_answers(report: &mut Report) {
    let help = format!(
        "write [admin] with listen = \"127.0.0.1:9464\", for metrics and the page, too, or with \
         socket = \"{SOCKET}\", for this machine's own commands alone"
    );
    let message =
        "there is no [admin]: `status` and all commands that ask the gateway find nobody who answers";
    report.warning_at("admin", message, "", Some(help));
}

fn token(report: &mut Report, path: &Path) {
    const KEY: &str = "admin.token";
    if let Err(error) = Token::read(path) {
        let help = "`head -c 24 /dev/urandom | base64` makes one; the path is relative to this file's folder";
        return report.error_at(KEY, error, Label::NAMED, Some(help.to_owned()));
    }
    let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode() & 0o7777);
    if mode & OTHERS != 0 {
        let message = format!("{}: others may read it (mode {mode:04o})", path.display());
        let help = format!("chmod o= {}", path.display());
        report.warning_at(KEY, message, Label::NAMED, Some(help));
    }
}

/// A folder that is missing may come: a unit's runtime directory is made as it starts.
fn socket(report: &mut Report, path: &Path) {
    const KEY: &str = "admin.socket";
    let len = path.as_os_str().as_bytes().len();
    if len > LONGEST_PATH {
        let message = format!("no socket can have a path of {len} bytes");
        let help = format!("{LONGEST_PATH} bytes at most, the folder of this file included");
        report.error_at(KEY, message, Label::NAMED, Some(help));
    } else if let Some(folder) =
        path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        let message = format!("there is no folder {}", folder.display());
        let help = "the gateway makes none: make it, or have the unit's RuntimeDirectory= do so";
        report.warning_at(KEY, message, Label::NAMED, Some(help.to_owned()));
    }
}

/// The key that names the file an error is about.
fn blamed(error: &IdentityError) -> &'static str {
    match error.file() {
        Some(IdentityFile::Key) => KEY,
        _ => CERTIFICATE,
    }
}

fn time(report: &mut Report, identity: &ServerIdentity, now: UnixTime) {
    let Some(until) = identity.valid_until() else { return };
    if until.as_secs() < now.as_secs() + SOON.as_secs() {
        let verb = if until > now { "expires" } else { "expired" };
        let message = format!("the certificate, or one above it, {verb} at {}", Date(until));
        let help = "put another one in its place: a running gateway notices".to_owned();
        report.warning_at(CERTIFICATE, message, Label::NAMED, Some(help));
    }
}

fn names(report: &mut Report, (admin, address): (&Admin, IpAddr), identity: &ServerIdentity) {
    for host in admin.hosts.iter().filter(|host| !identity.is_for(host)) {
        let message = format!("the certificate of the admin listener is not for {host}");
        let help =
            "clients that ask by this name refuse it: it has to stand among the certificate's DNS names";
        report.warning_at("admin.hosts", message, Label::NAMED, Some(help.to_owned()));
    }
    let is_reached = address.is_unspecified()
        || identity.is_for(&address.to_string())
        || (address.is_loopback() && identity.is_for("localhost"));
    if admin.hosts.is_empty() && !is_reached {
        let message = format!("the certificate of the admin listener is not for {address}");
        let help = "clients that ask by the address refuse it: enter the certificate's name in admin.hosts, and ask by that";
        report.warning_at(CERTIFICATE, message, Label::NAMED, Some(help.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    const FILE: &str = "[site]\nname = \"a\"\n[lan]\ninterface = \"lo\"\nremote = [\"10.0.1.0/24\"]\n\
        [wan]\nlisten = \"10.9.0.1:14791\"\n[peer]\nname = \"b\"\naddress = \"10.9.0.2:14791\"\nrate = \"1 Gbit/s\"\n\
        [identity]\ncertificate = \"a.crt\"\nkey = \"a.key\"\nauthority = \"ca.crt\"\n\
        [admin]\nlisten = \"127.0.0.1:9464\"\ncertificate = \"admin.crt\"\nkey = \"admin.key\"\n";

    fn make(dir: &Path, names: &[&str], last_year: i32) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.join("admin.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        put_key(dir, &key.serialize_pem(), 0o600);
    }

    fn put_key(dir: &Path, text: &str, mode: u32) {
        let path = dir.join("admin.key");
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Returns true for a file that is usable, and each problem with its line.
    fn checked(dir: &Path, hosts: &str) -> (bool, Vec<(String, usize)>) {
        let path = dir.join("gateway.toml");
        fs::write(&path, format!("{FILE}{hosts}")).unwrap();
        let mut report = config::check(&path);
        let gateway = crate::check::gateway_of(&report).unwrap().0;
        check(&mut report, &gateway, UnixTime::now());
        let line = |problem: &config::Problem| problem.position().unwrap().0;
        let found = report.problems().iter().map(|problem| (problem.message().to_owned(), line(problem)));
        (report.is_valid(), found.collect())
    }

    #[test]
    fn a_gateway_that_would_answer_nobody_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        let (without, _) = FILE.split_once("[admin]").unwrap();
        let told = |section: &str| {
            fs::write(&path, format!("{without}{section}")).unwrap();
            let mut report = config::check(&path);
            let gateway = crate::check::gateway_of(&report).unwrap().0;
            check(&mut report, &gateway, UnixTime::now());
            let found = report.problems().iter().map(|problem| {
                let help = problem.remedy().unwrap_or_default().to_owned();
                (problem.is_error(), problem.message().to_owned(), help)
            });
            found.collect::<Vec<_>>()
        };
        let found = told("");
        assert!(
            found.len() == 1 && !found[0].0 && found[0].1.starts_with("there is no [admin]"),
            "{found:?}"
        );
        for remedy in ["listen = \"127.0.0.1:9464\"", "socket = \"/run/longhaul/admin.sock\""] {
            assert!(found[0].2.contains(remedy), "{found:?}");
        }
        assert_eq!(told("[admin]\nlisten = \"127.0.0.1:9464\"\n"), []);
        assert_eq!(told("[admin]\nsocket = \"a.sock\"\n"), []);
    }

    #[test]
    fn names_and_times_are_warnings() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        make(dir, &["127.0.0.1", "gw.example"], 2500);
        assert_eq!(checked(dir, "hosts = [\"gw.example\"]\n"), (true, Vec::new()));
        assert_eq!(checked(dir, ""), (true, Vec::new()));
        let (is_valid, found) = checked(dir, "hosts = [\"gw.example\", \"other.example\"]\n");
        assert!(is_valid && found.len() == 1 && found[0].0.ends_with("not for other.example"), "{found:?}");
        make(dir, &["gw.example"], 1999);
        let (is_valid, found) = checked(dir, "");
        assert!(is_valid && found.len() == 2, "{found:?}");
        assert!(found[0].0.contains("expired at 1999-01-01") && found[0].1 == 18, "{found:?}");
        assert!(found[1].0.contains("is not for 127.0.0.1"), "{found:?}");
    }

    #[test]
    fn a_token_and_a_socket_that_no_gateway_could_use_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        make(dir, &["127.0.0.1"], 2500);
        let put = |text: &str, mode: u32| {
            fs::write(dir.join("tok"), text).unwrap();
            fs::set_permissions(dir.join("tok"), Permissions::from_mode(mode)).unwrap();
        };
        put("0123456789abcdef\n", 0o600);
        assert_eq!(checked(dir, "token = \"tok\"\nsocket = \"a.sock\"\n"), (true, Vec::new()));
        let missing = "no such file".to_owned();
        let long = format!("{}.sock", "s".repeat(120));
        for (keys, is_valid, wanted) in [
            ("token = \"none\"".to_owned(), false, missing),
            (format!("socket = \"{long}\""), false, "no socket can have a path".to_owned()),
            ("socket = \"none/a.sock\"".to_owned(), true, "there is no folder".to_owned()),
        ] {
            let (is_usable, found) = checked(dir, &format!("{keys}\n"));
            assert_eq!((is_usable, found.len()), (is_valid, 1), "{keys}: {found:?}");
            assert!(found[0].0.to_lowercase().contains(&wanted) && found[0].1 == 20, "{keys}: {found:?}");
        }
        for (text, mode, is_valid, wanted) in [
            ("short", 0o600, false, "16 to 256 visible ASCII characters"),
            ("0123456789abcdef", 0o666, true, "others may read it (mode 0666)"),
        ] {
            put(text, mode);
            let (is_usable, found) = checked(dir, "token = \"tok\"\n");
            assert_eq!((is_usable, found.len()), (is_valid, 1), "{found:?}");
            assert!(found[0].0.contains(wanted), "{found:?}");
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_errors_at_their_key() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let one = |wanted: &str, line: usize| {
            let (is_valid, found) = checked(dir, "");
            assert!(!is_valid && found.len() == 1, "{found:?}");
            assert!(found[0].0.contains(wanted) && found[0].1 == line, "{found:?}");
        };
        one("admin.crt", 18);
        make(dir, &["127.0.0.1"], 2500);
        let key = fs::read_to_string(dir.join("admin.key")).unwrap();
        put_key(dir, &key, 0o604);
        one("others may read it (mode 0604)", 19);
        put_key(dir, &format!("\u{feff}{key}"), 0o600);
        one("begins with a byte order mark", 19);
        put_key(dir, &KeyPair::generate().unwrap().serialize_pem(), 0o600);
        one("certificate and key cannot be used", 18);
    }
}
