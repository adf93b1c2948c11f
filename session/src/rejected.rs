//! Reasons for which a sealed datagram is refused.

/// Why a datagram was refused. A refused datagram changed nothing but counters:
/// the caller's, and that of forgeries, which ends a session at its cipher's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rejected {
    /// Shorter than header and tag.
    #[error("truncated")]
    Truncated,
    /// The first byte is not that of a bulk datagram.
    #[error("not a bulk datagram")]
    NotBulk,
    /// The session number is not this session's: a packet of an earlier session, or of a stranger.
    #[error("unknown session")]
    UnknownSession,
    /// A lane that the peer did not announce, or another thread's.
    #[error("unknown lane")]
    Lane,
    /// An epoch whose key is already or still unavailable.
    #[error("key epoch out of range")]
    Epoch,
    /// Not sealed with the session's key, or changed on the way.
    #[error("authentication failed")]
    Authentication,
    /// Authentic, but its packet number was already taken in.
    #[error("replay")]
    Replay,
    /// The packet number fell out of the replay window.
    #[error("too old")]
    TooOld,
    /// So many datagrams were forged that the session's keys open nothing any more.
    #[error("too many forgeries")]
    Spent,
}

impl Rejected {
    /// Every reason, in the order of [`Rejected::index`].
    pub const ALL: [Rejected; 9] = [
        Rejected::Truncated,
        Rejected::NotBulk,
        Rejected::UnknownSession,
        Rejected::Lane,
        Rejected::Epoch,
        Rejected::Authentication,
        Rejected::Replay,
        Rejected::TooOld,
        Rejected::Spent,
    ];

    /// The reason's place in [`Rejected::ALL`], for an array of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason as a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Rejected::Truncated => "truncated",
            Rejected::NotBulk => "not_bulk",
            Rejected::UnknownSession => "unknown_session",
            Rejected::Lane => "lane",
            Rejected::Epoch => "epoch",
            Rejected::Authentication => "authentication",
            Rejected::Replay => "replay",
            Rejected::TooOld => "too_old",
            Rejected::Spent => "spent",
        }
    }
}
