//! The load that the messages of a class find before them as they come, and between their packets
//! as they leave.

use std::cmp::Ordering;
use std::time::Duration;

use reliability::stream::Alternation;
use reliability::times::Times;

use super::Senders;
use super::shares::framed;
use super::slot::Slot;
use crate::sizes::{self, Found, Sizes};

impl Senders {
    /// A message of `size` bytes of the class's goes out, or will; `pushed` bytes of it were, and
    /// are no load that it found.
    pub fn note_message(&mut self, class: usize, size: u64, pushed: u64) {
        let own = framed(usize::try_from(pushed).unwrap_or(usize::MAX / 2));
        let found = self.found(class).without(own);
        if let Some(slot) = self.slot_mut(class) {
            sizes::note(&mut slot.sizes, size, &found);
        }
    }

    /// Returns what goes before a message of the class that comes now: all that waits in its own
    /// stream and those of higher priority, and as much of each other one's as has its turn
    /// meanwhile. What waits with hosts that are slowed down counts, as far as it is known.
    pub(super) fn found(&self, class: usize) -> Found {
        let Some(own) = self.slot(class) else { return Found::default() };
        let ahead = |slot: &Slot| match slot.priority.cmp(&own.priority) {
            Ordering::Greater => slot.ahead(),
            Ordering::Equal => slot.ahead().min(own.ahead()),
            Ordering::Less => 0,
        };
        let nothing = Found { same: own.ahead(), ..Found::default() };
        self.slots.iter().flatten().fold(nothing, |found, slot| Found {
            waiting: found.waiting + ahead(slot),
            under_way: found.under_way + slot.bulk.in_flight(),
            ..found
        })
    }

    /// A message of the class was whole at its target after this time, as far as is known here.
    pub fn note_completion(&mut self, class: usize, time: Duration) {
        if let Some(slot) = self.slot_mut(class) {
            slot.completions.note(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// Returns how long messages of the class took in this session.
    pub(crate) fn completions(&self, class: usize) -> Times {
        self.slot(class).map(|slot| slot.completions).unwrap_or_default()
    }

    /// The messages of the class in this session.
    pub(crate) fn sizes(&self, class: usize) -> Sizes {
        self.slot(class).map(|slot| slot.sizes).unwrap_or_default()
    }

    /// How the sources of the class's bulk stream took turns in this session.
    pub(crate) fn alternation(&self, class: usize) -> Alternation {
        self.slot(class).map(Slot::alternation).unwrap_or_default()
    }
}
