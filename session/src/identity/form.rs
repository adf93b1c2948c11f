//! Files that hold a key or certificate in another form than PEM, and how to tell them.

use std::fmt;

use rustls::InconsistentKeys;

/// A form in which a file of keys or certificates cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// ASN.1 without PEM around it.
    Der,
    /// PEM behind a byte order mark.
    ByteOrderMark,
    /// Text of two bytes a character.
    Utf16,
    /// A private key under a pass phrase.
    Encrypted,
    /// A certificate where a key is wanted.
    CertificateForKey,
    /// A key where a certificate is wanted.
    KeyForCertificate,
    /// A request that no authority has signed yet.
    Request,
    /// No PEM of a private key.
    NoKey,
    /// No PEM of a certificate.
    NoCertificate,
    /// PEM whose content is no key.
    DamagedKey,
    /// PEM whose content is no certificate.
    DamagedCertificate,
    /// Neither a file nor a link to one: a pipe, a device, a folder.
    Special,
}

impl Form {
    /// Returns what an operator can do about it, where making new keys would not be right.
    #[must_use]
    pub const fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Der => "convert it with that command, and name the PEM file",
            Self::ByteOrderMark => "remove them with `sed -i '1s/^\\xef\\xbb\\xbf//' FILE`",
            Self::Utf16 => "convert it with `iconv -f UTF-16 -t ASCII FILE`",
            Self::Encrypted => "decrypt it with that command, into a file that its owner alone may read",
            Self::CertificateForKey => {
                "name the key of this certificate: `longhaul keys` makes it as SITE.key"
            }
            Self::KeyForCertificate => {
                "name the certificate of this key: `longhaul keys` makes it as SITE.crt"
            }
            Self::Request => "have the authority sign it, and name the certificate that comes of that",
            Self::Special => "name a regular file, or a link to one",
            Self::NoKey | Self::NoCertificate | Self::DamagedKey | Self::DamagedCertificate => return None,
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Der => {
                "is DER, PEM is wanted: `openssl x509 -inform der -in FILE -out FILE.pem`, for a key `openssl pkey` alike"
            }
            Self::ByteOrderMark => "begins with a byte order mark: remove its first three bytes",
            Self::Utf16 => "is UTF-16 text: save it as plain ASCII",
            Self::Encrypted => {
                "the key is encrypted, and nobody is there to type its pass phrase: `openssl pkey -in FILE -out FILE.plain`"
            }
            Self::CertificateForKey => "holds a certificate and no private key",
            Self::KeyForCertificate => "holds a private key and no certificate",
            Self::Request => "holds a certificate request, which an authority has still to sign",
            Self::NoKey => "holds no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----",
            Self::NoCertificate => "holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----",
            Self::DamagedKey => {
                "has a private key that is damaged, or of a kind that TLS does not use: `openssl pkey -check -noout -in FILE`"
            }
            Self::DamagedCertificate => {
                "has a certificate that is damaged: `openssl x509 -noout -text -in FILE` shows one that is not"
            }
            Self::Special => "is no regular file",
        })
    }
}

/// Returns true for the key of another certificate.
pub(super) fn is_mismatch(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch))
}

/// Returns why TLS refuses a certificate with its key.
pub(super) fn said(error: &rustls::Error) -> String {
    match is_mismatch(error) {
        true => "the key is another certificate's".to_owned(),
        false => error.to_string(),
    }
}

/// The content that a file should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Certificate,
    Key,
}

/// Finds what an operator can mend. What is wrong otherwise, the reader of PEM says.
pub(super) fn check(content: &[u8], wanted: Wanted) -> Result<(), Form> {
    match content {
        [0xef, 0xbb, 0xbf, ..] => return Err(Form::ByteOrderMark),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Err(Form::Utf16),
        // A SEQUENCE, the length of which takes one to four bytes more.
        [0x30, 0x20..=0x7f | 0x81..=0x84, ..] if !has(content, "-----BEGIN ") => return Err(Form::Der),
        _ => {}
    }
    let (key, certificate) = (has(content, "PRIVATE KEY-----"), has(content, "-----BEGIN CERTIFICATE-----"));
    let request = has(content, "-----BEGIN CERTIFICATE REQUEST-----");
    match wanted {
        Wanted::Key if has(content, "-----BEGIN ENCRYPTED ") || has(content, "Proc-Type: 4,ENCRYPTED") => {
            Err(Form::Encrypted)
        }
        Wanted::Key if certificate && !key => Err(Form::CertificateForKey),
        Wanted::Certificate if !certificate && request => Err(Form::Request),
        Wanted::Certificate if !certificate && key => Err(Form::KeyForCertificate),
        Wanted::Key if !key => Err(Form::NoKey),
        Wanted::Certificate if !certificate => Err(Form::NoCertificate),
        _ => Ok(()),
    }
}

fn has(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|window| window == text.as_bytes())
}
