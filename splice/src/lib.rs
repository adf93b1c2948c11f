//! A gateway without its sockets: RoCE flows on one side, the streams to the peer on the other.
//!
//! What lives here: the table of flows and who they belong to, the records that carry them, the
//! bounds that hold them, and [`Gateway`], which ties `roce` and `transport` together. What never
//! may: I/O, clocks, threads, keys. The gateway program drives it with real sockets, the simulator
//! with virtual time.

mod back_pressure;
mod bucket;
mod carriage;
mod classes;
mod coming;
mod congestion;
mod context;
mod failures;
mod far_side;
mod flow_report;
mod from_member;
mod gateway;
pub mod handover;
mod hosts;
mod incoming;
mod kept;
mod lan_queue;
mod lookup;
pub mod members;
mod named_flow;
mod near_side;
mod openings;
mod ordered;
mod outgoing;
mod piggybacked_acks;
pub mod pool;
mod reclaimer;
pub mod record;
mod renewals;
pub mod retention;
mod session_end;
mod settings;
mod shared;
mod short;
pub mod site;
mod sixteen;
mod stale_flows;
mod stalest;
mod stats;
mod surplus;
mod timers;
mod uc_admission;

pub use failures::{By, Cause, FlowFailure};
pub use flow_report::{FlowReport, FlowState};
pub use gateway::Gateway;
pub use gateway::copying::Copying;
pub use gateway::moves::Released;
pub use hosts::Grouping;
pub use near_side::Patience;
pub use openings::{FlowOpening, OpenedBetween, OpenedByHosts};
pub use reliability::estimator::{Arrival, Ecn, LaneId};
pub use reliability::lanes;
pub use session_end::SessionEnd;
pub use settings::Settings;
pub use stale_flows::{FlowSide, StaleFlow};
pub use stats::{LAN_DROPS, LanDrop, Stats};
pub use transport::{ClassStats, PathStats, Sent, Sizes, Tuning, Undrained, auto_flush, window};

#[cfg(test)]
fn test_clock() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    std::time::Instant::now()
}
