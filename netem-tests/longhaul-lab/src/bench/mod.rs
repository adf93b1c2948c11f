//! `longhaul-lab bench`: what this machine can carry, as a share of what sealed UDP can do on it.

mod ceiling;
mod cpu;
mod flood;
mod flows;
mod hosts;
mod lane;
mod latency;
mod memory;
mod messages;
mod pair;
mod process;
mod soak;
mod stages;
mod streams;
mod survive;
mod threads;
mod turns;
mod upgrade;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use linksim::impair::LinkSpec;
use reliability::human;
use testbed::hostio::EndpointError;

use testbed::{Plan, TestbedError};

pub use flood::Flood;
pub use flows::Flows;
pub use lane::Lane;
pub use latency::Latency;
pub use memory::Memory;
pub use messages::Messages;
pub use pair::Pair;
pub use soak::Soak;
pub use streams::Wan;
pub use survive::Survival;
pub use threads::Threads;
pub use turns::Turns;
pub use upgrade::Upgrade;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const TICK: Duration = Duration::from_millis(50);

/// Why a benchmark gave no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The gateways.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The RDMA hosts.
    #[error(transparent)]
    Host(#[from] EndpointError),
    /// Sockets, or the output.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The data carried did not all arrive, so its rate means nothing.
    #[error("not everything arrived, and the rate of a part says nothing: {0}")]
    Transfer(String),
    /// A gateway keeps what it should not, or programs met errors that they should not.
    #[error("{0}")]
    Soak(String),
    /// A host that floods has more than its share.
    #[error("a host that floods takes more than its share:\n{0}")]
    Share(String),
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Measures and writes the ceiling for each datagram length (UDP payload bytes), `seconds` for
/// each.
///
/// # Errors
/// The system refuses sockets, or a length makes no sense.
pub fn ceiling(out: &mut dyn Write, seconds: f64, lengths: &[usize]) -> Result<(), BenchError> {
    writeln!(out, "UDP with GSO and GRO over loopback, AES-128-GCM, one thread each way:")?;
    for length in lengths {
        let rate = ceiling::ceiling(seconds, *length)? * 1e9;
        writeln!(out, "{length:>6} bytes  {:>11}", human::rate(rate))?;
    }
    Ok(())
}

/// A pair of gateways that nothing but the machine limits, over a link without delay or loss; its
/// hosts are yet to be named.
fn clean_pair(program: &Path) -> Plan {
    Plan {
        program: program.to_owned(),
        policy: "scheme = \"sr\"".to_owned(),
        limits: String::new(),
        retention: None,
        busy_poll: "0 s".to_owned(),
        dead_after: "5 s".to_owned(),
        resume_for: "2 min".to_owned(),
        // Far above what is reached: pacing is not what is measured.
        rate: "400 Gbit/s".to_owned(),
        // What a network between datacenters that carries RoCE does carry.
        mtu: [9000; 2],
        probe_mtu: false,
        congestion: "fixed",
        interface: [None, None],
        wan: [Ipv4Addr::LOCALHOST; 2],
        lan_mtu: [None; 2],
        lanes: 1,
        threads: [1; 2],
        link: LinkSpec::default(),
        seed: 1,
        hosts: [Vec::new(), Vec::new()],
    }
}
