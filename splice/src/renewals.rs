//! The order in which flows of requesters took the places of others.

use std::num::NonZeroU32;

/// Counts flows at their requesters that took another one's place, modulo 2^32.
///
/// A flow keeps the count of when something came, to know later whether another one began before or
/// after that. The counts of two events that are fewer than 2^31 apart tell their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Renewals(u32);

/// The place of one such flow among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal(NonZeroU32);

impl Renewals {
    /// Counts one more, and returns its place.
    pub(crate) fn count(&mut self) -> Renewal {
        let next = NonZeroU32::new(self.0.wrapping_add(1)).unwrap_or(NonZeroU32::MIN);
        self.0 = next.get();
        Renewal(next)
    }
}

impl Renewal {
    /// Returns true if it was counted after these.
    pub(crate) fn is_after(self, before: Renewals) -> bool {
        self.0.get().wrapping_sub(before.0).cast_signed() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_in_order_wherever_the_count_stands() {
        for start in [0, 1, 7, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
            let mut renewals = Renewals(start);
            let before = renewals;
            let (first, between) = (renewals.count(), renewals);
            let second = renewals.count();
            assert!(first.is_after(before) && second.is_after(before) && second.is_after(between));
            assert!(!first.is_after(between) && !second.is_after(renewals), "{start}");
        }
    }
}
