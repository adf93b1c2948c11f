//! A recorded course of losses, played again.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Packets that arrived in a row, and packets that were then lost in a row.
pub type Run = (u64, u64);

/// Says of each packet whether it is lost. Begins at a place drawn from the seed; after the last
/// run comes the first one again.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    runs: Vec<Run>,
    next: usize,
    arrived: u64,
    lost: u64,
}

impl Replay {
    /// `None` if the runs hold no packet.
    pub(super) fn new(runs: impl IntoIterator<Item = Run>, seed: u64) -> Option<Self> {
        let len = |&(arrived, lost): &Run| arrived.saturating_add(lost);
        let runs: Vec<Run> = runs.into_iter().filter(|run| len(run) > 0).collect();
        let packets = runs.iter().map(len).fold(0, u64::saturating_add);
        if packets == 0 {
            return None;
        }
        let mut skip = Pcg64Mcg::seed_from_u64(seed).random_range(0..packets);
        let mut replay = Self { runs, next: 0, arrived: 0, lost: 0 };
        while let Some(run) = replay.runs.get(replay.next)
            && skip >= len(run)
        {
            skip -= len(run);
            replay.next += 1;
        }
        replay.take_up();
        let within = skip.min(replay.arrived);
        replay.arrived -= within;
        replay.lost -= skip - within;
        Some(replay)
    }

    /// The next packet's fate.
    pub(super) fn loses(&mut self) -> bool {
        if self.arrived == 0 && self.lost == 0 {
            self.take_up();
        }
        if self.arrived > 0 {
            self.arrived -= 1;
            return false;
        }
        self.lost -= 1;
        true
    }

    fn take_up(&mut self) {
        if self.next >= self.runs.len() {
            self.next = 0;
        }
        if let Some(&(arrived, lost)) = self.runs.get(self.next) {
            (self.arrived, self.lost) = (arrived, lost);
        }
        self.next += 1;
    }
}
