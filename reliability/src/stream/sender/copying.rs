//! A sender's packets on their way to the next process, ahead of the snapshot.

use snapshot::{Beside, LOOK, Packet};

/// How far packets have been copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copying {
    /// Places of packets that wait.
    pub(super) waiting: usize,
    /// The number of the next packet that was sent.
    pub(super) sent: u64,
}

/// Copies a packet if the budget is not used up. Returns true if so.
pub(super) fn copy(packet: &mut Packet, to: &mut Beside, budget: &mut usize) -> bool {
    if *budget == 0 {
        return false;
    }
    *budget = budget.saturating_sub(LOOK + packet.copy_ahead(to));
    true
}
