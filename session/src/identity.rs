//! A gateway's certificate, key and authority, and the TLS configurations made of them.
//!
//! Both sides judge the other's certificate alike: its chain ends in the configured authority, and
//! it names the configured peer. A peer that fails either is turned away within the handshake. Only
//! TLS 1.3, no early data, no resumption: every session presents its certificates anew.

mod form;
mod known;
mod server;
mod validity;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use webpki::EndEntityCert;
use zeroize::Zeroizing;

pub use form::Form;
use form::{is_mismatch, said};
pub use server::{ServerIdentity, client_config, client_config_for};
pub use validity::Date;
#[cfg(feature = "quic")]
pub(crate) use validity::earliest_end;

use crate::schedule::Role;

/// The application protocol in the TLS handshake.
pub const ALPN: &[u8] = b"longhaul/1";

const RESET_SALT: &[u8] = b"longhaul/1 stateless reset";
const CONNECTION_ID_SALT: &[u8] = b"longhaul/1 connection id";

/// Each file of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityFile {
    /// The certificate with its chain.
    Certificate,
    /// The private key.
    Key,
    /// The certificates of authorities.
    Authority,
}

/// A reason why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read, or holds no PEM of the expected kind.
    #[error("{}: {source}", path.display())]
    File {
        /// The one of the three that it was read as.
        file: IdentityFile,
        /// The file.
        path: PathBuf,
        /// The fault in it.
        source: pem::Error,
    },
    /// Anybody on this machine may read the private key.
    #[error("{}: others may read it (mode {mode:04o})", path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The authority's certificate cannot serve as one.
    #[error("{}: not usable as an authority: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The fault in it.
        source: rustls::Error,
    },
    /// The name cannot stand in a certificate.
    #[error("`{0}` is no site name: letters, digits, hyphens and dots, as in a DNS name")]
    Name(String),
    /// The certificate would not be accepted by the peer.
    #[error("the certificate does not prove that this gateway is `{site}`: {source}")]
    Own {
        /// The configured site name.
        site: String,
        /// The fault in it.
        source: rustls::Error,
    },
    /// The authority is this gateway's own certificate, which another one has signed.
    #[error("the authority is the certificate of `{site}` itself, which did not sign it")]
    OwnAsAuthority {
        /// The configured site name.
        site: String,
    },
    /// The certificate that is to be this site's is an authority's.
    #[error("the certificate that is to be `{site}`'s own is an authority's")]
    AuthorityAsOwn {
        /// The configured site name.
        site: String,
    },
    /// A file holds what it should, but in another form, or something else.
    #[error("{}: {form}", path.display())]
    Form {
        /// The one of the three that it was read as.
        file: IdentityFile,
        /// The file.
        path: PathBuf,
        /// The form that it has instead.
        form: Form,
    },
    /// The certificate's validity begins later than this machine's clock says it is.
    #[error(
        "the certificate of `{site}` is valid from {from} on, and this machine's clock says {now}: one of the two is wrong"
    )]
    NotYetValid {
        /// The configured site name.
        site: String,
        /// The beginning of its validity.
        from: Date,
        /// The clock's time.
        now: Date,
    },
    /// The certificate's validity has ended, by this machine's clock.
    #[error("the certificate of `{site}` expired at {until}; this machine's clock says {now}")]
    Expired {
        /// The configured site name.
        site: String,
        /// The end of its validity.
        until: Date,
        /// The clock's time.
        now: Date,
    },
    /// The certificate may not be used by the side that this gateway is.
    #[error(
        "the certificate of `{site}` is not for {role}: this site {what}, so its extended key usage has to have {usage}, or be absent"
    )]
    Role {
        /// The configured site name.
        site: String,
        /// TLS client or server.
        role: &'static str,
        /// Says if it dials.
        what: &'static str,
        /// The usage that is missing.
        usage: &'static str,
    },
    /// Certificate and key do not belong together, or TLS cannot use them.
    #[error("certificate and key cannot be used: {}", said(.0))]
    Tls(rustls::Error),
    /// The verifier could not be built.
    #[error("the authority cannot be used: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

impl From<rustls::Error> for IdentityError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl IdentityError {
    /// Returns the file that is at fault, if it is one and known which.
    #[must_use]
    pub fn file(&self) -> Option<IdentityFile> {
        match self {
            Self::File { file, .. } | Self::Form { file, .. } => Some(*file),
            Self::Exposed { .. } => Some(IdentityFile::Key),
            Self::Authority { .. } | Self::OwnAsAuthority { .. } | Self::Verifier(_) => {
                Some(IdentityFile::Authority)
            }
            Self::AuthorityAsOwn { .. } => Some(IdentityFile::Certificate),
            Self::Own { .. } | Self::NotYetValid { .. } | Self::Expired { .. } | Self::Role { .. } => {
                Some(IdentityFile::Certificate)
            }
            Self::Name(_) | Self::Tls(_) => None,
        }
    }

