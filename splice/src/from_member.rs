//! Messages and frames of other members of the sites, until the driver takes them.

use std::collections::VecDeque;

use crate::members::wire::Word;
use crate::pool::Buf;

/// Messages and frames of one member.
///
/// # Bounds
/// [`WORDS`] messages, [`FRAMES`] frames, which take room in the pool. What comes beyond that is
/// lost, as on a network: messages are repeated, and so are frames by their senders.
#[derive(Debug, Default)]
pub(crate) struct FromMember {
    words: VecDeque<Word>,
    frames: VecDeque<Buf>,
    /// Frames lost for want of room.
    pub(crate) lost: u64,
}

const WORDS: usize = 4096;
const FRAMES: usize = 256;

impl FromMember {
    pub(crate) fn push_word(&mut self, bytes: &[u8]) {
        if let Some(word) = Word::of(bytes).filter(|_| self.words.len() < WORDS) {
            self.words.push_back(word);
        }
    }

    /// `None`: the pool has no room.
    pub(crate) fn push_frame(&mut self, frame: Option<Buf>) {
        match frame.filter(|_| self.frames.len() < FRAMES) {
            Some(frame) => self.frames.push_back(frame),
            None => self.lost += 1,
        }
    }

    pub(crate) fn take_word(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    pub(crate) fn take_frame(&mut self) -> Option<Buf> {
        self.frames.pop_front()
    }
}
