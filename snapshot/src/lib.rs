//! State that one process hands to the next, as bytes.
//!
//! What lives here: the header with its checks, and how points in time cross. What never may: I/O
//! and clocks. The cores derive their part by `serde`, the format is `postcard`.
//!
//! An `Instant` means something only in its own process. It is written as its distance from the
//! writer's present, and read as that distance from the reader's: timers run on as if no time had
//! passed in between.

use std::cell::Cell;
use std::time::{Duration, Instant};

use postcard::ser_flavors::Flavor;
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, SerializeAs};

/// The first bytes of each snapshot.
pub const MAGIC: [u8; 8] = *b"LHSNAP\r\n";

/// The version that is written, and the only one that is read so far.
///
/// It rises with each change of what is written. `netem-tests/tests/sim/snapshots/` keeps one of
/// each version that has been released.
pub const VERSION: u16 = 1;

/// Bytes before the state: magic, version, length, CRC-32 of the state.
pub const HEADER: usize = 8 + 2 + 8 + 4;

/// A snapshot was not taken, and nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The first bytes are others.
    #[error("not a snapshot of Longhaul's")]
    NotASnapshot,
    /// Written by a process that this one does not understand.
    #[error("a snapshot of version {0}, where version {VERSION} is understood")]
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
    /// It is for other settings.
    #[error("the snapshot was taken with another `{0}`")]
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

/// Returns the snapshot of a state as it is `now`.
///
/// # Errors
/// Some part of it cannot be written: a point in time that lies centuries away.
pub fn write<T: Serialize + ?Sized>(state: &T, now: Instant) -> Result<Vec<u8>, Unwritable> {
    let _present = Present::set(now);
    let snapshot = postcard::serialize_with_flavor(state, Whole(vec![0; HEADER]));
    let mut snapshot = snapshot.map_err(|error| Unwritable(error.to_string()))?;
    seal(&mut snapshot);
    Ok(snapshot)
}

/// Appends what is written. Packets come as slices, and are copied as such.
struct Whole(Vec<u8>);

impl Flavor for Whole {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Writes the header of the state behind it: [`HEADER`] bytes of anything, and a state.
pub fn seal(snapshot: &mut [u8]) {
    let state = snapshot.get(HEADER..).unwrap_or_default();
    let (len, crc) = (state.len() as u64, crc32fast::hash(state));
    let header =
        MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain(len.to_le_bytes()).chain(crc.to_le_bytes());
    snapshot.iter_mut().zip(header).for_each(|(place, byte)| *place = byte);
}

/// Reads a snapshot: the state, with `now` in place of the present in which it was written.
///
/// The owner has to check what the state's types do not say.
///
/// # Errors
/// [`Refused`] tells why it is none.
pub fn read<T: DeserializeOwned>(snapshot: &[u8], now: Instant) -> Result<T, Refused> {
    let Some((magic, rest)) = snapshot.split_first_chunk() else { return Err(Refused::NotASnapshot) };
    let fields = rest.split_first_chunk().and_then(|(version, rest)| {
        let (len, rest) = rest.split_first_chunk()?;
        let (crc, state) = rest.split_first_chunk()?;
        Some((u16::from_le_bytes(*version), u64::from_le_bytes(*len), u32::from_le_bytes(*crc), state))
    });
    let (&MAGIC, Some((version, told, crc, state))) = (magic, fields) else {
        return Err(Refused::NotASnapshot);
    };
    if version != VERSION {
        return Err(Refused::Version(version));
    }
    if state.len() as u64 != told {
        return Err(Refused::Length { found: state.len() as u64, told });
    }
    if crc32fast::hash(state) != crc {
        return Err(Refused::Checksum);
    }
    let _present = Present::set(now);
    match postcard::take_from_bytes(state) {
        Ok((state, [])) => Ok(state),
        Ok((_, rest)) => Err(Refused::Content(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(Refused::Content(error.to_string())),
    }
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
mod tests {
    use super::*;

    #[serde_with::serde_as]
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct State {
        #[serde_as(as = "Vec<Option<(_, At)>>")]
        times: Vec<Option<(u8, Instant)>>,
        text: String,
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn clock() -> Instant {
        Instant::now()
    }

    fn state(at: Instant) -> State {
        let second = Duration::from_secs(1);
        State { times: vec![Some((1, at + second)), None, Some((2, at - second))], text: "x".to_owned() }
    }

    #[test]
    fn times_keep_their_distance_from_the_present() {
        let now = clock();
        let snapshot = write(&state(now), now).unwrap();
        for later in [0, 1, 1_000_000] {
            let then = now + Duration::from_millis(later);
            assert_eq!(read(&snapshot, then), Ok(state(then)));
            assert_eq!(write(&state(then), then).unwrap(), snapshot);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let now = clock();
        let snapshot = write(&state(now), now).unwrap();
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = snapshot.clone();
            change(&mut changed);
            read::<State>(&changed, now).unwrap_err()
        };
        assert_eq!(refused(&|bytes| bytes.clear()), Refused::NotASnapshot);
        assert_eq!(refused(&|bytes| bytes.truncate(HEADER - 1)), Refused::NotASnapshot);
        assert_eq!(refused(&|bytes| bytes[0] ^= 1), Refused::NotASnapshot);
        assert_eq!(refused(&|bytes| bytes[8] = 2), Refused::Version(2));
        let told = (snapshot.len() - HEADER) as u64;
        assert_eq!(
            refused(&|bytes| bytes.truncate(bytes.len() - 1)),
            Refused::Length { found: told - 1, told }
        );
        assert_eq!(refused(&|bytes| *bytes.last_mut().unwrap() ^= 1), Refused::Checksum);
        let other = write(&(state(now), 7_u8), now).unwrap();
        assert!(matches!(read::<State>(&other, now), Err(Refused::Content(_))));
        assert!(matches!(read::<(State, u8)>(&snapshot, now), Err(Refused::Content(_))));
    }

    #[test]
    fn a_time_has_no_meaning_outside_a_snapshot() {
        let now = clock();
        assert!(postcard::to_allocvec(&state(now)).is_err());
    }
}
