//! Packets that are dropped unread.
//!
//! A host that floods may send more packets than a gateway has time to read and judge. Then those
//! of other hosts are lost unseen, however small the flood's share of the link is. So of what
//! mostly finds no room only a part is read: two to four times as much as finds it.

use std::time::{Duration, Instant};

use roce::wire::{Opcode, Qpn};

use crate::hosts::GROUPS;

/// A kind of packet from the LAN, as far as hosts have shares of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A connection begun by a host that a target has answered before.
    Proven,
    /// One begun by any other host.
    Unproven,
    /// Connection management, and what else goes to queue pair 1.
    Management,
    /// A message of UC, by its first packet: without that the rest is dropped.
    UcMessage,
    /// UD, and transports that are not understood.
    Other,
}

const KINDS: usize = 5;

impl Kind {
    /// That of a packet by its opcode and queue pair; `None`: it is always read. `rc` tells that of
    /// a request of RC which begins a message.
    pub(crate) fn of(code: u8, to: Qpn, rc: impl FnOnce() -> Option<Self>) -> Option<Self> {
        let starts = || Opcode::from_u8(code).is_some_and(Opcode::starts_message);
        match code >> 5 {
            0 => Opcode::from_u8(code)
                .filter(|opcode| opcode.is_request() && opcode.starts_message())
                .and_then(|_| rc()),
            1 => starts().then_some(Self::UcMessage),
            3 if to == Qpn::GSI => Some(Self::Management),
            4 => None,
            _ => Some(Self::Other),
        }
    }
}

/// A group's packets of one kind ([`crate::hosts::Grouping`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u16);

impl Place {
    pub(crate) fn new(kind: Kind, group: u8) -> Self {
        Self((kind as u16) * GROUPS as u16 + u16::from(group))
    }
}

/// Counts what has come in the present window.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    came: u32,
    /// It was read, and there was room for it.
    taken: u32,
    /// It was read, and dropped for its host's share.
    dropped: u32,
    /// One of 2 to this power is read.
    halvings: u8,
}

/// How much is read of each group and kind.
///
/// Which packets are read is random, so a host's own messages come through in proportion. Only
/// what was dropped for a share counts: less of it leaves as much room to the rest. So a host has
/// what its share lets it have, whether all of it is read or not.
///
/// While few packets are dropped nothing is counted.
#[derive(Debug)]
pub(crate) struct Surplus {
    cells: Vec<Cell>,
    /// When the window ends.
    until: Instant,
    /// Packets dropped for a share so far, as of its begin.
    before: u64,
    /// Windows that are counted although nothing more is dropped; 0: nothing is counted.
    watched: u8,
    /// That of the packet that is read next.
    judged: Option<Place>,
    random: u64,
}

/// Time after which it is settled how much is read.
const WINDOW: Duration = Duration::from_millis(10);
/// Packets dropped in a window from which on they are counted by group and kind.
const MANY: u64 = 256;
/// Windows for which that goes on.
const WATCHED: u8 = 10;
/// Packets dropped of a cell that are too few to judge by.
const FEW: u32 = 16;
/// One of a thousand is always read.
const MOST_HALVINGS: u8 = 10;

impl Surplus {
    pub(crate) fn new(secret: u64, now: Instant) -> Self {
        Self {
            cells: vec![Cell::default(); KINDS * GROUPS],
            until: now + WINDOW,
            before: 0,
            watched: 0,
            judged: None,
            random: secret | 1,
        }
    }

    /// Settles how much is read from now on, if it is time. `dropped` counts packets dropped for a
    /// share so far. Returns true if what comes is to be [offered](Self::drops).
    pub(crate) fn watches(&mut self, dropped: impl FnOnce() -> u64, now: Instant) -> bool {
        if now >= self.until {
            let dropped = dropped();
            let many = dropped.saturating_sub(self.before) >= MANY;
            (self.before, self.until) = (dropped, now + WINDOW);
            if self.watched > 0 {
                self.cells.iter_mut().for_each(Cell::settle);
            }
            let is_open = self.cells.iter().all(|cell| cell.halvings == 0);
            self.watched = if many || !is_open { WATCHED } else { self.watched.saturating_sub(1) };
        }
        self.watched > 0
    }

    /// A packet has come. Returns true if it is to be dropped unread.
    pub(crate) fn drops(&mut self, place: Place) -> bool {
        self.judged = None;
        let Some(cell) = self.cells.get_mut(usize::from(place.0)) else { return false };
        cell.came = cell.came.saturating_add(1);
        if cell.halvings > 0 {
            // Marsaglia's xorshift (Journal of Statistical Software 8(14), 2003).
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if self.random >> (u64::BITS - u32::from(cell.halvings)) != 0 {
                return true;
            }
        }
        self.judged = Some(place);
        false
    }

    /// Returns the place of the packet that is read now, if that counts.
    pub(crate) fn take_judged(&mut self) -> Option<Place> {
        self.judged.take()
    }

    /// Returns true if only a part is read of what has this place.
    pub(crate) fn is_in_part(&self, place: Place) -> bool {
        self.cells.get(usize::from(place.0)).is_some_and(|cell| cell.halvings > 0)
    }

    /// That packet was read.
    pub(crate) fn note(&mut self, place: Place, is_dropped: bool) {
        let Some(cell) = self.cells.get_mut(usize::from(place.0)) else { return };
        let count = if is_dropped { &mut cell.dropped } else { &mut cell.taken };
        *count = count.saturating_add(1);
    }
}

impl Cell {
    /// Settles how much is read in the next window.
    fn settle(&mut self) {
        let Self { came, taken, dropped, halvings } = *self;
        let read = taken.saturating_add(dropped);
        let halvings = if came < FEW {
            0
        } else if dropped >= FEW && dropped / 3 > taken {
            // So that twice what is taken will be read.
            halvings + (read / (2 * taken.max(1))).ilog2() as u8
        } else if taken >= dropped {
            halvings.saturating_sub(1)
        } else {
            halvings
        };
        *self = Self { halvings: halvings.min(MOST_HALVINGS), ..Self::default() };
    }
}

#[cfg(test)]
mod tests;
