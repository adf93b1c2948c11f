//! What a scheme adds to the data packets.

use std::collections::VecDeque;
use std::fmt::Debug;

use fec::{Code, Encoder};

use super::SenderConfig;
use crate::stream::wire::{Coding, PARITY_HEADER, Parity, Shape};
use crate::stream::{Scheme, StreamId};

/// The seam between the stream and its schemes, on the sending side. Times in microseconds of the sender's clock.
pub(super) trait Redundancy: Debug + Send {
    /// A data packet goes out for the first time: its description on the wire.
    fn add(&mut self, sequence: u64, payload: &[u8], now: u64) -> (Shape, u16);

    /// Writes the next parity's symbol behind the place of its header; the header (without flags, stream and time) and the symbol's length.
    fn poll_parity(&mut self, out: &mut [u8]) -> Option<(Parity, usize)>;

    /// Parity waits to be sent.
    fn has_parity(&self) -> bool;

    /// When the block under way wants to be closed.
    fn flush_at(&self) -> Option<u64>;

    /// Closes the block under way.
    fn close(&mut self, now: u64);

    /// No block is under way, and all parity is sent.
    fn is_between_blocks(&self) -> bool;

    /// From when on a packet first sent at `sent` counts towards its timeout; `None` while its block is under way.
    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64>;

    /// The packets below `sequence` will not be asked about any more.
    fn forget(&mut self, sequence: u64);
}

pub(super) fn new(scheme: Scheme, capacity: usize, config: &SenderConfig) -> Box<dyn Redundancy> {
    let shape = scheme.shape();
    let kind = match shape.coding {
        Coding::None | Coding::Sr => return Box::new(Uncoded(shape)),
        Coding::Xor => fec::Kind::Xor,
        Coding::Mds => fec::Kind::Mds,
    };
    match Code::new(kind, shape.k.into(), shape.m.into()) {
        Ok(code) => Box::new(Coded::new(shape, &code, capacity, config)),
        // `Scheme::shape` brings the numbers within every code's bounds.
        Err(_) => Box::new(Uncoded(Shape::uncoded(Coding::Sr))),
    }
}

/// `none` and `sr`: nothing is added.
#[derive(Debug)]
struct Uncoded(Shape);

impl Redundancy for Uncoded {
    fn add(&mut self, _: u64, _: &[u8], _: u64) -> (Shape, u16) {
        (self.0, 0)
    }

    fn poll_parity(&mut self, _: &mut [u8]) -> Option<(Parity, usize)> {
        None
    }

    fn has_parity(&self) -> bool {
        false
    }

    fn flush_at(&self) -> Option<u64> {
        None
    }

    fn close(&mut self, _: u64) {}

    fn is_between_blocks(&self) -> bool {
        true
    }

    fn protected_until(&self, _: u64, sent: u64) -> Option<u64> {
        Some(sent)
    }

    fn forget(&mut self, _: u64) {}
}

/// `xor` and `mds`: groups of `depth` interleaved blocks. The parity of a group follows its last data packet, interleaved as well, so
/// that a burst takes one parity of each block rather than all of one.
#[derive(Debug)]
struct Coded {
    shape: Shape,
    /// One per block of the group.
    encoders: Vec<Encoder>,
    /// First packet of the group under way.
    base: u64,
    /// Data packets in it.
    count: u16,
    opened: u64,
    flush: u64,
    /// Of the closed group: the next parity to send, by parity index and block.
    parity: Option<(u8, u8)>,
    /// End and time of closing of the groups that are still asked about.
    closed: VecDeque<(u64, u64)>,
}

impl Coded {
    fn new(shape: Shape, code: &Code, capacity: usize, config: &SenderConfig) -> Self {
        let encoder = |_| Encoder::new(code.clone(), capacity);
        Self {
            shape,
            encoders: (0..shape.depth).map(encoder).collect(),
            base: 0,
            count: 0,
            opened: 0,
            flush: config.flush.as_micros() as u64,
            parity: None,
            closed: VecDeque::new(),
        }
    }

    /// Parities that block `lane` of the closed group gets.
    fn parities(&self, lane: u8) -> u8 {
        parities(self.shape, self.shape.block_len(self.count, lane))
    }

