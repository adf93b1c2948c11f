//! `longhaul bench`: what this machine can carry, as a share of what sealed UDP can do on it.

mod cpu;
mod latency;
mod pair;
mod stages;
mod streams;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use netem_tests::hostio::{Bound, Endpoint, EndpointConfig, EndpointError, Report, Role, Workload};

use crate::rig::{RigError, Site, host_ip};
use crate::wan;

pub use latency::Latency;
pub use pair::Pair;
pub use streams::Wan;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const TICK: Duration = Duration::from_millis(50);

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

/// The software RDMA hosts of a transfer: client at site A, server at site B.
struct Hosts {
    bound: [Bound; 2],
    /// Where each sends its packets.
    gateways: [SocketAddr; 2],
    /// Their addresses' number.
    index: u8,
    workload: Workload,
}

impl Hosts {
    /// Runs the workload to its end, and then asks `ended` before the hosts go.
    fn run(
        self,
        interrupted: &dyn Fn() -> bool,
        ended: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Report, BenchError> {
        let Self { bound: [a, b], gateways: [to_a, to_b], index, workload } = self;
        let config = |bound: &Bound, gateway, site, other, role| {
            let (ip, remote_ip, workload) = (host_ip(site, index), host_ip(other, index), workload.clone());
            bound.address().map(|bind| EndpointConfig { bind, gateway, ip, remote_ip, role, workload })
        };
        let at_b = config(&b, to_b, Site::B, Site::A, Role::Server)?;
        let at_a = config(&a, to_a, Site::A, Site::B, Role::Client)?;
        let server = Endpoint::start_on(b, &at_b)?;
        let client = Endpoint::start_on(a, &at_a)?;
        while client.is_running() {
            if interrupted() {
                return Err(BenchError::Interrupted);
            }
            std::thread::sleep(TICK);
        }
        ended()?;
        let client = client.join()?;
        server.stop()?;
        if client.is_clean() { Ok(client) } else { Err(BenchError::Transfer(client.to_string())) }
    }
}
