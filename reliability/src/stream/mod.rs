//! Records over numbered packets: exactly once, in any order, repaired by the stream's scheme.
//!
//! [`Sender`] cuts and packs records into DATA packets, keeps them until they are acknowledged, and
//! adds parity where the scheme asks for it. [`Receiver`] delivers every record once, decodes, and
//! answers with REPORTs. The packets are plaintext: they are sealed outside, so they carry no
//! checksum. `docs/protocol.md#streams` holds their layout.

mod clock;
mod receiver;
mod sender;
pub(crate) mod wire;

use std::time::Duration;

pub use receiver::{Receiver, ReceiverConfig, ReceiverStats};
pub use sender::{
    Alternation, Copying, FIRST_OTHER, Full, Origin, Sender, SenderConfig, SenderStats, Transmit,
    TransmitKind,
};
pub(crate) use sender::{loss, protection};
pub use wire::{
    DATA_HEADER, FRAGMENT_HEADER, Kind, Malformed, RECORD_HEADER, REPORT_HEADER, TIME_UNIT, UNCODED_HEADER,
    classify, data_header, sending_time,
};

/// Names a stream within a session and direction; below 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct StreamId(pub u16);

/// Where a packet stands in its block, for whoever spreads blocks over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InBlock {
    /// The first packet of the group that the block is interleaved in: names it within the stream.
    pub group: u64,
    /// The packet's place among the block's data packets, or among its parities.
    pub row: u8,
    /// True for a parity.
    pub is_parity: bool,
    /// Data packets of a full block.
    pub k: u8,
    /// Parities of a full block.
    pub m: u8,
    /// Blocks interleaved in the group.
    pub depth: u8,
    /// Packets of the block that may be lost: the parities it has, or would get if it ended with
    /// this packet. `m` if what waits fills it.
    pub spare: u8,
}

/// How losses are repaired. Announced per packet, so it may change at any time (see
/// [`Sender::set_scheme`]).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Scheme {
    /// Fire and forget: a packet is forgotten when sent, and what it held is lost with it.
    None,
    /// Selective repeat: the receiver names the missing packets; a retransmission timeout of
    /// `RTT + alpha * RTT` is the last resort.
    Sr {
        /// The timeout's slack, in round-trip times.
        alpha: f64,
    },
    /// Blocks of `k` packets with `m` parities, parity `i` over the packets `j` with `j % m == i`.
    /// Repairs one loss in each.
    Xor {
        /// Data packets per block.
        k: u8,
        /// Parity packets per block.
        m: u8,
        /// Blocks interleaved with one another; a burst of up to `depth` packets hits each block
        /// once.
        depth: u8,
    },
    /// Blocks of `k` packets with `m` Reed-Solomon parities: any `k` of the `k + m` are enough.
    Mds {
        /// Data packets per block.
        k: u8,
        /// Parity packets per block.
        m: u8,
        /// Blocks interleaved with one another; a burst of up to `depth * m` packets can be borne.
        depth: u8,
    },
    /// As `Mds` where a loss could not be repaired before everything else is sent, i.e. for short
    /// transfers and for the last round trip of long ones; as `Sr` elsewhere. A block that falls
    /// short gets further parity. The more the sender is told ([`Sender::set_rate`],
    /// [`Sender::expect`], [`Sender::set_drop`], [`Sender::set_burst`]), the less parity it sends.
    Hybrid {
        /// Data packets per block.
        k: u8,
        /// Parity packets per block, at most.
        m: u8,
        /// Blocks interleaved with one another, at least.
        depth: u8,
    },
}

impl Scheme {
    /// Selective repeat with the usual slack of one round-trip time.
    #[must_use]
    pub const fn sr() -> Self {
        Self::Sr { alpha: DEFAULT_ALPHA }
    }

    /// XOR parity without interleaving.
    #[must_use]
    pub const fn xor(k: u8, m: u8) -> Self {
        Self::Xor { k, m, depth: 1 }
    }

    /// Reed-Solomon parity without interleaving.
    #[must_use]
    pub const fn mds(k: u8, m: u8) -> Self {
        Self::Mds { k, m, depth: 1 }
    }

    /// Selective repeat with a protected tail, without interleaving.
    #[must_use]
    pub const fn hybrid(k: u8, m: u8) -> Self {
        Self::Hybrid { k, m, depth: 1 }
    }

    /// The retransmission timeout's slack in round-trip times.
    fn alpha(self) -> f64 {
        match self {
            Self::Sr { alpha } if alpha.is_finite() && alpha >= 0.0 => alpha.min(100.0),
            // The timeout of a protected packet counts from the last parity of its block.
            Self::Sr { .. } | Self::None | Self::Hybrid { .. } => DEFAULT_ALPHA,
            // The receiver may first ask for other packets of the block, and decode with them.
            Self::Xor { .. } | Self::Mds { .. } => DEFAULT_ALPHA + 1.0,
        }
    }
}

impl Scheme {
    /// Returns the shape as it stands on the wire. Numbers that make no code are brought to the
    /// nearest that do: at least one data and one parity packet, 255 together, no more XOR parities
    /// than data.
    pub(crate) fn shape(self) -> wire::Shape {
        let (coding, k, m, depth) = match self {
            Self::None => return wire::Shape::uncoded(wire::Coding::None),
            Self::Sr { .. } => return wire::Shape::uncoded(wire::Coding::Sr),
            Self::Xor { k, m, depth } => (wire::Coding::Xor, k, m.min(k), depth),
            Self::Mds { k, m, depth } | Self::Hybrid { k, m, depth } => (wire::Coding::Mds, k, m, depth),
        };
        let k = k.clamp(1, 254);
        wire::Shape { coding, k, m: m.clamp(1, 255 - k), depth: depth.max(1) }
    }
}

const DEFAULT_ALPHA: f64 = 1.0;

/// A block that is not full, after whose last packet nothing came for so long and nothing is known
/// to come, is closed: a small part of what a loss that no parity makes up for would cost.
pub(crate) fn quiet(rtt: Duration) -> Duration {
    (rtt / 64).max(Duration::from_micros(100))
}

/// A receiver that owes no repair reports this often, at least: a quarter of the round-trip time,
/// within bounds.
pub(crate) fn report_interval(rtt: Duration) -> Duration {
    (rtt / 4).clamp(Duration::from_millis(1), Duration::from_millis(25))
}

#[cfg(test)]
mod tests {
    /// A stream may move to another data-plane thread.
    #[test]
    fn both_ends_can_be_sent_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<super::Sender>();
        assert_send::<super::Receiver>();
    }
}
