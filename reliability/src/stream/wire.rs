//! Layout of the stream's packets and of the frames inside DATA. Big-endian throughout;
//! `docs/protocol.md#streams` has the figures.

use super::{InBlock, StreamId};

mod frames;
mod numbers;

pub(crate) use self::frames::{Cut, Fragment, Frame, Frames, MAX_RECORD, MAX_WHOLE, record_header};
pub use self::frames::{FRAGMENT_HEADER, RECORD_HEADER};
pub(crate) use self::numbers::{Coarse, Reader, Writer, nearest};

/// Bytes before the frames of a DATA packet that is in a block, and kept for that in any: as many
/// as PARITY takes beside the longest payload. So both are equally long, and leave in one batch.
pub const DATA_HEADER: usize = UNCODED_HEADER + BLOCK_HEADER;
const _: () = assert!(DATA_HEADER == PARITY_HEADER + fec::PARITY_OVERHEAD);
/// Bytes before the frames of a DATA packet that is in no block.
pub const UNCODED_HEADER: usize = 11;
/// Bytes that say which block a DATA packet is in, and where.
const BLOCK_HEADER: usize = 8;
/// Bytes before the symbol of a PARITY packet.
pub(crate) const PARITY_HEADER: usize = 17;
/// Bytes before the bitmap of a REPORT packet.
pub const REPORT_HEADER: usize = 48;
/// Bytes per range of the NACK list.
pub(crate) const NACK: usize = 6;
/// Unit of the round-trip time in DATA packets, in microseconds.
pub(crate) const RTT_UNIT: u64 = 16;
/// Unit of sending times, in microseconds.
pub const TIME_UNIT: u64 = 4;
/// Sending times are told modulo so many microseconds.
pub(crate) const TIME_SPAN: u64 = TIME_UNIT << 24;

/// The packet is a copy of one sent before.
pub(crate) const FLAG_REPAIR: u8 = 0x20;
/// The sender has nothing more to send for now, and would like a report.
pub(crate) const FLAG_QUIET: u8 = 0x10;

/// First byte of DATA and PARITY.
const STREAM_BIT: u8 = 0x80;
const PARITY_BIT: u8 = 0x40;
const CODING_SHIFT: u32 = 2;
/// Bits of the first byte that hold the upper ones of the stream's number.
const STREAM_BITS: u8 = 0x03;

/// Bit in a NACK range's number of packets: see [`Nack::any`].
const ANY: u16 = 0x8000;

/// The kind of a packet, and so whose it is: DATA and PARITY go to the receiver, REPORT to the
/// sender; PATH, PROBE, MTU and PIECE are no stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Records.
    Data,
    /// Redundancy over a block of DATA packets.
    Parity,
    /// The receiver's bitmap.
    Report,
    /// A report on what the peer observed of the path, see [`crate::estimator`]. Its stream id is
    /// the lane.
    Path,
    /// A packet whose arrival is all it says. Its stream id is the lane.
    Probe,
    /// How long a packet may be, see [`crate::mtu`]: asks, or answers. Its stream id is the lane.
    Mtu,
    /// A piece of a packet that the path does not carry any more. Its stream id is the lane.
    Piece,
}

/// Why a packet was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet ends within a field.
    #[error("the packet ends within a field")]
    Truncated,
    /// The first byte names no packet kind.
    #[error("unknown packet kind {0}")]
    Kind(u8),
    /// The packet belongs to another stream.
    #[error("packet of stream {}", .0.0)]
    Stream(StreamId),
    /// DATA or PARITY arrived at a sender, REPORT at a receiver, or what is no stream's at either.
    #[error("{0:?} packet at the wrong end of the stream")]
    Direction(Kind),
    /// The block description contradicts itself.
    #[error("impossible block description")]
    Block,
    /// A frame inside DATA contradicts itself.
    #[error("impossible frame")]
    Frame,
    /// A cut record is longer than this receiver takes.
    #[error("record of {0} bytes")]
    RecordLength(u32),
    /// The report acknowledges what was never sent, or lists ranges out of order.
    #[error("impossible report")]
    Report,
    /// The counts of a PATH packet contradict one another.
    #[error("impossible path report")]
    Path,
    /// A piece lies outside its packet.
    #[error("impossible piece")]
    Piece,
}

/// Returns the kind of `packet` and the stream it belongs to; for PATH, PROBE, MTU and PIECE, the
/// lane.
///
/// # Errors
/// [`Malformed`] if it is too short to tell or of no known kind.
pub fn classify(packet: &[u8]) -> Result<(Kind, StreamId), Malformed> {
    let mut reader = Reader(packet);
    let Start { kind, stream, .. } = reader.start()?;
    Ok((kind, stream))
}

