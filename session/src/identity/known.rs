//! Clients that know a server's certificate itself, rather than who signed it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{IdentityError, provider, validity};

/// Trusts certificates that are known byte for byte, and what the chain's verifier trusts.
///
/// A certificate that is its own authority and says so (`CA:TRUE`, as `openssl req -x509` makes
/// them) ends no chain. Who has it from its owner needs none.
#[derive(Debug)]
pub(super) struct KnownVerifier {
    known: Vec<CertificateDer<'static>>,
    /// `None`: nothing but a known certificate will do, for whatever name.
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl KnownVerifier {
    /// Trusts these certificates for the names that they have, and whatever they signed.
    pub(super) fn of_authority(
        known: Vec<CertificateDer<'static>>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, IdentityError> {
        let chain = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
        Ok(Self { chain: Some(chain), ..Self::with(known) })
    }

    /// Trusts the server with the first of these, by whatever name it is asked, and nobody else.
    pub(super) fn of_server(mut known: Vec<CertificateDer<'static>>) -> Self {
        known.truncate(1);
        Self::with(known)
    }

    fn with(known: Vec<CertificateDer<'static>>) -> Self {
        Self { known, chain: None, algorithms: provider().signature_verification_algorithms }
    }
}

/// Returns true if a server's certificate was refused since it says that it is an authority's.
pub(super) fn is_for_an_authority(refused: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = refused else {
        return false;
    };
    matches!(why.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for KnownVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_known = self.known.iter().any(|known| known == end_entity);
        match &self.chain {
            None if is_known => Ok(ServerCertVerified::assertion()),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
            Some(chain) => {
                let refused =
                    match chain.verify_server_cert(end_entity, intermediates, name, ocsp_response, now) {
                        Err(refused) if is_known => refused,
                        judged => return judged,
                    };
                // All else must be in order.
                if !is_for_an_authority(&refused) {
                    return Err(refused);
                }
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                match validity::earliest_end(std::slice::from_ref(end_entity)) {
                    Some(end) if now <= end => Ok(ServerCertVerified::assertion()),
                    _ => Err(CertificateError::Expired.into()),
                }
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
