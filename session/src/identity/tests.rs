use std::fs::Permissions;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::*;
use crate::test_certificates::{certificates, identity};

#[test]
fn a_serial_number_has_no_leading_zeros() {
    let number = SerialNumber::new(&[0, 0xab, 0x0d, 1]);
    assert_eq!(number, SerialNumber::new(&[0xab, 0x0d, 1]));
    assert_eq!(number.to_string(), "ab0d01");
    assert_eq!(SerialNumber::new(&[0]).to_string(), "00");
}

#[test]
fn what_is_no_certificate_has_no_serial_number() {
    let certificate = identity(certificates(), "a").certificate().cloned().unwrap();
    assert!(SerialNumber::of(&certificate).is_some());
    assert_eq!(SerialNumber::of(&CertificateDer::from(certificate[1..].to_vec())), None);
}

#[test]
fn a_certificate_proves_its_own_site_only() {
    let identity = identity(certificates(), "a");
    for role in [Role::Dialer, Role::Listener] {
        let verify = |site| identity.verify(site, role, UnixTime::now());
        verify("a").unwrap();
        assert!(matches!(verify("b"), Err(IdentityError::Own { .. })), "{role:?}");
        assert!(matches!(verify("10.0.0.1"), Err(IdentityError::Name(_))), "{role:?}");
    }
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key, authority] = ["a.crt", "a.key", "ca.crt"].map(|name| {
        let path = dir.path().join(name);
        std::fs::copy(certificates().join(name), &path).unwrap();
        path
    });
    for (mode, refused) in [(0o600, false), (0o640, false), (0o604, true)] {
        std::fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        match Identity::load(&certificate, &key, &authority) {
            Ok(_) => assert!(!refused, "{mode:o}"),
            Err(IdentityError::Exposed { mode: found, .. }) => assert_eq!((found, refused), (mode, true)),
            Err(other) => panic!("{mode:o}: {other}"),
        }
    }
}

/// A certificate and key of site a with these usages, valid between these years, and the
/// authority's file.
fn made(dir: &Path, usages: &[ExtendedKeyUsagePurpose], years: [i32; 2]) -> Identity {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    let path = dir.join("ca.crt");
    std::fs::write(&path, authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
    params.extended_key_usages = usages.to_vec();
    params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
    params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
    Identity::from_der(certificate, key.serialize_der(), &path).unwrap()
}

fn at(year: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600))
}

#[test]
fn a_certificate_is_judged_for_the_side_that_its_site_is() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let dir = tempfile::tempdir().unwrap();
    for (usages, dials, is_dialled) in [
        (vec![ServerAuth], false, true),
        (vec![ClientAuth], true, false),
        (vec![ClientAuth, ServerAuth], true, true),
        (vec![], true, true),
    ] {
        let identity = made(dir.path(), &usages, [2020, 2030]);
        for (role, good) in [(Role::Dialer, dials), (Role::Listener, is_dialled)] {
            match identity.verify("a", role, at(2025)) {
                Ok(()) => assert!(good, "{usages:?} {role:?}"),
                Err(IdentityError::Role { .. }) => assert!(!good, "{usages:?} {role:?}"),
                Err(other) => panic!("{usages:?} {role:?}: {other}"),
            }
        }
    }
}

#[test]
fn a_wrong_clock_is_told_with_both_times() {
    let dir = tempfile::tempdir().unwrap();
    let identity = made(dir.path(), &[], [2020, 2030]);
    assert_eq!(
        identity.valid_until().map(|end| Date(end).to_string()).as_deref(),
        Some("2030-01-01T00:00:00Z")
    );
    for role in [Role::Dialer, Role::Listener] {
        let early = identity.verify("a", role, at(1970)).unwrap_err();
        assert!(matches!(early, IdentityError::NotYetValid { .. }), "{early}");
        let text = early.to_string();
        assert!(
            text.contains("from 2020-01-01T00:00:00Z") && text.contains("clock says 1970-01-01"),
            "{text}"
        );
        let late = identity.verify("a", role, at(2031)).unwrap_err();
        assert!(matches!(late, IdentityError::Expired { .. }), "{late}");
        assert!(late.to_string().contains("2030-01-01T00:00:00Z"), "{late}");
    }
}

/// Files with the same content, or the same path, are told apart by what they were read as.
#[test]
fn an_error_says_which_file_it_is_about() {
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key, authority] = ["a.crt", "a.key", "ca.crt"].map(|name| certificates().join(name));
    let (empty, missing) = (dir.path().join("empty"), dir.path().join("missing"));
    std::fs::write(&empty, "").unwrap();
    std::fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
    for wrong in [&empty, &missing] {
        for (file, paths) in [
            (IdentityFile::Certificate, [wrong, &key, &authority]),
            (IdentityFile::Certificate, [wrong, wrong, wrong]),
            (IdentityFile::Key, [&certificate, wrong, &authority]),
            (IdentityFile::Key, [&certificate, wrong, wrong]),
            (IdentityFile::Authority, [&certificate, &key, wrong]),
        ] {
            let error = Identity::load(paths[0], paths[1], paths[2]).unwrap_err();
            assert_eq!(error.file(), Some(file), "{error}");
        }
    }
    let of = |authority: &Path| Identity::load(&certificate, &key, authority).unwrap();
    let judged = |identity: Identity| identity.verify("a", Role::Dialer, UnixTime::now()).unwrap_err().file();
    assert_eq!(judged(of(&certificate)), Some(IdentityFile::Authority));
    assert_eq!(judged(of(&certificates().join("b.crt"))), Some(IdentityFile::Certificate));
}

