//! Claims of flows on a class's streams: bytes that they expect or have asked for.

use super::Senders;
use super::shares::framed;
use super::slot::{Reservation, Slot};

impl Senders {
    /// A flow now waits for `bytes` that it has asked for, to be pushed for the class, where it
    /// waited for what `claim` says: the room for them is kept.
    pub fn await_responses(&mut self, class: usize, claim: &mut Reservation, bytes: usize) {
        // So it is of flows without READs, for each of their packets.
        if bytes == 0 && claim.bytes == 0 {
            return;
        }
        let moves = !self.holds(class, claim);
        self.move_claim(class, claim, framed(bytes), Slot::keep);
        // What was asked for under earlier classes is still to be taken.
        if moves && self.slot_mut(class).is_some_and(Slot::honour) {
            self.share_out();
        }
    }

    /// Returns whether what is claimed, if anything, counts for the streams that the class has now.
    #[inline]
    #[must_use]
    pub fn holds(&self, class: usize, claim: &Reservation) -> bool {
        let place = self.place(class).filter(|place| *place == claim.place());
        let slot = place.and_then(|place| self.slots.get(place)?.as_ref());
        claim.bytes == 0 || slot.is_some_and(|slot| slot.generation == claim.generation)
    }

    /// Returns whether a flow that waits for what it has asked for may ask for more for the class:
    /// all of it takes the same streams.
    #[inline]
    #[must_use]
    pub fn may_join(&self, class: usize, claim: &Reservation) -> bool {
        claim.bytes == 0 || self.place(class) == Some(claim.place())
    }

    /// A flow now expects `bytes` more for the class's bulk stream, where it expected what `claim`
    /// says.
    #[inline]
    pub fn expect(&mut self, class: usize, claim: &mut Reservation, bytes: usize) {
        if bytes == 0 && claim.bytes == 0 {
            return;
        }
        self.move_claim(class, claim, bytes, Slot::expect);
    }

    /// Withdraws a claim where it was made, unless that slot has lost its class since, and makes it
    /// in the class's slot.
    pub(super) fn move_claim(
        &mut self,
        class: usize,
        claim: &mut Reservation,
        bytes: usize,
        change: impl Fn(&mut Slot, usize, usize),
    ) {
        let before = std::mem::take(claim);
        let place = self.place(class);
        let slot = self.slots.get_mut(before.place()).and_then(Option::as_mut);
        let slot = slot.filter(|slot| before.bytes > 0 && slot.generation == before.generation);
        let moves = place != Some(before.place());
        let withdrawn = match slot {
            Some(slot) if moves => {
                change(slot, before.bytes, 0);
                0
            }
            Some(_) => before.bytes,
            None => 0,
        };
        if let Some((place, slot)) = place.zip(self.slot_mut(class)) {
            change(slot, withdrawn, bytes);
            *claim = Reservation { place: place as u16, generation: slot.generation, bytes };
        }
    }
}
