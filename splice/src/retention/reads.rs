//! Reads that end the process: a page that the machine cannot read, or contents that no reader of
//! this build survives.
//!
//! The head counts the processes in a row that ended while they read what was retained. A reader
//! counts itself before it reads, and takes that back afterwards. Whoever finds too many does not
//! read, but puts the memory aside. A process that lives until nothing is read any more begins the
//! count anew.

use std::time::Instant;

use super::layout;

/// Bytes of the head, which has the count.
pub const HEAD: usize = layout::HEAD;

/// Processes in a row that may end while they read. One may have been killed by chance just then.
pub const MOST_FATAL_READS: u32 = 3;

/// Returns how many processes in a row have ended while they read what was retained, from the first
/// [`HEAD`] bytes of the memory. From [`MOST_FATAL_READS`] on it is not to be read.
#[must_use]
pub fn fatal_reads(head: &[u8]) -> u32 {
    layout::fatal_reads(head)
}

/// The reads of one process.
#[derive(Debug)]
pub(super) struct Reads {
    /// Processes before this one that ended so.
    before: u32,
    /// When nothing of theirs is read any more.
    until: Instant,
}

impl Reads {
    pub(super) fn begin(memory: &mut [u8], until: Instant) -> Self {
        let reads = Self { before: layout::fatal_reads(memory), until };
        reads.begin_again(memory);
        reads
    }

    pub(super) fn begin_again(&self, memory: &mut [u8]) {
        layout::note_fatal_reads(memory, self.before.saturating_add(1));
    }

    pub(super) fn end(&self, memory: &mut [u8]) {
        layout::note_fatal_reads(memory, self.before);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        (self.before > 0).then_some(self.until)
    }

    pub(super) fn handle_timeout(&mut self, memory: &mut [u8], now: Instant) {
        if self.before > 0 && self.until <= now {
            self.before = 0;
            self.end(memory);
        }
    }
}
