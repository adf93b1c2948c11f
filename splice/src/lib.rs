//! A gateway without its sockets: RoCE flows on one side, the streams to the peer on the other.
//!
//! What lives here: the table of flows and who they belong to, the records that carry them, the bounds that hold them, and
//! [`Gateway`], which ties `roce` and `reliability` together. What never may: I/O, clocks, threads, keys. The gateway program drives it
//! with real sockets, the simulator with virtual time.

mod answers;
mod bounds;
mod carriage;
mod class;
mod classes;
mod coming;
mod congestion;
mod context;
mod far_side;
mod gateway;
mod group;
mod hosts;
mod incoming;
mod lan_queue;
mod lookup;
mod marker;
mod memory;
mod near_side;
mod ordered;
mod outgoing;
mod path;
pub mod pool;
mod receivers;
pub mod record;
mod relief;
mod senders;
mod settings;
mod shared;
mod sizes;
mod stats;
mod timers;
mod whole;
mod withheld;

pub use bounds::{auto_flush, window};
pub use gateway::{ClassStats, Gateway, SessionEnd};
pub use memory::{Remembered, Stood};
pub use path::PathStats;
pub use reliability::estimator::{Arrival, Ecn, LaneId};
pub use reliability::lanes;
pub use senders::{Tuning, Undrained};
pub use settings::Settings;
pub use sizes::{Sent, Sizes};
pub use stats::{LAN_DROPS, LanDrop, Stats};

#[cfg(test)]
fn test_clock() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    std::time::Instant::now()
}
