//! The contents of memory at the time a process took it into use.

use std::fmt;

/// How long ago memory was last in use, by what stands in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It may still matter.
    Recent,
    /// Flows are not remembered for so long.
    Old,
    /// The clock has not come there yet: it is another machine's, or damage.
    ToCome,
}

/// The contents of memory that a process took into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: it is new.
    Nothing,
    /// The requests that a process of this version and layout left, recent or not.
    Kept,
    /// The same, and so many slots that hold no whole request. A process that is killed leaves
    /// none.
    Damaged(u32),
    /// It does not begin as such memory does.
    Foreign([u8; 8]),
    /// It is cut into other slots.
    Cut {
        /// Bytes of a slot.
        size: u32,
        /// How many there are.
        slots: u32,
    },
    /// It was last in use at a time that is still to come.
    ToCome(u64),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nothing"),
            Self::Kept => write!(f, "what an earlier process retained"),
            Self::Damaged(slots) => write!(f, "requests that are not whole: {slots}"),
            Self::Foreign(magic) => write!(f, "it begins with \"{}\"", magic.escape_ascii()),
            Self::Cut { size, slots } => write!(f, "{slots} places of {size} bytes"),
            Self::ToCome(time) => {
                write!(f, "it was last in use {time} ms after the machine's start, which is still to come")
            }
        }
    }
}

impl Found {
    /// Names of what is wrong with memory, in the order of [`Found::wrong`].
    pub const WRONG: [&str; 4] = ["foreign", "cut", "to_come", "damaged"];

    /// Returns the place of its name, and how much of it was forgotten; `None`: nothing is wrong.
    #[must_use]
    pub fn wrong(&self) -> Option<(usize, u64)> {
        match self {
            Self::Nothing | Self::Kept => None,
            Self::Foreign(_) => Some((0, 1)),
            Self::Cut { .. } => Some((1, 1)),
            Self::ToCome(_) => Some((2, 1)),
            Self::Damaged(slots) => Some((3, (*slots).into())),
        }
    }
}
