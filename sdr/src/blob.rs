//! The connection blob, which two sides exchange out of band.
//!
//! ```text
//! "SDRB" | version u16 | chunk log u8 | in-flight log u8 | messages log u8 | MTU log u8
//! | channels u8
//! | directions u8 (1 sends, 2 receives) | split 10 18 4 | back end u8 | rate u64 | RTT in ns u64
//! | length u16 | that many bytes of the back end | zeros up to 256 bytes
//! ```

use std::time::Duration;

use bytes::{Buf, BufMut, TryGetError};

use crate::imm::SPLIT;
use crate::shape::{AttrError, Mtu, QpAttr, Shape};

/// Bytes of a blob.
pub const BLOB_BYTES: usize = 256;

/// Most bytes that a back end may put into it.
pub const BACK_END_BYTES: usize = BLOB_BYTES - HEAD;

const HEAD: usize = 34;
const MAGIC: [u8; 4] = *b"SDRB";
const VERSION: u16 = 1;
const SENDS: u8 = 1;
const RECEIVES: u8 = 2;

/// Most generations: as many as a datagram names.
pub const MAX_GENERATIONS: u32 = 256;

/// Uses of a slot until its key comes again: eight bits, and two keys a use, one of them for
/// nobody.
pub const KEY_GENERATIONS: u32 = 128;

/// Generations on mlx5 devices: as many sets of queue pairs.
pub const MLX5_GENERATIONS: u32 = 4;

/// Fewest generations: with fewer, an id could come round before its last use is known to be over.
const MIN_GENERATIONS: u32 = 4;

/// Packets are taken to be dead after so many round-trip times.
const LIFETIME_RTTS: u32 = 2;

/// Kind of a back end, as a blob names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackEnd {
    /// Handed over by the program itself, as the simulator does.
    None,
    /// Sealed UDP datagrams.
    Udp,
    /// Unreliable connections of RDMA devices.
    VerbsUc,
    /// The same on mlx5 devices, with indirect keys, and queue pairs for each generation.
    Mlx5,
}

impl BackEnd {
    const fn wire(self) -> u8 {
        match self {
            BackEnd::None => 0,
            BackEnd::Udp => 1,
            BackEnd::VerbsUc => 2,
            BackEnd::Mlx5 => 3,
        }
    }

    fn of_wire(kind: u8) -> Option<Self> {
        [BackEnd::None, BackEnd::Udp, BackEnd::VerbsUc, BackEnd::Mlx5]
            .into_iter()
            .find(|known| known.wire() == kind)
    }
}

/// One side's part of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The side's attributes; `patience` is not told.
    pub attr: QpAttr,
    /// Its back end.
    pub back_end: BackEnd,
    /// Bytes of its back end, [`BACK_END_BYTES`] at most.
    pub details: Vec<u8>,
}

/// Reasons why two queue pairs do not connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Not a blob, or cut off.
    #[error("not a connection blob")]
    NotABlob,
    /// A blob of another version.
    #[error("the blob has version {0}, and this library version 1")]
    Version(u16),
    /// The immediates are split otherwise.
    #[error("the peer splits immediates otherwise")]
    Split,
    /// The MTUs differ.
    #[error("the MTU differs")]
    Mtu,
    /// The chunk sizes differ.
    #[error("the chunk size differs")]
    Chunk,
    /// Largest messages or slots differ.
    #[error("largest message or slots differ")]
    Message,
    /// The numbers of channels differ.
    #[error("the number of channels differs")]
    Channels,
    /// Neither side sends what the other receives.
    #[error("neither side sends to one that receives")]
    Directions,
    /// The back ends differ, or the peer's told nothing that makes sense.
    #[error("the back end differs")]
    BackEnd,
    /// The peer's attributes make no queue pair.
    #[error("the peer's attributes: {0}")]
    Attributes(#[from] AttrError),
    /// Ids would come round too soon: more bytes in flight, a lower rate or a shorter path would
    /// do.
    #[error("{needed} generations would be needed, and {most} are possible: allow more bytes in flight")]
    Generations {
        /// As many as rate and path ask for.
        needed: u128,
        /// As many as the back end tells apart.
        most: u32,
    },
}

