//! The base transport header and the two 24-bit numbers in it.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use super::{Malformed, Opcode};

/// Length of the BTH in bytes.
pub const BTH_LEN: usize = 12;

const MASK_24: u32 = 0x00ff_ffff;

/// A packet sequence number: 24 bits, wrapping. It has no total order, hence no `Ord`: use
/// [`Psn::distance`].
///
/// ```
/// use roce::wire::Psn;
/// let last = Psn::new(0xff_ffff);
/// assert_eq!(last + 2, Psn::new(1));
/// assert_eq!((last + 2).distance(last), 2);
/// assert!(last.is_before(last + 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK_24)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// How far `self` lies ahead of `other` (negative: behind), from -2^23 to 2^23 - 1:
    /// `self - other` as the signed difference by which the specification compares PSNs.
    pub const fn distance(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// `self` comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }

    /// `self` comes after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.distance(other) > 0
    }

    /// The PSN that follows.
    pub const fn next(self) -> Psn {
        Psn::new(self.0.wrapping_add(1))
    }

    /// The PSN before.
    pub const fn prev(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// Returns true if `self` is one of the `count` PSNs from `start` on.
    pub const fn is_within(self, start: Psn, count: u32) -> bool {
        self.0.wrapping_sub(start.0) & MASK_24 < count
    }
}

impl Add<u32> for Psn {
    type Output = Psn;

    fn add(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;

    fn sub(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number: 24 bits. Unique within one host only.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services queue pair: connection management.
    pub const GSI: Qpn = Qpn(1);

    /// Every queue pair that is attached to the multicast group addressed.
    pub const MULTICAST: Qpn = Qpn(MASK_24);

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK_24)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Base transport header. Reserved bits are ignored when parsed and zero when emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Operation, transport and place in the message.
    pub opcode: Opcode,
    /// SE: the responder should raise an event for this message.
    pub solicited: bool,
    /// Automatic path migration state.
    pub migreq: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The queue pair this packet is for.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement of this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A header with no flag set, no padding and the default partition key.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migreq: false,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads a header; unknown opcodes and transport header versions other than 0 are refused.
    #[inline]
    pub const fn parse(bytes: &[u8; BTH_LEN]) -> Result<Bth, Malformed> {
        let [code, flags, p0, p1, ecn, q0, q1, q2, ack, s0, s1, s2] = *bytes;
        let Some(opcode) = Opcode::from_u8(code) else {
            return Err(Malformed::Opcode(code));
        };
        if flags & 0x0f != 0 {
            return Err(Malformed::Version(flags & 0x0f));
        }
        Ok(Bth {
            opcode,
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes([p0, p1]),
            fecn: ecn & 0x80 != 0,
            becn: ecn & 0x40 != 0,
            dest_qp: Qpn(u32::from_be_bytes([0, q0, q1, q2])),
            ack_req: ack & 0x80 != 0,
            psn: Psn(u32::from_be_bytes([0, s0, s1, s2])),
        })
    }

    /// Writes all twelve bytes.
    pub const fn emit(&self, out: &mut [u8; BTH_LEN]) {
        let flags = (self.solicited as u8) << 7 | (self.migreq as u8) << 6 | (self.pad & 3) << 4;
        let ecn = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        let [p0, p1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qp.0.to_be_bytes();
        let [_, s0, s1, s2] = self.psn.0.to_be_bytes();
        let ack = (self.ack_req as u8) << 7;
        *out = [self.opcode.to_u8(), flags, p0, p1, ecn, q0, q1, q2, ack, s0, s1, s2];
    }

    /// Sets or clears AckReq in a header in place. Get the array with `packet.first_chunk_mut()`.
    pub const fn set_ack_req(bytes: &mut [u8; BTH_LEN], ack_req: bool) {
        let [.., ack, _, _, _] = bytes;
        *ack = *ack & 0x7f | (ack_req as u8) << 7;
    }

    /// Rewrites the destination queue pair in place.
    pub const fn set_dest_qp(bytes: &mut [u8; BTH_LEN], dest_qp: Qpn) {
        let [_, _, _, _, _, q0, q1, q2, ..] = bytes;
        [_, *q0, *q1, *q2] = dest_qp.0.to_be_bytes();
    }

    /// Rewrites the PSN in place.
    pub const fn set_psn(bytes: &mut [u8; BTH_LEN], psn: Psn) {
        let [.., s0, s1, s2] = bytes;
        [_, *s0, *s1, *s2] = psn.0.to_be_bytes();
    }
}
