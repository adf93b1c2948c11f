//! Blocks in the making: copies of what arrived, until nothing of the block is missing.

mod codes;
mod fallback;

pub(super) use self::fallback::{Lost, bits_from};

use std::collections::VecDeque;

use fec::{Decoder, Recovered};

use self::codes::Codes;
use self::fallback::Selected;
use super::{ReceiverConfig, Window};
use crate::shelf::Shelf;
use crate::stream::wire::{Parity, Shape};

/// Emptied groups kept for reuse, if they take no more than so many bytes: shapes are the peer's
/// choice.
const SPARE: usize = 1024;
const SPARE_CAPACITY: usize = 64 << 10;
/// Groups made amid others move no more than so many. One that would is not made, and its packets
/// are repaired one by one: what comes that far out of order is a repair itself.
const MOST_MOVED: usize = 1024;

/// The groups of interleaved blocks of which something is missing, as far as known.
///
/// Copies, tables, scratch and what is kept for reuse are bounded by `decode_buffer` bytes. At the
/// bound what is spare goes first, then the oldest group: what that misses is asked for packet by
/// packet. No group holds up another, nor the delivery of what has arrived.
///
/// Rule: `docs/protocol.md#rule-need-not-decode`.
#[derive(Debug)]
pub(super) struct Blocks {
    /// By base; their extents do not overlap.
    groups: VecDeque<Group>,
    spare: Vec<Group>,
    spare_bytes: usize,
    shelf: Shelf,
    codes: Codes,
    decoder: Decoder,
    /// The packets that [`Blocks::add_data`] and [`Blocks::add_parity`] decoded last.
    pub(super) recovered: Recovered,
    /// Bytes of these two.
    scratch: usize,
    /// Bytes of groups and copies.
    held: usize,
    budget: usize,
    given_up: u64,
    /// Groups below this have been given up, and none is made.
    given_up_below: u64,
    /// Which packets of the group at `selected_for` are to be asked for: words from the one that
    /// holds its base.
    selected: Vec<Selected>,
    selected_for: Option<u64>,
}

#[derive(Debug)]
struct Group {
    base: u64,
    /// One past its last packet: as announced by parity, or limited by what came after it, or as
    /// large as it may become.
    end: u64,
    shape: Shape,
    lanes: Vec<Lane>,
    /// Lanes that miss something, or may do.
    open: usize,
}

/// One block. Its tables come with its first packet.
#[derive(Debug, Default)]
struct Lane {
    data: Vec<Option<Vec<u8>>>,
    /// Parity packets at hand with their indices, in the order of arrival; never more than the
    /// block lacks.
    parity: Vec<(u8, Vec<u8>)>,
    /// Data packets at hand.
    present: usize,
    /// Nothing more to do.
    done: bool,
}

/// Where the packets in `Blocks::recovered` belong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    base: u64,
    depth: u8,
    lane: u8,
}

impl Place {
    /// The sequence number of data packet `index` of the block.
    pub(super) fn sequence(self, index: usize) -> u64 {
        self.base + index as u64 * u64::from(self.depth) + u64::from(self.lane)
    }
}

impl Default for Blocks {
    /// Nothing, and no room for anything.
    fn default() -> Self {
        Self {
            groups: VecDeque::new(),
            spare: Vec::new(),
            spare_bytes: 0,
            shelf: Shelf::new(),
            codes: Codes::new(),
            decoder: Decoder::new(),
            recovered: Recovered::new(),
            scratch: 0,
            held: 0,
            budget: 0,
            given_up: 0,
            given_up_below: 0,
            selected: Vec::new(),
            selected_for: None,
        }
    }
}

