//! Which packets of a block are asked for when its parity does not suffice.

use super::{Blocks, Group, Lane};
use crate::bitmap::WORD;
use crate::stream::receiver::Window;
use crate::stream::wire::Coding;

/// The packets known to be lost: everything missing below the horizon, and with `silent` the blocks
/// that were not closed as well.
#[derive(Clone, Copy, Debug)]
pub(in crate::stream::receiver) struct Lost {
    pub(in crate::stream::receiver) horizon: u64,
    /// Nothing has come for so long that no more parity is to be expected.
    pub(in crate::stream::receiver) silent: bool,
}

impl Blocks {
    /// Some packets of a block are missing, and whether more parity comes is open.
    pub(in crate::stream::receiver) fn waits(&self, horizon: u64) -> bool {
        self.groups
            .back()
            .is_some_and(|group| group.waits() && !group.is_overdue(Lost { horizon, silent: false }))
    }

    /// Returns true if moving the horizon from `before` makes anything due to be asked for.
    pub(in crate::stream::receiver) fn is_news(&self, before: u64, lost: Lost, window: &Window) -> bool {
        let first = self.groups.partition_point(|group| group.end < before);
        let overdue = self.groups.range(first..).take_while(|group| group.is_overdue(lost)).any(Group::waits);
        let mut at = before.max(window.cumulative);
        while !overdue && let Some(missing) = window.bits.first_clear(at, lost.horizon) {
            match self.group_at(missing) {
                Some(group) if group.waits() => at = group.end,
                _ => return true,
            }
        }
        overdue
    }

    /// Starts a new report: what was selected before is stale.
    pub(in crate::stream::receiver) fn select_anew(&mut self) {
        self.selected_for = None;
    }

    /// Returns the packets to ask for, of those `missing` in the word at `at`; and of these, those
    /// that stand for any packet of their block.
    pub(in crate::stream::receiver) fn wanted(
        &mut self,
        at: u64,
        missing: u64,
        lost: Lost,
        window: &Window,
    ) -> (u64, u64) {
        let (mut wanted, mut any) = (missing, 0);
        let first = self.groups.partition_point(|group| group.end <= at);
        for index in first..self.groups.len() {
            let Some(group) = self.groups.get(index).filter(|group| group.base < at + WORD) else {
                break;
            };
            if !group.waits() {
                continue;
            }
            let within = bits_from(at, group.base) & !bits_from(at, group.end);
            if !group.is_overdue(lost) {
                wanted &= !within;
            } else if missing & within != 0 {
                if self.selected_for != Some(group.base) {
                    self.selected_for = Some(group.base);
                    group.select(window, &mut self.selected);
                }
                let word = (at - (group.base & !(WORD - 1))) / WORD;
                let selected = self.selected.get(word as usize).copied().unwrap_or_default();
                wanted &= !within | selected.wanted;
                any |= selected.any & within;
            }
        }
        (wanted, any & wanted)
    }

    fn group_at(&self, sequence: u64) -> Option<&Group> {
        let index = self.groups.partition_point(|group| group.end <= sequence);
        self.groups.get(index).filter(|group| group.base <= sequence)
    }
}

impl Group {
    /// Parity may yet make up for what is missing.
    fn waits(&self) -> bool {
        self.open > 0
    }

    /// Returns true if what was sent after the group has been here for long enough: no more of its
    /// data or parity is on its way.
    fn is_overdue(&self, lost: Lost) -> bool {
        lost.horizon > self.end || lost.silent
    }

    /// Marks as few of the missing packets as make the blocks decodable, the earliest ones.
    fn select(&self, window: &Window, selected: &mut Vec<Selected>) {
        let start = self.base & !(WORD - 1);
        selected.clear();
        selected.resize(((self.end - start).div_ceil(WORD)) as usize, Selected::default());
        for (lane, block) in self.lanes.iter().enumerate() {
            let depth = usize::from(self.shape.depth);
            let sequence = |index: usize| self.base + (index * depth + lane) as u64;
            let len = self.block_len(lane as u8);
            let any = self.shape.coding == Coding::Mds && !block.done;
            let mut quota = Quota::new(self, block, len);
            for index in 0..len {
                let at = sequence(index);
                let present = block.data.get(index).is_some_and(Option::is_some);
                if present || at < window.cumulative || at >= window.highest || window.bits.get(at) {
                    continue;
                }
                if quota.take(index)
                    && let Some(word) = selected.get_mut(((at - start) / WORD) as usize)
                {
                    word.wanted |= 1 << (at % WORD);
                    word.any |= u64::from(any) << (at % WORD);
                }
            }
        }
    }
}

/// The packets of a word that are asked for, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Selected {
    wanted: u64,
    /// Those of `wanted` for which any other packet of the block, or any parity, would do as well.
    any: u64,
}

/// How many more packets a block needs: in all, or by class of an XOR code.
struct Quota {
    classes: [u8; fec::MAX_BLOCK],
    count: usize,
}

impl Quota {
    fn new(group: &Group, block: &Lane, len: usize) -> Self {
        let count = match group.shape.coding {
            Coding::Xor => usize::from(group.shape.m),
            _ => 1,
        };
        let mut classes = [0_u8; fec::MAX_BLOCK];
        if block.done {
            // Undecodable for another reason: everything that is missing is needed.
            return Self { classes: [u8::MAX; fec::MAX_BLOCK], count };
        }
        let is_missing = |index: &usize| block.data.get(*index).is_none_or(Option::is_none);
        for index in (0..len).filter(is_missing) {
            if let Some(class) = classes.get_mut(index % count) {
                *class = class.saturating_add(1);
            }
        }
        for (index, _) in &block.parity {
            if let Some(class) = classes.get_mut(usize::from(*index) % count) {
                *class = class.saturating_sub(1);
            }
        }
        Self { classes, count }
    }

    fn take(&mut self, index: usize) -> bool {
        match self.classes.get_mut(index % self.count) {
            Some(class) if *class > 0 => {
                *class -= 1;
                true
            }
            _ => false,
        }
    }
}

/// The bits of the word at `at` that stand for `sequence` and what follows.
pub(in crate::stream::receiver) fn bits_from(at: u64, sequence: u64) -> u64 {
    match sequence.saturating_sub(at) {
        0 => !0,
        below if below < WORD => !0 << below,
        _ => 0,
    }
}