    /// Returns true if nothing but this machine's clock is against it: another time would do.
    #[must_use]
    pub fn is_of_time(&self) -> bool {
        matches!(self, Self::NotYetValid { .. } | Self::Expired { .. })
    }

    /// Returns why the system does not let a file be read, if that is what failed.
    #[must_use]
    pub fn unreadable(&self) -> Option<io::ErrorKind> {
        let Self::File { source: pem::Error::Io(error), .. } = self else { return None };
        Some(error.kind())
    }

    /// Returns true if certificate and key are in order, and do not belong together.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self, Self::Tls(error) if is_mismatch(error))
    }
}

/// Certificate chain, private key and authority of one gateway.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authority: Authority,
}

/// Authorities that certificates may be signed by.
#[derive(Clone, Debug)]
struct Authority {
    roots: Arc<RootCertStore>,
    valid_until: Option<UnixTime>,
}

impl Authority {
    /// Returns true if this certificate is among them.
    fn is_made_of(&self, certificate: &CertificateDer<'_>) -> bool {
        let anchor = webpki::anchor_from_trusted_cert(certificate);
        anchor.is_ok_and(|anchor| self.roots.roots.contains(&anchor))
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Identity { chain: self.chain.clone(), key: self.key.clone_key(), authority: self.authority.clone() }
    }
}

impl Identity {
    /// Reads PEM files: the certificate with its chain, the private key, and the authority's
    /// certificate (or several).
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Form`], [`IdentityError::Exposed`],
    /// [`IdentityError::Authority`]. Each says by [`IdentityError::file`] which of the three it is.
    pub fn load(certificate: &Path, key: &Path, authority: &Path) -> Result<Self, IdentityError> {
        let chain = read_certificates(certificate, IdentityFile::Certificate)?;
        let key = read_key(key)?;
        Ok(Identity { chain, key, authority: read_authority(authority)? })
    }

    /// Takes a certificate and a PKCS#8 key in DER, and reads the authority from a PEM file.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Authority`].
    pub fn from_der(
        certificate: CertificateDer<'static>,
        key: Vec<u8>,
        authority: &Path,
    ) -> Result<Self, IdentityError> {
        let key = PrivatePkcs8KeyDer::from(key).into();
        Ok(Identity { chain: vec![certificate], key, authority: read_authority(authority)? })
    }

    /// Returns this site's certificate, without its chain.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    /// Judges this site's certificate as its peer will, to which this site has the given role, and
    /// checks that the key belongs to it.
    ///
    /// Called at the start, it names a fault that would otherwise show as the peer's refusals.
    ///
    /// # Errors
    /// [`IdentityError::Own`], [`IdentityError::OwnAsAuthority`], [`IdentityError::NotYetValid`],
    /// [`IdentityError::Expired`], [`IdentityError::Role`], [`IdentityError::AuthorityAsOwn`],
    /// [`IdentityError::Name`], [`IdentityError::Tls`].
    pub fn verify(&self, site: &str, role: Role, now: UnixTime) -> Result<(), IdentityError> {
        let name = server_name(site)?;
        let (first, rest) = self.chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        let judged = match role {
            Role::Listener => {
                self.server_verifier()?.verify_server_cert(first, rest, &name, &[], now).map(drop)
            }
            Role::Dialer => self
                .client_verifier()?
                .verify_client_cert(first, rest, now)
                .map(drop)
                .and_then(|()| verify_server_name(&ParsedCertificate::try_from(first)?, &name)),
        };
        judged.map_err(|source| match &source {
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) if self.authority.is_made_of(first) => IdentityError::OwnAsAuthority { site: site.to_owned() },
            _ => own_error(site, role, now, source),
        })?;
        self.client_config(site, &[])?;
        Ok(())
    }

    /// Returns the ends of the validity of this site's certificate and of the chain above it, as
    /// far as it is in the file: the earliest.
    #[must_use]
    pub fn valid_until(&self) -> Option<UnixTime> {
        validity::earliest_end(&self.chain)
    }

    /// Returns true if the other identity has the same authorities.
    #[must_use]
    pub fn has_authority_of(&self, other: &Identity) -> bool {
        self.authority.roots.roots == other.authority.roots.roots
    }

    /// Returns true if the other identity has the same certificates and authorities. Then only the
    /// clock can have the two judged otherwise.
    #[must_use]
    pub fn is_judged_like(&self, other: &Identity) -> bool {
        self.chain == other.chain && self.has_authority_of(other)
    }

    /// Returns when the authority expires; of several, the last one.
    #[must_use]
    pub fn authority_valid_until(&self) -> Option<UnixTime> {
        self.authority.valid_until
    }

    /// Returns the TLS configuration of the side that dials the site `peer`.
    ///
    /// The handshake fails if the peer's chain holds one of the `revoked` certificates.
    /// The name `peer` is given again with each connection.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn client_config(
        &self,
        peer: &str,
        revoked: &[SerialNumber],
    ) -> Result<rustls::ClientConfig, IdentityError> {
        // Where the name is given again, it cannot fail any more.
        server_name(peer)?;
        let mut tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ListenerVerifier {
                chain: self.server_verifier()?,
                revoked: revoked.into(),
            }))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.resumption = Resumption::disabled();
        Ok(tls)
    }

    /// Returns the TLS configuration of the side that the site `peer` dials.
    ///
    /// The handshake fails if the peer's chain holds one of the `revoked` certificates, or does not
    /// name `peer`.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn server_config(
        &self,
        peer: &str,
        revoked: &[SerialNumber],
    ) -> Result<rustls::ServerConfig, IdentityError> {
        let chain = self.client_verifier()?;
        let verifier = Arc::new(PeerVerifier { chain, peer: server_name(peer)?, revoked: revoked.into() });
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.send_tls13_tickets = 0;
        Ok(tls)
    }

    /// Returns the key from which QUIC makes stateless reset tokens (RFC 9000, 10.3.2).
    ///
    /// It is the same after a restart.
    /// So a gateway that forgot a connection can still tell its peer so, and nobody else can.
    #[must_use]
    pub fn reset_key(&self) -> hmac::Key {
        let secret = self.derive::<32>(RESET_SALT);
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_slice())
    }

    /// Returns the key by which QUIC recognises connection numbers as its own, after a restart too.
    ///
    /// No secret hangs on it.
    #[must_use]
    pub fn connection_id_key(&self) -> u64 {
        u64::from_be_bytes(*self.derive::<8>(CONNECTION_ID_SALT))
    }

    fn derive<const N: usize>(&self, salt: &[u8]) -> Zeroizing<[u8; N]> {
        let mut out = Zeroizing::new([0; N]);
        let prk = Salt::new(HKDF_SHA256, salt).extract(self.key.secret_der());
        let filled = prk.expand(&[b"v1"], Bytes(N)).and_then(|okm| okm.fill(out.as_mut_slice()));
        debug_assert!(filled.is_ok(), "HKDF yields up to 8160 bytes");
        out
    }

    fn client_verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, IdentityError> {
        Ok(WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.authority.roots), provider())
            .build()?)
    }

    fn server_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, IdentityError> {
        Ok(WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.authority.roots), provider())
            .build()?)
    }
}

