//! Attributes of a queue pair, and the sizes that follow from them.

use std::time::Duration;

use crate::imm::{MAX_PACKETS, MAX_SLOTS_LOG};

/// Most channels of a queue pair.
pub const MAX_CHANNELS: u8 = 8;

/// Most bytes that the bitmaps of a queue pair's receive slots may take.
pub const MAX_BITMAP_BYTES: u64 = 256 << 20;

/// Longest round-trip time that a queue pair is made for.
pub const MAX_RTT: Duration = Duration::from_secs(10);

/// Payload bytes of a full packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 64 bytes.
    B64,
    /// 128 bytes.
    B128,
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

impl Mtu {
    /// Every MTU, ascending.
    pub const ALL: [Mtu; 7] = [Mtu::B64, Mtu::B128, Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Returns the logarithm of its bytes, to base 2.
    #[must_use]
    pub const fn log(self) -> u32 {
        6 + self as u32
    }

    /// Returns its bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.log()
    }
}

/// Attributes of a queue pair. Both sides need the same, except for directions, rate and RTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttr {
    /// Bytes of a chunk, as a logarithm to base 2. A chunk is a bit of the receive bitmap.
    pub chunk_log: u32,
    /// Bytes in flight at most, as a logarithm to base 2.
    pub in_flight_log: u32,
    /// Message slots, as a logarithm to base 2, 10 at most.
    pub messages_log: u32,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// Channels that carry packets round robin, 1 to [`MAX_CHANNELS`].
    pub channels: u8,
    /// True if this side sends.
    pub send: bool,
    /// True if this side receives.
    pub receive: bool,
    /// Rate at which this side sends, in bit/s.
    pub rate: u64,
    /// Round-trip time of the path. Packets are taken to die within two of these.
    pub rtt: Duration,
    /// After so long without a word of the peer, the queue pair ends.
    pub patience: Duration,
}

impl Default for QpAttr {
    /// 16 slots of 1 MiB, chunks of 64 KiB, packets of 1024 bytes, both directions, 1 Gbit/s, 25
    /// ms.
    /// A peer that is silent for 10 s is gone.
    fn default() -> Self {
        QpAttr {
            chunk_log: 16,
            in_flight_log: 24,
            messages_log: 4,
            mtu: Mtu::B1024,
            channels: 1,
            send: true,
            receive: true,
            rate: 1_000_000_000,
            rtt: Duration::from_millis(25),
            patience: Duration::from_secs(10),
        }
    }
}

/// Attributes that make no queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// Neither direction is enabled.
    #[error("the queue pair neither sends nor receives")]
    NoDirection,
    /// More slots than a message id names.
    #[error("2^{0} message slots, and at most 2^10 are possible")]
    Slots(u32),
    /// A chunk is smaller than a packet.
    #[error("chunks of 2^{0} bytes are smaller than a packet")]
    ChunkBelowMtu(u32),
    /// A chunk is larger than a message may be.
    #[error("chunks of 2^{chunk_log} bytes are larger than the largest message, 2^{message_log} bytes")]
    ChunkAboveMessage {
        /// Logarithm of the chunk's bytes.
        chunk_log: u32,
        /// Logarithm of the largest message's bytes.
        message_log: u32,
    },
    /// The bytes in flight do not give each slot a byte.
    #[error("2^{in_flight_log} bytes in flight are fewer than 2^{messages_log} messages")]
    InFlight {
        /// Logarithm of the bytes in flight.
        in_flight_log: u32,
        /// Logarithm of the slots.
        messages_log: u32,
    },
    /// The largest message has more packets than an immediate numbers, or 2 GiB or more.
    #[error("messages of 2^{0} bytes are too large for this MTU")]
    Message(u32),
    /// The bitmaps would take more than [`MAX_BITMAP_BYTES`].
    #[error("the bitmaps would take {0} bytes")]
    Memory(u64),
    /// No channel, or more than [`MAX_CHANNELS`].
    #[error("{0} channels, and 1 to 8 are possible")]
    Channels(u8),
    /// The rate is 0.
    #[error("a rate of 0")]
    Rate,
    /// The round-trip time is beyond [`MAX_RTT`].
    #[error("a round-trip time of {0:?}")]
    Rtt(Duration),
}

/// Sizes of a queue pair, valid by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    mtu_log: u32,
    chunk_log: u32,
    message_log: u32,
    slots_log: u32,
}

impl Shape {
    /// Derives the sizes from `attr`.
    ///
    /// # Errors
    /// [`AttrError`] names the attribute that does not fit.
    pub fn new(attr: &QpAttr) -> Result<Self, AttrError> {
        let QpAttr { chunk_log, in_flight_log, messages_log, mtu, .. } = *attr;
        if !attr.send && !attr.receive {
            return Err(AttrError::NoDirection);
        }
        if messages_log > MAX_SLOTS_LOG {
            return Err(AttrError::Slots(messages_log));
        }
        if !(1..=MAX_CHANNELS).contains(&attr.channels) {
            return Err(AttrError::Channels(attr.channels));
        }
        if attr.rate == 0 {
            return Err(AttrError::Rate);
        }
        if attr.rtt > MAX_RTT {
            return Err(AttrError::Rtt(attr.rtt));
        }
        if chunk_log < mtu.log() {
            return Err(AttrError::ChunkBelowMtu(chunk_log));
        }
        let message_log = in_flight_log
            .checked_sub(messages_log)
            .ok_or(AttrError::InFlight { in_flight_log, messages_log })?;
        if message_log > 30 || message_log > mtu.log() + MAX_PACKETS.ilog2() {
            return Err(AttrError::Message(message_log));
        }
        if chunk_log > message_log {
            return Err(AttrError::ChunkAboveMessage { chunk_log, message_log });
        }
        let shape = Shape { mtu_log: mtu.log(), chunk_log, message_log, slots_log: messages_log };
        let memory = shape.bitmap_bytes();
        if memory > MAX_BITMAP_BYTES { Err(AttrError::Memory(memory)) } else { Ok(shape) }
    }

