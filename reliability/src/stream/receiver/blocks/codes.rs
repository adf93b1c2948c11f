//! The codes of the blocks that arrive, made as blocks need them.

use std::collections::VecDeque;

use fec::Code;

use crate::stream::wire::{Coding, Shape};

/// Codes kept at hand; a stream uses one, and another after a change of scheme.
const CODES: usize = 4;
/// Codes made without anything having come.
const CREDIT: u64 = 8;
/// Packets that pay for a code: making the largest takes about 250 times as long as taking a packet
/// in.
const PACKETS: u64 = 1024;
/// Microseconds that pay for one as well, so that a stream of few packets may change its scheme.
const MICROS: u64 = 100_000;

/// The last few codes.
///
/// # Bounds
/// A code is made for every [`PACKETS`] packets or [`MICROS`], and a few in a row. Beyond that a
/// block of another shape has no code, so that shapes that are ever new cost no more than packets
/// do.
#[derive(Debug)]
pub(super) struct Codes {
    codes: VecDeque<Code>,
    packets: u64,
    now: u64,
    /// Codes that may be made at once.
    credit: u64,
    /// Codes earned when that was last reckoned.
    earned: u64,
}

impl Codes {
    pub(super) fn new() -> Self {
        Self { codes: VecDeque::new(), packets: 0, now: 0, credit: CREDIT, earned: 0 }
    }

    /// A packet arrived.
    pub(super) fn arrived(&mut self, now: u64) {
        self.packets += 1;
        self.now = now;
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.codes.iter().map(Code::memory).sum()
    }

    /// The shape's code with `m` parities; `None` if there is none, or too many others were made
    /// lately.
    pub(super) fn get(&mut self, shape: Shape, m: u8) -> Option<&Code> {
        let kind = match shape.coding {
            Coding::Xor => fec::Kind::Xor,
            Coding::Mds => fec::Kind::Mds,
            Coding::None | Coding::Sr => return None,
        };
        let (k, m) = (usize::from(shape.k), usize::from(m));
        let known = self.codes.iter().position(|code| (code.kind(), code.k(), code.m()) == (kind, k, m));
        let index = match known {
            Some(index) => index,
            None => {
                self.pay()?;
                self.codes.truncate(CODES - 1);
                self.codes.push_front(Code::new(kind, k, m).ok()?);
                0
            }
        };
        self.codes.get(index)
    }

    /// Takes what one more code costs.
    fn pay(&mut self) -> Option<()> {
        let earned = self.packets / PACKETS + self.now / MICROS;
        let credit = self.credit.saturating_add(earned - self.earned).min(CREDIT);
        self.earned = earned;
        self.credit = credit.saturating_sub(1);
        (credit > 0).then_some(())
    }
}
