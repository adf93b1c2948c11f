//! Frames: records and pieces of records in a DATA packet.

use super::{Malformed, Reader};

/// Bytes before a record that stands whole in one packet.
pub const RECORD_HEADER: usize = 2;
/// Bytes before a piece of a record that was cut, if the record is shorter than 16 KiB and this is
/// not its first piece: the usual case.
pub const FRAGMENT_HEADER: usize = 5;
/// Longest record that the two-byte header of a whole record can describe.
pub(crate) const MAX_WHOLE: usize = 0x7ffe;
/// Longest record: in the shortest packets its pieces are fewer than 2^16.
pub(crate) const MAX_RECORD: usize = 1 << 23;

/// First bit of a piece.
const CUT: u8 = 0x80;
/// In place of a number of packets that does not fit: it stands in the next two bytes.
const FAR: u16 = 0x7f;
/// Lengths below stand in two bytes.
const SHORT: u32 = 1 << 14;
/// Marks a length of four bytes.
const LONG: u32 = 1 << 31;

/// One piece of a DATA packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Whole(&'a [u8]),
    Cut(Fragment<'a>),
}

/// A piece of a record that did not fit into one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment<'a> {
    /// The number of the packet that has the record's first piece, which names the record.
    pub(crate) record: u64,
    /// Length of the whole record.
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: &'a [u8],
}

/// Header of a record that stands whole in its packet; `len` at most [`MAX_WHOLE`].
pub(crate) fn record_header(len: usize) -> [u8; RECORD_HEADER] {
    ((len as u16) + 1).to_be_bytes()
}

/// Header of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    bytes: [u8; Self::LONGEST],
    len: usize,
}

impl Cut {
    const LONGEST: usize = 3 + 4 + 4;

    /// The header of what begins at `offset` of a record of `total` bytes, at most [`MAX_RECORD`],
    /// so many packets after the one where the record begins.
    pub(crate) fn new(back: u16, total: u32, offset: u32) -> Self {
        let mut header = Self::default();
        header.put(&[CUT | back.min(FAR) as u8]);
        if back >= FAR {
            header.put(&back.to_be_bytes());
        }
        header.put_length(total);
        if back > 0 {
            header.put_length(offset);
        }
        header
    }

    fn put(&mut self, field: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + field.len()) {
            room.copy_from_slice(field);
            self.len += field.len();
        }
    }

    fn put_length(&mut self, value: u32) {
        match u16::try_from(value) {
            Ok(short) if value < SHORT => self.put(&short.to_be_bytes()),
            _ => self.put(&(value | LONG).to_be_bytes()),
        }
    }
}

impl AsRef<[u8]> for Cut {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The frames of a DATA packet. Ends after the first error; a zero length ends the frames (what
/// follows is padding).
pub(crate) struct Frames<'a> {
    rest: Reader<'a>,
    sequence: u64,
}

impl<'a> Frames<'a> {
    /// The frames of the packet with this number.
    pub(crate) fn new(payload: &'a [u8], sequence: u64) -> Self {
        Self { rest: Reader(payload), sequence }
    }

    fn read(&mut self) -> Result<Option<Frame<'a>>, Malformed> {
        let Some(first) = self.rest.0.first() else { return Ok(None) };
        if first & CUT != 0 {
            return self.read_piece().map(|piece| Some(Frame::Cut(piece)));
        }
        match self.rest.u16()? {
            0 => Ok(None),
            head => Ok(Some(Frame::Whole(self.rest.take(usize::from(head) - 1)?))),
        }
    }

    /// A piece goes on to the end of its record or of the packet.
    fn read_piece(&mut self) -> Result<Fragment<'a>, Malformed> {
        let back = match u16::from(self.rest.u8()? & !CUT) {
            FAR => self.rest.u16()?,
            near => near,
        };
        let total = self.rest.length()?;
        let offset = if back > 0 { self.rest.length()? } else { 0 };
        let record = self.sequence.checked_sub(back.into()).ok_or(Malformed::Frame)?;
        if (back > 0) != (offset > 0) || offset >= total || self.rest.0.is_empty() {
            return Err(Malformed::Frame);
        }
        let len = self.rest.0.len().min((total - offset) as usize);
        Ok(Fragment { record, total, offset, bytes: self.rest.take(len)? })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.rest = Reader(&[]);
        }
        item
    }
}
