//! Which lane each packet of a block takes: the death of one is to leave the block decodable.

use super::{Lane, RUN};
use crate::stream::{InBlock, StreamId};

/// Most lanes that a packet's block is spread over: as many as a word has bits.
pub const MOST_LANES: u8 = 64;
/// A lane gets no more than so many times its part of a block because others may take no more.
const TOLERATED: f64 = 1.25;
/// No row.
const NONE: u16 = u16::MAX;

/// The blocks under way, by stream.
///
/// A *row* is the packets of one index in all blocks of a group; it takes one lane if that lives.
/// So what a lane has of each block is its number of rows. It takes the fewest rows with which the
/// lanes that carry data have no part in the parities, and half of the parities at least; that is
/// no more than the parities where five lanes are alike and a block has four times as much data.
/// A lane of a smaller part keeps to that, and the others take more.
///
/// A block that may end before it is full has fewer parities: until it is sure to be filled, a lane
/// takes no more of its rows than it would get parities if it ended there.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    streams: Vec<Block>,
    /// Changes when there was nothing more to send.
    pause: u32,
}

/// A stream's group of blocks under way.
#[derive(Clone, Copy, Debug)]
struct Block {
    group: u64,
    /// The row that was sent last, parities after all data.
    row: u16,
    lane: usize,
    /// Packets that the lane still takes in this run.
    run: u32,
    /// When the run began, in pauses.
    pause: u32,
    /// Rows that a lane takes at most.
    most: u8,
    /// Rows that a lane takes at most for its part of what is sent.
    fair: f64,
    /// Rows of each lane.
    taken: [u8; MOST_LANES as usize],
    /// A bit for each lane: has the row under way, has data, is kept for parity.
    of_row: u64,
    of_data: u64,
    for_parity: u64,
}

impl Block {
    const NEW: Self = Self {
        group: u64::MAX,
        row: NONE,
        lane: 0,
        run: 0,
        pause: 0,
        most: 0,
        fair: 0.0,
        taken: [0; MOST_LANES as usize],
        of_row: 0,
        of_data: 0,
        for_parity: 0,
    };

    /// A group begins: how many rows a lane takes, and which lanes are kept for parity.
    fn begin(&mut self, place: &InBlock, lanes: &[Lane]) {
        let usable = || lanes.iter().filter(|lane| lane.usable);
        let count = usable().count().max(1);
        let packets = usize::from(place.k) + usize::from(place.m);
        let least = packets.div_ceil(count).max(usize::from(place.m).div_ceil(2));
        let mean = usable().map(Lane::part).sum::<f64>() / count as f64;
        let fair = TOLERATED * least as f64 / mean;
        *self = Self { group: place.group, lane: self.lane, most: u8::MAX, fair, ..Self::NEW };
        for most in least..=RUN as usize {
            let most = most as u8;
            if let Some(kept) = self.keep(most, place, lanes) {
                (self.most, self.for_parity) = (most, kept);
                return;
            }
        }
    }

    /// The lanes to keep for parity where none takes more than so many rows; `None` if there are
    /// too few. Those are kept that are to come last anyway.
    fn keep(&self, most: u8, place: &InBlock, lanes: &[Lane]) -> Option<u64> {
        let room = |lane: &Lane| usize::from(self.limit(lane).min(most));
        let (mut kept, mut parities) = (0, 0);
        while parities < usize::from(place.m) {
            let left =
                lanes.iter().enumerate().filter(|(index, lane)| lane.usable && kept & bit(*index) == 0);
            let (index, lane) = left.max_by(|(_, a), (_, b)| a.pass.total_cmp(&b.pass))?;
            kept |= bit(index);
            parities += room(lane);
        }
        let left = lanes.iter().enumerate().filter(|(index, lane)| lane.usable && kept & bit(*index) == 0);
        let data: usize = left.map(|(_, lane)| room(lane)).sum();
        (data >= usize::from(place.k)).then_some(kept)
    }

