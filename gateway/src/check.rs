//! `longhaul check`: what `config` checks, and what only a machine with the files and interfaces
//! can tell.

mod listener;
pub mod live;
mod outcome;

use std::io::ErrorKind;
use std::path::Path;

use config::{Content, Gateway, Label, LanMode, Policy, Report};
use rustls_pki_types::UnixTime;
use session::identity::{Date, Identity, IdentityError, IdentityFile};
use session::schedule::Role;

use crate::lan::rdma;
use crate::lan::usable::{self, Fault};
pub use crate::problems::CheckedProblem;
use crate::renewal::{SOON, identity_remedy, linked};
use crate::retention::{NoRetention, wants_retention};
use live::{Finding, Machine, Running, judge};

pub use outcome::{CheckedClass, CheckedFile, FileKind};

/// Checks a gateway or policy file. Beyond [`config::check`], a gateway file's certificate, key and
/// authority have to be there, be usable and prove the site's name. A missing interface is a
/// warning: it may appear before the gateway starts.
pub fn check(path: &Path) -> Report {
    let mut report = config::check(path);
    if let Some((gateway, _)) = gateway_of(&report) {
        identity(&mut report, &gateway, |_| false);
        listener::check(&mut report, &gateway, UnixTime::now());
        interface(&mut report, &gateway, Path::new(rdma::SYS));
    }
    report
}

/// Checks the file of a gateway that is about to start, as [`config::check`] has read it. What may
/// come later is a warning: an interface, an address, a clock that is not set yet.
pub fn check_to_start(report: Report) -> Report {
    check_beside(report, |error| matches!(error, IdentityError::NotYetValid { .. }))
}

/// Checks the file of a gateway that is to go on as it is, as [`config::check`] has read it. An
/// expired certificate is a warning too, since it ends no session.
pub fn check_to_stay(report: Report) -> Report {
    check_beside(report, IdentityError::is_of_time)
}

fn check_beside(mut report: Report, is_warning: fn(&IdentityError) -> bool) -> Report {
    if let Some((gateway, policy)) = gateway_of(&report) {
        identity(&mut report, &gateway, is_warning);
        listener::check(&mut report, &gateway, UnixTime::now());
        // What outlives the process and ports are opened next, and told of then.
        let without_later = |machine| Machine { retention: None, at_risk: Vec::new(), ..machine };
        let machine = Machine::look(&gateway).map(without_later);
        for finding in findings(&gateway, &policy, machine).unwrap_or_default() {
            // Nothing guards before the start.
            if finding.key != "lan.remote" || finding.is_error {
                add(&mut report, Severity::Warning, finding);
            }
        }
    }
    report
}

/// Checks a file as [`check`] does, and besides asks this machine. `running` asks a gateway of the
/// file about the peer that it is given, if one runs.
pub fn check_live(path: &Path, running: &dyn Fn(&Gateway) -> Running) -> Report {
    let mut report = config::check(path);
    if let Some((gateway, policy)) = gateway_of(&report) {
        identity(&mut report, &gateway, |_| false);
        listener::check(&mut report, &gateway, UnixTime::now());
        let machine = Machine::look(&gateway).map(|machine| Machine {
            running: gateway.views().iter().map(running).collect(),
            held: live::held(&gateway),
            ..machine
        });
        match findings(&gateway, &policy, machine) {
            Ok(findings) => {
                for finding in findings {
                    let severity = if finding.is_error { Severity::Error } else { Severity::Warning };
                    add(&mut report, severity, finding);
                }
            }
            Err(error) => {
                let message = format!("this machine does not tell its network configuration: {error}");
                report.error_at("lan", message, "", None);
            }
        }
    }
    report
}

