//! Layout of the stream's packets and of the frames inside DATA. Big-endian throughout;
//! `docs/protocol.md#streams` has the figures.

use super::StreamId;

/// Bytes before the frames of a DATA packet.
pub const DATA_HEADER: usize = 28;
/// Bytes before the symbol of a PARITY packet.
pub(crate) const PARITY_HEADER: usize = 26;
/// Bytes before the bitmap of a REPORT packet.
pub const REPORT_HEADER: usize = 48;
/// Bytes before a record that stands whole in one packet.
pub const RECORD_HEADER: usize = 2;
/// Bytes before a piece of a record that was cut.
pub const FRAGMENT_HEADER: usize = 14;
/// Longest record that the two-byte header of a whole record can describe.
pub(crate) const MAX_WHOLE: usize = 0x7ffe;
/// Longest piece of a cut record.
pub(crate) const MAX_FRAGMENT: usize = 0x7fff;
/// Bytes per range of the NACK list.
pub(crate) const NACK: usize = 6;
/// Unit of the round-trip time in DATA packets, in microseconds.
pub(crate) const RTT_UNIT: u64 = 16;

/// The packet is a copy of one sent before.
pub(crate) const FLAG_REPAIR: u8 = 0x01;
/// The sender has nothing more to send for now, and would like a report.
pub(crate) const FLAG_QUIET: u8 = 0x02;

const CUT: u16 = 0x8000;
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
    let (kind, _, stream) = reader.start()?;
    Ok((kind, stream))
}

/// Which code protects a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    None = 0,
    Sr = 1,
    Xor = 2,
    Mds = 3,
}

impl Coding {
    fn from_u8(value: u8) -> Result<Self, Malformed> {
        match value {
            0 => Ok(Self::None),
            1 => Ok(Self::Sr),
            2 => Ok(Self::Xor),
            3 => Ok(Self::Mds),
            _ => Err(Malformed::Block),
        }
    }
}

/// The shape of a group of `depth` interleaved blocks. Packet `p` of the group is data `p / depth`
/// of block `p % depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The sender's clock in microseconds, modulo 2^32.
    pub(crate) timestamp: u32,
    pub(crate) sequence: u64,
    pub(crate) shape: Shape,
    /// Place in the group; 0 if not coded.
    pub(crate) position: u16,
    /// The sender's smoothed RTT in units of 16 us, saturating.
    pub(crate) rtt: u16,
    /// How far back the oldest packet is that the sender would still repair.
    pub(crate) floor: u32,
}

impl Data {
    pub(crate) fn emit(&self, out: &mut [u8; DATA_HEADER]) {
        let mut writer = Writer::new(out);
        writer.start(Kind::Data, self.flags, self.stream);
        writer.put(&self.timestamp.to_be_bytes());
        writer.put(&self.sequence.to_be_bytes());
        writer.shape(self.shape);
        writer.put(&self.position.to_be_bytes());
        writer.put(&self.rtt.to_be_bytes());
        writer.put(&self.floor.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>, flags: u8, stream: StreamId) -> Result<Self, Malformed> {
        let header = Self {
            flags,
            stream,
            timestamp: reader.u32()?,
            sequence: reader.u64()?,
            shape: reader.shape()?,
            position: reader.u16()?,
            rtt: reader.u16()?,
            floor: reader.u32()?,
        };
        let in_block = if header.shape.is_coded() {
            header.position < header.shape.packets()
        } else {
            header.position == 0
        };
        let exists = header.sequence >= u64::from(header.position) && header.sequence < MAX_SEQUENCE;
        if in_block && exists && u64::from(header.floor) <= header.sequence {
            Ok(header)
        } else {
            Err(Malformed::Block)
        }
    }
}

/// No stream gets that far; it keeps sums of sequence numbers from overflowing.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parity {
    pub(crate) flags: u8,
    pub(crate) stream: StreamId,
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
    pub(crate) fn emit(&self, out: &mut [u8; PARITY_HEADER]) {
        let mut writer = Writer::new(out);
        writer.start(Kind::Parity, self.flags, self.stream);
        writer.put(&self.timestamp.to_be_bytes());
        writer.put(&self.base.to_be_bytes());
        writer.shape(self.shape);
        writer.put(&[self.lane, self.index]);
        writer.put(&self.count.to_be_bytes());
        writer.put(&[self.parities, 0]);
    }

