//! How long a packet may be on the way to the peer: datagram packetization layer path MTU discovery
//! (RFC 8899), by probing.
//!
//! The sending end is a [`Search`]: it begins with what every path carries that QUIC works over,
//! sends MTU packets of other lengths, and says what length the streams may use. The receiving end
//! is an [`Answerer`]: it says at once which of them arrived. Where a path has come to carry less
//! than it did, packets that were built before leave as pieces ([`Cutter`], [`Joiner`]), never cut
//! by IP.
//!
//! Lengths are those of packets in plaintext; [`Config::overhead`] bytes more are the IP packet's.

mod answer;
mod pieces;
mod search;

pub use answer::{Answer, Answerer, MTU_PACKET, Message, Probe};
pub use pieces::{Cutter, Joiner, PIECE_HEADER};
pub use search::{Config, Search, State, Status};

/// The largest IP packet that is looked for: the jumbo frame of most networks.
pub const LARGEST: usize = 9000;
/// The UDP payload that the control connection needs (RFC 9000, section 14): no session is without
/// it.
pub const BASE_DATAGRAM: usize = 1200;
