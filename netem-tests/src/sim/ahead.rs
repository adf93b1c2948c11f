//! Packets copied ahead of a gateway's upgrade, between the steps of a world.

use std::sync::Arc;
use std::time::Instant;

use snapshot::{Beside, SEGMENT, Segment, Segments, Unwritable, Written};
use splice::{Copying, Gateway};

/// Shared memory in the making.
pub(super) struct Ahead {
    beside: Beside,
    at: Copying,
}

/// Bytes copied in a step: few, so that much changes in between.
const STEP: usize = 2000;
const STATE: usize = 1 << 20;

impl Ahead {
    pub(super) fn new() -> Self {
        let beside = Beside::new(Box::new(vec![0; 2 * SEGMENT]), Box::new(vec![0; STATE]));
        Self { beside, at: Copying::default() }
    }

    /// Copies some, over and over again.
    pub(super) fn step(&mut self, gateway: &mut Gateway) {
        if gateway.copy_ahead(&mut self.at, &mut self.beside, STEP) {
            self.at = Copying::default();
        }
    }

    /// Returns the snapshot, and the packets beside it.
    pub(super) fn take(self, gateway: &mut Gateway, now: Instant) -> Result<(Vec<u8>, Segments), Unwritable> {
        let (written, beside) = gateway.snapshot_beside(now, self.beside);
        let written = written?;
        let Some((mut memory, state)) = beside.map(Beside::into_memory) else {
            return Ok((Vec::new(), Vec::new()));
        };
        let segment = |part: &[u8]| Arc::new(Segment::new(Box::new(part.to_vec())));
        let segments = (*memory).as_mut().chunks(SEGMENT).map(segment).collect();
        let there = |len: usize| state.and_then(|mut state| (*state).as_mut().get(..len).map(<[u8]>::to_vec));
        let state = match written {
            Written::There(len) => there(len).unwrap_or_default(),
            Written::Apart(state) => state,
        };
        Ok((state, segments))
    }
}
