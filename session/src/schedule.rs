//! The key schedule of the bulk path.
//!
//! One call of the TLS exporter goes in; one packet key for each direction and epoch comes out.
//!
//! ```text
//! context    = version u16 | dialer's session u32 | listener's session u32 | cipher u8
//! exporter   = TLS-Exporter(EXPORTER_LABEL, context, 32 bytes)
//! root       = HKDF-Extract(salt = "longhaul/1 bulk", exporter)
//! secret_0   = HKDF-Expand(root, "longhaul/1 dialer to listener", 32)
//!           or HKDF-Expand(root, "longhaul/1 listener to dialer", 32)
//! secret_e+1 = HKDF-Expand(secret_e, "longhaul/1 next epoch", 32)
//! key_e      = HKDF-Expand(secret_e, "longhaul/1 key", key length)
//! iv_e       = HKDF-Expand(secret_e, "longhaul/1 iv", nonce length)
//! ```
//!
//! HKDF is RFC 5869 with SHA-256. Secrets form a chain, so a key that leaks opens no earlier epoch.
//! The context binds the keys to the negotiation.
//! If somebody changed a hello on its way, the two sides would not have the same keys.
//!
//! AEGIS-128L (draft-irtf-cfrg-aegis-aead) has keys and nonces of 16 bytes; AES-128-GCM and
//! ChaCha20-Poly1305 have nonces of 12.

use aegis::aegis128l::Aegis128L;
use aws_lc_rs::aead::{
    AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use zeroize::Zeroizing;

use crate::message::Cipher;

/// Label of the TLS exporter (RFC 8446, 7.5).
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-longhaul/1 bulk";

/// Bytes taken from the TLS exporter.
pub const EXPORTER_BYTES: usize = 32;

/// Bytes of the authentication tag, the same for every cipher.
pub const TAG: usize = 16;

const ROOT_SALT: &[u8] = b"longhaul/1 bulk";
const DIALER_TO_LISTENER: &[u8] = b"longhaul/1 dialer to listener";
const LISTENER_TO_DIALER: &[u8] = b"longhaul/1 listener to dialer";
const NEXT_EPOCH: &[u8] = b"longhaul/1 next epoch";
const KEY: &[u8] = b"longhaul/1 key";
const IV: &[u8] = b"longhaul/1 iv";
const SECRET_BYTES: usize = 32;
const AEGIS_BYTES: usize = 16;
const MAX_KEY_BYTES: usize = 32;

/// The cryptographic library refused to derive or set up a key. It does so only when its own
/// self-tests failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cryptographic library could not derive a key")]
pub struct KeyError;

impl From<aws_lc_rs::error::Unspecified> for KeyError {
    fn from(_: aws_lc_rs::error::Unspecified) -> Self {
        KeyError
    }
}

/// Which side of the control connection this is; it decides which of the two directions is the own
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that opened the connection: its site name sorts first.
    Dialer,
    /// The side that accepted it.
    Listener,
}

impl Role {
    /// Returns the other side's role.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Role::Dialer => Role::Listener,
            Role::Listener => Role::Dialer,
        }
    }

    /// Returns the role of site `own` towards `peer`: the name that sorts first, byte by byte,
    /// dials.
    #[must_use]
    pub fn of(own: &str, peer: &str) -> Self {
        if own < peer { Self::Dialer } else { Self::Listener }
    }
}

/// Context for the TLS exporter; see the [module](self).
#[must_use]
pub fn exporter_context(
    version: u16,
    dialer_session: u32,
    listener_session: u32,
    cipher: Cipher,
) -> [u8; 11] {
    let [v0, v1] = version.to_be_bytes();
    let [d0, d1, d2, d3] = dialer_session.to_be_bytes();
    let [l0, l1, l2, l3] = listener_session.to_be_bytes();
    [v0, v1, d0, d1, d2, d3, l0, l1, l2, l3, cipher.wire()]
}

/// The secrets of both directions at epoch 0, as one side of the session sees them.
#[derive(Debug)]
pub struct Secrets {
    /// For what this side sends.
    pub send: TrafficSecret,
    /// For what this side receives.
    pub receive: TrafficSecret,
}

impl Secrets {
    /// Derives both directions from what the TLS exporter gave.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn derive(exporter: &[u8; EXPORTER_BYTES], role: Role, cipher: Cipher) -> Result<Self, KeyError> {
        let root = Salt::new(HKDF_SHA256, ROOT_SALT).extract(exporter);
        let outbound = TrafficSecret::expand(&root, DIALER_TO_LISTENER, cipher)?;
        let inbound = TrafficSecret::expand(&root, LISTENER_TO_DIALER, cipher)?;
        Ok(match role {
            Role::Dialer => Secrets { send: outbound, receive: inbound },
            Role::Listener => Secrets { send: inbound, receive: outbound },
        })
    }
}

/// The secret of one direction and one epoch. It yields the epoch's [`PacketKey`] and the next
/// epoch's secret, and is overwritten when dropped.
#[derive(Clone)]
pub struct TrafficSecret {
    cipher: Cipher,
    secret: Prk,
}

impl std::fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrafficSecret").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

