//! The replay window tells which packet numbers of a session were taken in before.

use crate::rejected::Rejected;

/// Packet numbers behind the newest that are still told apart; older ones are refused as too old.
/// 2^20 numbers take 128 KiB and cover 31 ms of difference between two paths at 400 Gbit/s in
/// 1500-byte packets, far more than lanes and segmentation offload reorder.
pub const REPLAY_WINDOW: u64 = (WORDS as u64 - 1) * 64;

const WORDS: usize = 1 << 14;

/// A ring of bits, one for each packet number of the window. The newest number stands in the ring's
/// leading word, which is why the window is one word shorter than the ring.
///
/// [`ReplayWindow::check`] changes nothing and may be asked before authentication;
/// [`ReplayWindow::mark`] is for authentic packets only.
///
/// Rule: `docs/protocol.md#rule-replay-window`.
#[derive(Debug)]
pub struct ReplayWindow {
    newest: u64,
    seen: Box<[u64]>,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow { newest: 0, seen: vec![0; WORDS].into_boxed_slice() }
    }
}

impl ReplayWindow {
    /// Checks that this number may still be taken in.
    ///
    /// # Errors
    /// [`Rejected::Replay`] if it was taken in before, [`Rejected::TooOld`] if nobody remembers.
    pub fn check(&self, number: u64) -> Result<(), Rejected> {
        if number > self.newest {
            return Ok(());
        }
        if self.newest - number >= REPLAY_WINDOW {
            return Err(Rejected::TooOld);
        }
        let (word, bit) = place(number);
        match self.seen.get(word) {
            Some(seen) if seen & bit == 0 => Ok(()),
            _ => Err(Rejected::Replay),
        }
    }

    /// Takes a number in that [`ReplayWindow::check`] let pass.
    pub fn mark(&mut self, number: u64) {
        if number > self.newest {
            self.advance(number);
        }
        let (word, bit) = place(number);
        if let Some(seen) = self.seen.get_mut(word) {
            *seen |= bit;
        }
    }

    /// Returns the highest number taken in, 0 if none was.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Clears the words that the ring reuses for newer numbers: each once in 64 packets, all of
    /// them after a jump.
    fn advance(&mut self, number: u64) {
        let (from, to) = (self.newest / 64, number / 64);
        self.newest = number;
        if to - from >= WORDS as u64 {
            self.seen.fill(0);
            return;
        }
        for word in from + 1..=to {
            if let Some(seen) = self.seen.get_mut(ring_index(word)) {
                *seen = 0;
            }
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    (ring_index(number / 64), 1 << (number % 64))
}

fn ring_index(word: u64) -> usize {
    usize::try_from(word % WORDS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests;
