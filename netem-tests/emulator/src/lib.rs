//! The long link in user space: real packets through [`linksim::impair`] in real time.
//!
//! - [`Relay`]: UDP, without privileges: two gateways send to the relay instead of to each other;
//! - [`Bridge`]: whole Ethernet frames between two interfaces, also in different network name
//!   spaces; needs `CAP_NET_RAW`;
//! - [`udp`]: the sockets of the first, which software hosts use as well.
//!
//! It knows nothing of RDMA: a datagram is bytes.

mod bridge;
mod control;
mod frames;
mod nonces;
mod offload;
mod relay;
#[cfg(test)]
mod tests;
pub mod udp;

pub use bridge::{Bridge, BridgeSpec, Interface};
pub use control::{DirectionStats, EmulatorStats};
pub use nonces::NonceReport;
pub use relay::{Port, Relay, RelaySpec, Side};
