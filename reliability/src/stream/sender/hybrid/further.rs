//! Blocks in the past, and further parity for those that fell short.

use std::collections::VecDeque;
use std::time::Duration;

use fec::{Code, Engine};

use crate::stream::StreamId;
use crate::stream::sender::outlook::Outlook;
use crate::stream::sender::queue::Queue;
use crate::stream::sender::redundancy::Asked;
use crate::stream::wire::{FLAG_REPAIR, PARITY_HEADER, Parity, Shape};

/// The closed groups whose packets have not all arrived. Their packets are held, since a parity is
/// made of all packets of its block, also of those that have arrived.
///
/// Bounded by the sender's window: the oldest packet held is where the window begins.
#[derive(Debug)]
pub(super) struct Closed {
    /// The scheme's code with as many parities as it can have.
    code: Code,
    engine: &'static dyn Engine,
    reorder: u64,
    /// By base.
    groups: VecDeque<Group>,
    spare: Vec<Vec<Lane>>,
    /// Blocks with parities to be sent, as base and lane, in turn.
    pending: VecDeque<(u64, u8)>,
    /// Blocks named in the report at hand, likewise.
    named: Vec<(u64, u8)>,
}

#[derive(Debug)]
struct Group {
    base: u64,
    count: u16,
    shape: Shape,
    closed: u64,
    /// One per block; none if the group was closed without parity.
    lanes: Vec<Lane>,
}

/// One block.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Parities sent, or about to be by the group under way.
    sent: u8,
    /// Further ones to be sent.
    due: u8,
    /// When the last further one was sent.
    last: Option<u64>,
    /// The report that the following is about.
    report: Option<u32>,
    /// Packets that the block lacks, by the parts of the report seen so far; up to `told`.
    lacks: u8,
    told: u64,
    /// Parities granted for it.
    granted: u8,
    /// Stands in `named`.
    named: bool,
}

impl Closed {
    pub(super) fn new(code: Code, reorder: Duration) -> Self {
        Self {
            code,
            engine: fec::engine::detect(),
            reorder: reorder.as_micros() as u64,
            groups: VecDeque::new(),
            spare: Vec::new(),
            pending: VecDeque::new(),
            named: Vec::new(),
        }
    }

    /// Gives back the memory that no group needs now.
    pub(super) fn release_spare(&mut self) {
        self.spare = Vec::new();
        self.groups.shrink_to_fit();
    }

    pub(super) fn set_reorder(&mut self, reorder: Duration) {
        self.reorder = reorder.as_micros() as u64;
    }

    /// A group was closed at `now`; `parities` by lane.
    pub(super) fn add(&mut self, base: u64, count: u16, shape: Shape, parities: impl Fn(u8) -> u8, now: u64) {
        let mut lanes = self.spare.pop().unwrap_or_default();
        if parities(0) > 0 {
            lanes.extend((0..shape.depth).map(|lane| Lane::new(parities(lane))));
        }
        self.groups.push_back(Group { base, count, shape, closed: now, lanes });
    }

    /// When the group of the packet was closed, or its block last got parity; 0 if it is in none.
    pub(super) fn last_sent(&self, sequence: u64) -> u64 {
        let Some(group) = self.find(sequence).and_then(|index| self.groups.get(index)) else {
            return 0;
        };
        let lane = group.lanes.get(group.lane(sequence));
        lane.and_then(|lane| lane.last).map_or(group.closed, |last| last.max(group.closed))
    }

    /// Notes that the block of a packet lacks one more; false if parity will not be the answer.
    pub(super) fn answers(&mut self, asked: &Asked, queue: &Queue) -> bool {
        let most = self.code.m() as u8;
        let Some(group) = self.find(asked.sequence).and_then(|index| self.groups.get_mut(index)) else {
            return false;
        };
        let (base, lane) = (group.base, group.lane(asked.sequence));
        let Some(block) = group.lanes.get_mut(lane) else { return false };
        if block.sent + block.due >= most {
            return false;
        }
        if block.report != Some(asked.report) {
            // What was sent for an earlier report may not have arrived when this one was written.
            let answered = block.last.is_some_and(|last| last + self.reorder > asked.known);
            if block.due > 0 || answered {
                return true;
            }
            (block.report, block.lacks, block.granted, block.told) = (Some(asked.report), 0, 0, 0);
        }
        // A part of a report may come twice.
        if asked.sequence >= block.told {
            block.told = asked.sequence + 1;
            if queue.slot(asked.sequence).is_some_and(|slot| !slot.acknowledged) {
                block.lacks = block.lacks.saturating_add(1);
                if !std::mem::replace(&mut block.named, true) {
                    self.named.push((base, lane as u8));
                }
            }
        }
        true
    }

