//! Groups of sources, which share a class's bulk stream.

use reliability::stream::FIRST_OTHER;

/// A group of sources in a stream, see [`reliability::stream::Sender::push_from`]. Groups take
/// turns, and each has a share of the backlog ([`Senders::serve`](crate::senders::Senders::serve)).
///
/// There are two kinds of groups, [`Group::EACH_KIND`] of either: the main ones, whose sources heed
/// what they are told about the backlog, and the others, which have a part of it only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u8);

impl Group {
    /// Groups of either kind: a power of two.
    pub const EACH_KIND: usize = FIRST_OTHER;

    /// A main group, by the lower bits of `number`.
    #[must_use]
    pub const fn main(number: u8) -> Self {
        Self(number & (Self::EACH_KIND - 1) as u8)
    }

    /// One of the others, by the lower bits of `number`.
    #[must_use]
    pub const fn other(number: u8) -> Self {
        Self(number | Self::EACH_KIND as u8)
    }

    pub(crate) fn is_main(self) -> bool {
        usize::from(self.0) < Self::EACH_KIND
    }

    /// Its number among all groups.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its place among those of its kind.
    #[must_use]
    pub const fn place(self) -> usize {
        self.0 as usize % Self::EACH_KIND
    }
}
