//! The packets of a stream that are waiting to be sent or to be acknowledged.

use std::collections::VecDeque;

use snapshot::{Beside, Packet};

use super::copying::{Copying, copy};
use super::waiting::{Origin, Waiting};
use crate::bitmap::{Bitmap, WORD};
use crate::pool::Pool;
use crate::stream::Alternation;
use crate::stream::wire::Shape;

/// One packet that was sent.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Slot {
    /// The frames. Released when acknowledged and not held.
    pub(super) bytes: Packet,
    /// Last transmission, in microseconds of the sender's clock.
    pub(super) sent: u64,
    pub(super) shape: Shape,
    pub(super) position: u16,
    /// Repairs decided so far, saturating.
    pub(super) tries: u8,
    /// Waits for its repair to be sent.
    pub(super) queued: bool,
    /// Extra copies of its last repair that are still to be sent.
    pub(super) copies: u8,
    /// There have been such copies.
    pub(super) copied: bool,
    pub(super) acknowledged: bool,
    /// Its frames are kept, whether or not it has arrived.
    pub(super) held: bool,
}

/// Packets `base..next` have been sent; what waits has no numbers yet.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Queue {
    slots: VecDeque<Slot>,
    base: u64,
    acknowledged: Bitmap,
    waiting: Waiting,
    pool: Pool,
    in_flight: usize,
}

impl Queue {
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            base: 0,
            acknowledged: Bitmap::new(window + 2 * WORD as usize),
            waiting: Waiting::new(capacity),
            pool: Pool::new(window),
            in_flight: 0,
        }
    }

    /// The oldest packet that is still wanted.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The packet to be sent next.
    pub(super) fn next(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub(super) fn capacity(&self) -> usize {
        self.waiting.capacity()
    }

    /// Changes the bytes of frames of the packets to come. One that is open stays so as far as it
    /// has room.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.waiting.set_capacity(capacity);
    }

    /// Bytes that wait.
    pub(super) fn backlog(&self) -> usize {
        self.waiting.backlog()
    }

    /// Bytes that wait of a group.
    pub(super) fn waiting_of(&self, group: u8) -> usize {
        self.waiting.waiting_of(group)
    }

    /// Bytes that wait of the groups from [`FIRST_OTHER`](super::FIRST_OTHER) on.
    pub(super) fn waiting_of_others(&self) -> usize {
        self.waiting.waiting_of_others()
    }

    /// Bytes that wait apart.
    pub(super) fn waiting_apart(&self) -> usize {
        self.waiting.waiting_apart()
    }

    /// How sources took turns.
    pub(super) fn alternation(&self) -> Alternation {
        self.waiting.alternation()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.waiting.backlog() == 0
    }

    /// The newest packet, sent or, if there is but one source, not.
    pub(super) fn newest(&self) -> Option<u64> {
        (self.next() + self.waiting.packets() as u64).checked_sub(1)
    }

    /// The first packet of `from..to` that is still wanted or was not sent yet.
    pub(super) fn first_unacknowledged(&self, from: u64, to: u64) -> Option<u64> {
        let (from, next) = (from.max(self.base), self.next());
        let missing = self.acknowledged.first_clear(from, to.min(next));
        missing.or_else(|| Some(next.max(from)).filter(|next| *next < to))
    }

    pub(super) fn slot(&self, sequence: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    pub(super) fn slot_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    /// Appends a record of `len` bytes, the concatenation of `parts`, to what its source has
    /// waiting. `now` is in microseconds of the sender's clock.
    pub(super) fn push(&mut self, origin: Origin, goes_first: bool, parts: &[&[u8]], len: usize, now: u64) {
        self.waiting.push(origin, goes_first, parts, len, (now, &mut self.pool));
    }

    /// Numbers the packet whose turn it is and moves it from waiting to sent. Returns since when it
    /// waited, or `None` if none waits. Its shape and position are still to be set.
    pub(super) fn transmit_next(&mut self, now: u64, shape: Shape) -> Option<u64> {
        let (bytes, since) = self.waiting.take(&mut self.pool)?;
        self.in_flight += bytes.len();
        self.slots.push_back(Slot {
            bytes,
            sent: now,
            shape,
            position: 0,
            tries: 0,
            queued: false,
            copies: 0,
            copied: false,
            acknowledged: false,
            held: false,
        });
        Some(since)
    }

    /// Marks a sent packet as wanted no longer; its buffer is recycled unless it is held.
    pub(super) fn acknowledge(&mut self, sequence: u64) {
        let Some(slot) = self.slot_mut(sequence) else {
            return;
        };
        if slot.acknowledged {
            return;
        }
        slot.acknowledged = true;
        if !slot.held {
            let bytes = std::mem::take(&mut slot.bytes);
            self.in_flight -= bytes.len();
            self.pool.give(bytes.into_buffer());
        }
        self.acknowledged.set(sequence);
    }

    /// The frames of the packets `from..to` are no longer needed when the packets have arrived.
    pub(super) fn unhold(&mut self, from: u64, to: u64) {
        for sequence in from.max(self.base)..to {
            let Some(slot) = self.slot_mut(sequence) else {
                return;
            };
            if std::mem::take(&mut slot.held) && slot.acknowledged {
                let bytes = std::mem::take(&mut slot.bytes);
                self.in_flight -= bytes.len();
                self.pool.give(bytes.into_buffer());
            }
        }
    }

    /// Returns true if all packets of `from..to` were acknowledged.
    pub(super) fn is_acknowledged(&self, from: u64, to: u64) -> bool {
        self.acknowledged.first_clear(from.max(self.base), to).is_none()
    }

    /// Drops the acknowledged packets at the front.
    pub(super) fn release(&mut self) {
        let from = self.base;
        while self.slots.front().is_some_and(|slot| slot.acknowledged && !slot.held) {
            self.slots.pop_front();
            self.base += 1;
        }
        self.acknowledged.clear(from, self.base);
    }

    /// Copies packets ahead of a snapshot: those that wait, and then those that were sent, which
    /// may be acknowledged any time. Returns true once it has come to all of them.
    pub(super) fn copy_ahead(&mut self, at: &mut Copying, to: &mut Beside, budget: &mut usize) -> bool {
        while let Some(packet) = self.waiting.packet_mut(at.waiting) {
            if !copy(packet, to, budget) {
                return false;
            }
            at.waiting += 1;
        }
        at.sent = at.sent.max(self.base);
        while let Some(slot) = self.slot_mut(at.sent) {
            if !copy(&mut slot.bytes, to, budget) {
                return false;
            }
            at.sent += 1;
        }
        true
    }

    /// Gives back the memory that no packet needs now.
    pub(super) fn release_spare(&mut self) {
        self.waiting.release_spare();
        self.pool.release();
        self.slots.shrink_to_fit();
    }

    /// The packets of the aligned word at `sequence` that were sent and are not acknowledged, as
    /// bits.
    pub(super) fn unacknowledged(&self, sequence: u64) -> u64 {
        let start = sequence & !(WORD - 1);
        let mut bits = !self.acknowledged.word(start);
        let next = self.next();
        if start + WORD > next {
            bits &= match next.saturating_sub(start) {
                0 => 0,
                sent => !0 >> (WORD - sent),
            };
        }
        if start < self.base {
            bits &= match self.base - start {
                gone if gone < WORD => !0 << gone,
                _ => 0,
            };
        }
        bits
    }
}
