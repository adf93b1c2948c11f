//! Loss by packet size: the sender knows the sizes of what it sent, the receiver of what arrived,
//! both by packet number.

/// Largest packet of each size but the last, in bytes as counted by [`super::Arrival::bytes`]:
/// acknowledgements and probes; an Ethernet MTU; two RoCE path MTUs of 2 KiB or one of 4 KiB; what
/// is longer.
pub const SIZE_BOUNDS: [usize; SIZES - 1] = [256, 1536, 4608];

/// Sizes told apart.
pub const SIZES: usize = 4;

/// Numbers to a block. Both ends compare their counts at the ends of blocks.
pub(super) const BLOCK: u64 = 4096;

/// Blocks of which a sender remembers its counts: 4 million packets may be on their way and not yet
/// reported.
const CHECKPOINTS: usize = 1024;

pub(super) type BySize = [u64; SIZES];

fn size(bytes: usize) -> usize {
    SIZE_BOUNDS.partition_point(|bound| *bound < bytes)
}

fn count(counts: &mut BySize, bytes: usize) {
    if let Some(count) = counts.get_mut(size(bytes)) {
        *count += 1;
    }
}

/// Arrivals by size, block by block.
#[derive(Debug)]
pub(super) struct ArrivedSizes {
    /// Counts of the blocks from `done` on, each at its number modulo the length.
    blocks: Box<[[u16; SIZES]]>,
    /// The first block that counts: numbers of the one before may have been sent before the
    /// observer began.
    first: u64,
    /// Blocks below are judged whole.
    done: u64,
    /// Arrivals in the blocks from `first` to `done`.
    total: BySize,
}

impl ArrivedSizes {
    /// For numbers up to `window` beyond the last one judged.
    pub(super) fn new(window: u64) -> Self {
        let blocks = usize::try_from(window / BLOCK).unwrap_or(0) + 2;
        Self { blocks: vec![[0; SIZES]; blocks].into(), first: 0, done: 0, total: [0; SIZES] }
    }

    /// Counting starts anew, at `number`.
    pub(super) fn begin(&mut self, number: u64) {
        self.blocks.fill([0; SIZES]);
        self.first = number.div_ceil(BLOCK);
        self.done = self.first;
        self.total = [0; SIZES];
    }

    /// A number arrived, not before `judge` was told of all that makes room for it.
    pub(super) fn arrived(&mut self, number: u64, bytes: usize) {
        let block = number / BLOCK;
        if block >= self.done {
            let place = self.place(block);
            if let Some(cell) = self.blocks.get_mut(place).and_then(|counts| counts.get_mut(size(bytes))) {
                *cell = cell.saturating_add(1);
            }
        } else if block >= self.first {
            count(&mut self.total, bytes);
        }
    }

    /// Numbers below `horizon` are judged.
    pub(super) fn judge(&mut self, horizon: u64) {
        let end = (horizon / BLOCK).max(self.done);
        // All blocks that hold anything lie within the ring's length.
        for block in self.done..end.min(self.done + self.blocks.len() as u64) {
            let place = self.place(block);
            if let Some(counts) = self.blocks.get_mut(place) {
                for (total, count) in self.total.iter_mut().zip(std::mem::take(counts)) {
                    *total += u64::from(count);
                }
            }
        }
        self.done = end;
    }

    /// All numbers of blocks that count and lie below this one are judged, and what of them
    /// arrived.
    pub(super) fn totals(&self) -> (u64, BySize) {
        // Counting that begins in the last block has none to judge: it ends beyond all numbers.
        (self.done.checked_mul(BLOCK).unwrap_or(0), self.total)
    }

    fn place(&self, block: u64) -> usize {
        (block % (self.blocks.len() as u64).max(1)) as usize
    }
}

/// Packets sent by size, block by block.
#[derive(Debug)]
pub(super) struct SentSizes {
    sent: u64,
    total: BySize,
    /// `total` at the beginning of a block, at the block's number modulo the length.
    checkpoints: Box<[BySize]>,
}

