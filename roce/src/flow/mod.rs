//! The two halves of a terminated RC flow: one direction of one connection, requester R to target
//! T.
//!
//! [`Near`] stands at R's gateway and is the responder towards R's NIC; [`Far`] stands at T's
//! gateway and is the requester towards T's NIC. Between them the owner carries records, each a
//! packet from its BTH to its padding, exactly once and in order, in both directions, but for ACKs
//! that may overtake ([`Near::may_overtake`](near::Near::may_overtake)). PSNs, segmentation, rkey
//! and virtual address are the same at both ends, so nothing is renumbered.
//!
//! What both halves defend, before anything else: R's NIC must never be told, not even by
//! implication, that something was executed which T's NIC has not acknowledged. In RC every
//! response acknowledges all PSNs before its own: an ACK, a READ response, but also an RNR NAK, a
//! sequence NAK and a fatal NAK. So the rule is on PSNs, not on kinds of packets: [`Near`] sends
//! nothing whose PSN lies beyond what T acknowledged, except inside the oldest incomplete message,
//! where it completes nothing.
//!
//! No I/O and no clock. Sources of the rules: InfiniBand Architecture Specification volume 1,
//! chapter 9.7, and Linux's `drivers/infiniband/sw/rxe` for what a requester and a responder really
//! do.

mod counters;
pub mod far;
mod horizon;
pub mod near;
mod rewritten;
#[cfg(test)]
mod tests;

pub use far::{Far, FarConfig, FarCounters, FarStats};
pub use near::{Near, NearConfig, NearCounters, NearStats};
pub use rewritten::{Reply, RewrittenPacket};
