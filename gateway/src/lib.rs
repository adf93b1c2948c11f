//! The `longhaul` program's parts: packet and socket I/O, sessions and keys, control, telemetry.
pub mod admin;
pub mod bench;
pub mod check;
pub mod cli;
pub mod demo;
mod drawing;
pub mod interrupt;
pub mod keys;
pub mod lan;
pub mod plan;
pub mod plane;
pub mod record;
pub mod rig;
pub mod run;
pub mod session;
pub mod simulate;
pub mod telemetry;
pub mod wan;
