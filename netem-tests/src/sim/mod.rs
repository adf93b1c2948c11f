//! Two sites in virtual time: production gateway cores, software RDMA hosts and impaired links,
//! checked against a reference model.
//!
//! A [`Scenario`] says everything: links, gateways' settings, what the programs do, what goes
//! wrong. [`Scenario::draw`] makes one from a seed. A [`World`] plays it, event by event; nothing
//! waits and nothing is random but by the scenario's seed. After every step it holds what happened
//! against the model ([`Violation`] names the rule that was broken). What never may live here:
//! sockets, clocks, threads.
//!
//! WAN packets pass in plaintext behind their packet number: the seal is the session's, and a
//! damaged datagram is a lost one to whoever checks it.

mod ahead;
mod control;
mod crowd;
mod datagrams;
mod draw;
mod flow;
mod judge;
mod liar;
mod neighbours;
mod numbers;
mod outages;
mod partners;
mod policies;
mod program;
mod scenario;
mod site;
mod world;

use std::time::Duration;

pub use crowd::{Crowd, CrowdLife, CrowdOp, CrowdWorld, Flaw, Outcome, Route, Spoofed, Spoofing, Tamper};
pub use flow::Atomics;
pub use liar::{Liar, Lie, Reach};
pub use neighbours::{LiedTo, Lies, Meter, Neighbour, Neighbours};
pub use scenario::{Burst, Connection, Fault, Life, Op, Scenario, Work};
pub use world::{Report, World};

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule} at {at:?}: {what}")]
pub struct Violation {
    /// The invariant (`I1` to `I9`, `docs/concepts.md#invariants`), `path` for a wrong account of
    /// the packet numbers, or `rest` for what is left over when everything is done.
    pub rule: &'static str,
    /// Virtual time since the start.
    pub at: Duration,
    /// The event, in words.
    pub what: String,
}

/// A rule broken, and how; the world adds the time.
type Broken = (&'static str, String);

/// Bytes that differ from seed to seed and from place to place.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
