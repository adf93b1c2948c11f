//! SDR: software-defined reliability for programs that do their own.
//!
//! A queue pair carries messages as single packets over a path that loses and reorders them.
//! The receiver sees a live bitmap, a bit for each chunk of its buffer.
//! It may complete a receive at any time, also with chunks missing.
//! The n-th send lands in the n-th receive; nothing else names a message.
//! Reliability is a layer above, and the program's choice.
//!
//! This core has no I/O and no clock. A back end drives its [`Engine`].
//! The idea and the calls are those of "SDR-RDMA" (arXiv 2505.05366).
//!
//! | module | job |
//! |---|---|
//! | [`shape`] | attributes and sizes |
//! | [`blob`] | what two sides exchange to connect, and what makes them refuse |
//! | [`wire`], [`imm`] | datagrams and immediates |
//! | [`bitmap`], [`slot`] | the two bitmaps, and the gate that keeps late packets out |
//! | [`memory`] | buffers |
//! | `layers` | reliability on top: selective repeat, erasure coding, a choice |
//! | `link` | a connected queue pair and its thread, whatever the back end; feature `udp` |
//! | `udp` | the back end on sealed UDP datagrams; feature `udp` |
//! | `verbs` | the back end on unreliable connections of RDMA devices; feature `verbs` |
//!
//! # Example
//! Two queue pairs, and a packet of the message lost on the way. The receiver completes without it.
//!
//! ```
//! use std::time::Instant;
//! use sdr::blob::{BackEnd, Blob};
//! use sdr::{Buffer, QpAttr, connect, max_datagram};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Instant::now();
//! let attr = QpAttr { chunk_log: 12, ..QpAttr::default() };
//! let blob = Blob::new(attr, BackEnd::None, Vec::new())?;
//! let mut near = connect(&blob, &blob, 0, now)?;
//! let mut far = connect(&blob, &blob, 0, now)?;
//! let (Some(mut send), Some(mut receive)) = (near.send, far.receive) else { unreachable!() };
//!
//! let handle = receive.post(Buffer::zeroed(16 << 10))?;
//! let mut out = vec![0; max_datagram(&attr)];
//! while let Some(packet) = far.engine.poll_transmit(now, &mut out) {
//!     near.engine.handle(&out[..packet.len], now)?;
//! }
//! // Now there is credit.
//! let sent = send.post(vec![7; 16 << 10].into(), 0, None, now)?;
//! let mut count = 0;
//! while let Some(packet) = near.engine.poll_transmit(now, &mut out) {
//!     count += 1;
//!     if count != 8 {
//!         far.engine.handle(&out[..packet.len], now)?;
//!     }
//! }
//! assert!(sent.poll()?, "all of it has left");
//! let missing: Vec<u32> = handle.bitmap().missing().collect();
//! assert_eq!(missing, [1]);
//! assert_eq!(handle.chunk(0), Some(&[7; 4096][..]));
//! let Ok(completed) = handle.complete().poll() else { unreachable!() };
//! assert_eq!(completed.chunks, [true, false, true, true]);
//! # Ok(())
//! # }
//! ```

pub mod bitmap;
pub mod blob;
mod engine;
pub mod imm;
#[cfg(not(feature = "loom"))]
pub mod layers;
#[cfg(feature = "udp")]
pub mod link;
pub mod memory;
mod receive;
mod send;
pub mod shape;
pub mod slot;
mod sync;
#[cfg(feature = "udp")]
pub mod udp;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wire;

pub use engine::{
    Connected, ControlError, ControlPath, Engine, Rejected, Stats, Transmit, connect, max_datagram,
};
pub use memory::{Buffer, Region, Slice};
pub use receive::{
    ChunkBitmap, Closing, Completed, Lander, Placed, PostError, RecvHandle, RecvQp, Refused, Unposted,
};
pub use send::{SendError, SendHandle, SendQp, SendStream};
pub use shape::{AttrError, Mtu, QpAttr, Shape};