impl SentSizes {
    pub(super) fn new() -> Self {
        Self { sent: 0, total: [0; SIZES], checkpoints: vec![[0; SIZES]; CHECKPOINTS].into() }
    }

    /// The next number was sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        if self.sent.is_multiple_of(BLOCK) {
            let place = (self.sent / BLOCK) as usize % CHECKPOINTS;
            if let Some(checkpoint) = self.checkpoints.get_mut(place) {
                *checkpoint = self.total;
            }
        }
        self.sent += 1;
        count(&mut self.total, bytes);
    }

    /// Numbers sent.
    pub(super) fn count(&self) -> u64 {
        self.sent
    }

    /// Returns the packets sent below `number`, the beginning of a block; `None` if they are
    /// forgotten or not all sent.
    pub(super) fn below(&self, number: u64) -> Option<BySize> {
        if number == self.sent && number.is_multiple_of(BLOCK) {
            return Some(self.total);
        }
        let (block, newest) = (number / BLOCK, self.sent.checked_sub(1)? / BLOCK);
        let known = number.is_multiple_of(BLOCK) && block <= newest && newest - block < CHECKPOINTS as u64;
        self.checkpoints.get(block as usize % CHECKPOINTS).copied().filter(|_| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_apart_at_their_bounds() {
        let sizes = [0, 256, 257, 1536, 1537, 4608, 4609, 65_000].map(size);
        assert_eq!(sizes, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn counts_agree_at_the_ends_of_blocks() {
        let mut sent = SentSizes::new();
        let mut arrived = ArrivedSizes::new(3 * BLOCK);
        arrived.begin(10);
        let mut lost = [0; SIZES];
        for number in 0..10 * BLOCK {
            let bytes = [100, 1000, 4000, 8000][(number % 4) as usize];
            sent.sent(bytes);
            if number % 7 == 0 {
                lost[size(bytes)] += u64::from((BLOCK..8 * BLOCK).contains(&number));
            } else if number >= 10 {
                arrived.judge(number.saturating_sub(2 * BLOCK + 5));
                arrived.arrived(number, bytes);
            }
        }
        arrived.judge(8 * BLOCK + 17);
        let (until, counts) = arrived.totals();
        assert_eq!(until, 8 * BLOCK);
        let before = sent.below(BLOCK).unwrap();
        let total = sent.below(until).unwrap();
        for size in 0..SIZES {
            assert_eq!(total[size] - before[size] - counts[size], lost[size], "size {size}");
        }
        arrived.arrived(3 * BLOCK, 100);
        assert_eq!(arrived.totals().1[0], counts[0] + 1, "late");
        arrived.arrived(3, 100);
        assert_eq!(arrived.totals().1[0], counts[0] + 1, "before it began");
    }

    #[test]
    fn a_leap_over_many_blocks_loses_none_that_arrived() {
        let mut arrived = ArrivedSizes::new(3 * BLOCK);
        arrived.begin(0);
        arrived.arrived(5, 1);
        arrived.judge(1000 * BLOCK);
        arrived.arrived(1000 * BLOCK, 1);
        arrived.judge(1001 * BLOCK);
        assert_eq!(arrived.totals(), (1001 * BLOCK, [2, 0, 0, 0]));
    }

    #[test]
    fn checkpoints_are_forgotten_at_the_bound() {
        let mut sent = SentSizes::new();
        let total = (CHECKPOINTS as u64 + 5) * BLOCK;
        (0..total).for_each(|_| sent.sent(1));
        assert_eq!(sent.below(4 * BLOCK), None);
        assert_eq!(sent.below(5 * BLOCK), Some([5 * BLOCK, 0, 0, 0]));
        assert_eq!(sent.below(total), Some([total, 0, 0, 0]));
        assert_eq!((sent.below(total + BLOCK), sent.below(5 * BLOCK + 1)), (None, None));
    }
}
