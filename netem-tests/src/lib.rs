//! A link emulator, software RDMA hosts, and the simulator of a whole pair of sites.
//!
//! - [`host`]: an RNIC's reliable connections as a pure state machine;
//! - [`flood`]: a host that floods its gateway;
//! - [`emulator`]: real packets through [`linksim::impair`], in user space;
//! - [`hostio`]: hosts on real sockets, with a workload;
//! - [`cli`]: the last two as commands;
//! - [`testbed`]: two gateway processes joined by the emulator; [`demo`]: what `longhaul demo`
//!   shows on it;
//! - [`sim`]: two gateways with hosts and links in virtual time, checked against a model.

pub mod cli;
pub mod demo;
pub mod emulator;
pub mod flood;
pub mod host;
pub mod hostio;
pub mod sim;
pub mod testbed;
mod udp;
