//! Packets copied ahead of a snapshot.

use reliability::stream::Copying;
use snapshot::Beside;

use super::Senders;

/// How far packets of all streams have been copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamCopying {
    /// Streams that are done, two for each slot.
    streams: usize,
    stream: Copying,
}

impl Senders {
    /// Copies packets ahead of a snapshot, as [`reliability::stream::Sender::copy_ahead`] does.
    pub fn copy_ahead(&mut self, at: &mut StreamCopying, to: &mut Beside, budget: &mut usize) -> bool {
        while let Some(slot) = self.slots.get_mut(at.streams / 2) {
            if let Some(slot) = slot {
                let stream = if at.streams.is_multiple_of(2) { &mut slot.bulk } else { &mut slot.prompt };
                if !stream.copy_ahead(&mut at.stream, to, budget) {
                    return false;
                }
            }
            *at = StreamCopying { streams: at.streams + 1, stream: Copying::default() };
        }
        true
    }
}
