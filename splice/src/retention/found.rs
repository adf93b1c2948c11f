//! The contents of memory at the time a process took it into use.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Found {
    /// Nothing: it is new.
    #[error("nothing")]
    Nothing,
    /// The requests that a process of this version and layout left, recent or not.
    #[error("what an earlier process retained")]
    Kept,
    /// The same, and so many slots that hold no whole request. A process that is killed leaves
    /// none.
    #[error("{0} requests that are not whole")]
    Damaged(u32),
    /// It does not begin as such memory does.
    #[error("it begins with \"{}\"", .0.escape_ascii())]
    Foreign([u8; 8]),
    /// It is cut into other slots.
    #[error("{slots} places of {size} bytes")]
    Cut {
        /// Bytes of a slot.
        size: u32,
        /// How many there are.
        slots: u32,
    },
    /// It was last in use at a time that is still to come.
    #[error("it was last in use {0} ms after the machine's start, which is still to come")]
    ToCome(u64),
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
