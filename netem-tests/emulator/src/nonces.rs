//! Sealed datagrams that pass, by their headers: none may be there twice with another content.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Bytes of a bulk datagram that say key and packet number: lane, epoch, thread, session, number.
const HEADER: usize = 8;

/// The headers of all bulk datagrams that have come, and a fingerprint of each.
///
/// The header decides key and nonce within a direction, but for sessions with the same low half of
/// their random number: one in 65,536 of any two.
/// Bound: the datagrams of a test, some 64 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Nonces {
    seen: HashMap<(usize, [u8; HEADER]), u64>,
    fingerprint: RandomState,
    report: NonceReport,
}

/// The number of datagrams that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonceReport {
    /// With a header that was new.
    pub new: u64,
    /// With a header and a content that had been there.
    pub copies: u64,
    /// With a header that another content had: sealed twice under one key and number.
    pub reused: u64,
}

impl Nonces {
    /// Takes a datagram from this side.
    pub(crate) fn note(&mut self, side: usize, datagram: &[u8]) {
        // Shorter ones are none that was sealed.
        let Some((header, _)) = datagram.split_first_chunk() else { return };
        let fingerprint = self.fingerprint.hash_one(datagram);
        let count = match self.seen.insert((side, *header), fingerprint) {
            None => &mut self.report.new,
            Some(before) if before == fingerprint => &mut self.report.copies,
            Some(_) => &mut self.report.reused,
        };
        *count += 1;
    }

    /// Returns what was seen.
    pub(crate) fn report(&self) -> NonceReport {
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_content_under_a_header_is_a_reuse() {
        let mut nonces = Nonces::default();
        for (side, datagram) in [
            (0, &b"12345678 text"[..]),
            (1, b"12345678 other"),
            (0, b"12345678 text"),
            (0, b"12345679 text"),
            (0, b"12345678 next"),
            (0, b"short"),
        ] {
            nonces.note(side, datagram);
        }
        assert_eq!(nonces.report(), NonceReport { new: 3, copies: 1, reused: 1 });
    }
}