    /// Bytes that the bitmaps of all slots take: two bits a packet, a counter and a bit a chunk.
    fn bitmap_bytes(&self) -> u64 {
        let packets = u64::from(self.packets(self.max_message()));
        let chunks = u64::from(self.chunks(self.max_message()));
        u64::from(self.slots()) * (2 * packets.div_ceil(64) * 8 + chunks * 4 + chunks.div_ceil(8))
    }

    /// Payload bytes of a full packet.
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        1 << self.mtu_log
    }

    /// Bytes of a chunk.
    #[must_use]
    pub const fn chunk(&self) -> u32 {
        1 << self.chunk_log
    }

    /// Largest message, in bytes.
    #[must_use]
    pub const fn max_message(&self) -> u32 {
        1 << self.message_log
    }

    /// Message slots, a power of two.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        1 << self.slots_log
    }

    /// Logarithm of the slots, to base 2.
    pub(crate) const fn slots_log(&self) -> u32 {
        self.slots_log
    }

    /// Packets of `bytes` bytes.
    #[must_use]
    pub const fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.mtu())
    }

    /// Chunks of `bytes` bytes.
    #[must_use]
    pub const fn chunks(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.chunk())
    }

    /// Packets of a full chunk.
    #[must_use]
    pub const fn packets_per_chunk(&self) -> u32 {
        1 << (self.chunk_log - self.mtu_log)
    }

    /// The chunk of a packet.
    #[must_use]
    pub const fn chunk_of(&self, packet: u32) -> u32 {
        packet >> (self.chunk_log - self.mtu_log)
    }

    /// Packets of chunk `chunk` in a buffer of `bytes` bytes: the last chunk has the rest.
    #[must_use]
    pub const fn packets_of(&self, chunk: u32, bytes: u32) -> u32 {
        let before = chunk.saturating_mul(self.packets_per_chunk());
        let rest = self.packets(bytes).saturating_sub(before);
        if rest < self.packets_per_chunk() { rest } else { self.packets_per_chunk() }
    }

    /// The generation of message `number` among `generations`, a power of two.
    #[must_use]
    pub const fn generation(&self, number: u32, generations: u32) -> u32 {
        (number >> self.slots_log) & (generations - 1)
    }

    /// The slot of message `number`.
    #[must_use]
    pub const fn slot(&self, number: u32) -> u32 {
        number & (self.slots() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_attributes() {
        let shape = Shape::new(&QpAttr::default()).unwrap();
        assert_eq!((shape.max_message(), shape.slots(), shape.chunk()), (1 << 20, 16, 1 << 16));
        assert_eq!((shape.packets_per_chunk(), shape.chunks(65_537), shape.packets(1025)), (64, 2, 2));
        assert_eq!((shape.packets_of(0, 65_537), shape.packets_of(1, 65_537)), (64, 1));
        assert_eq!(shape.packets_of(2, 65_537), 0);
        assert_eq!((shape.slot(35), shape.generation(35, 4), shape.generation(64, 4)), (3, 2, 0));
    }

    #[test]
    fn each_bound_is_named() {
        let attr = QpAttr::default();
        let cases = [
            (QpAttr { send: false, receive: false, ..attr }, AttrError::NoDirection),
            (QpAttr { messages_log: 11, ..attr }, AttrError::Slots(11)),
            (QpAttr { channels: 0, ..attr }, AttrError::Channels(0)),
            (QpAttr { channels: 9, ..attr }, AttrError::Channels(9)),
            (QpAttr { rate: 0, ..attr }, AttrError::Rate),
            (QpAttr { rtt: Duration::from_secs(11), ..attr }, AttrError::Rtt(Duration::from_secs(11))),
            (QpAttr { chunk_log: 9, ..attr }, AttrError::ChunkBelowMtu(9)),
            (QpAttr { in_flight_log: 3, ..attr }, AttrError::InFlight { in_flight_log: 3, messages_log: 4 }),
            (QpAttr { in_flight_log: 33, ..attr }, AttrError::Message(29)),
            (QpAttr { in_flight_log: 99, ..attr }, AttrError::Message(95)),
            (
                QpAttr { chunk_log: 21, ..attr },
                AttrError::ChunkAboveMessage { chunk_log: 21, message_log: 20 },
            ),
        ];
        for (attr, error) in cases {
            assert_eq!(Shape::new(&attr), Err(error));
        }
        let vast = QpAttr { in_flight_log: 34, messages_log: 10, mtu: Mtu::B64, chunk_log: 6, ..attr };
        assert!(matches!(Shape::new(&vast), Err(AttrError::Memory(_))));
    }
}
