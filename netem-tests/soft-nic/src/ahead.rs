//! Request packets that came before their turn, of a responder whose peer repeats only what is
//! missing.

use std::collections::BTreeMap;

use roce::wire::Psn;

use super::personality::KEPT_AHEAD;

/// Up to [`KEPT_AHEAD`] packets within that distance. What does not fit is dropped, as by any other
/// responder.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    packets: BTreeMap<u32, Vec<u8>>,
}

impl Ahead {
    /// Keeps a packet (BTH to padding) that is ahead of `expected`.
    pub(super) fn keep(&mut self, psn: Psn, expected: Psn, transport: &[u8]) {
        let near = usize::try_from(psn.distance(expected)).is_ok_and(|ahead| ahead <= KEPT_AHEAD);
        if near && self.packets.len() < KEPT_AHEAD {
            self.packets.entry(psn.get()).or_insert_with(|| transport.to_vec());
        }
    }

    /// The packet whose turn it is.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Vec<u8>> {
        self.packets.retain(|psn, _| !Psn::new(*psn).is_before(expected));
        self.packets.remove(&expected.get())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }
}