impl TrafficSecret {
    fn expand(from: &Prk, label: &[u8], cipher: Cipher) -> Result<Self, KeyError> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        expand(from, label, secret.as_mut_slice())?;
        Ok(TrafficSecret { cipher, secret: Prk::new_less_safe(HKDF_SHA256, secret.as_slice()) })
    }

    /// The secret of the following epoch.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn next(&self) -> Result<Self, KeyError> {
        TrafficSecret::expand(&self.secret, NEXT_EPOCH, self.cipher)
    }

    /// The epoch's key, set up once and used for every packet of the epoch.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn key(&self) -> Result<PacketKey, KeyError> {
        Ok(PacketKey(match self.cipher {
            Cipher::Aegis128L => {
                let mut key = Zeroizing::new([0; AEGIS_BYTES]);
                expand(&self.secret, KEY, key.as_mut_slice())?;
                Keyed::Aegis { key, iv: self.iv()? }
            }
            Cipher::Aes128Gcm => self.gcm_or_chacha(&AES_128_GCM)?,
            Cipher::ChaCha20Poly1305 => self.gcm_or_chacha(&CHACHA20_POLY1305)?,
        }))
    }

    /// Returns cipher, key and IV of the epoch as they are, for a [key log](crate::key_log).
    pub(crate) fn exposed(&self) -> Result<Exposed, KeyError> {
        let (name, key_bytes, iv_bytes) = match self.cipher {
            Cipher::Aegis128L => ("aegis-128l", AEGIS_BYTES, AEGIS_BYTES),
            Cipher::Aes128Gcm => ("aes-128-gcm", AES_128_GCM.key_len(), NONCE_LEN),
            Cipher::ChaCha20Poly1305 => ("chacha20-poly1305", CHACHA20_POLY1305.key_len(), NONCE_LEN),
        };
        let (mut key, mut iv) = (Zeroizing::new(vec![0; key_bytes]), vec![0; iv_bytes]);
        expand(&self.secret, KEY, &mut key)?;
        expand(&self.secret, IV, &mut iv)?;
        Ok(Exposed { cipher: name, key, iv })
    }

    fn gcm_or_chacha(&self, algorithm: &'static Algorithm) -> Result<Keyed, KeyError> {
        let mut bytes = Zeroizing::new([0; MAX_KEY_BYTES]);
        let key = bytes.get_mut(..algorithm.key_len()).ok_or(KeyError)?;
        expand(&self.secret, KEY, key)?;
        Ok(Keyed::Rfc5116 { aead: LessSafeKey::new(UnboundKey::new(algorithm, key)?), iv: self.iv()? })
    }

    fn iv<const N: usize>(&self) -> Result<[u8; N], KeyError> {
        let mut iv = [0; N];
        expand(&self.secret, IV, &mut iv)?;
        Ok(iv)
    }
}

pub(crate) fn expand(from: &Prk, label: &[u8], out: &mut [u8]) -> Result<(), KeyError> {
    from.expand(&[label], Length(out.len()))?.fill(out)?;
    Ok(())
}

/// An epoch's keys as they are.
pub(crate) struct Exposed {
    /// Its name in a [key log](crate::key_log).
    pub(crate) cipher: &'static str,
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) iv: Vec<u8>,
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Key and IV of one direction and one epoch, ready for use.
pub struct PacketKey(Keyed);

enum Keyed {
    /// An AEAD with the usual nonce of 12 bytes.
    Rfc5116 { aead: LessSafeKey, iv: [u8; NONCE_LEN] },
    /// It has no key schedule: each packet's state is made from key and nonce.
    Aegis { key: Zeroizing<[u8; AEGIS_BYTES]>, iv: [u8; AEGIS_BYTES] },
}

impl std::fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketKey").finish_non_exhaustive()
    }
}

impl PacketKey {
    /// Encrypts `text` in place. The caller never passes the same space and packet number twice.
    ///
    /// # Errors
    /// [`KeyError`] if `text` is longer than the cipher allows (64 GiB).
    pub fn seal(
        &self,
        space: u16,
        packet_number: u64,
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG], KeyError> {
        match &self.0 {
            Keyed::Rfc5116 { aead, iv } => {
                let nonce = Nonce::assume_unique_for_key(nonce(*iv, space, packet_number));
                let tag = aead.seal_in_place_separate_tag(nonce, Aad::from(aad), text)?;
                tag.as_ref().try_into().map_err(|_| KeyError)
            }
            Keyed::Aegis { key, iv } => {
                let aead = Aegis128L::<TAG>::new(key, &nonce(*iv, space, packet_number));
                Ok(aead.encrypt_in_place(text, aad))
            }
        }
    }

    /// Authenticates and decrypts `text` (ciphertext and tag) in place; returns the plaintext.
    ///
    /// # Errors
    /// [`KeyError`] if it was not sealed with this key, space, number and additional data. `text`
    /// is then unspecified.
    pub fn open<'a>(
        &self,
        space: u16,
        packet_number: u64,
        aad: &[u8],
        text: &'a mut [u8],
    ) -> Result<&'a mut [u8], KeyError> {
        match &self.0 {
            Keyed::Rfc5116 { aead, iv } => {
                let nonce = Nonce::assume_unique_for_key(nonce(*iv, space, packet_number));
                Ok(aead.open_in_place(nonce, Aad::from(aad), text)?)
            }
            Keyed::Aegis { key, iv } => {
                let (text, tag) = text.split_last_chunk_mut::<TAG>().ok_or(KeyError)?;
                let aead = Aegis128L::<TAG>::new(key, &nonce(*iv, space, packet_number));
                aead.decrypt_in_place(text, tag, aad).map_err(|_| KeyError)?;
                Ok(text)
            }
        }
    }
}

/// Space (a thread and a lane) and packet number, left-padded with zeros to the IV's length, XOR
/// the IV (RFC 9001, 5.3, with the path as in QUIC's multipath extension).
fn nonce<const N: usize>(mut iv: [u8; N], space: u16, packet_number: u64) -> [u8; N] {
    let unique = packet_number.to_le_bytes().into_iter().chain(space.to_le_bytes());
    for (byte, unique) in iv.iter_mut().rev().zip(unique) {
        *byte ^= unique;
    }
    iv
}
