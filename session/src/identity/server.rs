//! TLS towards clients that are no sites: certificate and key of a server that anybody may ask, and
//! what its clients trust.
//!
//! Only TLS 1.3, HTTP/1.1, no early data, no resumption.

use std::path::Path;
use std::sync::Arc;

use rustls::client::{Resumption, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::known::KnownVerifier;
use super::{
    IdentityError, IdentityFile, SerialNumber, provider, read_authority, read_certificates, read_key,
    validity,
};

/// The application protocol of HTTP over TLS (RFC 7301, 6).
const ALPN: &[u8] = b"http/1.1";

/// Where systems keep the authorities that all programs trust: Debian, Fedora, SUSE, Alpine.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificate chain and private key of a server.
#[derive(Debug)]
pub struct ServerIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ServerIdentity {
    /// Reads PEM files: the certificate with its chain, and the private key.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Form`], [`IdentityError::Exposed`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        Ok(Self { chain: read_certificates(certificate, IdentityFile::Certificate)?, key: read_key(key)? })
    }

    /// Returns the TLS configuration of the server, which asks clients for no certificate.
    ///
    /// # Errors
    /// [`IdentityError::Tls`]: the key is another certificate's, or TLS cannot use them.
    pub fn server_config(&self) -> Result<ServerConfig, IdentityError> {
        let mut tls = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.send_tls13_tickets = 0;
        Ok(tls)
    }

    /// Returns the server's certificate, without its chain.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// Returns the certificate's serial number.
    #[must_use]
    pub fn serial(&self) -> Option<SerialNumber> {
        self.certificate().and_then(SerialNumber::of)
    }

    /// Returns the ends of the validity of the certificate and of the chain above it: the earliest.
    #[must_use]
    pub fn valid_until(&self) -> Option<UnixTime> {
        validity::earliest_end(&self.chain)
    }

    /// Returns true if clients that ask for this host name or address get a certificate for it.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        let certificate = self.certificate().map(ParsedCertificate::try_from);
        matches!(certificate, Some(Ok(certificate)) if verify_server_name(&certificate, &name).is_ok())
    }
}

/// Returns the TLS configuration of a client that trusts the authorities in this PEM file.
///
/// A server with a certificate of that file is trusted as well, if the certificate is in order.
/// Without a file, the client trusts the system's authorities: of the file that `system` names, or
/// of the first that is there.
///
/// # Errors
/// See [`IdentityError`].
pub fn client_config(authority: Option<&Path>, system: Option<&Path>) -> Result<ClientConfig, IdentityError> {
    let (known, roots) = match authority {
        Some(path) => (read_certificates(path, IdentityFile::Authority)?, read_authority(path)?.roots),
        None => (Vec::new(), Arc::new(system_roots(system)?)),
    };
    client(KnownVerifier::of_authority(known, roots)?)
}

/// Returns the TLS configuration of a client of the server with the first certificate in this PEM
/// file, by whatever name it is asked. The client trusts nobody else.
///
/// # Errors
/// See [`IdentityError`].
pub fn client_config_for(certificate: &Path) -> Result<ClientConfig, IdentityError> {
    client(KnownVerifier::of_server(read_certificates(certificate, IdentityFile::Certificate)?))
}

