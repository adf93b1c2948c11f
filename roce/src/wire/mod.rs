//! The transport headers of RoCEv2, from the BTH to the padding: typed parsing and emission.
//!
//! Everything is big-endian. IP, UDP and the ICRC are [`crate::ip`]'s. Layouts: InfiniBand
//! Architecture Specification, volume 1, chapter 9, as Soft-RoCE (`drivers/infiniband/sw/rxe`) puts
//! them on the wire.

mod aeth;
mod bth;
mod headers;
mod opcode;
mod packet;

pub use aeth::{Aeth, Nak, RnrTimer, Syndrome};
pub use bth::{BTH_LEN, Bth, Psn, Qpn};
pub use headers::{AtomicAckEth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, Reth};
pub use opcode::{Kind, Layout, Opcode, Place, Transport};
pub use packet::{EmitError, Malformed, Packet, PathMtu, Repr};
