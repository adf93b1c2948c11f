//! Congestion control of a session whose share of the path nobody has provisioned.

mod control;
mod cubic;
mod drain;
mod ecn;
mod modes;
mod round;
mod sent;

pub use control::{Config, Controller, State};
pub use ecn::{EcnState, EcnValidation};
pub use modes::Mode;
