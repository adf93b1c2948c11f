//! Erasure codes over packets of unequal length: Reed-Solomon (MDS) and XOR.
//!
//! Here live the codes' definitions ([`Code`]), the incremental [`Encoder`], [`parity_row`] for a
//! block in the past, the [`Decoder`], and the GF(2^8) kernels chosen at run time ([`engine`]),
//! every one byte-identical to `reed-solomon-erasure`. Never here: I/O, clocks, randomness, wire
//! headers, timers, policy (which code, when to close a block), buffer ownership of packets.
//! `unsafe` stands only in `kernel`, behind slices whose bounds were checked. Nothing here panics
//! on what the network brings: a block that makes no sense is a [`DecodeError`]. After warm-up
//! nothing is allocated per packet or per block.
//!
//! # Symbols
//!
//! The code runs over *symbols*: a packet of `n` bytes is the symbol
//! `[n as big-endian u16][n bytes][zeros]`, as long as the block needs. A parity packet is a whole
//! symbol, hence `2 + longest packet` bytes, and it protects the lengths as well. Padding is never
//! sent. A block closed early (`k' < k` packets) is the same code with zero symbols in the missing
//! places.
//!
//! ```
//! use fec::{Code, Decoder, Encoder, Recovered};
//!
//! let code = Code::mds(32, 8)?;
//! let mut encoder = Encoder::new(code.clone(), 1400);
//! for packet in [&b"three"[..], b"packets", b"sent"] {
//!     encoder.push(packet)?;
//! }
//! let parity = encoder.parity(5).map(<[u8]>::to_vec);
//!
//! let mut recovered = Recovered::new();
//! let received = [Some(&b"three"[..]), None, Some(b"sent")];
//! let mut parities = [None; 8];
//! parities[5] = parity.as_deref();
//! Decoder::new().decode(&code, &received, &parities, &mut recovered)?;
//! assert!(recovered.iter().eq([(1, &b"packets"[..])]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod code;
mod decoder;
mod encoder;
pub mod engine;
mod gf;
mod interleaved;
mod row;
mod rows;

pub use code::{Code, CodeError, Kind};
pub use decoder::{DecodeError, Decoder, Recovered};
pub use encoder::{Encoder, PushError};
pub use engine::{Engine, Source};
pub use row::{RowError, parity_row};

/// Longest packet a code carries, in bytes: what its 16-bit length can say.
pub const MAX_PACKET: usize = u16::MAX as usize;

/// Most packets in a block, data and parity together.
pub const MAX_BLOCK: usize = 255;

/// Bytes by which a parity packet is longer than the longest data packet of its block.
pub const PARITY_OVERHEAD: usize = 2;

#[cfg(test)]
mod tests;
