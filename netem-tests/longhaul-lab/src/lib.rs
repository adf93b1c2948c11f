//! The laboratory's command line and what stands behind it.
//!
//! - [`bench`]: what this machine can carry, as a share of what sealed UDP can do on it;
//! - [`sweep`]: what `auto` chooses, judged over a grid of links;
//! - [`paper`]: a published evaluation, its formulas and its cells, beside what our schemes do.
//!
//! Everything here measures the product through its public API or as processes. Nothing of the
//! product depends on it.

pub mod bench;
pub mod cli;
pub mod paper;
pub mod sweep;