/// Returns a site name as it stands in a certificate: a DNS name, no address.
///
/// # Errors
/// [`IdentityError::Name`].
pub fn server_name(site: &str) -> Result<ServerName<'static>, IdentityError> {
    match ServerName::try_from(site) {
        Ok(name @ ServerName::DnsName(_)) if !site.ends_with('.') => Ok(name.to_owned()),
        _ => Err(IdentityError::Name(site.to_owned())),
    }
}

struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn read_authority(path: &Path) -> Result<Authority, IdentityError> {
    let certificates = read_certificates(path, IdentityFile::Authority)?;
    let valid_until = validity::latest_end(&certificates);
    let mut roots = RootCertStore::empty();
    for root in certificates {
        roots.add(root).map_err(|source| IdentityError::Authority { path: path.to_owned(), source })?;
    }
    Ok(Authority { roots: Arc::new(roots), valid_until })
}

fn read_certificates(path: &Path, file: IdentityFile) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = read_bounded(&mut open(path, file)?).map_err(io_error(path, file))?;
    form::check(&text, form::Wanted::Certificate).map_err(|form| IdentityError::Form {
        file,
        path: path.to_owned(),
        form,
    })?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(file_error(path, file))?;
    if certificates.is_empty() {
        return Err(file_error(path, file)(pem::Error::NoItemsFound));
    }
    let is_damaged = |certificate: &CertificateDer<'_>| {
        let anchor = webpki::anchor_from_trusted_cert(certificate);
        matches!(anchor, Err(webpki::Error::BadDer | webpki::Error::TrailingData(_)))
    };
    if certificates.iter().any(is_damaged) {
        return Err(IdentityError::Form { file, path: path.to_owned(), form: Form::DamagedCertificate });
    }
    Ok(certificates)
}

/// Opens a regular file; whoever opens a pipe may wait for ever.
fn open(path: &Path, file: IdentityFile) -> Result<File, IdentityError> {
    if !std::fs::metadata(path).map_err(io_error(path, file))?.is_file() {
        return Err(IdentityError::Form { file, path: path.to_owned(), form: Form::Special });
    }
    File::open(path).map_err(io_error(path, file))
}

