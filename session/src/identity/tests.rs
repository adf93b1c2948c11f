use std::fs::Permissions;

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
    identity.verify("a", UnixTime::now()).unwrap();
    assert!(matches!(identity.verify("b", UnixTime::now()), Err(IdentityError::Own { .. })));
    assert!(matches!(identity.verify("10.0.0.1", UnixTime::now()), Err(IdentityError::Name(_))));
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
