//! Groups of sources, which share a class's bulk stream.

use reliability::stream::FIRST_OTHER;

/// A group of sources in a stream, see [`reliability::stream::Sender::push_from`]. Groups take
/// turns, and each has a share of the backlog ([`Senders::serve`](crate::senders::Senders::serve)).
///
/// There are two kinds of groups, [`Group::EACH_KIND`] of either: the main ones, whose sources heed
/// what they are told about the backlog, and are known to be there; and the others. These have half
/// of the stream at most while a main one waits, and a part of the backlog: all but an eighth where
/// they heed what they are told, a quarter where they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    number: u8,
    heeds: bool,
}

impl Group {
    /// Groups of either kind: a power of two.
    pub const EACH_KIND: usize = FIRST_OTHER;

    /// A main group, by the lower bits of `number`.
    #[must_use]
    pub const fn main(number: u8) -> Self {
        Self { number: number & (Self::EACH_KIND - 1) as u8, heeds: true }
    }

    /// One of the others, by the lower bits of `number`, whose sources heed what they are told.
    /// Nothing has shown that they are there: their names may be invented.
    #[must_use]
    pub const fn unproven(number: u8) -> Self {
        Self { number: number | Self::EACH_KIND as u8, heeds: true }
    }

    /// One of the others, by the lower bits of `number`, whose sources heed nothing.
    #[must_use]
    pub const fn other(number: u8) -> Self {
        Self { heeds: false, ..Self::unproven(number) }
    }

    pub(crate) fn is_main(self) -> bool {
        usize::from(self.number) < Self::EACH_KIND
    }

    pub(crate) fn is_unproven(self) -> bool {
        self.heeds && !self.is_main()
    }

    /// Its number among all groups.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.number
    }

    /// Its place among those of its kind.
    #[must_use]
    pub const fn place(self) -> usize {
        self.number as usize % Self::EACH_KIND
    }
}