/// Returns the bytes before the frames of a DATA packet.
#[must_use]
pub fn data_header(packet: &[u8]) -> usize {
    let coding = packet.first().map_or(Coding::Sr, |first| Coding::of_bits(first >> CODING_SHIFT));
    if Shape::uncoded(coding).is_coded() { DATA_HEADER } else { UNCODED_HEADER }
}

/// Returns the sending time of a DATA packet, in units of [`TIME_UNIT`] modulo 2^24; `None` if it
/// is too short.
#[must_use]
pub fn sending_time(data: &[u8]) -> Option<u32> {
    let [_, _, _, _, a, b, c] = *data.first_chunk()?;
    Some(u32::from_be_bytes([0, a, b, c]))
}

/// Which code protects a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Coding {
    None = 0,
    Sr = 1,
    Xor = 2,
    Mds = 3,
}

impl Coding {
    /// Returns the coding that the low two bits name.
    fn of_bits(value: u8) -> Self {
        match value & 3 {
            0 => Self::None,
            1 => Self::Sr,
            2 => Self::Xor,
            _ => Self::Mds,
        }
    }
}

/// The shape of a group of `depth` interleaved blocks. Packet `p` of the group is data `p / depth`
/// of block `p % depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Shape {
    pub(crate) coding: Coding,
    pub(crate) k: u8,
    pub(crate) m: u8,
    pub(crate) depth: u8,
}

impl Shape {
    /// Packets that are in no block.
    pub(crate) const fn uncoded(coding: Coding) -> Self {
        Self { coding, k: 0, m: 0, depth: 0 }
    }

    pub(crate) fn is_coded(self) -> bool {
        matches!(self.coding, Coding::Xor | Coding::Mds)
    }

    /// Data packets in a full group.
    pub(crate) fn packets(self) -> u16 {
        u16::from(self.k) * u16::from(self.depth)
    }

    /// Blocks that hold anything, of a group of so many data packets.
    pub(crate) fn lanes(self, packets: u32) -> u8 {
        self.depth.min(packets.try_into().unwrap_or(u8::MAX))
    }

    /// Data packets in block `lane` of a group that holds `count` in all.
    pub(crate) fn block_len(self, count: u16, lane: u8) -> usize {
        let depth = usize::from(self.depth).max(1);
        (usize::from(count) + depth - 1 - usize::from(lane).min(depth - 1)) / depth
    }

    /// Parities that a block may have in all. With `mds` those from `m` on are made when a block
    /// falls short.
    pub(crate) fn most_parities(self) -> u8 {
        match self.coding {
            Coding::Mds => (fec::MAX_BLOCK as u8).saturating_sub(self.k),
            _ => self.m,
        }
    }

    fn valid(self) -> bool {
        if !self.is_coded() {
            return self.k == 0 && self.m == 0 && self.depth == 0;
        }
        let symbols = u16::from(self.k) + u16::from(self.m);
        self.k > 0
            && self.m > 0
            && self.depth > 0
            && symbols <= fec::MAX_BLOCK as u16
            && (self.coding == Coding::Mds || self.m <= self.k)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) flags: u8,
    pub(crate) stream: StreamId,
    /// The sender's clock in units of 4 us, modulo 2^24.
    pub(crate) timestamp: u32,
    pub(crate) sequence: u64,
    pub(crate) shape: Shape,
    /// Place in the group; 0 if not coded.
    pub(crate) position: u16,
    /// The sender's smoothed RTT in units of 16 us.
    pub(crate) rtt: Coarse,
    /// How far back the oldest packet is that the sender would still repair, at least.
    pub(crate) floor: Coarse,
}

