//! `longhaul bench`: what this machine can carry, as a share of what sealed UDP can do on it.

mod cpu;
mod pair;

use std::io::{self, Write};

use netem_tests::hostio::EndpointError;

use crate::rig::RigError;
use crate::wan;

pub use pair::Pair;

/// Why a benchmark gave no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The gateways.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// The RDMA hosts.
    #[error(transparent)]
    Host(#[from] EndpointError),
    /// Sockets, or the output.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What was carried did not all arrive, so its rate means nothing.
    #[error("not everything arrived, and the rate of a part says nothing: {0}")]
    Transfer(String),
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Measures and writes the ceiling for each datagram length (UDP payload bytes), `seconds` for each.
///
/// # Errors
/// See [`wan::ceiling`].
pub fn ceiling(out: &mut dyn Write, seconds: f64, lengths: &[usize]) -> Result<(), BenchError> {
    writeln!(out, "UDP with GSO and GRO over loopback, AES-128-GCM, one thread each way:")?;
    for length in lengths {
        writeln!(out, "{length:>6} bytes  {:>6.1} Gbit/s", wan::ceiling(seconds, *length)?)?;
    }
    Ok(())
}