    /// Grants parities to the blocks named. In a transfer's tail they are more than are lacking,
    /// since their own loss could not be repaired either.
    pub(super) fn answer(&mut self, outlook: &Outlook) {
        let blocks = self.named.len();
        let most = self.code.m() as u8;
        while let Some((base, lane)) = self.named.pop() {
            let Some(block) = self.lane_mut(base, lane) else { continue };
            block.named = false;
            let margin = if outlook.is_tail() { outlook.losses.margin(block.lacks, blocks) } else { 0 };
            let wanted = block.lacks.saturating_add(margin);
            let more = wanted.saturating_sub(block.granted).min(most - block.sent - block.due);
            let waits = block.due > 0;
            block.granted += more;
            block.due += more;
            if more > 0 && !waits {
                self.pending.push_back((base, lane));
            }
        }
    }

    pub(super) fn has_parity(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes the next further parity's symbol; the blocks take turns, so that a burst does not
    /// take all of one's.
    pub(super) fn poll_parity(&mut self, queue: &Queue, now: u64, out: &mut [u8]) -> Option<(Parity, usize)> {
        while let Some((base, lane)) = self.pending.pop_front() {
            if let Some((header, len)) = self.write_parity(base, lane, queue, out) {
                if let Some(block) = self.lane_mut(base, lane) {
                    block.sent += 1;
                    block.due -= 1;
                    block.last = Some(now);
                    if block.due > 0 {
                        self.pending.push_back((base, lane));
                    }
                }
                return Some((header, len));
            }
            if let Some(block) = self.lane_mut(base, lane) {
                block.due = 0;
            }
        }
        None
    }

    /// `None` if nothing of the block is missing any more.
    fn write_parity(&self, base: u64, lane: u8, queue: &Queue, out: &mut [u8]) -> Option<(Parity, usize)> {
        let group = self.groups.get(self.find(base)?)?;
        let block = group.lanes.get(usize::from(lane))?;
        let len = group.shape.block_len(group.count, lane);
        let slots = || {
            let sequence =
                |index: usize| base + index as u64 * u64::from(group.shape.depth) + u64::from(lane);
            (0..len).filter_map(move |index| queue.slot(sequence(index)))
        };
        let complete = slots().all(|slot| slot.acknowledged);
        if complete || slots().count() < len {
            return None;
        }
        let symbol = out.get_mut(PARITY_HEADER..)?;
        let packets = slots().map(|slot| &*slot.bytes);
        let written = fec::parity_row(self.engine, &self.code, block.sent.into(), packets, symbol).ok()?;
        let header = Parity {
            flags: FLAG_REPAIR,
            stream: StreamId(0),
            timestamp: 0,
            base,
            shape: group.shape,
            lane,
            index: block.sent,
            count: group.count,
            parities: block.sent + block.due,
        };
        Some((header, written))
    }

    /// Lets go of the groups that have arrived, oldest first.
    pub(super) fn settle(&mut self, queue: &mut Queue) {
        while let Some(group) = self.groups.front() {
            let end = group.base + u64::from(group.count);
            if !group.lanes.is_empty() && !queue.is_acknowledged(group.base, end) {
                break;
            }
            queue.unhold(group.base, end);
            if let Some(mut group) = self.groups.pop_front() {
                group.lanes.clear();
                self.spare.push(group.lanes);
            }
        }
    }

    /// Index of the group that the packet is in.
    fn find(&self, sequence: u64) -> Option<usize> {
        let index = self.groups.partition_point(|group| group.base + u64::from(group.count) <= sequence);
        self.groups.get(index).is_some_and(|group| group.base <= sequence).then_some(index)
    }

    fn lane_mut(&mut self, base: u64, lane: u8) -> Option<&mut Lane> {
        let index = self.find(base)?;
        self.groups.get_mut(index)?.lanes.get_mut(usize::from(lane))
    }
}

impl Group {
    fn lane(&self, sequence: u64) -> usize {
        (sequence.saturating_sub(self.base) % u64::from(self.shape.depth.max(1))) as usize
    }
}

impl Lane {
    fn new(sent: u8) -> Self {
        Self { sent, due: 0, last: None, report: None, lacks: 0, told: 0, granted: 0, named: false }
    }
}