impl Data {
    /// Writes the header, and returns its length.
    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        let [_, time @ ..] = self.timestamp.to_be_bytes();
        let mut writer = Writer::new(out);
        writer.start_of_stream(0, self.flags, self.shape.coding, self.stream);
        writer.put(&[self.rtt.0, self.floor.0]);
        writer.put(&time);
        writer.put(&(self.sequence as u32).to_be_bytes());
        if !self.shape.is_coded() {
            return UNCODED_HEADER;
        }
        writer.shape(self.shape);
        writer.put(&self.position.to_be_bytes());
        writer.put(&[0; 3]);
        DATA_HEADER
    }

    fn parse(reader: &mut Reader<'_>, start: &Start, expected: u64) -> Result<Self, Malformed> {
        let [rtt, floor] = reader.array()?.map(Coarse);
        let timestamp = reader.u24()?;
        let sequence = nearest(expected, reader.u32()?).ok_or(Malformed::Block)?;
        let (shape, position) = match start.coding {
            Coding::None | Coding::Sr => (Shape::uncoded(start.coding), 0),
            Coding::Xor | Coding::Mds => {
                let (shape, position) = (reader.shape(start.coding)?, reader.u16()?);
                reader.array::<3>()?;
                (shape, position)
            }
        };
        let (flags, stream) = (start.flags, start.stream);
        let header = Self { flags, stream, timestamp, sequence, shape, position, rtt, floor };
        let in_block = !shape.is_coded() || position < shape.packets();
        let exists = sequence >= u64::from(position) && sequence < MAX_SEQUENCE;
        if in_block && exists { Ok(header) } else { Err(Malformed::Block) }
    }

    /// Returns the oldest packet that the sender would still repair, or one before it.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.value().map_or(0, |distance| self.sequence.saturating_sub(distance))
    }
}

/// No stream gets that far; it keeps sums of sequence numbers from overflowing.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parity {
    pub(crate) flags: u8,
    pub(crate) stream: StreamId,
    /// As in [`Data`].
    pub(crate) timestamp: u32,
    /// Sequence number of the group's first data packet.
    pub(crate) base: u64,
    pub(crate) shape: Shape,
    /// Which of the group's blocks.
    pub(crate) lane: u8,
    /// Which of the block's parities; from `shape.m` on if the block fell short.
    pub(crate) index: u8,
    /// Data packets in the group as it was closed.
    pub(crate) count: u16,
    /// Parities of the block that have been sent, or will be at once.
    pub(crate) parities: u8,
}

impl Parity {
    /// Where it stands in its block.
    pub(crate) fn place(&self) -> InBlock {
        let Self { base, index, parities, shape: Shape { k, m, depth, .. }, .. } = *self;
        InBlock { group: base, row: index, is_parity: true, k, m, depth, spare: parities }
    }

    pub(crate) fn emit(&self, out: &mut [u8; PARITY_HEADER]) {
        let [_, time @ ..] = self.timestamp.to_be_bytes();
        let mut writer = Writer::new(out);
        writer.start_of_stream(PARITY_BIT, self.flags, self.shape.coding, self.stream);
        writer.put(&time);
        writer.put(&(self.base as u32).to_be_bytes());
        writer.shape(self.shape);
        writer.put(&[self.lane, self.index]);
        writer.put(&self.count.to_be_bytes());
        writer.put(&[self.parities]);
    }

    fn parse(reader: &mut Reader<'_>, start: &Start, expected: u64) -> Result<Self, Malformed> {
        let header = Self {
            flags: start.flags,
            stream: start.stream,
            timestamp: reader.u24()?,
            base: nearest(expected, reader.u32()?).ok_or(Malformed::Block)?,
            shape: reader.shape(start.coding)?,
            lane: reader.u8()?,
            index: reader.u8()?,
            count: reader.u16()?,
            parities: reader.u8()?,
        };
        let shape = header.shape;
        let valid = shape.is_coded()
            && header.base < MAX_SEQUENCE
            && header.lane < shape.depth
            && u16::from(header.lane) < header.count
            && header.count <= shape.packets()
            && header.index < header.parities
            && header.parities <= shape.most_parities();
        if valid { Ok(header) } else { Err(Malformed::Block) }
    }
}

/// The first two bytes of a packet, which say what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) kind: Kind,
    /// DATA and PARITY have [`FLAG_REPAIR`] and [`FLAG_QUIET`]; others, all that the second byte
    /// says.
    pub(crate) flags: u8,
    /// `Sr` if it is neither DATA nor PARITY.
    coding: Coding,
    pub(crate) stream: StreamId,
}

