//! Requester side: things to say to the requester next.

/// One thing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// An ACK of all that can be acknowledged by now.
    Ack,
    /// Where to go on.
    Nak,
    /// The last ACK again, for duplicates.
    Duplicate,
    /// The word that keeps it waiting.
    Keepalive,
    /// RNR, for want of room here.
    Pause,
    /// RNR, since the answer cannot come for now.
    Hold,
}

/// A set of them.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Due(u8);

impl Due {
    const fn bit(say: Say) -> u8 {
        1 << say as u8
    }

    pub(super) fn has(self, say: Say) -> bool {
        self.0 & Due::bit(say) != 0
    }

    pub(super) fn add(&mut self, say: Say) {
        self.0 |= Due::bit(say);
    }

    pub(super) fn add_if(&mut self, say: Say, is_due: bool) {
        if is_due {
            self.add(say);
        }
    }

    pub(super) fn remove(&mut self, say: Say) {
        self.0 &= !Due::bit(say);
    }

    /// Removes it, and returns whether it was due.
    pub(super) fn take(&mut self, say: Say) -> bool {
        let is_due = self.has(say);
        self.remove(say);
        is_due
    }
}
