//! Packets on their way to the next process, ahead of the snapshot.

use snapshot::Beside;
use transport::StreamCopying;

use super::Gateway;
use crate::far_side::FarKey;
use crate::lan_queue::NearKey;

/// How far a gateway's packets have been copied ahead of a snapshot.
///
/// Those of the LAN's queue are not: they leave soonest.
#[derive(Debug, Default)]
pub struct Copying {
    streams: StreamCopying,
    stage: Stage,
}

/// Flows are those that there were when it came to them. Each list is what is left, in reverse.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    Streams,
    Far(Vec<FarKey>),
    Near(Vec<NearKey>),
    Done,
}

impl Gateway {
    /// Returns the bytes of all packets that a snapshot would hold now, or nearly so.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        let streams: usize = self.classes().map(|class| class.backlog + class.in_flight).sum();
        (streams + self.common.pool.bytes_in_use()) as u64
    }

    /// Copies packets ahead of a snapshot, for about as long as `budget` bytes take. Returns true
    /// once it has come to all of them. What has changed since is copied with the snapshot.
    pub fn copy_ahead(&mut self, at: &mut Copying, to: &mut Beside, mut budget: usize) -> bool {
        while budget > 0 {
            match &mut at.stage {
                Stage::Streams => {
                    if self.wan.senders().copy_ahead(&mut at.streams, to, &mut budget) {
                        at.stage = Stage::Far(self.far.keys());
                    }
                }
                Stage::Far(left) => {
                    let Some(flow) = left.last() else {
                        at.stage = Stage::Near(self.near.keys());
                        continue;
                    };
                    if self.far.copy_ahead(*flow, to, &mut budget) {
                        left.pop();
                    }
                }
                Stage::Near(left) => {
                    let Some(flow) = left.last() else {
                        at.stage = Stage::Done;
                        continue;
                    };
                    if self.near.copy_ahead(*flow, to, &mut budget) {
                        left.pop();
                    }
                }
                Stage::Done => return true,
            }
        }
        matches!(at.stage, Stage::Done)
    }
}