impl Blocks {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        Self { budget: config.decode_buffer, ..Self::default() }
    }

    /// Holds nothing, and makes no block of packets below `end`: what is missing of those is asked
    /// for packet by packet.
    pub(super) fn anew(config: &ReceiverConfig, end: u64, given_up: u64) -> Self {
        Self { given_up, given_up_below: end, ..Self::new(config) }
    }

    /// Changes how much may be held. What is beyond goes with the next packet.
    pub(super) fn set_bound(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Bytes held, with what is kept for reuse.
    pub(super) fn memory(&self) -> usize {
        self.held + self.shelf.bytes() + self.spare_bytes + self.scratch + self.codes.bytes()
    }

    /// Gives back the memory that no block needs now.
    pub(super) fn release_spare(&mut self) {
        self.shelf.shrink(0);
        (self.spare, self.spare_bytes) = (Vec::new(), 0);
        self.groups.shrink_to_fit();
        self.release_scratch();
    }

    fn release_scratch(&mut self) {
        (self.decoder, self.recovered, self.scratch) = (Decoder::new(), Recovered::new(), 0);
    }

    /// Blocks whose copies were given up, or did not decode.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// A packet arrived, at this time of the receiver's clock.
    pub(super) fn arrived(&mut self, now: u64) {
        self.codes.arrived(now);
    }

    /// A packet in no block: it ends a group that seemed to reach further.
    pub(super) fn add_uncoded(&mut self, sequence: u64) {
        let index = self.groups.partition_point(|group| group.end <= sequence);
        if self.groups.get(index).is_some_and(|group| group.base <= sequence) {
            self.end_group(index, sequence);
        }
    }

    /// Keeps a copy of a data packet that arrived for the first time; the place of the packets
    /// recovered by it, if any.
    pub(super) fn add_data(
        &mut self,
        sequence: u64,
        shape: Shape,
        position: u16,
        payload: &[u8],
    ) -> Option<Place> {
        let index = self.find(sequence - u64::from(position), shape, sequence + 1)?;
        let lane = (position % u16::from(shape.depth)) as u8;
        let group = self.groups.get_mut(index)?;
        let block_len = group.block_len(lane);
        let block = group.lanes.get_mut(usize::from(lane)).filter(|block| !block.done)?;
        self.held += block.prepare(shape);
        let slot = block.data.get_mut(usize::from(position / u16::from(shape.depth)))?;
        if slot.is_some() {
            return None;
        }
        block.present += 1;
        if block.present >= block_len {
            self.finish(index, lane);
            return None;
        }
        let mut copy = self.shelf.take(payload.len());
        copy.extend_from_slice(payload);
        self.held += copy.capacity();
        *slot = Some(copy);
        let ready = !block.parity.is_empty() && block.present + block.parity.len() >= block_len;
        let place = if ready { self.decode(index, lane) } else { None };
        self.enforce_budget();
        place
    }

    /// Keeps a parity packet; the place of the packets recovered by it, if any, or `Err` if it is
    /// not needed.
    pub(super) fn add_parity(
        &mut self,
        header: &Parity,
        symbol: &[u8],
        window: &Window,
    ) -> Result<Option<Place>, Unused> {
        let end = header.base + u64::from(header.count);
        let from = header.base.max(window.cumulative);
        if end > window.cumulative + window.size || window.bits.first_clear(from, end).is_none() {
            return Err(Unused);
        }
        let index = self.find(header.base, header.shape, end).ok_or(Unused)?;
        self.end_group(index, end);
        let group = self.groups.get_mut(index).ok_or(Unused)?;
        let block_len = group.block_len(header.lane);
        let block = group.lanes.get_mut(usize::from(header.lane)).filter(|block| !block.done);
        let block = block.ok_or(Unused)?;
        if block.parity.iter().any(|&(index, _)| index == header.index) {
            return Err(Unused);
        }
        self.held += block.prepare(header.shape);
        let mut copy = self.shelf.take(symbol.len());
        copy.extend_from_slice(symbol);
        self.held += copy.capacity();
        let tables = block.tables();
        block.parity.push((header.index, copy));
        self.held += block.tables() - tables;
        let ready = block.present + block.parity.len() >= block_len;
        let place = if ready { self.decode(index, header.lane) } else { None };
        self.enforce_budget();
        Ok(place)
    }

    /// Drops the groups that are finished or lie behind, and what exceeds the budget: a group costs
    /// something even before copies are kept for it.
    pub(super) fn settle(&mut self, cumulative: u64) {
        while self.groups.front().is_some_and(|group| group.open == 0 || group.end <= cumulative) {
            if let Some(group) = self.groups.pop_front() {
                self.recycle(group);
            }
        }
        self.enforce_budget();
    }

    /// The group at `base`, made if there is none; `None` if it contradicts another one, or was
    /// given up. It reaches to `known_end` at least.
    fn find(&mut self, base: u64, shape: Shape, known_end: u64) -> Option<usize> {
        let index = self.groups.partition_point(|group| group.base < base);
        if let Some(group) = self.groups.get(index).filter(|group| group.base == base) {
            return (group.shape == shape && known_end <= group.end).then_some(index);
        }
        if base < self.given_up_below || self.groups.get(index).is_some_and(|next| next.base < known_end) {
            return None;
        }
        if index.min(self.groups.len() - index) > MOST_MOVED {
            return None;
        }
        if let Some(before) = index.checked_sub(1) {
            self.end_group(before, base);
        }
        let next = self.groups.get(index).map_or(u64::MAX, |next| next.base);
        let group = self.make_group(base, shape, next);
        self.groups.insert(index, group);
        Some(index)
    }

    fn make_group(&mut self, base: u64, shape: Shape, next: u64) -> Group {
        let mut lanes = Vec::new();
        if let Some(group) = self.spare.pop() {
            self.spare_bytes -= group.bytes();
            lanes = group.lanes;
        }
        lanes.resize_with(shape.depth.into(), Lane::default);
        for lane in &mut lanes {
            lane.present = 0;
            lane.done = false;
        }
        let end = next.min(base + u64::from(shape.packets()));
        let group = Group { base, end, shape, open: lanes.len(), lanes };
        self.held += group.bytes();
        group
    }

    /// The group turns out to end at `end`.
    fn end_group(&mut self, index: usize, end: u64) {
        let Some(group) = self.groups.get_mut(index).filter(|group| end < group.end) else {
            return;
        };
        group.end = end.max(group.base);
        for lane in 0..group.lanes.len() as u8 {
            let complete = |group: &Group| {
                let block = group.lanes.get(usize::from(lane))?;
                Some(!block.done && block.present >= group.block_len(lane))
            };
            if self.groups.get(index).and_then(complete) == Some(true) {
                self.finish(index, lane);
            }
        }
    }

    /// Recovers what the block misses, if that is possible.
    fn decode(&mut self, index: usize, lane: u8) -> Option<Place> {
        let group = self.groups.get(index)?;
        let (shape, base, len) = (group.shape, group.base, group.block_len(lane));
        let block = group.lanes.get(usize::from(lane))?;
        // A code with more parities is the same code, and costs more only where they are counted.
        let further = block.parity.iter().any(|&(index, _)| index >= shape.m);
        let m = if further { shape.most_parities() } else { shape.m };
        let Some(code) = self.codes.get(shape, m) else {
            self.given_up += 1;
            self.finish(index, lane);
            return None;
        };
        let (mut data, mut parity) = ([None; fec::MAX_BLOCK], [None; fec::MAX_BLOCK]);
        for (slot, copy) in data.iter_mut().zip(&block.data) {
            *slot = copy.as_deref();
        }
        for (index, copy) in &block.parity {
            *parity.get_mut(usize::from(*index))? = Some(copy.as_slice());
        }
        let (data, parity) = (data.get(..len)?, parity.get(..code.m())?);
        let has = |symbols: &[Option<&[u8]>], i: usize| symbols.get(i).is_some_and(Option::is_some);
        if code.shortfall(len, |i| has(data, i), |i| has(parity, i)) > 0 {
            return None;
        }
        let decoded = self.decoder.decode(code, data, parity, &mut self.recovered);
        self.scratch = self.decoder.memory() + self.recovered.memory();
        self.given_up += u64::from(decoded.is_err());
        self.finish(index, lane);
        let place = Place { base, depth: shape.depth, lane };
        decoded.is_ok().then_some(place)
    }

    /// Nothing more to do for this block. If something of it is still missing, it is asked for
    /// packet by packet.
    fn finish(&mut self, index: usize, lane: u8) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let Some(block) = group.lanes.get_mut(usize::from(lane)) else {
            return;
        };
        if !block.done {
            block.done = true;
            group.open -= 1;
            self.held -= block.release(&mut self.shelf);
        }
    }

    fn enforce_budget(&mut self) {
        while self.memory() > self.budget {
            let others = self.memory() - self.shelf.bytes();
            self.shelf.shrink(self.budget.saturating_sub(others));
            if self.memory() <= self.budget {
                return;
            }
            if !self.spare.is_empty() {
                (self.spare, self.spare_bytes) = (Vec::new(), 0);
                continue;
            }
            let Some(mut group) = self.groups.pop_front() else { return self.release_scratch() };
            // A group may turn out to hold nothing: its end is then its base, and must be passed
            // all the same.
            self.given_up_below = group.end.max(group.base + 1);
            self.given_up += group.open as u64;
            self.held -= group.release(&mut self.shelf);
            self.held -= group.bytes();
        }
    }

    fn recycle(&mut self, mut group: Group) {
        self.held -= group.release(&mut self.shelf);
        let bytes = group.bytes();
        self.held -= bytes;
        if self.spare.len() < SPARE && !group.lanes.is_empty() && bytes <= SPARE_CAPACITY {
            self.spare_bytes += bytes;
            self.spare.push(group);
        }
    }
}