fn read_bounded(file: &mut File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_FILE));
    file.take(LONGEST_FILE as u64 - 1).read_to_end(&mut text)?;
    Ok(text)
}

/// Bytes of a key's or certificates' file. What comes behind them is not read.
const LONGEST_FILE: usize = 1 << 20;

fn io_error(path: &Path, file: IdentityFile) -> impl Fn(io::Error) -> IdentityError {
    move |source| file_error(path, file)(pem::Error::Io(source))
}

/// Tells of a certificate that its own site's peer would refuse what an operator can mend.
fn own_error(site: &str, role: Role, now: UnixTime, source: rustls::Error) -> IdentityError {
    let site = site.to_owned();
    let now = Date(now);
    let rustls::Error::InvalidCertificate(error) = &source else {
        return IdentityError::Own { site, source };
    };
    match error {
        _ if known::is_for_an_authority(&source) => IdentityError::AuthorityAsOwn { site },
        CertificateError::NotValidYetContext { not_before, .. } => {
            IdentityError::NotYetValid { site, from: Date(*not_before), now }
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            IdentityError::Expired { site, until: Date(*not_after), now }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            let (role, what, usage) = match role {
                Role::Dialer => ("a TLS client", "dials, as its name sorts first", "clientAuth"),
                Role::Listener => ("a TLS server", "is dialled, as its name sorts last", "serverAuth"),
            };
            IdentityError::Role { site, role, what, usage }
        }
        _ => IdentityError::Own { site, source },
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    const KEY: IdentityFile = IdentityFile::Key;
    let mut file = open(path, KEY)?;
    // Of the very file that is read. A group's members are the operator's choice.
    let mode = file.metadata().map_err(io_error(path, KEY))?.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(IdentityError::Exposed { path: path.to_owned(), mode });
    }
    let text = read_bounded(&mut file).map_err(io_error(path, KEY))?;
    form::check(&text, form::Wanted::Key).map_err(|form| IdentityError::Form {
        file: KEY,
        path: path.to_owned(),
        form,
    })?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(file_error(path, KEY))?;
    if provider().key_provider.load_private_key(key.clone_key()).is_err() {
        return Err(IdentityError::Form { file: KEY, path: path.to_owned(), form: Form::DamagedKey });
    }
    Ok(key)
}

/// Mode bits of a file for all users of the machine.
const OTHERS: u32 = 0o007;

/// A certificate's serial number (RFC 5280, 4.1.2.2), without leading zeros.
///
/// It is shown as lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SerialNumber(Vec<u8>);

impl SerialNumber {
    /// Takes the bytes as they stand in a certificate, the most significant first.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        SerialNumber(bytes.iter().copied().skip_while(|byte| *byte == 0).collect())
    }

    /// Returns the number of a certificate, or `None` if the bytes are no certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        EndEntityCert::try_from(certificate).ok().map(|certificate| SerialNumber::new(certificate.serial()))
    }
}

impl fmt::Display for SerialNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("00");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Refuses a chain of which any certificate is revoked, or cannot be told from one that is.
fn check_revoked(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    revoked: &[SerialNumber],
) -> Result<(), rustls::Error> {
    match any_revoked(std::iter::once(end_entity).chain(intermediates), revoked) {
        false => Ok(()),
        true => Err(CertificateError::Revoked.into()),
    }
}

/// Returns true if a certificate is revoked, or cannot be told from one that is.
pub(crate) fn any_revoked<'a, 'b: 'a>(
    chain: impl IntoIterator<Item = &'a CertificateDer<'b>>,
    revoked: &[SerialNumber],
) -> bool {
    let is_good =
        |certificate| SerialNumber::of(certificate).is_some_and(|serial| !revoked.contains(&serial));
    !revoked.is_empty() && !chain.into_iter().all(is_good)
}

fn file_error(path: &Path, file: IdentityFile) -> impl FnOnce(pem::Error) -> IdentityError {
    move |source| IdentityError::File { file, path: path.to_owned(), source }
}

/// Judges the certificate of a peer that dials.
///
/// WebPKI judges the chain. The name is checked here, since TLS servers do not look at it.
#[derive(Debug)]
struct PeerVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    peer: ServerName<'static>,
    revoked: Arc<[SerialNumber]>,
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.peer)?;
        check_revoked(end_entity, intermediates, &self.revoked)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Judges the peer that was dialled: as WebPKI does, and whether it is revoked.
#[derive(Debug)]
struct ListenerVerifier {
    chain: Arc<WebPkiServerVerifier>,
    revoked: Arc<[SerialNumber]>,
}

impl ServerCertVerifier for ListenerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.chain.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)?;
        check_revoked(end_entity, intermediates, &self.revoked)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
