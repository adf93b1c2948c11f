//! Certificates for tests.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::identity::Identity;

/// Sites a, b and c of one authority, made once; in `other/`, site a of another authority. Of the
/// first authority also, for a and b: in `renewed/`, further certificates; in `expired/` and
/// `early/`, some of the past and of the future.
pub(crate) fn certificates() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let authority = make_authority(dir.path());
        make_certificates(dir.path(), &["a", "b", "c"], &authority, ALWAYS);
        let other = dir.path().join("other");
        make_certificates(&other, &["a"], &make_authority(&other), ALWAYS);
        for (name, years) in [("renewed", ALWAYS), ("expired", [1980, 1990]), ("early", [2200, 2300])] {
            let of_time = dir.path().join(name);
            std::fs::create_dir_all(&of_time).unwrap();
            std::fs::copy(dir.path().join("ca.crt"), of_time.join("ca.crt")).unwrap();
            make_certificates(&of_time, &["a", "b"], &authority, years);
        }
        dir
    });
    dir.path()
}

/// The first and the last year that a certificate is valid in.
const ALWAYS: [i32; 2] = [1975, 4096];

fn write(dir: &Path, file: String, text: String) {
    let path = dir.join(file);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn make_authority(dir: &Path) -> Issuer<'static, KeyPair> {
    std::fs::create_dir_all(dir).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    write(dir, "ca.crt".to_owned(), params.self_signed(&key).unwrap().pem());
    Issuer::new(params, key)
}

/// Makes a certificate and a key of each site, in files that [`Identity::load`] takes.
fn make_certificates(dir: &Path, sites: &[&str], authority: &Issuer<'_, KeyPair>, years: [i32; 2]) {
    for site in sites {
        let mut params = CertificateParams::new([(*site).to_owned()]).unwrap();
        [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        write(dir, format!("{site}.crt"), params.signed_by(&key, authority).unwrap().pem());
        write(dir, format!("{site}.key"), key.serialize_pem());
    }
}

/// Loads the files of `site` in `dir`.
pub(crate) fn identity(dir: &Path, site: &str) -> Identity {
    Identity::load(&dir.join(format!("{site}.crt")), &dir.join(format!("{site}.key")), &dir.join("ca.crt"))
        .unwrap()
}