/// A packet for the receiver, its header checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToReceiver<'a> {
    Data(Data, &'a [u8]),
    Parity(Parity, &'a [u8]),
}

impl<'a> ToReceiver<'a> {
    /// Reads a packet where one of about the number `expected` is due: of numbers the low bits are
    /// told.
    pub(crate) fn parse(packet: &'a [u8], expected: u64) -> Result<Self, Malformed> {
        let mut reader = Reader(packet);
        let start = reader.start()?;
        match start.kind {
            Kind::Data => Ok(Self::Data(Data::parse(&mut reader, &start, expected)?, reader.0)),
            Kind::Parity => Ok(Self::Parity(Parity::parse(&mut reader, &start, expected)?, reader.0)),
            kind @ (Kind::Report | Kind::Path | Kind::Probe | Kind::Mtu | Kind::Piece) => {
                Err(Malformed::Direction(kind))
            }
        }
    }
}

/// The words of a report's bitmap, big-endian; bit `i` of a word is the packet `i` after its first.
pub(crate) type Words<'a> = &'a [[u8; 8]];
/// The ranges of a report's NACK list, see [`Nack::parse`].
pub(crate) type Ranges<'a> = &'a [[u8; NACK]];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) stream: StreamId,
    /// Counts the reports; the parts of one report share a number.
    pub(crate) number: u32,
    /// Everything below has arrived (or was given up by the sender).
    pub(crate) cumulative: u64,
    /// DATA and PARITY packets that have arrived so far, copies included.
    pub(crate) arrived: u64,
    /// Timestamp of the packet sent last among those that arrived.
    pub(crate) echo: u32,
    /// How long ago it arrived, in microseconds.
    pub(crate) hold: u32,
    /// Packets from `cumulative` on that the receiver has room for.
    pub(crate) window: u32,
    /// The bitmap's first word, in words from the one that holds `cumulative`.
    pub(crate) offset: u32,
    /// How long the receiver waits for overtaken packets, in microseconds.
    pub(crate) reorder_time: u32,
    pub(crate) words: u16,
    pub(crate) nacks: u16,
}

impl Report {
    pub(crate) fn emit(&self, out: &mut [u8; REPORT_HEADER]) {
        let mut writer = Writer::new(out);
        writer.start(Kind::Report, 0, self.stream);
        writer.put(&self.number.to_be_bytes());
        writer.put(&self.cumulative.to_be_bytes());
        writer.put(&self.arrived.to_be_bytes());
        writer.put(&self.echo.to_be_bytes());
        writer.put(&self.hold.to_be_bytes());
        writer.put(&self.window.to_be_bytes());
        writer.put(&self.offset.to_be_bytes());
        writer.put(&self.reorder_time.to_be_bytes());
        writer.put(&self.words.to_be_bytes());
        writer.put(&self.nacks.to_be_bytes());
    }

    /// The header, the bitmap's words and the NACK ranges; ranges ascend and do not touch one
    /// another's packets.
    pub(crate) fn parse(packet: &[u8]) -> Result<(Self, Words<'_>, Ranges<'_>), Malformed> {
        let mut reader = Reader(packet);
        let Start { kind, stream, .. } = reader.start()?;
        if kind != Kind::Report {
            return Err(Malformed::Direction(kind));
        }
        let report = Self {
            stream,
            number: reader.u32()?,
            cumulative: reader.u64()?,
            arrived: reader.u64()?,
            echo: reader.u32()?,
            hold: reader.u32()?,
            window: reader.u32()?,
            offset: reader.u32()?,
            reorder_time: reader.u32()?,
            words: reader.u16()?,
            nacks: reader.u16()?,
        };
        let words = reader.take(usize::from(report.words) * 8)?.as_chunks().0;
        let nacks = reader.take(usize::from(report.nacks) * NACK)?.as_chunks().0;
        let mut end = 0;
        for nack in nacks {
            let nack = Nack::parse(*nack);
            if u64::from(nack.first) < end || nack.run == 0 {
                return Err(Malformed::Report);
            }
            end = u64::from(nack.first) + u64::from(nack.run);
        }
        Ok((report, words, nacks))
    }
}

/// A range of a report's NACK list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nack {
    /// First packet, counted from the report's cumulative one.
    pub(crate) first: u32,
    /// Number of packets, at most 2^15 - 1.
    pub(crate) run: u16,
    /// Their block lacks so many, and whichever of its packets come will do; otherwise these very
    /// packets are needed.
    pub(crate) any: bool,
}

impl Nack {
    pub(crate) fn parse(bytes: [u8; NACK]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        let run = u16::from_be_bytes([e, f]);
        Self { first: u32::from_be_bytes([a, b, c, d]), run: run & !ANY, any: run & ANY != 0 }
    }

    pub(crate) fn emit(self) -> [u8; NACK] {
        let [a, b, c, d] = self.first.to_be_bytes();
        let [e, f] = (self.run | if self.any { ANY } else { 0 }).to_be_bytes();
        [a, b, c, d, e, f]
    }
}

#[cfg(test)]
mod tests;
