//! One process takes over from another: messages between the two, and what crosses besides.
//!
//! The new process asks at the old one's admin socket. `POST /take-over` becomes a stream of
//! messages, each with a kind, a length and a body:
//!
//! | from | message | body |
//! |---|---|---|
//! | new | `Hello` | what it understands ([`Hello`]) |
//! | old | `Stand` | what it is ([`Stand`]) |
//! | old | `Socket`, for each | its [`Place`], and the descriptor beside it |
//! | new | `Room`, for each pair of threads and peer, or none at all | its [`Extent`], and shared memory beside it |
//! | new | `CopyAhead`, if there is room | none |
//! | old | `Copied` | none: it has copied packets there, and goes on |
//! | new | `Freeze` | none: everything that can fail before is done |
//! | old | `Site`, for each thread and each site that peers are of, if a site has several gateways | thread, the time by the machine's monotonic clock, and the part's snapshot |
//! | old | `Claim`, for each peer with flows that go on | its number, and the secret of its session |
//! | old | `InRoom` or `Snapshot`, for each pair of threads and peer | their numbers, its age, and the core's snapshot, or its length in the room |
//! | old | `Whole` | none |
//! | new | `HaveIt` | none: it has read everything, and could begin |
//! | old | `Yours` | none: it never goes on again |
//! | new | `Running` | none: the service manager knows it |
//!
//! Either may say `Refused` with a reason, or vanish, at any time. Up to `Yours` the old process
//! then goes on where it stood, and the new one ends. From `Freeze` to `Yours` the old one reads
//! and sends nothing but what keeps its control connections alive.
//!
//! Version 2 has no `Site`, and serves no gateway of several at a site. Version 1 has neither that
//! nor a room. Packets go into the room while the old process
//! still runs, so that the time in which nothing moves does not depend on how much waits.
//!
//! Nothing is sealed under a key of the other process, whichever goes on
//! ([decision](../../../docs/adr/0021-upgrade-by-resumption.md)).
//!
//! Bounds: text has 64 KiB at most, and a snapshot as much as the reader says. The old process
//! waits [`PREPARE`] for `Freeze`, and stands still for [`STAND_STILL`] at most. It copies ahead
//! for [`COPY`] at most. Room is a quarter more than what waits. It is not made unless a quarter of
//! the free memory would stay free.

mod announcement;
mod channel;
mod giver;
mod heir;
mod moment;
mod room;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use session::ThreadCounts;

use crate::retention::{FileId, Predecessor};

pub use crate::memory::control_group;
pub use announcement::{Announcement, Outcome, Taken};
pub use channel::{Broken, Channel};
pub use giver::{Giver, Offer};
pub use heir::{Given, Heir, NotTaken, Part, SitePart};
pub use room::{Extent, NoRoom, Room, Waiting, open as open_room};

/// Versions of the messages that are understood, the oldest and the newest.
pub const PROTOCOL: [u16; 2] = [1, 3];
/// The first version that serves a gateway of several at a site.
const WITH_SITES: u16 = 3;
/// Versions of snapshots that are understood.
pub const SNAPSHOTS: [u16; 2] = [snapshot::OLDEST, snapshot::VERSION];
/// The path that an admin listener's client posts to.
pub const PATH: &str = "/take-over";
/// The name of the messages in HTTP's `Upgrade`.
pub const NAME: &str = "longhaul-take-over";
/// How long the new process may take to prepare itself.
pub const PREPARE: Duration = Duration::from_secs(60);
/// How long the old process stands still at most: less than most NICs try, and less than the
/// silence that ends a session by default.
pub const STAND_STILL: Duration = Duration::from_secs(2);
/// How long the old process copies ahead at most. What it has not come to is copied while it stands
/// still.
pub const COPY: Duration = Duration::from_secs(20);
/// How long the old process waits for the word that the service manager knows the new one.
pub const RUNNING: Duration = Duration::from_secs(5);

/// The first words of a process that wants to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// See [`PROTOCOL`].
    pub protocol: [u16; 2],
    /// Versions of snapshots that it reads, the oldest and the newest.
    pub snapshot: [u16; 2],
    /// Its build.
    pub build: String,
}

/// A running gateway, for the process that is to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// The version of the messages that follow.
    pub protocol: u16,
    /// The version of its snapshots.
    pub snapshot: u16,
    /// Its build.
    pub build: String,
    /// Its executable's device and file number.
    pub executable: Option<(u64, u64)>,
    /// Its process.
    pub pid: u32,
    /// Its control group, if a service manager started it.
    pub control_group: Option<String>,
    /// The service manager's watchdog, in microseconds.
    pub watchdog: Option<u64>,
    /// Its site.
    pub site: String,
    /// Its peers, in the gateway file's order.
    pub peers: Vec<String>,
    /// Its data-plane threads.
    pub threads: u8,
    /// Those of each peer. An older version does not say: they have as many.
    #[serde(default)]
    pub peer_threads: Vec<u8>,
    /// Sockets that follow.
    pub sockets: u32,
    /// The bytes that wait in each thread towards each peer.
    #[serde(default)]
    pub waiting: Vec<Waiting>,
    /// The files in which it retains what is to outlive it. An older version does not say.
    #[serde(default)]
    pub retained: Option<Vec<FileId>>,
    /// Its site, or a peer's, has several gateways.
    #[serde(default)]
    pub is_member: bool,
}

impl Stand {
    /// Returns the pairs of a thread here and one of the peer's, each of which has a state.
    #[must_use]
    pub fn pairs(&self, peer: usize) -> u8 {
        let there = self.peer_threads.get(peer).copied().unwrap_or(self.threads);
        ThreadCounts { here: self.threads, there }.pairs()
    }

    /// Returns the pairs with all peers.
    #[must_use]
    pub fn all_pairs(&self) -> usize {
        (0..self.peers.len()).map(|peer| usize::from(self.pairs(peer))).sum()
    }

    /// Returns the process as the owner of its files.
    #[must_use]
    pub fn predecessor(&self) -> Predecessor {
        self.retained.clone().map_or(Predecessor::Unknown, Predecessor::Has)
    }
}

/// The purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Keeps other gateways off the interface.
    Lock,
    /// `admin.listen`.
    Admin,
    /// `admin.socket`.
    AdminSocket,
    /// The control connection with a peer.
    Control(u8),
    /// A thread's LAN, in socket mode.
    Lan(u8),
    /// Bulk data: peer, pair of threads, and the socket's number, of which the first receives.
    Bulk(u8, u8, u8),
}

/// Returns the data-plane threads of each peer.
#[must_use]
pub fn peer_threads(gateway: &config::Gateway) -> Vec<u8> {
    gateway.peers().map(|peer| peer.threads(gateway.data_plane.threads)).collect()
}

/// Returns the highest version that both understand.
fn common(ours: [u16; 2], theirs: [u16; 2]) -> Option<u16> {
    let ([least, most], [low, high]) = (ours, theirs);
    let highest = most.min(high);
    (highest >= least.max(low)).then_some(highest)
}

/// Returns the device and file number of this process's program.
#[must_use]
pub fn executable() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata("/proc/self/exe").ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
