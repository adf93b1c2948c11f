//! Link impairments, a link emulator, software RDMA hosts, and the simulator of a whole pair of
//! sites.
//!
//! - [`host`]: an RNIC's reliable connections as a pure state machine;
//! - [`impair`]: delay, loss, reordering, rate and the rest, decided from a seed;
//! - [`flood`]: a host that floods its gateway;
//! - [`emulator`]: real packets through [`impair`], in user space;
//! - [`hostio`]: hosts on real sockets, with a workload;
//! - [`cli`]: the last two as commands;
//! - [`sim`]: two gateways with hosts and links in virtual time, checked against a model.
//! - [`transfer`]: one stream over one link in virtual time, and how long its messages take.

pub mod cli;
pub mod emulator;
pub mod flood;
pub mod host;
pub mod hostio;
pub mod impair;
pub mod sim;
pub mod transfer;
mod udp;