    /// Rows that the lane takes at most for its part of all that is sent.
    fn limit(&self, lane: &Lane) -> u8 {
        (self.fair * lane.part()).ceil() as u8
    }

    /// How bad it is that the lane takes the next row: not at all if that is 0.
    fn harm(&self, index: usize, lane: &Lane, place: &InBlock) -> u16 {
        let taken = self.taken.get(index).copied().unwrap_or(u8::MAX);
        let all = if place.spare < place.m { self.most.min(place.spare) } else { self.most };
        let is_full = taken >= all || self.most < u8::MAX && taken >= self.limit(lane);
        let is_others = if place.is_parity { self.of_data } else { self.for_parity } & bit(index) != 0;
        match (is_full, is_others) {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2 + u16::from(taken),
        }
    }

    /// Counts a packet of the row on the lane.
    fn take(&mut self, index: usize, place: &InBlock) {
        if self.of_row & bit(index) == 0 {
            self.of_row |= bit(index);
            if let Some(taken) = self.taken.get_mut(index) {
                *taken = taken.saturating_add(1);
            }
        }
        if !place.is_parity {
            self.of_data |= bit(index);
        }
        self.run = self.run.saturating_sub(1);
    }
}

impl Spread {
    /// There is nothing more to send for now: what comes next begins a run.
    pub(super) fn pause(&mut self) {
        self.pause = self.pause.wrapping_add(1);
    }

    /// The lane of the next packet of a block, of those that fit. A stream's first packet allocates
    /// its place, and those of all before it.
    pub(super) fn choose(
        &mut self,
        stream: StreamId,
        place: &InBlock,
        lanes: &mut [Lane],
        fits: impl Fn(usize, &Lane) -> bool,
    ) -> Option<usize> {
        let index = usize::from(stream.0);
        if index >= self.streams.len() {
            self.streams.resize(index + 1, Block::NEW);
        }
        let block = self.streams.get_mut(index)?;
        if block.group != place.group {
            block.begin(place, lanes);
        }
        let row = u16::from(place.row) + if place.is_parity { u16::from(place.k) } else { 0 };
        let begins = block.row != row;
        if begins {
            (block.row, block.of_row) = (row, 0);
        }
        let stays = block.pause == self.pause
            && lanes.get(block.lane).is_some_and(|lane| {
                fits(block.lane, lane)
                    && (!begins || block.run > 0 && block.harm(block.lane, lane, place) == 0)
            });
        if !stays {
            let fitting = lanes.iter().enumerate().filter(|(index, lane)| fits(*index, lane));
            let order = |(index, lane): &(usize, &Lane)| (block.harm(*index, lane, place), lane.pass);
            let (chosen, _) = fitting.map(|lane| (lane.0, order(&lane))).min_by(|(_, a), (_, b)| {
                let ((harm_a, pass_a), (harm_b, pass_b)) = (a, b);
                harm_a.cmp(harm_b).then(pass_a.total_cmp(pass_b))
            })?;
            (block.lane, block.run, block.pause) = (chosen, RUN, self.pause);
            let all = f64::from(place.k) + f64::from(place.m);
            catch_up(lanes, chosen, all * f64::from(place.depth), fits);
        }
        block.take(block.lane, place);
        Some(block.lane)
    }
}

/// A lane has no claim to what another one took in its place: who may not send, to nothing, and the
/// others to no more than what so many packets would be.
fn catch_up(lanes: &mut [Lane], chosen: usize, packets: f64, fits: impl Fn(usize, &Lane) -> bool) {
    let pass = lanes.get(chosen).map_or(0.0, |lane| lane.pass);
    for (index, lane) in lanes.iter_mut().enumerate() {
        let behind = if fits(index, lane) { packets / lane.part() } else { 0.0 };
        lane.pass = lane.pass.max(pass - behind);
    }
}

fn bit(lane: usize) -> u64 {
    u32::try_from(lane).ok().and_then(|lane| 1_u64.checked_shl(lane)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
