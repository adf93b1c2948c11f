//! State that one process hands to the next, as bytes.
//!
//! What lives here: the header with its checks, how points in time cross, and packets that cross in
//! shared memory. What never may: I/O and clocks. The cores derive their part by `serde`, the format
//! is `postcard`.
//!
//! An `Instant` means something only in its own process. It is written as its distance from the
//! writer's present, and read as that distance from the reader's: timers run on as if no time had
//! passed in between.

mod beside;
mod packet;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postcard::ser_flavors::Flavor;
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, SerializeAs};

pub use beside::{Beside, LOOK, Memory, SEGMENT, Segment, Segments};
pub use packet::Packet;

/// The first bytes of each snapshot.
pub const MAGIC: [u8; 8] = *b"LHSNAP\r\n";

/// The newest version that is written and read: with packets in memory beside it.
///
/// It rises with each change of what is written. `netem-tests/tests/sim/snapshots/` keeps one of
/// each version that has been released.
pub const VERSION: u16 = 2;

/// The oldest version that is read, and written for whoever knows no other: with everything in it.
pub const OLDEST: u16 = 1;

/// Bytes before the state: magic, version, length, CRC-32 of the state.
pub const HEADER: usize = 8 + 2 + 8 + 4;

/// A snapshot was not taken, and nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The first bytes are others.
    #[error("not a snapshot of Longhaul's")]
    NotASnapshot,
    /// Written by a process that this one does not understand.
    #[error("a snapshot of version {0}, where {OLDEST} to {VERSION} are understood")]
    Version(u16),
    /// Not as long as it says.
    #[error("a snapshot of {found} bytes that says it has {told}")]
    Length {
        /// The bytes of state that are there.
        found: u64,
        /// The bytes of state that the header tells.
        told: u64,
    },
    /// Bytes have changed on the way.
    #[error("the snapshot's checksum is wrong")]
    Checksum,
    /// The state breaks the format, or itself.
    #[error("the snapshot's content: {0}")]
    Content(String),
    /// It is for other settings: names one by its key in the operator's file.
    #[error("`{0}` is another one here: that takes a restart")]
    Setting(&'static str),
}

/// State cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no snapshot: {0}")]
pub struct Unwritable(String);

thread_local! {
    /// The present of the snapshot that is being written or read.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets the present for as long as it lives.
struct Present(Option<Instant>);

impl Present {
    fn set(now: Instant) -> Self {
        Self(NOW.replace(Some(now)))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

/// Returns the snapshot of a state as it is `now`, with everything in it: of version [`OLDEST`].
///
/// # Errors
/// Some part of it cannot be written: a point in time that lies centuries away.
pub fn write<T: Serialize + ?Sized>(state: &T, now: Instant) -> Result<Vec<u8>, Unwritable> {
    let mut none: [u8; 0] = [];
    match write_to(state, now, &mut none, OLDEST)? {
        Written::Apart(snapshot) => Ok(snapshot),
        Written::There(_) => Ok(Vec::new()),
    }
}

/// A snapshot that has been written.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// So many bytes of the memory that it was given.
    There(usize),
    /// Bytes of its own, since that memory is too short.
    Apart(Vec<u8>),
}

/// Writes the snapshot of a state as it is `now`, with packets beside it: of version [`VERSION`].
/// Packets that were copied ahead are not copied again.
///
/// # Errors
/// See [`write()`].
pub fn write_beside<T: Serialize + ?Sized>(
    state: &T,
    now: Instant,
    mut beside: Beside,
) -> (Result<Written, Unwritable>, Option<Beside>) {
    let mut memory = beside.state.take();
    let (written, mut beside) = beside::while_writing(beside, || {
        let place = memory.as_mut().map_or(Default::default(), |memory| (**memory).as_mut());
        write_to(state, now, place, VERSION)
    });
    beside.iter_mut().for_each(|beside| beside.state = memory.take());
    (written, beside)
}

fn write_to<T: Serialize + ?Sized>(
    state: &T,
    now: Instant,
    place: &mut [u8],
    version: u16,
) -> Result<Written, Unwritable> {
    let _present = Present::set(now);
    let mut out = Out { place, len: 0, apart: Vec::new() };
    let unwritable = |error: postcard::Error| Unwritable(error.to_string());
    out.try_extend(&[0; HEADER]).map_err(unwritable)?;
    let Out { place, len, mut apart } =
        postcard::serialize_with_flavor::<_, _, Out<'_>>(state, out).map_err(unwritable)?;
    if apart.is_empty() {
        seal(place.get_mut(..len).unwrap_or_default(), version);
        return Ok(Written::There(len));
    }
    seal(&mut apart, version);
    Ok(Written::Apart(apart))
}

/// Writes to a place for as long as that has room, and then apart from it. Packets come as slices,
/// and are copied as such.
struct Out<'a> {
    place: &'a mut [u8],
    /// Bytes in it.
    len: usize,
    /// Everything, once the place is too short.
    apart: Vec<u8>,
}

impl Out<'_> {
    /// What comes next finds no room.
    fn leave(&mut self) {
        if self.apart.is_empty() {
            self.apart.extend_from_slice(self.place.get(..self.len).unwrap_or_default());
        }
    }
}

