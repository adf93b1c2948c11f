//! Certificates for tests.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::identity::Identity;

/// Sites a, b and c of one authority, made once; in `other/`, site a of another authority.
pub(crate) fn certificates() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        make_certificates(dir.path(), &["a", "b", "c"]);
        make_certificates(&dir.path().join("other"), &["a"]);
        dir
    });
    dir.path()
}

/// Makes an authority and a certificate of each site, in files that [`Identity::load`] takes.
fn make_certificates(dir: &Path, sites: &[&str]) {
    std::fs::create_dir_all(dir).unwrap();
    let write = |file: String, text: String| {
        let path = dir.join(file);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    write("ca.crt".to_owned(), params.self_signed(&key).unwrap().pem());
    let authority = Issuer::new(params, key);
    for site in sites {
        let params = CertificateParams::new([(*site).to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        write(format!("{site}.crt"), params.signed_by(&key, &authority).unwrap().pem());
        write(format!("{site}.key"), key.serialize_pem());
    }
}

/// Loads the files of `site` in `dir`.
pub(crate) fn identity(dir: &Path, site: &str) -> Identity {
    Identity::load(&dir.join(format!("{site}.crt")), &dir.join(format!("{site}.key")), &dir.join("ca.crt"))
        .unwrap()
}