/// Compares two gateway files of a pair: each site's certificate has to be one that the other's
/// authority vouches for. Nothing is said where one of them cannot be used by itself, or a key is
/// on another machine.
pub fn check_trust(first: &Report, second: &mut Report) {
    let Some(((there, _), (here, _))) = gateway_of(first).zip(gateway_of(second)) else { return };
    let names = |from: &Gateway, to: &Gateway| from.peers().any(|peer| peer.name == to.site.name);
    if !names(&there, &here) || !names(&here, &there) {
        return;
    }
    for (holder, judge, is_here) in [(&there, &here, true), (&here, &there, false)] {
        let (files, name) = (&holder.identity, &holder.site.name);
        let is_proven = |authority: &Path| {
            let identity = Identity::load(&files.certificate, &files.key, authority);
            let role = Role::of(name, &judge.site.name);
            identity.and_then(|identity| identity.verify(name, role, UnixTime::now())).is_ok()
        };
        if !is_proven(&files.authority) || is_proven(&judge.identity.authority) {
            continue;
        }
        let help = "all sites need certificates of one authority: `longhaul keys --dir DIR NAME` signs by that in DIR";
        let key = if is_here { "identity.authority" } else { "identity.certificate" };
        let message =
            format!("the certificate of `{name}` is not of the authority that `{}` trusts", judge.site.name);
        second.error_at(
            key,
            message,
            Label::Place(format!("compared with {}", first.path().display()).into()),
            Some(help.to_owned()),
        );
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

fn gateway_of(report: &Report) -> Option<(Gateway, Policy)> {
    match report.content() {
        Some(Content::Gateway(gateway, policy)) => Some(((**gateway).clone(), policy.clone())),
        _ => None,
    }
}

fn findings(
    gateway: &Gateway,
    policy: &Policy,
    machine: std::io::Result<Machine>,
) -> std::io::Result<Vec<Finding>> {
    let most_memory = crate::run::most_memory(gateway, policy);
    let mut machine = machine?;
    // Whoever checks does not have the environment of the gateway that runs, which says where.
    let is_known = machine.retention == Some(NoRetention::Nowhere) && all_retain(&machine.running);
    machine.retention = machine.retention.filter(|_| !is_known && retains(gateway, policy));
    Ok(judge(gateway, most_memory, &machine))
}

/// Returns true if a gateway that runs retains what it is to, towards every peer.
fn all_retain(running: &[Running]) -> bool {
    let told = || running.iter().filter_map(|running| running.retains);
    told().next().is_some() && told().all(|retains| retains)
}

/// Returns true if a class towards any peer is to outlive the process by what is retained.
fn retains(gateway: &Gateway, policy: &Policy) -> bool {
    gateway.views().iter().any(|view| match view.policy == gateway.policy {
        true => wants_retention(policy),
        false => view.load_policy().is_ok_and(|own| wants_retention(&own)),
    })
}

fn add(report: &mut Report, severity: Severity, finding: Finding) {
    let place = finding.place();
    let Finding { message, label, help, .. } = finding;
    match severity {
        Severity::Error => report.error_at(&place, message, label, Some(help)),
        Severity::Warning => report.warning_at(&place, message, label, Some(help)),
    }
}

/// Checks certificate, key and authority. `is_warning`: errors that keep the gateway from nothing.
fn identity(report: &mut Report, gateway: &Gateway, is_warning: fn(&IdentityError) -> bool) {
    let files = &gateway.identity;
    let mut missing = false;
    for (key, file) in [
        ("identity.certificate", &files.certificate),
        ("identity.key", &files.key),
        ("identity.authority", &files.authority),
    ] {
        missing |= !opens(report, key, file);
    }
    if missing {
        return;
    }
    let now = UnixTime::now();
    let outcome = Identity::load(&files.certificate, &files.key, &files.authority).and_then(|identity| {
        for peer in gateway.peers() {
            identity.verify(&gateway.site.name, Role::of(&gateway.site.name, &peer.name), now)?;
        }
        Ok(identity.valid_until())
    });
    if let Ok(Some(until)) = outcome
        && until.as_secs() < now.as_secs() + SOON.as_secs()
    {
        let message = format!("the certificate, or one above it, expires at {}", Date(until));
        let help =
            "`longhaul keys --dir DIR --force NAME` makes a site's certificate and key anew".to_owned();
        report.warning_at("identity.certificate", message, Label::NAMED, Some(help));
    }
    if let Err(error) = outcome {
        let help = identity_remedy(&error);
        match error {
            _ if is_warning(&error) => {
                report.warning_at("identity.certificate", error.to_string(), Label::NAMED, Some(help));
            }
            _ => report.error_at(blamed(&error), error.to_string(), Label::NAMED, Some(help)),
        }
    }
}

/// Where systemd puts what `LoadCredential=` names.
const CREDENTIALS: &str = "/run/credentials";

/// Returns whether a file that a key names can be opened, and says so if it cannot.
fn opens(report: &mut Report, key: &str, file: &Path) -> bool {
    // Opening a pipe would wait for whoever writes it.
    let is_pipe = std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file());
    let Err(error) = (if is_pipe { Ok(()) } else { std::fs::File::open(file).map(drop) }) else {
        return true;
    };
    let help = match linked(file) {
        Some(target) => {
            format!("it is a link to {}: make that readable, or name another file", target.display())
        }
        // systemd 252 and 257 hide it from the unit's reload commands: permission denied.
        None if file.starts_with(CREDENTIALS) => {
            "systemd hands it over only while the unit runs, so a check before its start does not find it; it may \
             hide it from `systemctl reload`: then `systemctl restart` starts a new program or takes a new key"
                .to_owned()
        }
        None if error.kind() == ErrorKind::PermissionDenied => {
            let path = file.display();
            format!(
                "this process's user may not read it: `chgrp GROUP {path}; chmod g+r {path}` with its group (longhaul of \
                 the packaged unit), which has to be let into the folder, too"
            )
        }
        // A path that leads elsewhere is absolute.
        None if file.is_absolute()
            && !report.path().parent().is_some_and(|folder| file.starts_with(folder)) =>
        {
            "put the file there, or name another one; `longhaul keys` makes all three".to_owned()
        }
        None => "the path is relative to this file's folder; `longhaul keys` makes all three".to_owned(),
    };
    let message = format!("cannot open {}: {error}", file.display());
    report.error_at(key, message, Label::NAMED, Some(help));
    false
}

/// The key that names the file an error is about.
fn blamed(error: &IdentityError) -> &'static str {
    match error.file() {
        Some(IdentityFile::Certificate) => "identity.certificate",
        Some(IdentityFile::Key) => "identity.key",
        Some(IdentityFile::Authority) => "identity.authority",
        None if matches!(error, IdentityError::Name(_)) => "site.name",
        // The key is another certificate's: either may be the wrong one.
        None => "identity.certificate",
    }
}

