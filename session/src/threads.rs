//! Pairs of data-plane threads, one of each side, between which a session's bulk datagrams go.
//!
//! Rule: `docs/protocol.md#rule-thread-pairs`.

/// The numbers of data-plane threads of both sides of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCounts {
    /// This side's.
    pub here: u8,
    /// The peer's.
    pub there: u8,
}

/// A thread of each side, which exchange datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadPair {
    /// This side's.
    pub here: u8,
    /// The peer's.
    pub there: u8,
}

impl ThreadPair {
    /// The first thread of each side.
    pub const FIRST: ThreadPair = ThreadPair { here: 0, there: 0 };

    /// The threads of the same number.
    #[must_use]
    pub const fn alike(thread: u8) -> Self {
        ThreadPair { here: thread, there: thread }
    }

    /// Returns the bits by which the two numbers differ.
    pub(crate) const fn difference(self) -> u8 {
        self.here ^ self.there
    }
}

impl ThreadCounts {
    /// As many on both sides.
    #[must_use]
    pub const fn alike(threads: u8) -> Self {
        ThreadCounts { here: threads, there: threads }
    }

    /// Returns how many pairs exchange datagrams: the least common multiple. Of up to 8 threads on
    /// each side it is 56 at most.
    ///
    /// A number taken modulo this says of both sides which thread is meant.
    #[must_use]
    pub fn pairs(self) -> u8 {
        let pairs = num_integer::lcm(u16::from(self.here), u16::from(self.there));
        u8::try_from(pairs.max(1)).unwrap_or(u8::MAX)
    }

    /// Returns the pair of this number, below [`ThreadCounts::pairs`]. Both sides count alike.
    #[must_use]
    pub const fn pair(self, nth: u8) -> ThreadPair {
        ThreadPair { here: modulo(nth, self.here), there: modulo(nth, self.there) }
    }
}

const fn modulo(number: u8, count: u8) -> u8 {
    if count == 0 { 0 } else { number % count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MOST_LANES, MOST_THREADS};

    #[test]
    fn a_number_tells_the_threads_of_both_sides() {
        for (here, there) in
            (1..=MOST_THREADS).flat_map(|here| (1..=MOST_THREADS).map(move |there| (here, there)))
        {
            let counts = ThreadCounts { here, there };
            let mirrored = ThreadCounts { here: there, there: here };
            let pairs: Vec<_> = (0..counts.pairs()).map(|nth| counts.pair(nth)).collect();
            assert!(pairs.len() <= usize::from(MOST_LANES), "each has a lane at least");
            assert_eq!(mirrored.pairs(), counts.pairs());
            for (nth, pair) in (0..).zip(&pairs) {
                assert_eq!(pairs.iter().filter(|other| *other == pair).count(), 1, "{pair:?}");
                let ThreadPair { here, there } = mirrored.pair(nth);
                assert_eq!(ThreadPair { here: there, there: here }, *pair, "the peer counts alike");
            }
            for hash in [0_u32, 1, 55, 56, 0xfffe, 0xffff] {
                let nth = (hash % u32::from(counts.pairs())) as u8;
                let each = [hash % u32::from(here), hash % u32::from(there)].map(|thread| thread as u8);
                assert_eq!([counts.pair(nth).here, counts.pair(nth).there], each);
            }
        }
        let alike: Vec<_> = (0..3).map(|nth| ThreadCounts::alike(3).pair(nth)).collect();
        assert_eq!(alike, [0, 1, 2].map(ThreadPair::alike), "as many on both sides: as it was before");
        assert_eq!(ThreadCounts { here: 7, there: 8 }.pairs(), 56);
    }
}
