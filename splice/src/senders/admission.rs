//! Who may add how much to a class's bulk stream.

use super::Senders;
use super::slot::Claim;
use crate::congestion::Marker;
use crate::hosts::HostGroup;

/// Room kept for a UC message: as much as has come of it, at least and at most (a part of the
/// backlog).
const LEAST_PROMISED: usize = 64 << 10;
const MOST_PROMISED: usize = 16;

impl Senders {
    /// Takes all that is pushed or asked about from now on for this host's.
    ///
    /// A host may have eight times as much RC waiting in a class's stream as is free of the
    /// backlog; of all else all hosts together a quarter of the backlog, and each twice as much as
    /// is free of that. So whatever one sends, another finds room, and RC most of it.
    pub(crate) fn serve(&mut self, host: HostGroup) {
        self.host = Some(host);
    }

    /// Tells whether a record of `len` bytes of body will be taken on the class's bulk stream, beside
    /// what targets were asked for.
    pub(crate) fn has_room(&self, class: usize, len: usize) -> bool {
        self.slot(class).is_some_and(|slot| slot.has_room(len) && slot.has_share(self.host, len))
            && self.common_room(class) >= len
    }

    /// Tells whether so much more of the host that is served leaves others their share.
    pub(crate) fn has_share(&self, class: usize, len: usize) -> bool {
        self.slot(class).is_none_or(|slot| slot.has_share(self.host, len))
    }

    /// Tells whether a UC message of this host may begin for which `len` bytes are to be kept: its
    /// queue pair's `marker` does not pick it to be dropped, there is headroom, and room for it
    /// beside what is kept for those that have begun.
    pub(crate) fn takes_message(
        &self,
        class: usize,
        host: HostGroup,
        len: usize,
        marker: &mut Marker,
    ) -> bool {
        let pressed = self.pressed(class);
        self.slot(class).is_some_and(|slot| slot.takes_message(host, len, marker, pressed))
    }

    /// Returns the room to keep for a UC message of which so much is to come, as it says, and so
    /// much has come.
    pub(crate) fn promised(&self, class: usize, coming: usize, come: usize) -> usize {
        let most = self.slot(class).map_or(0, |slot| slot.max_backlog / MOST_PROMISED);
        coming.min(come.max(LEAST_PROMISED)).min(most)
    }

    /// A UC message of this host and the class has `bytes` kept, where it had what `claim` says.
    pub(crate) fn promise(&mut self, class: usize, host: HostGroup, claim: &mut Claim, bytes: usize) {
        self.move_claim(class, claim, bytes, |slot, less, more| slot.promise(host, less, more));
    }

    /// Returns the group of a record that is pushed now.
    pub(crate) fn group(&self) -> u8 {
        self.host.map_or(0, HostGroup::number)
    }
}
