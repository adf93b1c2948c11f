//! Packet numbers of a session, as the seal would give them, and what the receiving gateway makes of them.

use std::collections::BTreeSet;

use splice::{Arrival, Ecn, PathStats};

use super::Broken;

/// Bytes of a number in front of a WAN packet.
pub(super) const PREFIX: usize = 8;

/// The numbers of the datagrams that go to a site, since its peer began the session.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: u64,
    /// Those that the site's gateway was given.
    heard: BTreeSet<u64>,
    first: Option<u64>,
}

impl Numbers {
    /// Writes the next number to the front of a WAN packet.
    pub(super) fn stamp(&mut self, packet: &mut [u8]) {
        if let Some(prefix) = packet.first_chunk_mut() {
            *prefix = self.next.to_be_bytes();
        }
        self.next += 1;
    }

    /// The sender counts anew.
    pub(super) fn restart(&mut self) {
        self.next = 0;
    }

    /// The receiver begins to listen.
    pub(super) fn listen(&mut self) {
        self.heard.clear();
        self.first = None;
    }

    /// The receiver hears a packet of so many bytes.
    pub(super) fn hear(&mut self, number: u64, bytes: usize) -> Arrival {
        self.first.get_or_insert(number);
        self.heard.insert(number);
        Arrival { number, bytes, ecn: Ecn::NotEct }
    }

    /// What the observer says is lost must not have been heard, number by number.
    pub(super) fn check(&self, path: &PathStats) -> Result<(), Broken> {
        let observed = &path.observed;
        let first = self.first.unwrap_or(0);
        let heard = self.heard.range(first..observed.horizon.max(first)).count() as u64;
        let (judged, lost) = (observed.horizon.saturating_sub(first), observed.lost);
        if (observed.judged, lost + heard) != (judged, judged) || observed.arrived != self.heard.len() as u64
        {
            return Err((
                "path",
                format!("{heard} of {judged} numbers from {first} on were heard, and yet: {observed:?}"),
            ));
        }
        Ok(())
    }
}

/// The number in front of a WAN packet, and the packet.
pub(super) fn split(bytes: &[u8]) -> (u64, &[u8]) {
    bytes.split_first_chunk().map_or((0, bytes), |(number, packet)| (u64::from_be_bytes(*number), packet))
}
