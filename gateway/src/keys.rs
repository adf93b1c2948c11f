//! `longhaul keys`: an authority of one's own and a certificate per site.
//!
//! A certificate says one thing: its holder is the gateway of the site it names. Keys are ECDSA
//! P-256, files PEM, key files mode 0600. In a folder whose mode hands its group on (02000), and
//! which only its owner writes, that group may read all but the authority's key.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, SystemTimeError};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls_pki_types::UnixTime;
use schemars::JsonSchema;
use serde::Serialize;
use session::identity::{Date, Identity, IdentityError, server_name};
use session::schedule::Role;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates are valid from a day ago, so that sites whose clocks disagree a little can start at
/// once.
const BACKDATED: Duration = DAY;
/// An authority outlives the certificates that it signs in its first ten years.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(DAY.as_secs() * 365 * 20);
/// Long, since nothing renews a site's certificate by itself, and an expired one takes the link
/// down.
const SITE_VALIDITY: Duration = Duration::from_secs(DAY.as_secs() * 365 * 10);

const AUTHORITY: &str = "ca";

/// A request for keys and certificates.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Directory for all files; made, for its owner alone, if it does not exist.
    pub dir: &'a Path,
    /// Site names, each as in `site.name` and `peer.name` of the gateway files.
    pub sites: &'a [String],
    /// Replace certificates and keys of the named sites that exist. The authority is never
    /// replaced.
    pub force: bool,
}

/// The files made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// The authority's files.
    pub authority: Pair,
    /// The sites' files, in the order asked for.
    pub sites: Vec<Site>,
}

/// A site's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Site {
    /// The site's name.
    pub name: String,
    /// Its files.
    pub files: Pair,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Pair {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The private key's file.
    pub key: PathBuf,
    /// The outcome for both.
    pub outcome: Outcome,
}

/// The outcome for a certificate and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Newly made.
    Created,
    /// Made anew in place of older ones.
    Replaced,
    /// There before and left alone.
    Kept,
}

/// Why keys could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A name that cannot be a site's.
    #[error(transparent)]
    Name(IdentityError),
    /// `ca` is the authority's file name.
    #[error("`ca` cannot be a site name, the authority's files have it")]
    Reserved,
    /// The same site twice.
    #[error("`{0}` is named twice")]
    Duplicate(String),
    /// A file is in the way. Nothing was made.
    #[error("{} is there and is left alone: --force replaces a site's certificate and key", .0.display())]
    Exists(PathBuf),
    /// Files cannot be made in what is no folder.
    #[error("{} is there and is no folder: name another one", .0.display())]
    NoFolder(PathBuf),
    /// One of the authority's two files is missing, so that it can neither be used nor be made anew
    /// without harm.
    #[error("{} is missing, although the authority's other file exists: restore it, or remove both to begin anew", .0.display())]
    HalfAuthority(PathBuf),
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The authority's files are damaged, do not belong together, or cannot sign.
    #[error("ca.crt and ca.key in {} cannot be used: {source}; restore both, or name another folder for a new authority", dir.display())]
    Authority {
        /// The directory.
        dir: PathBuf,
        /// The error in it.
        source: rcgen::Error,
    },
    /// The new certificate does not pass the check that gateways make: the authority has expired,
    /// or its files do not belong together.
    #[error("the new certificate would be refused: {0}")]
    Refused(IdentityError),
    /// A key or certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The clock stands before 1970.
    #[error("the system clock is wrong: {0}")]
    Clock(#[from] SystemTimeError),
    /// The clock stands before any gateway of this version ran.
    #[error("this machine's clock says {0}: set it first, or certificates made now expire years too early")]
    Early(Date),
}

/// No gateway of this version ran before, in seconds since 1970: 2025.
pub const YOUNGEST: u64 = 1_735_689_600;

/// Returns the time since 1970, if it can be the time of today.
fn today(now: SystemTime) -> Result<Duration, KeysError> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH)?;
    match since.as_secs() < YOUNGEST {
        true => Err(KeysError::Early(Date(UnixTime::since_unix_epoch(since)))),
        false => Ok(since),
    }
}

/// Makes what is asked for, all or, when a file is in the way, nothing.
///
/// # Errors
/// See [`KeysError`].
pub fn generate(request: &Request<'_>) -> Result<Summary, KeysError> {
    check_names(request.sites)?;
    today(SystemTime::now())?;
    if exists(request.dir)? && !request.dir.is_dir() {
        return Err(KeysError::NoFolder(request.dir.to_owned()));
    }
    let authority_files = files(request.dir, AUTHORITY);
    let site_files: Vec<_> = request.sites.iter().map(|site| (site, files(request.dir, site))).collect();
    if !request.force {
        for path in site_files.iter().flat_map(|(_, (certificate, key))| [certificate, key]) {
            if exists(path)? {
                return Err(KeysError::Exists(path.clone()));
            }
        }
    }
    DirBuilder::new().recursive(true).mode(0o700).create(request.dir).map_err(file_error(request.dir))?;
    let (issuer, authority) = authority(request.dir, authority_files)?;
    let mut sites = Vec::with_capacity(site_files.len());
    for (name, (certificate, key)) in site_files {
        let outcome = make_site(name, &issuer, &authority.certificate, &certificate, &key, request.force)?;
        sites.push(Site { name: name.clone(), files: Pair { certificate, key, outcome } });
    }
    Ok(Summary { authority, sites })
}

