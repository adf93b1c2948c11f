//! The bytes of a packet, in a snapshot's state.

use std::fmt::{self, Formatter};
use std::ops::Deref;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::beside::{self, Beside, LEAST, Mark, Piece};

/// The bytes of a packet: its own, or where the process before put them.
///
/// It remembers where it was copied ahead of a snapshot. Whatever changes its bytes makes that
/// void.
#[derive(Debug, Default)]
pub struct Packet {
    bytes: Bytes,
    mark: Mark,
}

#[derive(Debug)]
enum Bytes {
    Own(Vec<u8>),
    Given(Piece),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl From<Vec<u8>> for Packet {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: Bytes::Own(bytes), mark: Mark::default() }
    }
}

impl Deref for Packet {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Given(piece) => piece.bytes(),
        }
    }
}

impl AsRef<[u8]> for Packet {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Packet {
    /// Appends bytes, if there are any. Memory of another process is copied first.
    #[inline]
    pub fn extend_from_slice(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        self.mark = Mark::default();
        match &mut self.bytes {
            Bytes::Own(bytes) => bytes.extend_from_slice(more),
            Bytes::Given(piece) => self.bytes = Bytes::Own([piece.bytes(), more].concat()),
        }
    }

    /// Returns its memory for reuse, with whatever it holds; none if that is another process's.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Given(_) => Vec::new(),
        }
    }

    /// Returns the capacity of its own memory; `None` if that is another process's.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> Option<usize> {
        match &self.bytes {
            Bytes::Own(bytes) => Some(bytes.capacity()),
            Bytes::Given(_) => None,
        }
    }

    /// Copies it ahead of a snapshot, unless it is short or has been. Returns the bytes copied.
    pub fn copy_ahead(&mut self, to: &mut Beside) -> usize {
        let len = self.len();
        if len < LEAST || self.mark.is_of(to) {
            return 0;
        }
        let Some(mark) = to.put(self) else { return 0 };
        self.mark = mark;
        len
    }
}

/// As version 1 has it: length and bytes. If the snapshot has memory beside it, its place in that
/// comes before (the first one is 1), and then its length alone; or 0, and then both.
impl Serialize for Packet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match beside::place(self.mark, self) {
            None => serializer.serialize_bytes(self),
            Some(None) => (0_u64, Plain(self)).serialize(serializer),
            Some(Some(mark)) => (u64::from(mark.at) + 1, self.len() as u32).serialize(serializer),
        }
    }
}

struct Plain<'a>(&'a [u8]);

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Packet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if beside::is_reading() {
            deserializer.deserialize_tuple(2, Placed)
        } else {
            Ok(Own::deserialize(deserializer)?.0)
        }
    }
}

/// A packet that stands in the snapshot itself.
struct Own(Packet);

impl<'de> Deserialize<'de> for Own {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Copied)
    }
}

struct Copied;

impl Visitor<'_> for Copied {
    type Value = Own;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("a packet")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Own, E> {
        Ok(Own(bytes.to_vec().into()))
    }
}

struct Placed;

impl<'de> Visitor<'de> for Placed {
    type Value = Packet;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("a packet or its place")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Packet, A::Error> {
        let missing = || A::Error::custom("a packet without bytes");
        let place: u64 = seq.next_element()?.ok_or_else(missing)?;
        let Some(at) = place.checked_sub(1) else {
            let Own(packet) = seq.next_element()?.ok_or_else(missing)?;
            return Ok(packet);
        };
        let len: u32 = seq.next_element()?.ok_or_else(missing)?;
        let piece = beside::find(at, len).ok_or_else(|| A::Error::custom("a packet beyond the memory"))?;
        Ok(Packet { bytes: Bytes::Given(piece), mark: Mark::default() })
    }
}