impl Flavor for Out<'_> {
    type Output = Self;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        match self.place.get_mut(self.len) {
            Some(place) if self.apart.is_empty() => {
                *place = byte;
                self.len += 1;
            }
            _ => {
                self.leave();
                self.apart.push(byte);
            }
        }
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match self.place.get_mut(self.len..self.len + bytes.len()) {
            Some(place) if self.apart.is_empty() => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            _ => {
                self.leave();
                self.apart.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self> {
        Ok(self)
    }
}

/// Writes the header of the state behind it: [`HEADER`] bytes of anything, and a state.
pub fn seal(snapshot: &mut [u8], version: u16) {
    let state = snapshot.get(HEADER..).unwrap_or_default();
    let (len, crc) = (state.len() as u64, crc32fast::hash(state));
    let header =
        MAGIC.into_iter().chain(version.to_le_bytes()).chain(len.to_le_bytes()).chain(crc.to_le_bytes());
    snapshot.iter_mut().zip(header).for_each(|(place, byte)| *place = byte);
}

/// Reads a snapshot: the state, with `now` in place of the present in which it was written.
///
/// The owner has to check what the state's types do not say.
///
/// # Errors
/// [`Refused`] tells why it is none.
pub fn read<T: DeserializeOwned>(snapshot: &[u8], now: Instant) -> Result<T, Refused> {
    read_beside(snapshot, &[], now)
}

/// Reads a snapshot whose packets may lie in memory beside it. They stay there.
///
/// # Errors
/// See [`read()`].
pub fn read_beside<T: DeserializeOwned>(
    snapshot: &[u8],
    segments: &[Arc<Segment>],
    now: Instant,
) -> Result<T, Refused> {
    let (version, state) = open(snapshot)?;
    let _present = Present::set(now);
    let segments = (version > OLDEST).then_some(segments);
    match beside::while_reading(segments, || postcard::take_from_bytes(state)) {
        Ok((state, [])) => Ok(state),
        Ok((_, rest)) => Err(Refused::Content(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(Refused::Content(error.to_string())),
    }
}

/// Checks the header. Returns the version, and the state behind it.
fn open(snapshot: &[u8]) -> Result<(u16, &[u8]), Refused> {
    let Some((magic, rest)) = snapshot.split_first_chunk() else { return Err(Refused::NotASnapshot) };
    let fields = rest.split_first_chunk().and_then(|(version, rest)| {
        let (len, rest) = rest.split_first_chunk()?;
        let (crc, state) = rest.split_first_chunk()?;
        Some((u16::from_le_bytes(*version), u64::from_le_bytes(*len), u32::from_le_bytes(*crc), state))
    });
    let (&MAGIC, Some((version, told, crc, state))) = (magic, fields) else {
        return Err(Refused::NotASnapshot);
    };
    if !(OLDEST..=VERSION).contains(&version) {
        return Err(Refused::Version(version));
    }
    if state.len() as u64 != told {
        return Err(Refused::Length { found: state.len() as u64, told });
    }
    if crc32fast::hash(state) != crc {
        return Err(Refused::Checksum);
    }
    Ok((version, state))
}

/// Writes and reads an [`Instant`] inside [`write()`] and [`read()`], for `serde_with`.
#[derive(Clone, Copy, Debug)]
pub struct At;

impl SerializeAs<Instant> for At {
    fn serialize_as<S: Serializer>(at: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        let now = NOW.get().ok_or_else(|| S::Error::custom("a point in time outside a snapshot"))?;
        let nanos = |time: Duration| i64::try_from(time.as_nanos());
        let distance = match at.checked_duration_since(now) {
            Some(ahead) => nanos(ahead),
            None => nanos(now.saturating_duration_since(*at)).map(|behind| -behind),
        };
        distance.map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> DeserializeAs<'de, Instant> for At {
    fn deserialize_as<D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        let now = NOW.get().ok_or_else(|| D::Error::custom("a point in time outside a snapshot"))?;
        let nanos = i64::deserialize(deserializer)?;
        let distance = Duration::from_nanos(nanos.unsigned_abs());
        let at = if nanos < 0 { now.checked_sub(distance) } else { now.checked_add(distance) };
        at.ok_or_else(|| D::Error::custom("a point in time beyond the clock"))
    }
}

#[cfg(test)]
mod tests;
