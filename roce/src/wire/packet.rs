//! Whole packets, from the BTH to the padding.

use super::headers::put;
use super::opcode::Body;
use super::{BTH_LEN, Bth, Ext, Opcode, Qpn, Transport};
use crate::icrc::Sums;

/// A parsed packet. Parsing checks its shape (headers present, padding, length where the opcode
/// fixes it), not its meaning: that First and Middle packets fill the path MTU, or that a PSN is
/// expected, is for the flow to judge and to answer with a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Ext,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// The whole packet as it came, BTH to padding.
    pub bytes: &'a [u8],
    /// The sums made as its ICRC was checked, if it came with one.
    sums: Option<Sums>,
}

/// Payloads from so many bytes on are not read again to sum them up.
const LONG: usize = 256;

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than the headers its opcode calls for.
    #[error("shorter than its headers")]
    Truncated,
    /// An opcode or a transport that is not understood.
    #[error("opcode {0:#04x} is not understood")]
    Opcode(u8),
    /// A transport header version other than 0.
    #[error("transport header version {0}")]
    Version(u8),
    /// More padding than payload, or a length that is no multiple of four.
    #[error("padding does not fit the length")]
    Padding,
    /// Bytes where the opcode has no payload, or not as many as it fixes.
    #[error("length does not fit the opcode")]
    Length,
}

impl<'a> Packet<'a> {
    /// Reads the bytes from the BTH to the padding, ICRC excluded.
    pub fn parse(transport: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (head, mut rest) = transport.split_first_chunk::<BTH_LEN>().ok_or(Malformed::Truncated)?;
        let bth = Bth::parse(head)?;
        let ext = Ext::take(bth.opcode.layout(), &mut rest).ok_or(Malformed::Truncated)?;
        if !rest.len().is_multiple_of(4) {
            return Err(Malformed::Padding);
        }
        let length = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Malformed::Padding)?;
        let payload = rest.get(..length).ok_or(Malformed::Padding)?;
        check_length(bth.opcode, payload.len(), rest.len())?;
        Ok(Packet { bth, ext, payload, bytes: transport, sums: None })
    }

    /// Takes what was summed up as the ICRC was checked, of whose packet it is the transport part.
    pub fn note_sums(&mut self, sums: &Sums) {
        self.sums = Some(*sums);
    }

    /// CRC-32 of the payload. It takes a look at the payload only where the ICRC's check does not
    /// tell.
    pub fn payload_crc(&self) -> u32 {
        let known = self.sums.filter(|_| self.bth.pad == 0 && self.payload.len() >= LONG);
        let headers = self.bytes.len() - self.payload.len();
        match known.zip(self.bytes.get(BTH_LEN..headers)) {
            Some((sums, between)) => sums.of_last(between, self.payload.len()),
            None => crc32fast::hash(self.payload),
        }
    }

    /// Returns true if it speaks to a multicast group, as only unreliable datagrams can.
    pub fn is_multicast(&self) -> bool {
        self.bth.opcode.transport() == Transport::Ud && self.bth.dest_qp == Qpn::MULTICAST
    }

    /// The parts to build the same packet from.
    pub const fn repr(&self) -> Repr<'a> {
        Repr { bth: self.bth, ext: self.ext, payload: self.payload }
    }
}

fn check_length(opcode: Opcode, payload: usize, padded: usize) -> Result<(), Malformed> {
    let fits = match opcode.body() {
        Body::Any => true,
        Body::Absent => padded == 0,
        Body::Exact(length) => payload == length,
    };
    if fits { Ok(()) } else { Err(Malformed::Length) }
}

/// The parts of a packet to emit.
///
/// ```
/// use roce::wire::*;
/// let ack = Repr {
///     bth: Bth::new(Opcode::Acknowledge, Qpn::new(0x11), Psn::new(7)),
///     ext: Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 3 }),
///     payload: &[],
/// };
/// let mut bytes = [0; 16];
/// assert_eq!(ack.emit(&mut bytes), Ok(16));
/// assert_eq!(Packet::parse(&bytes).unwrap().repr(), ack);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Base transport header; its `pad` is not read but computed from the payload.
    pub bth: Bth,
    /// Extension headers; must be those of the opcode.
    pub ext: Ext,
    /// Payload without padding.
    pub payload: &'a [u8],
}

/// Why a packet could not be emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer is shorter than [`Repr::buffer_len`].
    #[error("buffer too small")]
    TooSmall,
    /// The extension headers are not those of the opcode.
    #[error("extension headers do not fit the opcode")]
    Headers,
    /// The payload does not fit the opcode.
    #[error("payload does not fit the opcode")]
    Length,
}

impl Repr<'_> {
    /// Bytes from the BTH to the padding.
    pub const fn buffer_len(&self) -> usize {
        BTH_LEN + self.ext.layout().len() + self.payload.len().next_multiple_of(4)
    }

    /// Writes the packet to the front of `out`, every byte of it, and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        if self.ext.layout() != self.bth.opcode.layout() {
            return Err(EmitError::Headers);
        }
        let padded = self.payload.len().next_multiple_of(4);
        check_length(self.bth.opcode, self.payload.len(), padded).map_err(|_| EmitError::Length)?;
        self.put(out, padded - self.payload.len()).ok_or(EmitError::TooSmall)?;
        Ok(self.buffer_len())
    }

    fn put(&self, mut out: &mut [u8], pad: usize) -> Option<()> {
        let out = &mut out;
        let mut head = [0; BTH_LEN];
        Bth { pad: (pad & 3) as u8, ..self.bth }.emit(&mut head);
        put(out, head)?;
        self.ext.put(out)?;
        out.split_off_mut(..self.payload.len())?.copy_from_slice(self.payload);
        out.split_off_mut(..pad)?.fill(0);
        Some(())
    }
}

/// A path MTU: the payload of every First and Middle packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum PathMtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl PathMtu {
    /// The path MTU of exactly so many bytes.
    pub const fn from_bytes(bytes: usize) -> Option<PathMtu> {
        match bytes {
            256 => Some(PathMtu::B256),
            512 => Some(PathMtu::B512),
            1024 => Some(PathMtu::B1024),
            2048 => Some(PathMtu::B2048),
            4096 => Some(PathMtu::B4096),
            _ => None,
        }
    }

    /// Bytes of payload.
    pub const fn bytes(self) -> u32 {
        match self {
            PathMtu::B256 => 256,
            PathMtu::B512 => 512,
            PathMtu::B1024 => 1024,
            PathMtu::B2048 => 2048,
            PathMtu::B4096 => 4096,
        }
    }

    /// How many PSNs a message of `length` bytes takes, and how many a READ of that length
    /// consumes: at least one.
    pub const fn psn_span(self, length: u32) -> u32 {
        let packets = length.div_ceil(self.bytes());
        if packets == 0 { 1 } else { packets }
    }
}