#[test]
fn keys_and_certificates_in_another_form_are_called_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read(certificates().join(name)).unwrap();
    let put = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (good_certificate, good_key) = (put("a.crt", &read("a.crt")), put("a.key", &read("a.key")));
    let authority = put("ca.crt", &read("ca.crt"));
    let load = |certificate: &Path, key: &Path| match Identity::load(certificate, key, &authority) {
        Ok(_) => None,
        Err(IdentityError::Form { form, .. }) => Some(form),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(load(&good_certificate, &good_key), None);
    let der = PrivateKeyDer::from_pem_slice(&read("a.key")).unwrap();
    let marked = [&[0xef, 0xbb, 0xbf], read("a.key").as_slice()].concat();
    let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIG=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (content, form) in [
        (der.secret_der(), Form::Der),
        (&marked, Form::ByteOrderMark),
        (encrypted, Form::Encrypted),
        (&read("a.crt"), Form::CertificateForKey),
        (&[0xff, 0xfe, b'-', 0], Form::Utf16),
    ] {
        assert_eq!(load(&good_certificate, &put("other", content)), Some(form));
    }
    let der = CertificateDer::from_pem_slice(&read("a.crt")).unwrap();
    for (content, form) in [(der.as_ref(), Form::Der), (&read("a.key"), Form::KeyForCertificate)] {
        assert_eq!(load(&put("other", content), &good_key), Some(form));
    }
    assert_eq!(load(dir.path(), &good_key), Some(Form::Special));
}

/// As long as it should be, and nothing in it is.
#[test]
fn garbage_in_pem_is_told_at_the_file_that_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = |name: &str, by: fn(usize, char) -> char| {
        let text = std::fs::read_to_string(certificates().join(name)).unwrap();
        let lines = text.lines().map(|line| match line.starts_with('-') {
            true => line.to_owned(),
            false => {
                line.chars().enumerate().map(|(place, c)| if c == '=' { c } else { by(place, c) }).collect()
            }
        });
        let path = dir.path().join(name);
        std::fs::write(&path, lines.map(|line| line + "\n").collect::<String>()).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let [certificate, key, authority] = ["a.crt", "a.key", "ca.crt"].map(|name| certificates().join(name));
    let changes: [fn(usize, char) -> char; 3] = [
        |_, _| 'A',
        |place, _| if place % 2 == 0 { 'z' } else { '7' },
        |place, c| if place > 20 { 'Q' } else { c },
    ];
    for by in changes {
        for (file, paths, form) in [
            (IdentityFile::Certificate, [&damaged("a.crt", by), &key, &authority], Form::DamagedCertificate),
            (IdentityFile::Key, [&certificate, &damaged("a.key", by), &authority], Form::DamagedKey),
            (IdentityFile::Authority, [&certificate, &key, &damaged("ca.crt", by)], Form::DamagedCertificate),
        ] {
            let error = Identity::load(paths[0], paths[1], paths[2]).unwrap_err();
            assert_eq!(error.file(), Some(file), "{error}");
            assert!(matches!(error, IdentityError::Form { form: told, .. } if told == form), "{error}");
        }
    }
}

#[test]
fn files_without_a_key_or_certificate_are_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (other, authority) = (dir.path().join("other"), certificates().join("ca.crt"));
    let [certificate, key] = ["a.crt", "a.key"].map(|name| certificates().join(name));
    for content in ["garbage\n", "", "-----BEGIN PUBLIC KEY-----\nMIG=\n-----END PUBLIC KEY-----\n"] {
        std::fs::write(&other, content).unwrap();
        std::fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        let no_key = Identity::load(&certificate, &other, &authority).unwrap_err().to_string();
        assert!(no_key.contains("holds no private key in PEM"), "{no_key}");
        let no_certificate = Identity::load(&other, &key, &authority).unwrap_err().to_string();
        assert!(no_certificate.contains("holds no certificate in PEM"), "{no_certificate}");
    }
}

#[test]
fn an_authoritys_certificate_as_the_sites_own_is_told() {
    let [key, authority] = ["a.key", "ca.crt"].map(|name| certificates().join(name));
    let identity = Identity::load(&authority, &key, &authority).unwrap();
    for role in [Role::Dialer, Role::Listener] {
        let error = identity.verify("a", role, UnixTime::now()).unwrap_err();
        assert!(matches!(error, IdentityError::AuthorityAsOwn { .. }), "{error}");
        assert_eq!(error.file(), Some(IdentityFile::Certificate));
    }
}

#[test]
fn the_key_of_another_certificate_is_told() {
    let [certificate, key, authority] = ["a.crt", "b.key", "ca.crt"].map(|name| certificates().join(name));
    let identity = Identity::load(&certificate, &key, &authority).unwrap();
    let error = identity.verify("a", Role::Dialer, UnixTime::now()).unwrap_err();
    assert!(error.is_mismatch(), "{error}");
    assert_eq!(error.to_string(), "certificate and key cannot be used: the key is another certificate's");
}
