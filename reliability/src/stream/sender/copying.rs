//! A sender's packets on their way to the next process, ahead of the snapshot.

use snapshot::{Beside, Packet};

/// How far packets have been copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copying {
    /// Places of packets that wait.
    pub(super) waiting: usize,
    /// The number of the next packet that was sent.
    pub(super) sent: u64,
}

/// The price of a look at a packet, in bytes copied.
const LOOK: usize = 128;

impl Copying {
    /// Copies a packet if the budget is not used up. Returns true if so.
    pub(super) fn step(&self, packet: &mut Packet, to: &mut Beside, budget: &mut usize) -> bool {
        if *budget == 0 {
            return false;
        }
        *budget = budget.saturating_sub(LOOK + packet.copy_ahead(to));
        true
    }
}
