//! When what was sent.

/// Marks kept. They stand at least a 256th of the round trip apart, so they reach back over 16 of
/// them.
const MARKS: usize = 4096;
const PER_TRIP: u64 = 256;

/// Numbers and bytes sent by time: a ring of marks. What is sent within a 256th of the round trip
/// shares one, and counts as sent when its first was. At the bound the oldest is forgotten; what
/// lies before it counts as sent with it.
#[derive(Debug)]
pub(super) struct Sent {
    ring: Box<[Mark]>,
    made: usize,
    /// Numbers and bytes sent.
    pub(super) numbers: u64,
    pub(super) bytes: u64,
}

/// Packet numbers and bytes that had been sent before a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Microseconds.
    pub(super) at: u64,
    pub(super) number: u64,
    pub(super) bytes: u64,
}

impl Sent {
    pub(super) fn new() -> Self {
        Self { ring: vec![Mark::default(); MARKS].into(), made: 0, numbers: 0, bytes: 0 }
    }

    /// The next number is used; `trip` is the round-trip time in microseconds.
    pub(super) fn push(&mut self, bytes: usize, now: u64, trip: u64) {
        let spaced = self.made == 0 || self.mark(self.made - 1).at + trip / PER_TRIP <= now;
        if spaced {
            let mark = Mark { at: now, number: self.numbers, bytes: self.bytes };
            if let Some(place) = self.ring.get_mut(self.made % MARKS) {
                *place = mark;
            }
            self.made += 1;
        }
        self.numbers += 1;
        self.bytes += bytes as u64;
    }

    /// When this number was sent, and the bytes before it.
    pub(super) fn before(&self, number: u64) -> Mark {
        let (mut low, mut high) = (self.made.saturating_sub(MARKS), self.made);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.mark(middle).number <= number {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mark = self.mark(low);
        let end = Mark { at: mark.at, number: self.numbers, bytes: self.bytes };
        let next = if low + 1 < self.made { self.mark(low + 1) } else { end };
        let (numbers, bytes) =
            (next.number.saturating_sub(mark.number), next.bytes.saturating_sub(mark.bytes));
        let part = number.saturating_sub(mark.number).min(numbers);
        let share = u128::from(bytes) * u128::from(part) / u128::from(numbers.max(1));
        Mark { at: mark.at, number, bytes: mark.bytes + u64::try_from(share).unwrap_or(bytes) }
    }

    fn mark(&self, place: usize) -> Mark {
        self.ring.get(place % MARKS).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_with_their_time_and_bytes() {
        let mut sent = Sent::new();
        for number in 0..10_000 {
            sent.push(1000, 50 * number, 25_600); // two to a mark
        }
        let mark = sent.before(9000);
        assert_eq!((mark.at, mark.bytes), (450_000, 9_000_000));
        let mark = sent.before(9001);
        assert_eq!((mark.at, mark.bytes), (450_000, 9_001_000));
        assert_eq!(sent.before(10_000).bytes, 10_000_000);
        assert_eq!(sent.before(99_999).bytes, 10_000_000, "none is to come");
        assert!(sent.before(0).at >= 50 * (10_000 - 2 * MARKS as u64), "the oldest known");
    }
}
