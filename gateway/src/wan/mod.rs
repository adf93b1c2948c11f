//! The long link's side: UDP sockets for the sealed bulk datagrams, in batches that segmentation
//! offload (GSO, GRO) carries through the kernel as one.
//!
//! Here live [`Bulk`], a non-blocking batched UDP socket (the local side's socket mode uses it
//! too). Keys, sessions and packet formats are no business of this folder: it moves bytes. What the
//! sockets need of unsafe code stands in `quinn-udp`, but for one socket option (`overrun`).

mod bulk;
mod overrun;
mod queue;
#[cfg(test)]
mod tests;

pub use bulk::{Arrival, Bulk, BulkConfig, BulkStats, SocketBuffers};
pub use quinn_udp::EcnCodepoint;
