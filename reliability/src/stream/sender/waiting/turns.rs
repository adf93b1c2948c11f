//! Whose turn it is.

use super::{FINE, GROUP_QUANTUM, LONGEST_TURN, NONE, QUANTUM, Waiting, is_other};

/// Others may make up for so many bytes that main groups have sent more: the turns of one, and what
/// its sources send first, of each of two rounds.
const MOST_BEHIND: isize = 4 * GROUP_QUANTUM;

impl Waiting {
    /// Tells whether a source of this group may go first: no other group waits, or this one has not
    /// had its fill of that.
    pub(super) fn may_go_first(&self, group: u16) -> bool {
        if self.is_held(group) {
            return false;
        }
        let others_wait = self.line.iter().take(2).any(|other| *other != group);
        !others_wait || self.groups.get(usize::from(group)).is_some_and(|group| group.first > 0)
    }

    /// The place waits for its turn among those of its group.
    pub(super) fn line_up(&mut self, place: u16, number: u16) {
        let Some(group) = self.groups.get_mut(usize::from(number)) else { return };
        group.turns.push_back(place);
        if !std::mem::replace(&mut group.in_line, true) {
            group.deficit = GROUP_QUANTUM;
            self.line.push_back(number);
            if self.line.len() == 1 {
                self.next_group();
            }
        }
    }

    /// The place has nothing waiting, and its turn is over.
    pub(super) fn leave(&mut self, place: u16) {
        let Some(source) = self.sources.get_mut(usize::from(place)) else { return };
        (source.queued, source.left) = (false, self.given);
        self.queued -= 1;
        if let Some(group) = self.groups.get_mut(usize::from(source.owner.1)) {
            group.places -= 1;
        }
    }

    /// The next group's turn begins.
    fn next_group(&mut self) {
        if let Some(group) = self.line.front().and_then(|group| self.groups.get_mut(usize::from(*group))) {
            group.first = GROUP_QUANTUM;
        }
    }

    /// Returns true if this group is one of the others, and main ones wait that have sent less.
    fn is_held(&self, group: u16) -> bool {
        is_other(group) && self.lead > 0 && self.backlog > self.others
    }

    /// So many bytes of this group leave.
    pub(super) fn note_lead(&mut self, group: u16, bytes: usize) {
        let (others, bytes) = (self.others, bytes as isize);
        if others == 0 || others == self.backlog {
            return;
        }
        let lead = self.lead + if is_other(group) { bytes } else { -bytes };
        self.lead = lead.clamp(-MOST_BEHIND, GROUP_QUANTUM);
    }

    /// The source whose turn it is.
    pub(super) fn turn(&mut self) -> Option<u16> {
        if self.midst.is_some() {
            return self.midst;
        }
        if self.backlog == 0 {
            self.end_turns();
        }
        while let Some(place) = self.fresh.front().copied() {
            let source = self.sources.get_mut(usize::from(place))?;
            let is_empty = source.first == NONE;
            if !is_empty && source.deficit > 0 {
                return Some(place);
            }
            self.fresh.pop_front();
            // One that was fresh has to wait for the others' turns also if it has nothing any more:
            // it could be fresh again at once.
            if !is_empty {
                source.deficit += QUANTUM as isize;
            }
            let group = source.owner.1;
            self.line_up(place, group);
        }
        self.turn_in_line()
    }

    /// The source whose turn it is if none goes first.
    fn turn_in_line(&mut self) -> Option<u16> {
        loop {
            self.pass_held();
            let number = *self.line.front()?;
            let is_alone = self.line.len() == 1;
            let group = self.groups.get_mut(usize::from(number))?;
            let Some(place) = group.turns.front().copied() else {
                group.in_line = false;
                self.line.pop_front();
                self.next_group();
                continue;
            };
            if group.deficit <= 0 {
                group.deficit += GROUP_QUANTUM;
                if !is_alone {
                    self.line.rotate_left(1);
                    self.next_group();
                }
                continue;
            }
            let source = self.sources.get_mut(usize::from(place))?;
            if source.first == NONE {
                group.turns.pop_front();
                self.leave(place);
            } else if source.deficit > 0 {
                return Some(place);
            } else {
                source.deficit += QUANTUM as isize;
                group.turns.rotate_left(1);
            }
        }
    }

    /// If the group whose turn it is has to wait for a main one, that goes before it.
    fn pass_held(&mut self) {
        if !self.line.front().is_some_and(|group| self.is_held(*group)) {
            return;
        }
        let main = self.line.iter().position(|group| !self.is_held(*group));
        if let Some(main) = main.and_then(|place| self.line.remove(place)) {
            self.line.push_front(main);
            self.next_group();
        }
    }

    /// Nobody has anything waiting.
    fn end_turns(&mut self) {
        if self.queued == 0 {
            return;
        }
        while let Some(place) = self.fresh.pop_front() {
            self.leave(place);
        }
        while let Some(number) = self.line.pop_front() {
            let Some(group) = self.groups.get_mut(usize::from(number)) else { continue };
            group.in_line = false;
            let mut turns = std::mem::take(&mut group.turns);
            turns.drain(..).for_each(|place| self.leave(place));
            if let Some(group) = self.groups.get_mut(usize::from(number)) {
                group.turns = turns;
            }
        }
        // Nor had anybody to wait.
        self.given = self.given.wrapping_add(FINE * LONGEST_TURN as u64);
    }
}