fn client(verifier: KnownVerifier) -> Result<ClientConfig, IdentityError> {
    let mut tls = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

/// Returns the authorities that the system trusts, without those that cannot be used.
fn system_roots(file: Option<&Path>) -> Result<RootCertStore, IdentityError> {
    let mut usual = SYSTEM.into_iter().map(Path::new);
    let path = file.or_else(|| usual.find(|path| path.exists()));
    let mut roots = RootCertStore::empty();
    if let Some(path) = path {
        roots.add_parsable_certificates(read_certificates(path, IdentityFile::Authority)?);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::PathBuf;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::{ClientConnection, ServerConnection};

    use super::*;
    use crate::test_certificates::certificates;

    fn load(site: &str) -> ServerIdentity {
        let dir = certificates();
        ServerIdentity::load(&dir.join(format!("{site}.crt")), &dir.join(format!("{site}.key"))).unwrap()
    }

    /// Passes records to and fro until both ends are done, or one refuses.
    fn shake(server: &ServerConfig, client: ClientConfig, name: &str) -> Result<(), rustls::Error> {
        let mut server = ServerConnection::new(Arc::new(server.clone()))?;
        let name = ServerName::try_from(name).unwrap().to_owned();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        client.writer().write_all(b"GET").unwrap();
        for _ in 0..4 {
            let mut records = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut records).unwrap();
            }
            server.read_tls(&mut records.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut records = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut records).unwrap();
            }
            client.read_tls(&mut records.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        let mut text = [0; 3];
        server.reader().read_exact(&mut text).unwrap();
        assert_eq!((&text, server.alpn_protocol()), (b"GET", Some(ALPN)));
        Ok(())
    }

    #[test]
    fn clients_trust_the_authority_that_they_are_given() {
        let server = load("a").server_config().unwrap();
        let authority = certificates().join("ca.crt");
        let client = |path: &Path| client_config(Some(path), None).unwrap();
        shake(&server, client(&authority), "a").unwrap();
        for (path, name) in [
            (authority.clone(), "b"),
            (certificates().join("other/ca.crt"), "a"),
            (authority.clone(), "127.0.0.1"),
        ] {
            let refused = shake(&server, client(&path), name).unwrap_err();
            assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused}");
        }
        // Without one, it is what the system trusts.
        shake(&server, client_config(None, Some(&authority)).unwrap(), "a").unwrap();
        let of_system = client_config(None, None).unwrap();
        assert!(shake(&server, of_system, "a").is_err());
    }

    /// Makes a certificate that signs itself, and its key.
    fn own(dir: &Path, change: impl FnOnce(&mut CertificateParams)) -> (ServerIdentity, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["gw.example".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        change(&mut params);
        let path = dir.join("own.crt");
        std::fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
        let key_path = dir.join("own.key");
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key_path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        (ServerIdentity::load(&path, &key_path).unwrap(), path)
    }

    /// As a server's, and as an authority's, which `openssl req -x509` makes by itself.
    #[test]
    fn a_certificate_that_signs_itself_is_its_own_authority() {
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            let dir = tempfile::tempdir().unwrap();
            let (server, path) = own(dir.path(), |params| params.is_ca = is_ca);
            let tls = server.server_config().unwrap();
            let client = |path: &Path| client_config(Some(path), None).unwrap();
            for name in ["gw.example", "127.0.0.1"] {
                assert!(server.is_for(name));
                shake(&tls, client(&path), name).unwrap_or_else(|error| panic!("{is_ca:?}: {error}"));
            }
            let other = tempfile::tempdir().unwrap();
            let (_, other) = own(other.path(), |params| params.is_ca = is_ca);
            for (path, name) in [(&path, "other.example"), (&other, "gw.example")] {
                let refused = shake(&tls, client(path), name).unwrap_err();
                assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused}");
            }
            for name in ["other.example", "127.0.0.2", "not a name"] {
                assert!(!server.is_for(name));
            }
            assert!(server.valid_until().is_some() && server.serial().is_some());
        }
    }

    #[test]
    fn an_authority_that_has_expired_is_not_trusted_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (server, path) = own(dir.path(), |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        });
        let server = server.server_config().unwrap();
        assert!(shake(&server, client_config(Some(&path), None).unwrap(), "gw.example").is_err());
    }

    #[test]
    fn a_server_that_is_known_is_trusted_by_any_name_and_nobody_else_is() {
        let (server, path) = (load("a").server_config().unwrap(), certificates().join("a.crt"));
        for name in ["a", "gw.example", "127.0.0.1"] {
            shake(&server, client_config_for(&path).unwrap(), name).unwrap();
        }
        let other = load("b").server_config().unwrap();
        assert!(shake(&other, client_config_for(&path).unwrap(), "b").is_err());
        // One that the server signed is another one.
        let authority = client_config_for(&certificates().join("ca.crt")).unwrap();
        assert!(shake(&server, authority, "a").is_err());
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let dir = certificates();
        let mixed = ServerIdentity::load(&dir.join("a.crt"), &dir.join("b.key")).unwrap();
        assert!(matches!(mixed.server_config(), Err(IdentityError::Tls(_))));
        let mixed = ServerIdentity::load(&dir.join("a.key"), &dir.join("a.key"));
        assert!(matches!(mixed, Err(IdentityError::Form { .. })));
    }
}
