//! Packets beside a snapshot: in memory that its writer and its reader share.
//!
//! The writer puts packets there while it still runs, and refers to them in the snapshot that it
//! writes once it stands still. The reader refers to them as well, and copies nothing.

use std::cell::RefCell;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a segment, the last one's apart. A reader gives memory back by segments.
pub const SEGMENT: usize = 2 << 20;
/// Pieces begin at multiples of this.
const ALIGN: usize = 16;
/// Shorter packets are written into the snapshot itself.
pub(crate) const LEAST: usize = 64;
/// The price of a look at a packet or a flow, where packets are copied ahead, in bytes copied.
pub const LOOK: usize = 128;

/// Where a piece lies, and in whose memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of the [`Beside`]; 0: none.
    of: u32,
    /// Where it begins, in units of [`ALIGN`] bytes.
    pub(crate) at: u32,
}

impl Mark {
    /// True if it lies in this memory.
    pub(crate) fn is_of(self, beside: &Beside) -> bool {
        self.of == beside.number
    }
}

/// The number of the last [`Beside`], so that a mark of one is none of another's.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Memory that is written.
pub type Memory = Box<dyn AsMut<[u8]> + Send>;

/// Shared memory that a snapshot's writer fills.
///
/// # Bounds
/// The memory given. A packet that finds no room in it is written into the snapshot itself.
pub struct Beside {
    number: u32,
    pieces: Memory,
    pub(crate) state: Option<Memory>,
    used: usize,
    is_full: bool,
}

impl Debug for Beside {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("number", &self.number).field("used", &self.used).finish()
    }
}

impl Beside {
    /// Memory for packets, and for the snapshot that refers to them. If that becomes longer, it is
    /// returned as bytes of its own.
    #[must_use]
    pub fn new(pieces: Memory, state: Memory) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        Self { number, pieces, state: Some(state), used: 0, is_full: false }
    }

    /// Bytes of packets, and what lies between them.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// True if a packet found no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the memory: for packets, and for the snapshot.
    #[must_use]
    pub fn into_memory(self) -> (Memory, Option<Memory>) {
        (self.pieces, self.state)
    }

    /// Copies a packet there, if there is room for it.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Option<Mark> {
        let mut at = self.used.next_multiple_of(ALIGN);
        if at / SEGMENT != (at + bytes.len()).saturating_sub(1) / SEGMENT {
            at = at.next_multiple_of(SEGMENT);
        }
        let place = match (*self.pieces).as_mut().get_mut(at..at + bytes.len()) {
            Some(place) if bytes.len() <= SEGMENT => place,
            _ => {
                self.is_full = true;
                return None;
            }
        };
        place.copy_from_slice(bytes);
        self.used = at + bytes.len();
        let at = u32::try_from(at / ALIGN).ok()?;
        Some(Mark { of: self.number, at })
    }
}

/// A part of the shared memory, as its reader has it.
pub struct Segment(Box<dyn AsRef<[u8]> + Send + Sync>);

impl Debug for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.bytes().len())
    }
}

impl Segment {
    /// Bytes that do not change any more.
    #[must_use]
    pub fn new(memory: Box<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self(memory)
    }

    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// All of the memory, in parts of [`SEGMENT`] bytes.
pub type Segments = Vec<Arc<Segment>>;

/// A packet that stays where another process has put it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    segment: Arc<Segment>,
    at: u32,
    len: u32,
}

impl Piece {
    /// The piece that begins so many units into the memory.
    fn find(segments: &[Arc<Segment>], at: u64, len: u32) -> Option<Self> {
        let at = usize::try_from(at).ok()?.checked_mul(ALIGN)?;
        let segment = segments.get(at / SEGMENT)?;
        let from = at % SEGMENT;
        segment.bytes().get(from..from.checked_add(len as usize)?)?;
        Some(Self { segment: Arc::clone(segment), at: from as u32, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let from = self.at as usize;
        self.segment.bytes().get(from..from + self.len as usize).unwrap_or_default()
    }
}

thread_local! {
    /// The memory of the snapshot that is being written.
    static WRITING: RefCell<Option<Beside>> = const { RefCell::new(None) };
    /// The memory of the snapshot that is being read, if it may refer to some.
    static READING: RefCell<Option<Segments>> = const { RefCell::new(None) };
}

/// Has packets go to this memory while the snapshot is written, and returns it with the result.
pub(crate) fn while_writing<T>(beside: Beside, write: impl FnOnce() -> T) -> (T, Option<Beside>) {
    WRITING.set(Some(beside));
    let result = write();
    (result, WRITING.take())
}

/// Has packets be found in this memory while the snapshot is read.
pub(crate) fn while_reading<T>(segments: Option<&[Arc<Segment>]>, read: impl FnOnce() -> T) -> T {
    READING.set(segments.map(<[_]>::to_vec));
    let result = read();
    READING.set(None);
    result
}

/// Where a packet of the snapshot that is being written lies. `None`: it has nothing beside it.
/// `Some(None)`: the packet is to be written itself.
pub(crate) fn place(mark: Mark, bytes: &[u8]) -> Option<Option<Mark>> {
    WRITING.with_borrow_mut(|writing| {
        let beside = writing.as_mut()?;
        if bytes.len() < LEAST {
            return Some(None);
        }
        if mark.is_of(beside) {
            return Some(Some(mark));
        }
        Some(beside.put(bytes))
    })
}

/// True if packets of the snapshot that is being read may lie beside it.
pub(crate) fn is_reading() -> bool {
    READING.with_borrow(Option::is_some)
}

pub(crate) fn find(at: u64, len: u32) -> Option<Piece> {
    READING.with_borrow(|segments| Piece::find(segments.as_deref()?, at, len))
}
