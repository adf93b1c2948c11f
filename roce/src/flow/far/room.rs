//! Responder side: READs are asked for as there is room for what they bring.

use std::time::Instant;

use super::{Entry, Far};
use crate::wire::Kind;

impl<B: AsRef<[u8]>> Far<B> {
    /// READ data that the owner can take, in bytes, beyond what is [awaited](Far::awaited): no READ
    /// that asks for more is sent.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// READ data asked for and not here yet, in bytes: what the owner keeps room for. A target that
    /// has been silent for two timeouts is not waited for with room that others need.
    pub fn awaited(&self) -> usize {
        if self.rtt.is_silent() { 0 } else { self.window.awaited() + self.replays.awaited() }
    }

    /// A READ is to be sent, but it asks for more than there is room for.
    pub fn awaits_room(&self) -> bool {
        let open = self.is_open();
        let replay = self.replays.next_bytes(self.came.mtu, self.config.piece());
        open && (replay.is_some_and(|bytes| bytes > self.room) || self.bytes_asked(0) > self.room)
    }

    /// Bytes asked for by the READ that is to be sent next, or the next piece of it; `None` if none
    /// is.
    pub fn next_read_length(&self) -> Option<u32> {
        let next = || self.window.unsent(0).filter(|entry| entry.kind == Kind::Read).map(|entry| &entry.read);
        self.replays.pending().or_else(next).map(|read| read.length)
    }

    /// READ data that the request to be sent after `ahead` others asks for, in bytes. Of the next
    /// one, a part may have been asked for before.
    pub(super) fn bytes_asked(&self, ahead: usize) -> usize {
        let (piece, mtu) = (self.config.piece(), self.came.mtu);
        let from = if ahead == 0 { self.window.ask_from(piece, mtu) } else { 0 };
        let entry = self.window.unsent(ahead);
        entry.map_or(0, |Entry { read, .. }| read.between(from, read.piece_end(from, piece, mtu)))
    }

    /// The owner dropped a packet from the target for want of room. So the target is not silent;
    /// what was dropped is asked for again.
    pub fn handle_dropped(&mut self, now: Instant) {
        self.still_answers(now);
    }

    /// The target is not silent, but there is no progress.
    pub(super) fn still_answers(&mut self, now: Instant) {
        self.silence.end();
        self.silence.restart_timer(now);
    }
}