/// Refuses names that no site can have, and one that two have.
pub(crate) fn check_names(sites: &[String]) -> Result<(), KeysError> {
    let mut seen = BTreeSet::new();
    for site in sites {
        server_name(site).map_err(KeysError::Name)?;
        if site.eq_ignore_ascii_case(AUTHORITY) {
            return Err(KeysError::Reserved);
        }
        if !seen.insert(site.to_ascii_lowercase()) {
            return Err(KeysError::Duplicate(site.clone()));
        }
    }
    Ok(())
}

fn files(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")))
}

fn authority(
    dir: &Path,
    (certificate, key): (PathBuf, PathBuf),
) -> Result<(Issuer<'static, KeyPair>, Pair), KeysError> {
    let (issuer, outcome) = match (exists(&certificate)?, exists(&key)?) {
        (true, true) => (load_authority(dir, &certificate, &key)?, Outcome::Kept),
        (false, false) => (make_authority(&certificate, &key)?, Outcome::Created),
        (true, false) => return Err(KeysError::HalfAuthority(key)),
        (false, true) => return Err(KeysError::HalfAuthority(certificate)),
    };
    Ok((issuer, Pair { certificate, key, outcome }))
}

fn load_authority(dir: &Path, certificate: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>, KeysError> {
    let unusable = |source| KeysError::Authority { dir: dir.to_owned(), source };
    let certificate = std::fs::read_to_string(certificate).map_err(file_error(certificate))?;
    let key = std::fs::read_to_string(key).map_err(file_error(key))?;
    let key = KeyPair::from_pem(&key).map_err(unusable)?;
    Issuer::from_ca_cert_pem(&certificate, key).map_err(unusable)
}

fn make_authority(certificate: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>, KeysError> {
    let mut params = params(Vec::new(), "Longhaul authority", AUTHORITY_VALIDITY)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let pair = KeyPair::generate()?;
    let signed = params.self_signed(&pair)?;
    // No gateway needs this one.
    write(key, pair.serialize_pem().as_bytes(), 0o600, false)?;
    write_certificate(certificate, &signed, false)?;
    Ok(Issuer::new(params, pair))
}

fn make_site(
    name: &str,
    issuer: &Issuer<'_, KeyPair>,
    authority: &Path,
    certificate: &Path,
    key: &Path,
    replace: bool,
) -> Result<Outcome, KeysError> {
    let outcome = if exists(certificate)? || exists(key)? { Outcome::Replaced } else { Outcome::Created };
    let mut params = params(vec![name.to_owned()], name, SITE_VALIDITY)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let pair = KeyPair::generate()?;
    let signed = params.signed_by(&pair, issuer)?;
    Identity::from_der(signed.der().clone(), pair.serialize_der(), authority)
        .and_then(|identity| {
            // Towards some peers it dials, towards others it is dialled.
            [Role::Dialer, Role::Listener]
                .into_iter()
                .try_for_each(|role| identity.verify(name, role, UnixTime::now()))
        })
        .map_err(KeysError::Refused)?;
    write_key(key, &pair, replace)?;
    write_certificate(certificate, &signed, replace)?;
    Ok(outcome)
}

fn params(
    alternative_names: Vec<String>,
    common_name: &str,
    validity: Duration,
) -> Result<CertificateParams, KeysError> {
    let mut params = CertificateParams::new(alternative_names)?;
    let now = date_time_ymd(1970, 1, 1) + today(SystemTime::now())?;
    params.not_before = now - BACKDATED;
    params.not_after = now + validity;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn exists(path: &Path) -> Result<bool, KeysError> {
    path.try_exists().map_err(file_error(path))
}

/// Writes the key of a site for its owner, and for the group of a folder that hands its group on.
fn write_key(path: &Path, key: &KeyPair, replace: bool) -> Result<(), KeysError> {
    let mode = if is_shared(path) { 0o640 } else { 0o600 };
    write(path, key.serialize_pem().as_bytes(), mode, replace)
}

fn write_certificate(path: &Path, certificate: &rcgen::Certificate, replace: bool) -> Result<(), KeysError> {
    write(path, certificate.pem().as_bytes(), 0o644, replace)
}

/// Writes a whole file or none: beside its place first, then put there by a rename, or by a link
/// where nothing may be replaced.
fn write(path: &Path, content: &[u8], mode: u32, replace: bool) -> Result<(), KeysError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = write_new(&beside, content, mode).map_err(file_error(&beside));
    let placed = written.and_then(|()| match replace {
        true => std::fs::rename(&beside, path).map_err(file_error(path)),
        false => std::fs::hard_link(&beside, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => KeysError::Exists(path.to_owned()),
            _ => file_error(path)(error),
        }),
    });
    // After a rename it is gone already; otherwise a leftover does no harm but clutter.
    let _ = std::fs::remove_file(&beside);
    placed
}

/// Writes a file that must not be there yet. The process' umask takes from `mode` what it does, but
/// for the group that a folder shares its files with.
pub(crate) fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if is_shared(path) {
        let own = file.metadata()?.permissions().mode();
        file.set_permissions(Permissions::from_mode(own | mode & GROUP))?;
    }
    file.write_all(content)?;
    file.sync_all()
}

/// Mode bits of a file for its group.
const GROUP: u32 = 0o070;
/// Mode bit of a folder whose group that of new files is.
const SET_GROUP_ID: u32 = 0o2000;
/// Mode bits that the package's folder has not: its group writes nothing there, and others do not
/// enter. A folder in which people work together has them.
const OPEN: u32 = 0o027;

/// Returns true in a folder that shares its files with a group, as that of the package does with
/// the gateway's.
fn is_shared(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
    folder.is_ok_and(|folder| folder.permissions().mode() & (SET_GROUP_ID | OPEN) == SET_GROUP_ID)
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KeysError {
    |source| KeysError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