/// A blob that ends too early is none.
impl From<TryGetError> for Mismatch {
    fn from(_: TryGetError) -> Self {
        Mismatch::NotABlob
    }
}

/// Takes the next bytes.
fn array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], TryGetError> {
    let mut array = [0; N];
    bytes.try_copy_to_slice(&mut array)?;
    Ok(array)
}

/// Terms that two sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Sizes.
    pub shape: Shape,
    /// Generations of each id, a power of two, 4 to 256.
    pub generations: u32,
    /// Time after which a packet is taken to be dead.
    pub lifetime: Duration,
    /// Round-trip time, the longer of both.
    pub rtt: Duration,
    /// True if this side sends.
    pub send: bool,
    /// True if this side receives.
    pub receive: bool,
}

impl Blob {
    /// Makes a blob.
    ///
    /// # Errors
    /// [`AttrError`] if `attr` makes no queue pair.
    pub fn new(attr: QpAttr, back_end: BackEnd, details: Vec<u8>) -> Result<Self, AttrError> {
        Shape::new(&attr)?;
        Ok(Blob { attr, back_end, details })
    }

    /// Returns its bytes. Details beyond [`BACK_END_BYTES`] are cut off.
    #[must_use]
    pub fn encode(&self) -> [u8; BLOB_BYTES] {
        let attr = &self.attr;
        let details = self.details.get(..self.details.len().min(BACK_END_BYTES)).unwrap_or_default();
        let directions = (u8::from(attr.send) * SENDS) | (u8::from(attr.receive) * RECEIVES);
        let logs = [attr.chunk_log, attr.in_flight_log, attr.messages_log, attr.mtu.log()];
        let mut bytes = Vec::with_capacity(BLOB_BYTES);
        bytes.put_slice(&MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_slice(&logs.map(|log| u8::try_from(log).unwrap_or(u8::MAX)));
        bytes.put_slice(&[attr.channels, directions]);
        bytes.put_slice(&SPLIT);
        bytes.put_u8(self.back_end.wire());
        bytes.put_u64(attr.rate);
        bytes.put_u64(u64::try_from(attr.rtt.as_nanos()).unwrap_or(u64::MAX));
        bytes.put_u16(details.len() as u16);
        bytes.put_slice(details);
        let mut out = [0; BLOB_BYTES];
        for (place, byte) in out.iter_mut().zip(bytes) {
            *place = byte;
        }
        out
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`Mismatch`] if it is none, of another version or split, or if its attributes make no queue
    /// pair.
    pub fn decode(bytes: &[u8]) -> Result<Self, Mismatch> {
        let mut rest = bytes.get(..BLOB_BYTES).ok_or(Mismatch::NotABlob)?;
        if array(&mut rest)? != MAGIC {
            return Err(Mismatch::NotABlob);
        }
        let version = rest.try_get_u16()?;
        if version != VERSION {
            return Err(Mismatch::Version(version));
        }
        let [chunk, in_flight, messages, mtu, channels, directions] = array(&mut rest)?;
        if array(&mut rest)? != SPLIT {
            return Err(Mismatch::Split);
        }
        let kind = rest.try_get_u8()?;
        let (rate, rtt) = (rest.try_get_u64()?, rest.try_get_u64()?);
        let attr = QpAttr {
            chunk_log: chunk.into(),
            in_flight_log: in_flight.into(),
            messages_log: messages.into(),
            mtu: Mtu::ALL.into_iter().find(|known| known.log() == u32::from(mtu)).ok_or(Mismatch::Mtu)?,
            channels,
            send: directions & SENDS != 0,
            receive: directions & RECEIVES != 0,
            rate,
            rtt: Duration::from_nanos(rtt),
            ..QpAttr::default()
        };
        let back_end = BackEnd::of_wire(kind).ok_or(Mismatch::BackEnd)?;
        let length = usize::from(rest.try_get_u16()?);
        let details = rest.get(..length).ok_or(Mismatch::NotABlob)?.to_vec();
        Ok(Blob::new(attr, back_end, details)?)
    }

    /// Compares with the peer's blob. Both sides come to the same result.
    ///
    /// # Errors
    /// [`Mismatch`] names the first difference.
    pub fn agree(&self, peer: &Blob) -> Result<Agreed, Mismatch> {
        let (ours, theirs) = (&self.attr, &peer.attr);
        let shape = Shape::new(ours)?;
        let (send, receive) = (ours.send && theirs.receive, ours.receive && theirs.send);
        let checks = [
            (ours.mtu == theirs.mtu, Mismatch::Mtu),
            (ours.chunk_log == theirs.chunk_log, Mismatch::Chunk),
            (shape == Shape::new(theirs)?, Mismatch::Message),
            (ours.channels == theirs.channels, Mismatch::Channels),
            (send || receive, Mismatch::Directions),
            (self.back_end == peer.back_end, Mismatch::BackEnd),
        ];
        for (holds, mismatch) in checks {
            if !holds {
                return Err(mismatch);
            }
        }
        let rtt = ours.rtt.max(theirs.rtt);
        let lifetime = rtt * LIFETIME_RTTS;
        let rate = ours.rate.max(theirs.rate);
        let mut generations = generations(&shape, rate, lifetime)?;
        // Keys and queue pairs tell one use from another, whatever rate and path are.
        let fixed = match self.back_end {
            BackEnd::None | BackEnd::Udp => None,
            BackEnd::VerbsUc => Some(KEY_GENERATIONS),
            BackEnd::Mlx5 => Some(MLX5_GENERATIONS),
        };
        if let Some(fixed) = fixed {
            if generations > fixed {
                return Err(Mismatch::Generations { needed: generations.into(), most: fixed });
            }
            generations = fixed;
        }
        Ok(Agreed { shape, generations, lifetime, rtt, send, receive })
    }
}

/// Returns how many generations keep an id from coming round within `lifetime` at `rate` bit/s.
///
/// One round of all ids with largest messages takes `slots * M * 8 / rate`.
/// Beyond the rounds of a lifetime, one is in flight and one is what the peer may be ahead.
///
/// # Errors
/// [`Mismatch::Generations`] if they would be more than [`MAX_GENERATIONS`].
pub fn generations(shape: &Shape, rate: u64, lifetime: Duration) -> Result<u32, Mismatch> {
    let round_bits = u128::from(shape.slots()) * u128::from(shape.max_message()) * 8;
    let lifetime_bits = (u128::from(rate) * lifetime.as_nanos()).div_ceil(1_000_000_000);
    let needed = lifetime_bits.div_ceil(round_bits) + 2;
    match u32::try_from(needed) {
        Ok(few) if few <= MAX_GENERATIONS => Ok(few.next_power_of_two().max(MIN_GENERATIONS)),
        _ => Err(Mismatch::Generations { needed, most: MAX_GENERATIONS }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(attr: QpAttr) -> Blob {
        Blob::new(attr, BackEnd::Udp, vec![1, 2, 3]).unwrap()
    }

    #[test]
    fn a_blob_survives_the_way() {
        let ours = blob(QpAttr::default());
        let bytes = ours.encode();
        assert_eq!(Blob::decode(&bytes), Ok(ours));
        assert_eq!(bytes[..16], *b"SDRB\0\x01\x10\x18\x04\x0a\x01\x03\x0a\x12\x04\x01");
    }

    #[test]
    fn each_mismatch_is_named() {
        let attr = QpAttr::default();
        let ours = blob(attr);
        let cases = [
            (QpAttr { mtu: Mtu::B2048, ..attr }, Mismatch::Mtu),
            (QpAttr { chunk_log: 15, ..attr }, Mismatch::Chunk),
            (QpAttr { messages_log: 5, ..attr }, Mismatch::Message),
            (QpAttr { channels: 2, ..attr }, Mismatch::Channels),
        ];
        for (attr, mismatch) in cases {
            assert_eq!(ours.agree(&blob(attr)), Err(mismatch));
        }
        let senders = blob(QpAttr { receive: false, ..attr });
        assert_eq!(senders.agree(&senders), Err(Mismatch::Directions));
        let other = Blob { back_end: BackEnd::None, ..ours.clone() };
        assert_eq!(ours.agree(&other), Err(Mismatch::BackEnd));
        let agreed = senders.agree(&ours).unwrap();
        assert_eq!((agreed.send, agreed.receive), (true, false));
    }

    #[test]
    fn bytes_that_are_no_blob_of_this_version_are_refused() {
        let bytes = blob(QpAttr::default()).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Blob::decode(&bytes)
        };
        assert_eq!(Blob::decode(&bytes[..255]), Err(Mismatch::NotABlob));
        assert_eq!(with(0, b'X'), Err(Mismatch::NotABlob));
        assert_eq!(with(5, 2), Err(Mismatch::Version(2)));
        assert_eq!(with(12, 8), Err(Mismatch::Split));
        assert_eq!(with(9, 13), Err(Mismatch::Mtu));
        assert_eq!(with(15, 9), Err(Mismatch::BackEnd));
        assert_eq!(with(15, 2).unwrap().back_end, BackEnd::VerbsUc);
        assert_eq!(with(15, 3).unwrap().back_end, BackEnd::Mlx5);
        assert_eq!(with(15, 4), Err(Mismatch::BackEnd));
        assert_eq!(with(10, 0), Err(Mismatch::Attributes(AttrError::Channels(0))));
        assert_eq!(with(32, 255), Err(Mismatch::NotABlob));
    }

    /// A path that needs more uses than a key tells apart is refused.
    #[test]
    fn keys_bound_the_generations_of_verbs() {
        let attr = QpAttr { in_flight_log: 26, messages_log: 10, rate: 400_000_000_000, ..QpAttr::default() };
        let verbs = |rtt| Blob { back_end: BackEnd::VerbsUc, ..blob(QpAttr { rtt, ..attr }) };
        let near = verbs(Duration::from_millis(1));
        assert_eq!(near.agree(&near).map(|agreed| agreed.generations), Ok(KEY_GENERATIONS));
        let far = verbs(Duration::from_millis(120));
        let refused = Mismatch::Generations { needed: 256, most: KEY_GENERATIONS };
        assert_eq!(far.agree(&far), Err(refused));
    }

    /// Sets of queue pairs are few: as much has to be in flight as the path holds.
    #[test]
    fn queue_pairs_bound_the_generations_of_mlx5() {
        let attr = QpAttr { rate: 400_000_000_000, rtt: Duration::from_millis(25), ..QpAttr::default() };
        let mlx5 = |in_flight_log| Blob {
            back_end: BackEnd::Mlx5,
            ..blob(QpAttr { in_flight_log, messages_log: 10, ..attr })
        };
        let (large, small) = (mlx5(30), mlx5(29));
        let refused = Mismatch::Generations { needed: 8, most: MLX5_GENERATIONS };
        assert_eq!(small.agree(&small), Err(refused));
        assert_eq!(large.agree(&large), Err(refused));
        let near = QpAttr { rtt: Duration::from_millis(20), ..attr };
        let near = Blob { attr: QpAttr { in_flight_log: 30, messages_log: 10, ..near }, ..large };
        assert_eq!(near.agree(&near).map(|agreed| agreed.generations), Ok(MLX5_GENERATIONS));
    }

    /// 64 KiB messages in 1024 slots at 400 Gbit/s come round in 1.3 ms, which four generations do
    /// not outlast.
    #[test]
    fn generations_follow_from_rate_and_round_trip() {
        let attr = QpAttr { in_flight_log: 26, messages_log: 10, ..QpAttr::default() };
        let shape = Shape::new(&attr).unwrap();
        assert_eq!(generations(&shape, 400_000_000_000, Duration::from_micros(2600)), Ok(4));
        assert_eq!(generations(&shape, 400_000_000_000, Duration::from_millis(50)), Ok(64));
        let result = generations(&shape, 400_000_000_000, Duration::from_millis(500));
        assert_eq!(result, Err(Mismatch::Generations { needed: 375, most: MAX_GENERATIONS }));
    }
}