    fn parse(reader: &mut Reader<'_>, flags: u8, stream: StreamId) -> Result<Self, Malformed> {
        let header = Self {
            flags,
            stream,
            timestamp: reader.u32()?,
            base: reader.u64()?,
            shape: reader.shape()?,
            lane: reader.u8()?,
            index: reader.u8()?,
            count: reader.u16()?,
            parities: reader.u8()?,
        };
        reader.u8()?;
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

/// A packet for the receiver, its header checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToReceiver<'a> {
    Data(Data, &'a [u8]),
    Parity(Parity, &'a [u8]),
}

impl<'a> ToReceiver<'a> {
    pub(crate) fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(packet);
        let (kind, flags, stream) = reader.start()?;
        match kind {
            Kind::Data => Ok(Self::Data(Data::parse(&mut reader, flags, stream)?, reader.0)),
            Kind::Parity => Ok(Self::Parity(Parity::parse(&mut reader, flags, stream)?, reader.0)),
            Kind::Report | Kind::Path | Kind::Probe | Kind::Mtu | Kind::Piece => {
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
        let (kind, _, stream) = reader.start()?;
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

/// One piece of a DATA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Whole(&'a [u8]),
    Cut(Fragment<'a>),
}

/// A piece of a record that did not fit into one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment<'a> {
    /// Counts the stream's cut records.
    pub(crate) id: u32,
    /// Length of the whole record.
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: &'a [u8],
}

/// Header of a record that stands whole in its packet; `len` at most [`MAX_WHOLE`].
pub(crate) fn record_header(len: usize) -> [u8; RECORD_HEADER] {
    ((len as u16) + 1).to_be_bytes()
}

/// Header of a piece of `len` bytes, at most [`MAX_FRAGMENT`].
pub(crate) fn fragment_header(id: u32, total: u32, offset: u32, len: usize) -> [u8; FRAGMENT_HEADER] {
    let mut out = [0; FRAGMENT_HEADER];
    let mut writer = Writer::new(&mut out);
    writer.put(&(len as u16 | CUT).to_be_bytes());
    writer.put(&id.to_be_bytes());
    writer.put(&total.to_be_bytes());
    writer.put(&offset.to_be_bytes());
    out
}

/// Numbers the pieces of records among a packet's `frames`: a record gets the `next` number with
/// its first piece, and its others stand in the packets that follow.
pub(crate) fn number_pieces(frames: &mut [u8], next: &mut u32) {
    let mut rest = frames;
    while let Some((head, behind)) = rest.split_first_chunk_mut() {
        let head = u16::from_be_bytes(*head);
        if head & CUT == 0 {
            rest = behind.get_mut(usize::from(head).saturating_sub(1)..).unwrap_or_default();
            continue;
        }
        let Some((fields, behind)) = behind.split_first_chunk_mut::<{ FRAGMENT_HEADER - RECORD_HEADER }>()
        else {
            return;
        };
        let [id @ .., _, _, _, _, a, b, c, d] = fields;
        let is_first = [*a, *b, *c, *d] == [0; 4];
        *next = next.wrapping_add(u32::from(is_first));
        *id = next.wrapping_sub(1).to_be_bytes();
        rest = behind.get_mut(usize::from(head & !CUT)..).unwrap_or_default();
    }
}

/// The frames of a DATA packet. Ends after the first error; a zero length ends the frames (what
/// follows is padding).
pub(crate) struct Frames<'a>(Reader<'a>);

impl<'a> Frames<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(Reader(payload))
    }

    fn read(&mut self) -> Result<Option<Frame<'a>>, Malformed> {
        if self.0.0.is_empty() {
            return Ok(None);
        }
        let head = self.0.u16()?;
        if head == 0 {
            return Ok(None);
        }
        if head & CUT == 0 {
            return Ok(Some(Frame::Whole(self.0.take(usize::from(head) - 1)?)));
        }
        let id = self.0.u32()?;
        let total = self.0.u32()?;
        let offset = self.0.u32()?;
        let bytes = self.0.take(usize::from(head & !CUT))?;
        let end = u64::from(offset) + bytes.len() as u64;
        if bytes.is_empty() || end > u64::from(total) {
            return Err(Malformed::Frame);
        }
        Ok(Some(Frame::Cut(Fragment { id, total, offset, bytes })))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.0 = Reader(&[]);
        }
        item
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

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(crate) fn start(&mut self) -> Result<(Kind, u8, StreamId), Malformed> {
        let kind = match self.u8()? {
            1 => Kind::Data,
            2 => Kind::Parity,
            3 => Kind::Report,
            4 => Kind::Path,
            5 => Kind::Probe,
            6 => Kind::Mtu,
            7 => Kind::Piece,
            other => return Err(Malformed::Kind(other)),
        };
        Ok((kind, self.u8()?, StreamId(self.u16()?)))
    }

    fn shape(&mut self) -> Result<Shape, Malformed> {
        let [coding, k, m, depth] = self.array()?;
        let shape = Shape { coding: Coding::from_u8(coding)?, k, m, depth };
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

    pub(crate) fn start(&mut self, kind: Kind, flags: u8, stream: StreamId) {
        let kind = match kind {
            Kind::Data => 1,
            Kind::Parity => 2,
            Kind::Report => 3,
            Kind::Path => 4,
            Kind::Probe => 5,
            Kind::Mtu => 6,
            Kind::Piece => 7,
        };
        self.put(&[kind, flags]);
        self.put(&stream.0.to_be_bytes());
    }

    fn shape(&mut self, shape: Shape) {
        self.put(&[shape.coding as u8, shape.k, shape.m, shape.depth]);
    }
}

#[cfg(test)]
mod tests;
