//! Redundancy: the packets that a scheme adds to the data packets.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use fec::Code;

use super::SenderConfig;
use super::group::Group;
use super::hybrid::Hybrid;
use super::outlook::Outlook;
use super::queue::Queue;
use crate::stream::Scheme;
use crate::stream::wire::{Coding, Parity, Shape};

/// How a data packet describes itself on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) shape: Shape,
    /// Place in the group; 0 if not coded.
    pub(super) position: u16,
    /// Its frames are to be kept until [`Queue::unhold`], also when it has arrived: parity may yet
    /// be made of them.
    pub(super) held: bool,
}

impl Placement {
    /// Packets that are in no block.
    pub(super) fn uncoded(shape: Shape) -> Self {
        Self { shape, position: 0, held: false }
    }
}

/// The receiver asks for a packet, or for any packet of its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) sequence: u64,
    /// The report's number; its parts share it.
    pub(super) report: u32,
    /// The report tells what arrived of all that was sent up to then.
    pub(super) known: u64,
}

/// The seam between the stream and its schemes, on the sending side. Times in microseconds of the
/// sender's clock.
pub(super) trait Redundancy: Debug + Send {
    /// A data packet of the queue goes out for the first time.
    fn add(&mut self, sequence: u64, queue: &Queue, outlook: &Outlook, now: u64) -> Placement;

    /// Packets below `end` may be let go of after this: takes what it still needs of those that are
    /// not held.
    fn before_acknowledging(&mut self, _end: u64, _: &Queue) {}

    /// Writes the next parity's symbol behind the place of its header; the header (without stream
    /// and time) and the symbol's length.
    fn poll_parity(&mut self, queue: &Queue, now: u64, out: &mut [u8]) -> Option<(Parity, usize)>;

    /// When the block under way wants to be closed; `quiet` after its last packet, if given.
    fn flush_at(&self, quiet: Option<u64>) -> Option<u64>;

    /// Closes the block under way.
    fn close(&mut self, outlook: &Outlook, now: u64);

    /// No block is under way, and all parity is sent.
    fn is_between_blocks(&self) -> bool;

    /// From when on a packet first sent at `sent` counts towards its timeout; `None` while its
    /// block is under way.
    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64>;

    /// Returns true if a block that lacks packets gets parity for them; otherwise the packet asked
    /// for is sent again.
    fn answers(&mut self, _: &Asked, _: &Queue) -> bool {
        false
    }

    /// A report's list is through: decides on the parity for the blocks it named.
    fn answer(&mut self, _: &Outlook) {}

    /// The receiver waits so long for overtaken packets.
    fn set_reorder_time(&mut self, _: Duration) {}

    /// Packets were acknowledged: lets go of what is not asked about any more.
    fn settle(&mut self, queue: &mut Queue);

    /// Gives back the memory that no block needs now.
    fn release_spare(&mut self) {}
}

pub(super) fn new(scheme: Scheme, capacity: usize, config: &SenderConfig) -> Box<dyn Redundancy> {
    let shape = scheme.shape();
    let kind = match shape.coding {
        Coding::None | Coding::Sr => return Box::new(Uncoded(shape)),
        Coding::Xor => fec::Kind::Xor,
        Coding::Mds => fec::Kind::Mds,
    };
    let code = |m: u8| Code::new(kind, shape.k.into(), m.into());
    match (code(shape.m), code(shape.most_parities())) {
        (Ok(code), Ok(further)) if matches!(scheme, Scheme::Hybrid { .. }) => {
            Box::new(Hybrid::new(Group::new(shape, code, capacity), further, config))
        }
        (Ok(code), _) => Box::new(Coded::new(Group::new(shape, code, capacity), config)),
        // `Scheme::shape` brings the numbers within every code's bounds.
        (Err(_), _) => Box::new(Uncoded(Shape::uncoded(Coding::Sr))),
    }
}

/// `none` and `sr`: nothing is added.
#[derive(Debug)]
struct Uncoded(Shape);

impl Redundancy for Uncoded {
    fn add(&mut self, _: u64, _: &Queue, _: &Outlook, _: u64) -> Placement {
        Placement::uncoded(self.0)
    }

    fn poll_parity(&mut self, _: &Queue, _: u64, _: &mut [u8]) -> Option<(Parity, usize)> {
        None
    }

    fn flush_at(&self, _: Option<u64>) -> Option<u64> {
        None
    }

    fn close(&mut self, _: &Outlook, _: u64) {}

    fn is_between_blocks(&self) -> bool {
        true
    }

    fn protected_until(&self, _: u64, sent: u64) -> Option<u64> {
        Some(sent)
    }

    fn settle(&mut self, _: &mut Queue) {}
}

