//! The software-defined reliability core: opaque records over a lossy, reordering, duplicating
//! packet path.
//!
//! Contents: [`stream`] (numbered packets, receive bitmap, reports, repair and coding
//! schemes), [`message`] (restores the order of one flow's records), [`estimator`] (what the path
//! is like), [`mtu`] (how long a packet may be), [`lanes`] (which way it takes), [`trace`]
//! (recorded losses), [`times`] (histograms), [`rtt`], [`pacing`], [`congestion`], [`bitmap`] and
//! [`shelf`]. What never may: I/O, clocks, randomness, threads, or any knowledge of RoCE. Time is a
//! parameter.

pub mod bitmap;
pub mod congestion;
pub mod estimator;
pub mod human;
pub mod lanes;
pub mod link;
pub mod message;
pub mod model;
pub mod mtu;
pub mod pacing;
mod pool;
pub mod rtt;
pub mod selector;
pub mod shelf;
pub mod stream;
pub mod times;
pub mod trace;