    /// The next parity, by index and block, from the given place on.
    fn seek(&self, mut index: u8, mut lane: u8) -> Option<(u8, u8)> {
        while index < self.shape.m {
            if lane >= self.shape.depth {
                (index, lane) = (index + 1, 0);
            } else if index < self.parities(lane) {
                return Some((index, lane));
            } else {
                lane += 1;
            }
        }
        None
    }
}

impl Redundancy for Coded {
    fn add(&mut self, sequence: u64, payload: &[u8], now: u64) -> (Shape, u16) {
        if self.count == 0 {
            self.base = sequence;
            self.opened = now;
        }
        let position = self.count;
        let lane = usize::from(position % u16::from(self.shape.depth));
        if let Some(encoder) = self.encoders.get_mut(lane) {
            // The group is closed before a block overflows, and a payload is no longer than the encoder's capacity.
            let pushed = encoder.push(payload);
            debug_assert!(pushed.is_ok(), "{pushed:?}");
        }
        self.count += 1;
        if self.count == self.shape.packets() {
            self.close(now);
        }
        (self.shape, position)
    }

    fn poll_parity(&mut self, out: &mut [u8]) -> Option<(Parity, usize)> {
        let (index, lane) = self.parity?;
        let symbol = self.encoders.get_mut(usize::from(lane))?.parity(index.into())?;
        out.get_mut(PARITY_HEADER..)?.get_mut(..symbol.len())?.copy_from_slice(symbol);
        let len = symbol.len();
        let header = Parity {
            flags: 0,
            stream: StreamId(0),
            timestamp: 0,
            base: self.base,
            shape: self.shape,
            lane,
            index,
            count: self.count,
            parities: self.parities(lane),
        };
        self.parity = self.seek(index, lane + 1);
        if self.parity.is_none() {
            self.encoders.iter_mut().for_each(Encoder::reset);
            self.count = 0;
        }
        Some((header, len))
    }

    fn has_parity(&self) -> bool {
        self.parity.is_some()
    }

    fn flush_at(&self) -> Option<u64> {
        (self.count > 0 && self.parity.is_none()).then_some(self.opened + self.flush)
    }

    fn close(&mut self, now: u64) {
        if self.count > 0 && self.parity.is_none() {
            self.parity = self.seek(0, 0);
            self.closed.push_back((self.base + u64::from(self.count), now));
        }
    }

    fn is_between_blocks(&self) -> bool {
        self.count == 0
    }

    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64> {
        if self.count > 0 && self.parity.is_none() && sequence >= self.base {
            return None;
        }
        let group = self.closed.partition_point(|&(end, _)| end <= sequence);
        let closed = self.closed.get(group).map_or(0, |&(_, at)| at);
        Some(sent.max(closed))
    }

    fn forget(&mut self, sequence: u64) {
        while self.closed.front().is_some_and(|&(end, _)| end <= sequence) {
            self.closed.pop_front();
        }
    }
}

/// Parities for a block of `len` data packets.
///
/// The losses among `len` packets spread around their mean by about `sqrt(len)`, so a short block needs more parity than its
/// share `m * len / k`: it gets the least `m'` with `m' >= m * sqrt(len / k)`, at least 2 and at most `m`. That costs nothing
/// others want: a block is short only when the sender has nothing else to send. A short XOR block keeps all parities that
/// protect anything, since the code fixes which packets each one is over.
fn parities(shape: Shape, len: usize) -> u8 {
    let (k, m) = (usize::from(shape.k), usize::from(shape.m));
    let parities = match shape.coding {
        _ if len == 0 => 0,
        Coding::Xor => m.min(len),
        _ => (2.min(m)..m).find(|p| p * p * k >= m * m * len).unwrap_or(m),
    };
    parities as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_blocks_keep_their_strength() {
        let shape = Scheme::mds(32, 8).shape();
        let parities = [1, 2, 4, 8, 16, 31, 32].map(|len| parities(shape, len));
        assert_eq!(parities, [2, 2, 3, 4, 6, 8, 8]);
    }

    #[test]
    fn parity_never_exceeds_the_code_nor_misses_a_block() {
        for (k, m) in [(1, 1), (4, 1), (200, 55), (10, 2)] {
            for scheme in [Scheme::mds(k, m), Scheme::xor(k, m)] {
                let shape = scheme.shape();
                for len in 1..=usize::from(shape.k) {
                    assert!((1..=shape.m).contains(&parities(shape, len)), "{scheme:?} {len}");
                }
                assert_eq!(parities(shape, usize::from(shape.k)), shape.m);
            }
        }
    }
}