/// `xor` and `mds`: every packet is in a block, and every block gets parity.
#[derive(Debug)]
struct Coded {
    group: Group,
    flush: u64,
    /// End and time of closing of the groups that are still asked about.
    closed: VecDeque<(u64, u64)>,
}

impl Coded {
    fn new(group: Group, config: &SenderConfig) -> Self {
        Self { group, flush: config.flush.as_micros() as u64, closed: VecDeque::new() }
    }
}

impl Redundancy for Coded {
    fn add(&mut self, sequence: u64, queue: &Queue, outlook: &Outlook, now: u64) -> Placement {
        let position = self.group.add(sequence, queue, now);
        if self.group.is_full() {
            self.close(outlook, now);
        }
        Placement { shape: self.group.shape(), position, held: false }
    }

    fn before_acknowledging(&mut self, end: u64, queue: &Queue) {
        self.group.encode(end, queue);
    }

    fn poll_parity(&mut self, queue: &Queue, _: u64, out: &mut [u8]) -> Option<(Parity, usize)> {
        self.group.poll_parity(queue, out)
    }

    fn flush_at(&self, quiet: Option<u64>) -> Option<u64> {
        self.group.flush_at(self.flush, quiet)
    }

    fn close(&mut self, _: &Outlook, now: u64) {
        if self.group.is_open() {
            self.closed.push_back((self.group.end(), now));
            let shape = self.group.shape();
            let lanes = shape.lanes(self.group.count().into());
            self.group.close(|len| parities(shape, len, lanes));
        }
    }

    fn is_between_blocks(&self) -> bool {
        self.group.count() == 0
    }

    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64> {
        if self.group.is_open() && sequence >= self.group.base() {
            return None;
        }
        let group = self.closed.partition_point(|&(end, _)| end <= sequence);
        let closed = self.closed.get(group).map_or(0, |&(_, at)| at);
        Some(sent.max(closed))
    }

    fn settle(&mut self, queue: &mut Queue) {
        while self.closed.front().is_some_and(|&(end, _)| end <= queue.base()) {
            self.closed.pop_front();
        }
    }
}

/// Parities for a block of `len` data packets, in a group of `lanes` such blocks.
///
/// The losses among `len` packets spread around their mean by about `sqrt(len)`, so a short block
/// needs more parity than its share `m * len / k`: it gets the least `m'` with
/// `m' >= m * sqrt(len / k)`, at least 2 and at most `m`. That costs nothing others want: a block
/// is short only when the sender has nothing else to send. A short XOR block keeps all parities
/// that protect anything, since the code fixes which packets each one is over.
///
/// Who interleaves expects losses in runs, and a run is not shorter where a group is: a group of
/// few packets has `m` parities at least in all, or an ACK that travels alone would be lost with
/// its two parities in most runs that meet it.
///
/// Rule: `docs/protocol.md#rule-short-block`.
pub(crate) fn parities(shape: Shape, len: usize, lanes: u8) -> u8 {
    let (k, m) = (usize::from(shape.k), usize::from(shape.m));
    let least = if shape.depth > 1 { m.div_ceil(usize::from(lanes.max(1))) } else { 0 }.max(2).min(m);
    let parities = match shape.coding {
        _ if len == 0 => 0,
        Coding::Xor => m.min(len),
        _ => (least..m).find(|p| p * p * k >= m * m * len).unwrap_or(m),
    };
    parities as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_blocks_keep_their_strength() {
        let shape = Scheme::mds(32, 8).shape();
        let parities = [1, 2, 4, 8, 16, 31, 32].map(|len| parities(shape, len, 1));
        assert_eq!(parities, [2, 2, 3, 4, 6, 8, 8]);
    }

    #[test]
    fn a_run_is_borne_by_a_group_of_few_packets_as_well() {
        let shape = Scheme::Mds { k: 32, m: 8, depth: 4 }.shape();
        let lone = [1, 2, 3, 4].map(|lanes| parities(shape, 1, lanes));
        assert_eq!(lone, [8, 4, 3, 2]);
        assert_eq!([2, 8, 32].map(|len| parities(shape, len, 4)), [2, 4, 8], "as without interleaving");
    }

    #[test]
    fn parity_never_exceeds_the_code_nor_misses_a_block() {
        for (k, m) in [(1, 1), (4, 1), (200, 55), (10, 2)] {
            for scheme in [Scheme::mds(k, m), Scheme::xor(k, m)] {
                let shape = scheme.shape();
                for len in 1..=usize::from(shape.k) {
                    assert!((1..=shape.m).contains(&parities(shape, len, 1)), "{scheme:?} {len}");
                }
                assert_eq!(parities(shape, usize::from(shape.k), 1), shape.m);
            }
        }
    }
}
