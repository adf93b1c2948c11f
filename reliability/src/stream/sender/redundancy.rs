//! Redundancy: the packets that a scheme adds to the data packets.

use std::fmt::Debug;
use std::time::Duration;

use super::outlook::Outlook;
use super::queue::Queue;
use crate::stream::wire::{Parity, Shape};

/// How a data packet describes itself on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) shape: Shape,
    /// Place in the group; 0 if not coded.
    pub(super) position: u16,
    /// Its frames are to be kept until [`Queue::unhold`], also when it has arrived: parity may yet
    /// be made of them.
    pub(super) held: bool,
}

impl Placement {
    /// Packets that are in no block.
    pub(super) fn uncoded(shape: Shape) -> Self {
        Self { shape, position: 0, held: false }
    }
}

/// The receiver asks for a packet, or for any packet of its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) sequence: u64,
    /// The report's number; its parts share it.
    pub(super) report: u32,
    /// The report tells what arrived of all that was sent up to then.
    pub(super) known: u64,
}

/// The seam between the stream and its schemes, on the sending side. Times in microseconds of the
/// sender's clock.
pub(super) trait Redundancy: Debug + Send {
    /// A data packet of the queue goes out for the first time.
    fn add(&mut self, sequence: u64, queue: &Queue, outlook: &Outlook, now: u64) -> Placement;

    /// Packets below `end` may be let go of after this: takes what it still needs of those that are
    /// not held.
    fn before_acknowledging(&mut self, _end: u64, _: &Queue) {}

    /// Writes the next parity's symbol behind the place of its header; the header (without stream
    /// and time) and the symbol's length.
    fn poll_parity(&mut self, queue: &Queue, now: u64, out: &mut [u8]) -> Option<(Parity, usize)>;

    /// When the block under way wants to be closed; `quiet` after its last packet, if given.
    fn flush_at(&self, quiet: Option<u64>) -> Option<u64>;

    /// Closes the block under way.
    fn close(&mut self, outlook: &Outlook, now: u64);

    /// No block is under way, and all parity is sent.
    fn is_between_blocks(&self) -> bool;

    /// From when on a packet first sent at `sent` counts towards its timeout; `None` while its
    /// block is under way.
    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64>;

    /// Returns true if a block that lacks packets gets parity for them; otherwise the packet asked
    /// for is sent again.
    fn answers(&mut self, _: &Asked, _: &Queue) -> bool {
        false
    }

    /// A report's list is through: decides on the parity for the blocks it named.
    fn answer(&mut self, _: &Outlook) {}

    /// The receiver waits so long for overtaken packets.
    fn set_reorder_time(&mut self, _: Duration) {}

    /// Packets were acknowledged: lets go of what is not asked about any more.
    fn settle(&mut self, queue: &mut Queue);

    /// Gives back the memory that no block needs now.
    fn release_spare(&mut self) {}
}
