//! The admin listener's certificate and key, read, and in force.

use std::sync::{Arc, Mutex, PoisonError};

use rustls_pki_types::{CertificateDer, UnixTime};
use session::identity::{Date, IdentityError, ServerIdentity};
use tokio_rustls::rustls::ServerConfig;

use super::files::Stamp;
use super::identity_remedy;
use crate::causes::chain;

/// The certificate and key of the TCP listener. Each connection is served by those in force when
/// it comes.
#[derive(Debug)]
pub struct Tls {
    files: config::AdminTls,
    current: Mutex<Certified>,
}

/// A certificate and key, read and found to belong together.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The state of the files before they were read.
    stamp: Stamp,
    tls: Arc<ServerConfig>,
    certificate: Option<CertificateDer<'static>>,
    shown: String,
    valid_until: Option<UnixTime>,
}

impl Certified {
    /// Reads both files.
    ///
    /// # Errors
    /// A line with the file, the fault and the remedy.
    pub fn read(files: &config::AdminTls) -> Result<Self, String> {
        let stamp = Stamp::of_admin(files);
        let read = || {
            let identity = ServerIdentity::load(&files.certificate, &files.key)?;
            Ok((identity.server_config()?, identity))
        };
        let (tls, identity) = read().map_err(|error| wrong(files, &error))?;
        let serial =
            identity.serial().map_or_else(|| "without a number".to_owned(), |serial| serial.to_string());
        let valid_until = identity.valid_until();
        let until = valid_until.map_or_else(|| "an unknown time".to_owned(), |at| Date(at).to_string());
        Ok(Self {
            stamp,
            tls: Arc::new(tls),
            certificate: identity.certificate().cloned(),
            shown: format!("{serial}, expires at {until}"),
            valid_until,
        })
    }

    /// Returns the state of the files that this was read from. What changed while they were read is
    /// another one.
    #[must_use]
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Returns the TLS configuration of the server.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// Returns when the certificate, or one above it in its file, expires.
    #[must_use]
    pub fn valid_until(&self) -> Option<UnixTime> {
        self.valid_until
    }
}

/// Names the files, unless the error names one.
fn wrong(files: &config::AdminTls, error: &IdentityError) -> String {
    let (text, remedy) = (chain(error), identity_remedy(error));
    match error {
        IdentityError::Tls(_) => {
            let [certificate, key] = [&files.certificate, &files.key].map(|path| path.display());
            format!("{certificate}, {key}: {text}; {remedy}")
        }
        _ => format!("{text}; {remedy}"),
    }
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// See [`Certified::read`].
    pub fn open(files: &config::AdminTls) -> Result<Self, String> {
        let current = Certified::read(files)?;
        Ok(Self { files: files.clone(), current: Mutex::new(current) })
    }

    /// Returns the files.
    #[must_use]
    pub fn files(&self) -> &config::AdminTls {
        &self.files
    }

    /// Returns what is in force.
    #[must_use]
    pub fn current(&self) -> Certified {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another certificate in force. Connections that are open go on. Returns what has
    /// changed, in a line; `None`: it is the same certificate.
    pub fn adopt(&self, read: Certified) -> Option<String> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = current.certificate == read.certificate;
        let change = (!is_same).then(|| format!("certificate of the admin listener {}", read.shown));
        *current = read;
        change
    }
}
