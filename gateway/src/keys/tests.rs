use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn run(dir: &Path, sites: &[&str], force: bool) -> Result<Summary, KeysError> {
    generate(&Request { dir, sites: &names(sites), force })
}

fn identity(dir: &Path, site: &str) -> Identity {
    Identity::load(&dir.join(format!("{site}.crt")), &dir.join(format!("{site}.key")), &dir.join("ca.crt"))
        .unwrap()
}

fn content(dir: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// Certificates of a machine whose clock is not set would be expired on the day when it is.
#[test]
fn nothing_is_made_by_a_clock_that_is_not_set() {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let refused = today(at(86_400)).unwrap_err().to_string();
    assert!(refused.contains("clock says 1970-01-02T00:00:00Z: set it first"), "{refused}");
    assert!(today(SystemTime::UNIX_EPOCH - DAY).is_err());
    assert_eq!(today(at(YOUNGEST)).unwrap().as_secs(), YOUNGEST);
}

#[test]
fn makes_an_authority_and_a_certificate_per_site() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("keys");
    let summary = run(&dir, &["a", "b.example"], false).unwrap();
    assert_eq!(summary.authority.outcome, Outcome::Created);
    let outcomes: Vec<_> =
        summary.sites.iter().map(|site| (site.name.as_str(), site.files.outcome)).collect();
    assert_eq!(outcomes, [("a", Outcome::Created), ("b.example", Outcome::Created)]);
    let made: Vec<_> = content(&dir).into_keys().collect();
    assert_eq!(made, ["a.crt", "a.key", "b.example.crt", "b.example.key", "ca.crt", "ca.key"]);
    for (name, mode) in [("ca.key", 0o600), ("a.key", 0o600), ("b.example.key", 0o600)] {
        assert_eq!(std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
    }
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    identity(&dir, "a").verify("a", Role::Dialer, UnixTime::now()).unwrap();
    identity(&dir, "b.example").verify("b.example", Role::Dialer, UnixTime::now()).unwrap();
    assert!(matches!(
        identity(&dir, "a").verify("b.example", Role::Dialer, UnixTime::now()),
        Err(IdentityError::Own { .. })
    ));
}

#[test]
fn certificates_are_valid_for_years_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["a"], false).unwrap();
    let identity = identity(dir.path(), "a");
    let now = UnixTime::now().as_secs();
    let at = |secs| identity.verify("a", Role::Dialer, UnixTime::since_unix_epoch(Duration::from_secs(secs)));
    let year = 365 * DAY.as_secs();
    at(now - DAY.as_secs() / 2).unwrap();
    at(now + 9 * year).unwrap();
    assert!(matches!(at(now - 2 * DAY.as_secs()), Err(IdentityError::NotYetValid { .. })));
    assert!(matches!(at(now + 11 * year), Err(IdentityError::Expired { .. })));
}

#[test]
fn keeps_the_authority_and_never_overwrites_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["a"], false).unwrap();
    let before = content(dir);
    assert!(
        matches!(run(dir, &["b", "a"], false), Err(KeysError::Exists(path)) if path == dir.join("a.crt"))
    );
    assert_eq!(content(dir), before, "a refused request makes nothing");

    let summary = run(dir, &["b"], false).unwrap();
    assert_eq!(summary.authority.outcome, Outcome::Kept);
    assert_eq!(content(dir)["ca.crt"], before["ca.crt"]);
    identity(dir, "b").verify("b", Role::Dialer, UnixTime::now()).unwrap();

    let summary = run(dir, &["a"], true).unwrap();
    assert_eq!(
        (summary.authority.outcome, summary.sites[0].files.outcome),
        (Outcome::Kept, Outcome::Replaced)
    );
    let after = content(dir);
    assert_eq!(after["ca.key"], before["ca.key"]);
    assert_ne!(after["a.key"], before["a.key"]);
    assert_eq!(after.len(), 6, "nothing is left beside the files: {:?}", after.keys());
    identity(dir, "a").verify("a", Role::Dialer, UnixTime::now()).unwrap();
    assert_eq!(std::fs::metadata(dir.join("a.key")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn refuses_names_that_are_no_site_names() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", ".", "..", "a/b", "../a", "a b", "10.0.0.1", "::1", "a.", "*.a", "ä"] {
        assert!(matches!(run(dir.path(), &[name], false), Err(KeysError::Name(_))), "{name:?}");
    }
    assert!(matches!(run(dir.path(), &["CA"], false), Err(KeysError::Reserved)));
    assert!(matches!(run(dir.path(), &["a", "A"], false), Err(KeysError::Duplicate(_))));
    assert!(content(dir.path()).is_empty());
}

#[test]
fn refuses_a_damaged_authority() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["a"], false).unwrap();
    let other = tempfile::tempdir().unwrap();
    run(other.path(), &[], false).unwrap();

    std::fs::copy(other.path().join("ca.key"), dir.join("ca.key")).unwrap();
    assert!(
        matches!(run(dir, &["b"], false), Err(KeysError::Refused(_))),
        "key and certificate of two authorities"
    );
    std::fs::write(dir.join("ca.key"), "no key").unwrap();
    assert!(matches!(run(dir, &["b"], false), Err(KeysError::Authority { .. })));
    std::fs::remove_file(dir.join("ca.key")).unwrap();
    assert!(
        matches!(run(dir, &["b"], false), Err(KeysError::HalfAuthority(path)) if path == dir.join("ca.key"))
    );
    assert!(!dir.join("b.crt").exists() && !dir.join("b.key").exists());
}
