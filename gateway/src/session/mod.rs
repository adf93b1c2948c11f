//! A session joins two gateways: the control connection, the keys, and the sealing of bulk datagrams.
//!
//! [`control`] runs the QUIC connection and says when a session is up; what it then hands over, a [`seal::Sealer`] and a
//! [`seal::Opener`], belongs to the data path and does no I/O. Keys come from [`schedule`] alone, certificates are judged
//! in [`identity`] alone. No bulk byte ever crosses the control connection. The wire is specified in `docs/protocol.md`.

pub mod control;
pub mod identity;
pub mod message;
pub mod replay;
pub mod schedule;
pub mod seal;

pub use schedule::Cipher;
pub use seal::{HEADER, Header, OVERHEAD, Opener, Rejected, SealError, Sealer, TAG};
