//! The packets of a stream that are waiting to be sent or to be acknowledged.

use std::collections::VecDeque;

use crate::bitmap::{Bitmap, WORD};
use crate::pool::Pool;
use crate::stream::wire::{self, Coding, FRAGMENT_HEADER, RECORD_HEADER, Shape};

/// A record that has to be cut is begun in the packet at hand only if at least this much of it goes there. Next to nothing: a packet that stays short ends a batch
/// of equal ones, and with records of 4 KiB over an MTU of 1500 each third packet did (`longhaul bench wan`: half the rate).
const MIN_PIECE: usize = 8;

/// One packet.
#[derive(Debug)]
pub(super) struct Slot {
    /// The frames. Released when acknowledged and not held.
    pub(super) bytes: Vec<u8>,
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

/// Packets `base..next` have been sent, `next..tail` wait; the last one is open for further records until it is sent or full.
#[derive(Debug)]
pub(super) struct Queue {
    slots: VecDeque<Slot>,
    base: u64,
    next: u64,
    open: bool,
    acknowledged: Bitmap,
    pool: Pool,
    /// Bytes of frames per packet.
    capacity: usize,
    backlog: usize,
    in_flight: usize,
    next_cut: u32,
}

impl Queue {
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            base: 0,
            next: 0,
            open: false,
            acknowledged: Bitmap::new(window + 2 * WORD as usize),
            pool: Pool::new(window),
            capacity,
            backlog: 0,
            in_flight: 0,
            next_cut: 0,
        }
    }

    /// The oldest packet that is still wanted.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The packet to be sent next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the bytes of frames of the packets to come. One that is open stays so as far as it has room.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The newest packet, sent or not.
    pub(super) fn newest(&self) -> Option<u64> {
        (self.base + self.slots.len() as u64).checked_sub(1)
    }

    /// The first packet of `from..to` that is still wanted or was not sent yet.
    pub(super) fn first_unacknowledged(&self, from: u64, to: u64) -> Option<u64> {
        let from = from.max(self.base);
        let missing = self.acknowledged.first_clear(from, to.min(self.next));
        missing.or_else(|| Some(self.next.max(from)).filter(|next| *next < to))
    }

    pub(super) fn slot(&self, sequence: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    pub(super) fn slot_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    /// Appends a record of `len` bytes, the concatenation of `parts`, to the last packets.
    pub(super) fn push(&mut self, parts: &[&[u8]], len: usize) {
        let fits = |room: usize| len <= wire::MAX_WHOLE && RECORD_HEADER + len <= room;
        let room = self.room();
        if fits(room) || (room < self.worth_cutting() && fits(self.capacity)) {
            let mut source = Source::new(parts);
            let header = wire::record_header(len);
            self.append(&header, &mut source, len);
        } else {
            self.push_cut(parts, len);
        }
    }

    /// Room in the open packet that is worth cutting a record for which the next one would hold whole. What is left out is not sent, so it
    /// costs no bandwidth; but a cut record has to be put together again, which is a copy more at the receiver.
    fn worth_cutting(&self) -> usize {
        (FRAGMENT_HEADER + MIN_PIECE).max(self.capacity / 8)
    }

    fn push_cut(&mut self, parts: &[&[u8]], len: usize) {
        let mut source = Source::new(parts);
        let id = self.next_cut;
        self.next_cut = id.wrapping_add(1);
        let mut offset = 0;
        while offset < len {
            let room = match self.room() {
                room if room >= FRAGMENT_HEADER + MIN_PIECE => room,
                _ => self.capacity,
            };
            let piece = (len - offset).min(room - FRAGMENT_HEADER).min(wire::MAX_FRAGMENT);
            let header = wire::fragment_header(id, len as u32, offset as u32, piece);
            self.append(&header, &mut source, piece);
            offset += piece;
        }
    }

    /// Bytes left in the open packet.
    fn room(&self) -> usize {
        match self.slots.back() {
            Some(slot) if self.open => self.capacity.saturating_sub(slot.bytes.len()),
            _ => 0,
        }
    }

    /// Adds a frame to the open packet, or to a new one if it does not fit.
    fn append(&mut self, header: &[u8], source: &mut Source<'_>, len: usize) {
        if header.len() + len > self.room() {
            self.slots.push_back(Slot {
                bytes: self.pool.take(),
                sent: 0,
                shape: Shape::uncoded(Coding::Sr),
                position: 0,
                tries: 0,
                queued: false,
                copies: 0,
                copied: false,
                acknowledged: false,
                held: false,
            });
            self.open = true;
        }
        if let Some(slot) = self.slots.back_mut() {
            slot.bytes.extend_from_slice(header);
            source.copy(len, &mut slot.bytes);
            self.backlog += header.len() + len;
        }
    }

    /// Moves the next packet from waiting to sent; false if none waits.
    pub(super) fn transmit_next(&mut self, now: u64) -> bool {
        let (next, tail) = (self.next, self.base + self.slots.len() as u64);
        let Some(slot) = self.slot_mut(next) else {
            return false;
        };
        slot.sent = now;
        let len = slot.bytes.len();
        self.backlog -= len;
        self.in_flight += len;
        self.next += 1;
        if self.next == tail {
            self.open = false;
        }
        true
    }

    /// Marks a sent packet as wanted no longer; its buffer is recycled unless it is held.
    pub(super) fn acknowledge(&mut self, sequence: u64) {
        if sequence >= self.next {
            return;
        }
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
            self.pool.give(bytes);
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
                self.pool.give(bytes);
            }
        }
    }

    /// Whether all packets of `from..to` were acknowledged.
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

    /// Gives back the memory that no packet needs now.
    pub(super) fn release_spare(&mut self) {
        self.pool.release();
        self.slots.shrink_to_fit();
    }

    /// The packets of the aligned word at `sequence` that were sent and are not acknowledged, as bits.
    pub(super) fn unacknowledged(&self, sequence: u64) -> u64 {
        let start = sequence & !(WORD - 1);
        let mut bits = !self.acknowledged.word(start);
        if start + WORD > self.next {
            bits &= match self.next.saturating_sub(start) {
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

/// Reads a record's parts as one.
struct Source<'a> {
    parts: std::slice::Iter<'a, &'a [u8]>,
    current: &'a [u8],
}

impl<'a> Source<'a> {
    fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts: parts.iter(), current: &[] }
    }

    fn copy(&mut self, mut len: usize, out: &mut Vec<u8>) {
        while len > 0 {
            if self.current.is_empty() {
                let Some(part) = self.parts.next() else {
                    return;
                };
                self.current = part;
                continue;
            }
            let (head, rest) = self.current.split_at(len.min(self.current.len()));
            out.extend_from_slice(head);
            self.current = rest;
            len -= head.len();
        }
    }
}
