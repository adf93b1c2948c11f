//! Proof that two processes held a session together, so that its flows may go on in the next one.
//!
//! ```text
//! secret   = TLS-Exporter("EXPORTER-longhaul/1 resumption", "", 32), where the flows began
//! channel  = TLS-Exporter("EXPORTER-longhaul/1 channel", "", 32), of the connection that asks
//! ticket   = HKDF-Expand(HKDF-Extract(salt = secret, channel), "longhaul/1 ticket of " role, 16)
//! ```
//!
//! `role` is `dialer` or `listener`, whichever shows the ticket.
//! The secret is only ever in the memory of the two processes. A process that restarts has none,
//! and one that takes another's place is given it with the flows.
//! A ticket is of use on its own connection only, and says nothing of the secret.
//! Identity is another matter: TLS has authenticated both sites before.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use zeroize::Zeroizing;

use crate::message::{TICKET_BYTES, Ticket};
use crate::schedule::{EXPORTER_BYTES, KeyError, Role, expand};

/// Label of the TLS exporter for the secret (RFC 8446, 7.5).
pub const SECRET_LABEL: &[u8] = b"EXPORTER-longhaul/1 resumption";

/// Label of the TLS exporter for what names the connection.
pub const CHANNEL_LABEL: &[u8] = b"EXPORTER-longhaul/1 channel";

/// The secret of two processes, from the session that their flows began in. It is overwritten when
/// dropped.
pub struct Resumption(Zeroizing<[u8; EXPORTER_BYTES]>);

impl std::fmt::Debug for Resumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resumption").finish_non_exhaustive()
    }
}

impl Resumption {
    /// Takes the exporter's output for [`SECRET_LABEL`].
    #[must_use]
    pub fn new(secret: Zeroizing<[u8; EXPORTER_BYTES]>) -> Self {
        Self(secret)
    }

    /// Returns the secret, for the process that takes this one's place and for nobody else.
    #[must_use]
    pub fn exposed(&self) -> &[u8; EXPORTER_BYTES] {
        &self.0
    }

    /// Returns the ticket that the side of this role shows on a connection. `channel` is the
    /// exporter's output for [`CHANNEL_LABEL`].
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn ticket(&self, role: Role, channel: &[u8; EXPORTER_BYTES]) -> Result<Ticket, KeyError> {
        let label: &[u8] = match role {
            Role::Dialer => b"longhaul/1 ticket of dialer",
            Role::Listener => b"longhaul/1 ticket of listener",
        };
        let root = Salt::new(HKDF_SHA256, self.0.as_slice()).extract(channel);
        let mut ticket = [0; TICKET_BYTES];
        expand(&root, label, &mut ticket)?;
        Ok(Ticket(ticket))
    }

    /// Returns whether the side of this role has shown its ticket.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn admits(
        &self,
        shown: Option<Ticket>,
        role: Role,
        channel: &[u8; EXPORTER_BYTES],
    ) -> Result<bool, KeyError> {
        let Ticket(expected) = self.ticket(role, channel)?;
        Ok(shown.is_some_and(|Ticket(shown)| verify_slices_are_equal(&shown, &expected).is_ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(byte: u8) -> Resumption {
        Resumption::new(Zeroizing::new([byte; EXPORTER_BYTES]))
    }

    #[test]
    fn only_the_same_secret_on_the_same_connection_in_the_same_role_admits() {
        let (held, channel) = (of(1), [7; EXPORTER_BYTES]);
        let ticket = held.ticket(Role::Dialer, &channel).unwrap();
        let admits = |held: &Resumption, shown, role, channel| held.admits(shown, role, channel).unwrap();
        assert!(admits(&of(1), Some(ticket), Role::Dialer, &channel));
        assert!(!admits(&of(2), Some(ticket), Role::Dialer, &channel), "another session's");
        assert!(!admits(&held, Some(ticket), Role::Listener, &channel), "sent back");
        assert!(!admits(&held, Some(ticket), Role::Dialer, &[8; EXPORTER_BYTES]), "taken from elsewhere");
        assert!(!admits(&held, None, Role::Dialer, &channel));
    }

    #[test]
    fn a_ticket_is_what_the_protocol_says() {
        let channel = std::array::from_fn(|place| place as u8);
        let Ticket(bytes) = of(0xab).ticket(Role::Listener, &channel).unwrap();
        assert_eq!(bytes, KNOWN);
    }

    /// Computed apart, by HMAC-SHA-256 alone.
    const KNOWN: [u8; TICKET_BYTES] =
        [0x1f, 0xed, 0x2d, 0x82, 0x3d, 0xe6, 0x33, 0x5e, 0x73, 0x06, 0xaf, 0x91, 0x68, 0x83, 0x93, 0xde];
}
