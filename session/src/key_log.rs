//! A log of keys, for whoever looks into captures: whoever reads it can read the sessions' traffic.
//!
//! Nothing is logged unless the owner of a gateway asks for it. A line has one key:
//!
//! ```text
//! longhaul-bulk-1 SESSION EPOCH CIPHER KEY IV
//! ```
//!
//! SESSION is the low half of the session's number, in four hexadecimal digits, as datagrams carry
//! it. EPOCH is 0 to 15. CIPHER is named as in `wan.ciphers`. KEY and IV are hexadecimal.

use std::fmt::{self, Write};
use std::sync::Arc;

use crate::schedule::{Exposed, KeyError, Secrets, TrafficSecret};

/// Epochs whose keys are logged when a session begins. A datagram tells its epoch modulo so many.
const EPOCHS: u8 = 16;

/// Takes the lines of a key log. It must not block.
#[derive(Clone)]
pub struct KeyLog(Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for KeyLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLog").finish_non_exhaustive()
    }
}

impl KeyLog {
    /// Hands the lines of each session to `write`.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// Logs the keys of a session, which each side calls by a number of its own.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn session(&self, secrets: &Secrets, local: u32, remote: u32) -> Result<(), KeyError> {
        for (secret, session) in [(&secrets.send, remote), (&secrets.receive, local)] {
            (self.0)(&lines(secret, session)?);
        }
        Ok(())
    }
}

/// Returns the lines of one direction: of its first 16 epochs. `session` is the number that its
/// datagrams carry.
///
/// # Errors
/// [`KeyError`] if the cryptographic library fails.
pub fn lines(secret: &TrafficSecret, session: u32) -> Result<String, KeyError> {
    let mut text = String::new();
    let mut secret = secret.clone();
    for epoch in 0..EPOCHS {
        let Exposed { cipher, key, iv } = secret.exposed()?;
        // A String takes everything.
        let _ = write!(text, "longhaul-bulk-1 {:04x} {epoch} {cipher} ", session as u16);
        hex(&mut text, &key);
        text.push(' ');
        hex(&mut text, &iv);
        text.push('\n');
        secret = secret.next()?;
    }
    Ok(text)
}

fn hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Cipher;
    use crate::schedule::{EXPORTER_BYTES, Role};

    #[test]
    fn both_directions_are_logged_and_both_sides_log_the_same() {
        let logged = |role, local, remote| {
            let text = Arc::new(Mutex::new(String::new()));
            let into = Arc::clone(&text);
            let log = KeyLog::new(move |lines| into.lock().unwrap().push_str(lines));
            let secrets = Secrets::derive(&[7; EXPORTER_BYTES], role, Cipher::ChaCha20Poly1305).unwrap();
            log.session(&secrets, local, remote).unwrap();
            let text = text.lock().unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let lines = logged(Role::Dialer, 0x1_000a, 0x2_000b);
        assert_eq!(lines, logged(Role::Listener, 0x2_000b, 0x1_000a));
        assert_eq!(lines.len(), 32);
        assert!(lines[0].starts_with("longhaul-bulk-1 000a 0 chacha20-poly1305 "), "{}", lines[0]);
        let lengths: Vec<usize> = lines[0].split(' ').skip(4).map(str::len).collect();
        assert_eq!(lengths, [64, 24]);
        let keys: std::collections::HashSet<&str> =
            lines.iter().map(|line| line.split(' ').nth(4).unwrap()).collect();
        assert_eq!(keys.len(), 32, "each epoch and direction has a key of its own");
    }
}
