//! The group of interleaved blocks under way.

use fec::{Code, Encoder};

use super::queue::Queue;
use crate::stream::StreamId;
use crate::stream::wire::{PARITY_HEADER, Parity, Shape};

/// Most packets that are encoded together.
const MOST_TOGETHER: usize = 4;

/// Up to `depth` blocks that are filled in turn. A block's packets are encoded where they stand in
/// the queue, so many at a time as the encoder likes best: fewer only before the block's parity is
/// read and before the queue may let go of one ([`encode`](Self::encode)). The parity of a group
/// follows its last data packet, interleaved as well, so that a burst takes one parity of each
/// block rather than all of one.
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
    /// When the last packet was added.
    grown: u64,
    /// The closed group's parities: of its longest blocks, and of those with one packet less.
    parities: (u8, u8),
    /// The closed group's next parity to send, by parity index and block.
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
            grown: 0,
            parities: (0, 0),
            next: None,
        };
        group.set_depth(shape.depth);
        group
    }

    /// Sets how many blocks the next group interleaves. Allocates if they are more than ever
    /// before.
    pub(super) fn set_depth(&mut self, depth: u8) {
        self.shape.depth = depth;
        while self.encoders.len() < usize::from(depth) {
            self.encoders.push(Encoder::new(self.code.clone(), self.capacity));
        }
    }

    /// Adds a packet of the queue, the group's first if none is under way; its position. It must
    /// not be full or closed.
    pub(super) fn add(&mut self, sequence: u64, queue: &Queue, now: u64) -> u16 {
        if self.count == 0 {
            self.base = sequence;
            self.opened = now;
        }
        self.grown = now;
        let position = self.count;
        self.count += 1;
        self.encode_lane((position % u16::from(self.shape.depth)) as u8, queue, false);
        position
    }

    /// Encodes of each block all packets so far, if one of them that is not encoded yet is below
    /// `end`.
    pub(super) fn encode(&mut self, end: u64, queue: &Queue) {
        if self.count == 0 || end <= self.base {
            return;
        }
        for lane in 0..self.shape.depth {
            let encoded = self.encoders.get(usize::from(lane)).map_or(0, Encoder::len);
            let next = self.base + encoded as u64 * u64::from(self.shape.depth) + u64::from(lane);
            self.encode_lane(lane, queue, next < end);
        }
    }

    /// Encodes what was added to the block and is not encoded yet, if it is enough for one go, or
    /// `all`.
    fn encode_lane(&mut self, lane: u8, queue: &Queue, all: bool) {
        let len = self.shape.block_len(self.count, lane);
        let Some(encoder) = self.encoders.get_mut(usize::from(lane)) else { return };
        let together = encoder.batch().min(MOST_TOGETHER);
        while len > encoder.len() && (all || len - encoder.len() >= together) {
            let mut packets = [[].as_slice(); MOST_TOGETHER];
            let indices = encoder.len()..len.min(encoder.len() + together);
            let count = indices.len();
            for (packet, index) in packets.iter_mut().zip(indices) {
                let sequence = self.base + index as u64 * u64::from(self.shape.depth) + u64::from(lane);
                let slot = queue.slot(sequence);
                debug_assert!(slot.is_some(), "packet {sequence} was let go of before it was encoded");
                *packet = slot.map_or(&[], |slot| &slot.bytes);
            }
            // The group is closed before a block overflows, and a payload is no longer than the
            // encoder's capacity.
            let pushed = encoder.push_batch(packets.get(..count).unwrap_or_default());
            debug_assert!(pushed.is_ok(), "{pushed:?}");
            if pushed.is_err() {
                return;
            }
        }
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

    /// When it is to be closed if it is not full: so long after its first packet, or after its last
    /// one if nothing is known to come.
    pub(super) fn flush_at(&self, flush: u64, quiet: Option<u64>) -> Option<u64> {
        let latest = self.opened + flush;
        self.is_open().then(|| quiet.map_or(latest, |quiet| latest.min(self.grown + quiet)))
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

    /// No packet is added any more. `parities` says how many a block of so many packets gets;
    /// without any, the group is over.
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

    /// Writes the next parity's symbol behind the place of its header; the header and the symbol's
    /// length.
    pub(super) fn poll_parity(&mut self, queue: &Queue, out: &mut [u8]) -> Option<(Parity, usize)> {
        let (index, lane) = self.next?;
        self.encode_lane(lane, queue, true);
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
