//! Link impairments: what a packet suffers on a long way, decided from a seed, in virtual or real
//! time.
//!
//! The parameters and their meaning are `tc netem`'s (`sch_netem.c`), written the same way: see
//! [`LinkSpec`]. Two deliberate differences: the rate is that of a bottleneck in front of the
//! delay, and `limit` bounds the queue of that bottleneck only, not the packets under way (netem
//! counts both, so its `limit` silently caps rate x delay).

mod fate;
mod link;
mod spec;
#[cfg(test)]
mod tests;

pub use fate::{Delivery, Drop, Fate, Impairer};
pub use link::{Link, LinkStats};
pub use spec::{Distribution, LinkSpec, Loss, ParseError};