/// The parity packet helps nobody any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unused;

impl Group {
    /// Bytes of itself, with its place among the others, and of the tables, whatever they hold.
    fn bytes(&self) -> usize {
        let tables = self.lanes.iter().map(Lane::tables).sum::<usize>();
        2 * size_of::<Self>() + self.lanes.capacity() * size_of::<Lane>() + tables
    }

    /// Data packets of a block, as far as known.
    fn block_len(&self, lane: u8) -> usize {
        self.shape.block_len((self.end - self.base) as u16, lane)
    }

    /// Recycles the copies; their bytes.
    fn release(&mut self, shelf: &mut Shelf) -> usize {
        self.lanes.iter_mut().map(|lane| lane.release(shelf)).sum()
    }
}

impl Lane {
    /// Makes room for the data of a block; by how many bytes its tables grew.
    fn prepare(&mut self, shape: Shape) -> usize {
        let before = self.tables();
        self.data.resize_with(shape.k.into(), || None);
        self.tables() - before
    }

    /// Bytes that a block costs beyond its copies.
    fn tables(&self) -> usize {
        self.data.capacity() * size_of::<Option<Vec<u8>>>()
            + self.parity.capacity() * size_of::<(u8, Vec<u8>)>()
    }

    /// Recycles the copies; their bytes.
    fn release(&mut self, shelf: &mut Shelf) -> usize {
        let mut bytes = 0;
        let data = self.data.iter_mut().filter_map(Option::take);
        for copy in data.chain(self.parity.drain(..).map(|(_, copy)| copy)) {
            bytes += copy.capacity();
            shelf.give(copy);
        }
        bytes
    }
}