/// `sys`: where the kernel tells of RDMA devices.
fn interface(report: &mut Report, gateway: &Gateway, sys: &Path) {
    let LanMode::Packet { interface } = &gateway.lan.mode else { return };
    if let Ok(Some(fault @ Fault::Gone)) = usable::look(&gateway.lan, interface) {
        let help = Some(fault.remedy(interface));
        report.warning_at("lan.interface", fault.text(interface), Label::NAMED, help);
    }
    for device in rdma::taken_in(sys, interface).into_keys() {
        report.warning_at("lan.interface", device.warning(), Label::NAMED, Some(device.remedy));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use config::Rate;

    use super::*;
    use crate::init::{init, tests::site};
    use crate::keys;

    fn gateway_file(folder: &Path, site: &str, interface: &str) -> std::path::PathBuf {
        let path = folder.join("gateway.toml");
        let text = format!(
            "[site]\nname = \"{site}\"\n[lan]\ninterface = \"{interface}\"\nremote = [\"10.0.1.0/24\"]\n\
             [wan]\nlisten = \"10.9.0.1:14791\"\n[peer]\nname = \"b\"\naddress = \"10.9.0.2:14791\"\nrate = \"1 Gbit/s\"\n\
             [identity]\ncertificate = \"a.crt\"\nkey = \"a.key\"\nauthority = \"ca.crt\"\n\
             [admin]\nsocket = \"a.sock\"\n"
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
        assert_eq!(messages(&report), ["there is no interface no-such-if0"]);
        assert_eq!(report.problems()[0].position(), Some((4, 13)));

        let report = check(&gateway_file(folder.path(), "c", "lo"));
        assert!(!report.is_valid());
        assert_eq!(report.problems()[0].position(), Some((13, 15)));

        let key = folder.path().join("a.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o604)).unwrap();
        let report = check(&gateway_file(folder.path(), "a", "lo"));
        assert_eq!(report.problems()[0].position(), Some((14, 7)), "{:?}", messages(&report));
        assert!(messages(&report)[0].contains("others may read it (mode 0604)"), "{:?}", messages(&report));
        // Of a link it is the file behind it that wants another mode.
        let behind = folder.path().join("behind");
        fs::rename(&key, &behind).unwrap();
        std::os::unix::fs::symlink("behind", &key).unwrap();
        let remedy = |report: &Report| report.problems()[0].remedy().unwrap().to_owned();
        let help = remedy(&check(&gateway_file(folder.path(), "a", "lo")));
        let behind_it = fs::canonicalize(&behind).unwrap();
        assert!(help.contains(&format!("`chmod o= {}`, to which", behind_it.display())), "{help}");
        fs::rename(&behind, folder.path().join("away")).unwrap();
        let help = remedy(&check(&gateway_file(folder.path(), "a", "lo")));
        assert!(help.contains(&format!("it is a link to {}: ", behind.display())), "{help}");
        fs::rename(folder.path().join("away"), &behind).unwrap();
        fs::remove_file(&key).unwrap();
        fs::rename(&behind, &key).unwrap();
        // A group is the operator's choice.
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(check(&gateway_file(folder.path(), "a", "lo")).is_valid());

        fs::write(&key, "no key").unwrap();
        let report = check(&gateway_file(folder.path(), "a", "lo"));
        assert_eq!(report.problems()[0].position(), Some((14, 7)), "{:?}", messages(&report));
    }

    /// The environment of whoever checks says nothing of where a gateway retains.
    #[test]
    fn a_running_gateway_knows_whether_it_retains() {
        let all = |peers: &[Option<bool>]| {
            let running = peers.iter().map(|retains| Running { retains: *retains, ..Running::default() });
            all_retain(&running.collect::<Vec<_>>())
        };
        assert!(all(&[Some(true)]) && all(&[None, Some(true)]));
        assert!(!all(&[]) && !all(&[None]) && !all(&[Some(true), Some(false)]));
    }

    /// One that takes the LAN's packets is told of wherever the file is checked.
    #[test]
    fn an_rdma_device_on_the_interface_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = gateway_file(folder.path(), "a", "lo");
        let told = || {
            let mut report = config::check(&path);
            let (gateway, _) = gateway_of(&report).unwrap();
            interface(&mut report, &gateway, folder.path());
            messages(&report).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(told(), [""; 0]);
        rdma::tests::device(folder.path(), "mlx5_0", &["lo"], &[]);
        assert_eq!(
            told(),
            ["the RDMA device mlx5_0 on lo may take RoCE packets before the gateway sees them"]
        );
    }

    /// A path that leads out of the file's folder is not relative to it.
    #[test]
    fn the_remedy_for_a_missing_file_fits_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = gateway_file(folder.path(), "a", "lo");
        let help = |key: &str| {
            let text = fs::read_to_string(&path).unwrap().replace("\"a.key\"", &format!("\"{key}\""));
            let other = folder.path().join("other.toml");
            fs::write(&other, text).unwrap();
            check(&other).problems()[1].remedy().unwrap().to_owned()
        };
        assert!(help("a.key").starts_with("the path is relative to "));
        assert!(help("/no-such/a.key").starts_with("put the file there, "));
        assert!(help("/run/credentials/longhaul.service/a.key").contains("only while the unit runs"));
    }

    /// The value found stands apart from the remedy: the file's words, or the machine's, also of a
    /// key that is not written.
    #[test]
    fn findings_have_what_was_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = gateway_file(folder.path(), "a", "no-such-if0");
        let sites = ["a".to_owned(), "b".to_owned()];
        keys::generate(&keys::Request { dir: folder.path(), sites: &sites, force: false }).unwrap();
        let found = |report: &Report, message: &str| {
            let problems = CheckedFile::new(report).problems;
            let problem = problems.into_iter().find(|problem| problem.message.contains(message));
            problem.unwrap_or_else(|| panic!("no {message}: {:?}", messages(report))).found
        };
        let report = check(&path);
        assert_eq!(found(&report, "there is no interface").as_deref(), Some("\"no-such-if0\""));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"1 Gbit/s\"", "\"fast\"")).unwrap();
        assert_eq!(found(&check(&path), "peer.rate").as_deref(), Some("\"fast\""));
        fs::write(&path, &text).unwrap();
        let mut report = check(&path);
        // The key has its default.
        report.warning_at("limits.total_buffer", "too much", "it has 1 GiB", Some("less".to_owned()));
        assert_eq!(found(&report, "too much").as_deref(), Some("it has 1 GiB"));
        let shown = config::render(report.problems(), config::Style::Plain);
        assert!(shown.contains("too much: it has 1 GiB"), "{shown}");
    }

    /// It is a warning, at its key, and none where no class needs the memory.
    #[test]
    fn memory_that_outlives_the_process_is_told_of_where_a_class_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = gateway_file(folder.path(), "a", "lo");
        let text = fs::read_to_string(&path).unwrap();
        let told = |section: &str| {
            fs::write(&path, format!("{text}[policy]\nfile = \"policy.toml\"\n{section}")).unwrap();
            let report = check_live(&path, &|_| Running::default());
            let is_it = |problem: &&config::Problem| problem.message().starts_with("long messages end");
            report.problems().iter().find(is_it).map(|it| (it.is_error(), it.position()))
        };
        let policy = |survive: &str| {
            let class = format!("[[class]]\nname = \"default\"\nscheme = \"sr\"\nsurvive = \"{survive}\"\n");
            fs::write(folder.path().join("policy.toml"), class).unwrap();
        };
        let missing = "[retention]\ndirectory = \"missing\"\n";
        let full = "[retention]\nsize = \"1 TiB\"\ndirectory = \"/dev/shm\"\n";
        policy("process");
        assert_eq!(told(missing), Some((false, Some((21, 13)))));
        assert_eq!(told(full), Some((false, Some((21, 8)))));
        for other in ["session", "gateway"] {
            policy(other);
            assert_eq!(told(missing), None, "{other}");
        }
    }

    /// A file that is named in another's place is blamed where it is named.
    #[test]
    fn files_in_each_others_places_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let sites = ["a".to_owned(), "b".to_owned()];
        keys::generate(&keys::Request { dir: folder.path(), sites: &sites, force: false }).unwrap();
        let path = gateway_file(folder.path(), "a", "lo");
        let text = fs::read_to_string(&path).unwrap();
        fs::copy(folder.path().join("a.crt"), folder.path().join("copy.crt")).unwrap();
        for (right, wrong, line) in [
            ("certificate = \"a.crt\"", "certificate = \"a.key\"", 13),
            ("key = \"a.key\"", "key = \"a.crt\"", 14),
            ("authority = \"ca.crt\"", "authority = \"a.crt\"", 15),
            ("authority = \"ca.crt\"", "authority = \"a.key\"", 15),
            ("authority = \"ca.crt\"", "authority = \"copy.crt\"", 15),
            ("key = \"a.key\"", "key = \"ca.crt\"", 14),
        ] {
            fs::write(&path, text.replace(right, wrong)).unwrap();
            let report = check(&path);
            let told = report.problems()[0].position().map(|(line, _)| line);
            assert_eq!(told, Some(line), "{wrong}: {:?}", messages(&report));
        }
    }

    /// Checks the file of site a, whose certificate is this site's, signs itself, and ends in so
    /// many days.
    fn check_signing_itself(folder: &Path, site: &str, days: u64) -> Report {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([site.to_owned()]).unwrap();
        params.not_after = (SystemTime::now() + Duration::from_secs(days * 86_400)).into();
        fs::write(folder.join("a.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        let place = folder.join("a.key");
        fs::write(&place, key.serialize_pem()).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
        let path = gateway_file(folder, "a", "lo");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"ca.crt\"", "\"a.crt\"")).unwrap();
        check(&path)
    }

    /// While there is time to make another one.
    #[test]
    fn a_certificate_that_expires_soon_is_told_with_its_end() {
        let folder = tempfile::tempdir().unwrap();
        for (days, is_told) in [(31, false), (29, true)] {
            let report = check_signing_itself(folder.path(), "a", days);
            assert!(report.is_valid(), "{days}: {:?}", messages(&report));
            let [told] = report.problems() else {
                assert!(!is_told, "{days}: {:?}", messages(&report));
                assert_eq!(messages(&report), [""; 0], "{days}");
                continue;
            };
            assert!(is_told && told.message().contains("expires at 2"), "{days}: {:?}", messages(&report));
            assert_eq!(told.position(), Some((13, 15)));
            assert!(told.remedy().unwrap().contains("`longhaul keys "), "{:?}", told.remedy());
        }
    }

    /// One that signs itself is its own authority: what is wrong with it is its name.
    #[test]
    fn a_certificate_of_another_site_is_blamed_where_it_signs_itself() {
        let folder = tempfile::tempdir().unwrap();
        let report = check_signing_itself(folder.path(), "c", 365);
        let told = report.problems()[0].position().map(|(line, _)| line);
        assert_eq!(told, Some(13), "{:?}", messages(&report));
        assert!(messages(&report)[0].contains("does not prove that this gateway is `a`"));
    }

    #[test]
    fn sites_of_two_authorities_do_not_go_together() {
        let made = || {
            let folder = tempfile::tempdir().unwrap();
            let sites = [site("a", "10.9.0.1", "10.0.0.0/24"), site("b", "10.9.0.2", "10.0.1.0/24")];
            init(folder.path(), &sites, Rate::from_bits_per_second(1_000_000_000)).unwrap();
            folder
        };
        let (one, other) = (made(), made());
        for (dir, count) in [(one.path(), 0), (other.path(), 2)] {
            let mut second = check(&dir.join("b.toml"));
            assert!(second.is_valid(), "{:?}", messages(&second));
            check_trust(&check(&one.path().join("a.toml")), &mut second);
            assert_eq!(messages(&second).len(), count, "{:?}", messages(&second));
            assert!(messages(&second).iter().all(|message| message.contains("is not of the authority that")));
        }
    }
}
