//! An impaired link in virtual time, and how long messages take on it.
//!
//! - [`impair`]: delay, loss, reordering, rate and the rest, decided from a seed;
//! - [`transfer`]: one stream over one link, and how long its messages take.
//!
//! Knows no RoCE, socket or clock: the operator's `longhaul simulate` runs on it, the link emulator
//! and the simulator of `netem-tests` as well.

pub mod impair;
pub mod transfer;
