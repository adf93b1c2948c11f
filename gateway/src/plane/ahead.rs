//! Packets copied ahead of a take-over, a few between two rounds of a worker.

use std::sync::Weak;
use std::sync::mpsc::Sender;
use std::time::Instant;

use snapshot::{Beside, Written};
use splice::{Copying, Gateway};

/// Shared memory for what waits towards a peer.
pub struct Ahead {
    /// The memory.
    pub beside: Beside,
    /// Told when there is no more to copy.
    pub done: Sender<()>,
    /// Gone once nobody takes over any more.
    pub alive: Weak<()>,
}

/// Copying under way, or done.
pub(super) struct CopyingAhead {
    ahead: Ahead,
    at: Copying,
    /// Bytes in the memory when this pass began.
    before: usize,
    /// Passes to come, this one included; 0: it is done.
    passes: u8,
}

/// Bytes copied between two rounds: some 50 us.
const STEP: usize = 128 << 10;
/// Passes at most: each copies what came during the one before.
const PASSES: u8 = 4;
/// A pass that copied no more than this is the last: the rest takes a millisecond or two.
const FEW: usize = 4 << 20;

impl CopyingAhead {
    pub(super) fn new(ahead: Ahead) -> Self {
        Self { at: Copying::default(), before: ahead.beside.used(), passes: PASSES, ahead }
    }

    /// Copies some. Returns true if there is more.
    pub(super) fn step(&mut self, core: &mut Gateway) -> bool {
        if self.passes == 0 {
            return false;
        }
        let beside = &mut self.ahead.beside;
        if core.copy_ahead(&mut self.at, beside, STEP) || beside.is_full() {
            let copied = beside.used() - self.before;
            self.passes = if copied <= FEW || beside.is_full() { 0 } else { self.passes - 1 };
            (self.at, self.before) = (Copying::default(), beside.used());
        }
        if self.passes == 0 {
            // Nobody may care to know any more.
            let _ = self.ahead.done.send(());
        }
        self.passes > 0
    }

    /// True if nobody takes over any more.
    pub(super) fn is_over(&self) -> bool {
        self.ahead.alive.strong_count() == 0
    }

    /// Unmaps the memory on another thread: a gibibyte takes a tenth of a second.
    pub(super) fn give_up(self) {
        let beside = self.ahead.beside;
        // Without a thread it is unmapped here.
        let _ = std::thread::Builder::new().name("unmap".to_owned()).spawn(move || drop(beside));
    }

    /// Writes the core's state, and returns the memory with it.
    pub(super) fn snapshot(
        self,
        core: &mut Gateway,
        now: Instant,
    ) -> Result<(Written, Option<Beside>), String> {
        let (written, beside) = core.snapshot_beside(now, self.ahead.beside);
        Ok((written.map_err(|error| error.to_string())?, beside))
    }
}
