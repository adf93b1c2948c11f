//! The receiver's certificate, made anew each time. Its sender finds it in a file.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::Error;

/// The name in it.
pub(super) const NAME: &str = "receiver";
/// The environment variable that says which file.
pub(crate) const FILE: &str = "COMPARE_CERTIFICATE";

/// Returns a new certificate and its key.
pub(super) fn generate() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Error> {
    let identity = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    Ok((identity.cert.der().clone(), key.into()))
}

/// Puts the certificate where the sender looks for it.
pub(super) fn publish(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    Ok(std::fs::write(std::env::var(FILE)?, certificate)?)
}

/// Returns the certificate as the only one that a sender trusts.
pub(super) fn trusted() -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(std::fs::read(std::env::var(FILE)?)?.into())?;
    Ok(Arc::new(roots))
}
