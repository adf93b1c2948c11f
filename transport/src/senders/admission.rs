//! Who may add how much to a class's bulk stream.

use super::Senders;
use super::slot::Reservation;
use crate::group::Group;
use crate::marker::Marker;

/// Room kept for a message that is taken whole or not at all: as much as has come of it, at least
/// and at most (a part of the backlog).
const LEAST_PROMISED: usize = 64 << 10;
const MOST_PROMISED: usize = 16;

impl Senders {
    /// Takes all that is pushed or asked about from now on for this group's.
    ///
    /// A main group may have eight times as much waiting in a class's stream as is free of the
    /// backlog; all others together a quarter of the backlog, and each of them twice as much as is
    /// free of that. So whatever one sends, another finds room, and the main ones most of it.
    #[inline]
    pub fn serve(&mut self, group: Group) {
        self.served = Some(group);
    }

    /// Tells whether a record of `len` bytes of body will be taken on the class's bulk stream,
    /// beside what was asked for elsewhere.
    #[inline]
    #[must_use]
    pub fn has_room(&self, class: usize, len: usize) -> bool {
        self.slot(class).is_some_and(|slot| slot.has_room(len) && slot.has_share(self.served, len))
            && self.common_room(class) >= len
    }

    /// Tells whether so much more of the group that is served leaves others their share.
    #[inline]
    #[must_use]
    pub fn has_share(&self, class: usize, len: usize) -> bool {
        self.slot(class).is_none_or(|slot| slot.has_share(self.served, len))
    }

    /// Tells whether a message of this group may begin for which `len` bytes are to be kept: its
    /// source's `marker` does not pick it to be dropped, there is headroom, and room for it beside
    /// what is kept for those that have begun.
    #[must_use]
    pub fn takes_message(&self, class: usize, group: Group, len: usize, marker: &mut Marker) -> bool {
        let effective_backlog = self.effective_backlog(class);
        self.slot(class).is_some_and(|slot| slot.takes_message(group, len, marker, effective_backlog))
    }

    /// Returns the room to keep for a message of which so much is to come, as it says, and so
    /// much has come.
    #[must_use]
    pub fn promised(&self, class: usize, coming: usize, come: usize) -> usize {
        let most = self.slot(class).map_or(0, |slot| slot.max_backlog / MOST_PROMISED);
        coming.min(come.max(LEAST_PROMISED)).min(most)
    }

    /// A message of this group and the class has `bytes` kept, where it had what `claim` says.
    pub fn promise(&mut self, class: usize, group: Group, claim: &mut Reservation, bytes: usize) {
        self.move_claim(class, claim, bytes, |slot, less, more| slot.promise(group, less, more));
    }

    /// Returns whether anything of this group waits in any class's bulk stream.
    #[must_use]
    pub fn has_backlog_of(&self, group: Group) -> bool {
        self.slots.iter().flatten().any(|slot| slot.bulk.backlog_of(group.number()) > 0)
    }

    /// Returns the group that is served; the first before any was.
    #[inline]
    #[must_use]
    pub fn group(&self) -> Group {
        self.served.unwrap_or(Group::main(0))
    }
}
