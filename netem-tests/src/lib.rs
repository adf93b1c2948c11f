//! The simulator: two gateways with hosts and links in virtual time, checked against a model.
//!
//! The tests of this crate play it. Beside it in this folder stand, each a crate of its own: the
//! software NIC (`soft-nic`), the emulator (`link-emulator`), gateway processes with hosts on
//! sockets (`testbed`), the laboratory (`longhaul-lab`) and the comparison (`compare`).

pub mod sim;

/// The software NIC, in whose terms scenarios speak.
pub use soft_nic as host;
pub use soft_nic::flood;
