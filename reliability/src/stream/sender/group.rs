//! The group of interleaved blocks under way.

use fec::{Code, Encoder};

use crate::stream::StreamId;
use crate::stream::wire::{PARITY_HEADER, Parity, Shape};

/// Up to `depth` blocks that are filled in turn. The parity of a group follows its last data packet, interleaved as well, so
/// that a burst takes one parity of each block rather than all of one.
#[derive(Debug)]
pub(super) struct Group {
    shape: Shape,
    code: Code,
    capacity: usize,
    /// One per block, as many as the deepest group so far had.
    encoders: Vec<Encoder>,
    base: u64,
    count: u16,
    opened: u64,
    /// Of the closed group: the parities of its longest blocks and of those with one packet less.
    parities: (u8, u8),
    /// Of the closed group: the next parity to send, by parity index and block.
    next: Option<(u8, u8)>,
}

impl Group {
    /// No group yet; packets of up to `capacity` bytes.
    pub(super) fn new(shape: Shape, code: Code, capacity: usize) -> Self {
        let mut group = Self {
            shape,
            code,
            capacity,
            encoders: Vec::new(),
            base: 0,
            count: 0,
            opened: 0,
            parities: (0, 0),
            next: None,
        };
        group.set_depth(shape.depth);
        group
    }

    /// Of the next group: how many blocks are interleaved. Allocates if they are more than ever before.
    pub(super) fn set_depth(&mut self, depth: u8) {
        self.shape.depth = depth;
        while self.encoders.len() < usize::from(depth) {
            self.encoders.push(Encoder::new(self.code.clone(), self.capacity));
        }
    }

    /// Adds a packet, the group's first if none is under way; its position. It must not be full or closed.
    pub(super) fn add(&mut self, sequence: u64, payload: &[u8], now: u64) -> u16 {
        if self.count == 0 {
            self.base = sequence;
            self.opened = now;
        }
        let position = self.count;
        let lane = usize::from(position % u16::from(self.shape.depth));
        if let Some(encoder) = self.encoders.get_mut(lane) {
            // The group is closed before a block overflows, and a payload is no longer than the encoder's capacity.
            let pushed = encoder.push(payload);
            debug_assert!(pushed.is_ok(), "{pushed:?}");
        }
        self.count += 1;
        position
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Data packets so far; 0 if no group is under way.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// One past its last packet so far.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.shape.packets()
    }

    /// Takes further packets.
    pub(super) fn is_open(&self) -> bool {
        self.count > 0 && self.next.is_none()
    }

    /// Parities that block `lane` of the closed group gets.
    pub(super) fn parities(&self, lane: u8) -> u8 {
        let (long, short) = self.parities;
        match self.shape.block_len(self.count, lane) {
            0 => 0,
            len if len == self.shape.block_len(self.count, 0) => long,
            _ => short,
        }
    }

    /// No packet is added any more. `parities` says how many a block of so many packets gets; without any, the group is over.
    pub(super) fn close(&mut self, parities: impl Fn(usize) -> u8) {
        let longest = self.shape.block_len(self.count, 0);
        self.parities = (parities(longest), parities(longest.saturating_sub(1)));
        self.next = self.seek(0, 0);
        if self.next.is_none() {
            self.reset();
        }
    }

    /// Forgets the group under way, and the parity that was not sent.
    pub(super) fn reset(&mut self) {
        self.encoders.iter_mut().for_each(Encoder::reset);
        self.count = 0;
        self.next = None;
    }

    /// Writes the next parity's symbol behind the place of its header; the header and the symbol's length.
    pub(super) fn poll_parity(&mut self, out: &mut [u8]) -> Option<(Parity, usize)> {
        let (index, lane) = self.next?;
        let symbol = self.encoders.get_mut(usize::from(lane))?.parity(index.into())?;
        out.get_mut(PARITY_HEADER..)?.get_mut(..symbol.len())?.copy_from_slice(symbol);
        let len = symbol.len();
        let header = Parity {
            flags: 0,
            stream: StreamId(0),
            timestamp: 0,
            base: self.base,
            shape: self.shape,
            lane,
            index,
            count: self.count,
            parities: self.parities(lane),
        };
        self.next = self.seek(index, lane + 1);
        if self.next.is_none() {
            self.reset();
        }
        Some((header, len))
    }

    /// The next parity, by index and block, from the given place on.
    fn seek(&self, mut index: u8, mut lane: u8) -> Option<(u8, u8)> {
        while index < self.shape.m {
            if lane >= self.shape.depth {
                (index, lane) = (index + 1, 0);
            } else if index < self.parities(lane) {
                return Some((index, lane));
            } else {
                lane += 1;
            }
        }
        None
    }
}
