//! Numbers on the wire: whole ones, ones by their low bits, and ones of which the size matters.

use super::{
    CODING_SHIFT, Coding, FLAG_QUIET, FLAG_REPAIR, Kind, Malformed, PARITY_BIT, STREAM_BIT, STREAM_BITS,
    Shape, Start,
};
use crate::stream::StreamId;

/// Returns the number with these low 32 bits that is nearest to `expected`, if there is one
/// (RFC 9000, A.3).
pub(crate) fn nearest(expected: u64, low: u32) -> Option<u64> {
    let ahead = low.wrapping_sub(expected as u32) as i32;
    expected.checked_add_signed(ahead.into())
}

/// A number of which four bits and its size are told, in a byte.
///
/// The upper half e and the lower half m stand for m if e is 0, and for (16 + m) 2^(e - 1)
/// otherwise. So what is told differs from the number by less than a sixteenth. The last byte
/// stands for all greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coarse(pub(crate) u8);

impl Coarse {
    /// For all that is too great.
    const BEYOND: Self = Self(u8::MAX);

    /// The greatest one that is not more than `value`.
    pub(crate) fn at_most(value: u64) -> Self {
        let size = u64::BITS - value.leading_zeros();
        let Some(shift) = size.checked_sub(5) else { return Self(value as u8) };
        match u8::try_from((shift + 1) << 4 | (value >> shift) as u32 & 0xf) {
            Ok(byte) => Self(byte),
            Err(_) => Self::BEYOND,
        }
    }

    /// The least one that is not less than `value`.
    pub(crate) fn at_least(value: u64) -> Self {
        let below = Self::at_most(value);
        match below.value() {
            Some(told) if told < value => Self(below.0 + 1),
            _ => below,
        }
    }

    /// The number that it stands for; `None`: a greater one than can be told.
    pub(crate) fn value(self) -> Option<u64> {
        let (size, digits) = (self.0 >> 4, u64::from(self.0 & 0xf));
        match size {
            _ if self == Self::BEYOND => None,
            0 => Some(digits),
            _ => Some((16 + digits) << (size - 1)),
        }
    }
}

/// Takes a packet apart from the front.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u24(&mut self) -> Result<u32, Malformed> {
        let [a, b, c] = self.array()?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A length of 14 bits in two bytes, or of 30 in four: the first bit tells, the second is 0
    /// (RFC 9000, 16, has two more forms).
    pub(crate) fn length(&mut self) -> Result<u32, Malformed> {
        let [a, b] = self.array()?;
        match a >> 6 {
            0 => Ok(u16::from_be_bytes([a, b]).into()),
            2 => {
                let [c, d] = self.array()?;
                Ok(u32::from_be_bytes([a & 0x3f, b, c, d]))
            }
            _ => Err(Malformed::Frame),
        }
    }

    pub(crate) fn start(&mut self) -> Result<Start, Malformed> {
        let first = self.u8()?;
        let second = self.u8()?;
        if first & STREAM_BIT != 0 {
            return Ok(Start {
                kind: if first & PARITY_BIT == 0 { Kind::Data } else { Kind::Parity },
                flags: first & (FLAG_REPAIR | FLAG_QUIET),
                coding: Coding::of_bits(first >> CODING_SHIFT),
                stream: StreamId(u16::from_be_bytes([first & STREAM_BITS, second])),
            });
        }
        let kind = match first {
            3 => Kind::Report,
            4 => Kind::Path,
            5 => Kind::Probe,
            6 => Kind::Mtu,
            7 => Kind::Piece,
            other => return Err(Malformed::Kind(other)),
        };
        Ok(Start { kind, flags: second, coding: Coding::Sr, stream: StreamId(self.u16()?) })
    }

    pub(super) fn shape(&mut self, coding: Coding) -> Result<Shape, Malformed> {
        let [k, m, depth] = self.array()?;
        let shape = Shape { coding, k, m, depth };
        if shape.valid() { Ok(shape) } else { Err(Malformed::Block) }
    }
}

/// Fills a header from the front; what does not fit is a mistake of this module, and is left out.
pub(crate) struct Writer<'a>(&'a mut [u8]);

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self(out)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.0.len(), "header too small");
        if let Some((head, rest)) = std::mem::take(&mut self.0).split_at_mut_checked(bytes.len()) {
            head.copy_from_slice(bytes);
            self.0 = rest;
        }
    }

    /// Begins a packet of the session's own.
    pub(crate) fn start(&mut self, kind: Kind, flags: u8, stream: StreamId) {
        let kind = match kind {
            Kind::Report => 3,
            Kind::Path => 4,
            Kind::Probe => 5,
            Kind::Mtu => 6,
            Kind::Piece => 7,
            // These begin otherwise, and nobody reads this.
            Kind::Data | Kind::Parity => 0,
        };
        debug_assert!(kind != 0, "not a packet of the session's own");
        self.put(&[kind, flags]);
        self.put(&stream.0.to_be_bytes());
    }

    /// Begins DATA (`kind` is 0) or PARITY.
    pub(super) fn start_of_stream(&mut self, kind: u8, flags: u8, coding: Coding, stream: StreamId) {
        let [high, low] = stream.0.to_be_bytes();
        let coding = (coding as u8) << CODING_SHIFT;
        self.put(&[STREAM_BIT | kind | flags | coding | high & STREAM_BITS, low]);
    }

    pub(super) fn shape(&mut self, shape: Shape) {
        self.put(&[shape.k, shape.m, shape.depth]);
    }
}
