//! Memory that both processes share while one takes over: packets that wait, and the snapshot that
//! refers to them.
//!
//! The new process makes it, so that the old one needs no further system call, and maps it before
//! the old one stands still. The old one never reads it. Neither can cut it short.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use snapshot::{Beside, SEGMENT, Segment, Segments};

use crate::mapping::SharedFile;
use crate::memory;

/// The extent of a thread's room towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The number of the pair of threads.
    pub thread: u8,
    /// The peer's, in the gateway file's order.
    pub peer: u8,
    /// Bytes for packets.
    pub packets: usize,
    /// Bytes for the snapshot, behind them.
    pub state: usize,
}

/// The bytes that wait in a thread towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The number of the pair of threads.
    pub thread: u8,
    /// The peer's, in the gateway file's order.
    pub peer: u8,
    /// Bytes of packets.
    pub bytes: u64,
}

/// Room for what comes while the process prepares itself.
const MORE: usize = 4 << 20;
/// Room for a snapshot without flows.
const LEAST_STATE: usize = 2 << 20;

impl Extent {
    /// Room for what waits, and a quarter more.
    #[must_use]
    pub fn of(waiting: &Waiting) -> Self {
        let Waiting { thread, peer, bytes } = *waiting;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let packets = bytes.saturating_add(bytes / 4).saturating_add(MORE);
        let packets = packets.checked_next_multiple_of(SEGMENT).unwrap_or(usize::MAX / SEGMENT * SEGMENT);
        Self { thread, peer, packets, state: LEAST_STATE.saturating_add(bytes / 8).next_multiple_of(SEGMENT) }
    }

    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packets.saturating_add(self.state)
    }
}

/// Why there is no such memory.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The machine or the control group has less.
    #[error("{needed} bytes are needed, and {free} are free")]
    Memory {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that may be had.
        free: u64,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The other process's is not as it says, or could be cut short.
    #[error("memory that is not as it was agreed on")]
    Other,
}

/// Checks that so many bytes may be had.
///
/// # Errors
/// [`NoRoom::Memory`].
pub(super) fn check(needed: usize) -> Result<(), NoRoom> {
    let (needed, free) = (needed as u64, memory::left().unwrap_or(u64::MAX));
    // A quarter stays free.
    if needed > free - free / 4 { Err(NoRoom::Memory { needed, free }) } else { Ok(()) }
}

/// The room, as the new process has it.
#[derive(Debug)]
pub struct Room {
    segments: Segments,
    state: SharedFile,
}

impl Room {
    /// Makes and maps the memory. Returns what the old process is to be given as well.
    ///
    /// # Errors
    /// See [`NoRoom`].
    pub fn new(extent: &Extent) -> Result<(Self, OwnedFd), NoRoom> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("longhaul-take-over", flags).map_err(io::Error::from)?;
        ftruncate(&file, extent.bytes() as u64).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        let packets = SharedFile::new(file.as_fd(), 0, extent.packets)?;
        let state = SharedFile::new(file.as_fd(), extent.packets as u64, extent.state)?;
        let segment = |memory| Arc::new(Segment::new(Box::new(Given(memory))));
        let segments = packets.split(SEGMENT).into_iter().map(segment).collect();
        Ok((Self { segments, state }, file))
    }

    /// The snapshot's first bytes, if there are so many.
    #[must_use]
    pub fn state(&self, len: usize) -> Option<&[u8]> {
        self.state.as_ref().get(..len)
    }

    /// The packets beside it.
    #[must_use]
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }
}

/// Opens the room in the old process.
///
/// # Errors
/// See [`NoRoom`].
pub fn open(extent: &Extent, file: &OwnedFd) -> Result<Beside, NoRoom> {
    let stat = fstat(file).map_err(io::Error::from)?;
    let is_as_long = u64::try_from(stat.st_size).is_ok_and(|size| size == extent.bytes() as u64);
    let seals = fcntl_get_seals(file).map_err(io::Error::from)?;
    if !is_as_long || !seals.contains(SealFlags::SHRINK) || !extent.packets.is_multiple_of(SEGMENT) {
        return Err(NoRoom::Other);
    }
    let packets = SharedFile::new(file.as_fd(), 0, extent.packets)?;
    let state = SharedFile::new(file.as_fd(), extent.packets as u64, extent.state)?;
    Ok(Beside::new(Box::new(packets), Box::new(state)))
}

/// Memory that the new process reads, and gives back as soon as nobody does any more.
struct Given(SharedFile);

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.release();
    }
}
