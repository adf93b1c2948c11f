//! Two gateways on this machine, joined by an emulated link: what the demo, the benchmark and the
//! tests of a pair run on.
//!
//! Each gateway is a process of a `longhaul` program, started from files on disk as an operator
//! would, and asked through its admin listener: nothing about it is special but that its LAN is a
//! UDP socket. A process of its own is also what can be killed. Everything is on loopback with
//! ports that were free a moment ago, keys and files in a temporary folder; all of it is gone when
//! the [`Testbed`] is dropped. Should the program itself be killed, the kernel ends the gateways
//! (`--with-parent`).

pub mod browser;
pub mod cli;
pub mod demo;
pub mod drawing;
mod files;
mod gateway;
pub mod hostio;
mod http;
mod ports;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linksim::impair::LinkSpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use gateway::Gateway;
pub use gateway::Survivor;
use link_emulator::{EmulatorStats, NonceReport, Port, Relay, RelaySpec};

/// The parts of a [`Testbed`].
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `longhaul` program.
    pub program: PathBuf,
    /// Keys and values of the one class, without its name: `scheme = "sr"`.
    pub policy: String,
    /// Lines of `[limits]` of both gateway files.
    pub limits: String,
    /// As `retention.directory`, of both; `None`: nothing outlives a process.
    pub retention: Option<PathBuf>,
    /// As `data_plane.busy_poll`.
    pub busy_poll: String,
    /// As `peer.rate`.
    pub rate: String,
    /// As `peer.congestion`.
    pub congestion: &'static str,
    /// As `peer.dead_after`.
    pub dead_after: String,
    /// As `peer.resume_for`.
    pub resume_for: String,
    /// As `wan.mtu`, of site A and of site B.
    pub mtu: [u16; 2],
    /// As `wan.probe_mtu`, of both.
    pub probe_mtu: bool,
    /// As `lan.interface`, of site A and of site B; `None`: socket mode.
    pub interface: [Option<String>; 2],
    /// The local address of site A's WAN and of site B's.
    pub wan: [Ipv4Addr; 2],
    /// As `lan.mtu`, of site A and of site B.
    pub lan_mtu: [Option<u16>; 2],
    /// As `wan.lanes`, of both; each lane of each thread has a link of its own.
    pub lanes: u8,
    /// As `data_plane.threads`, of site A and of site B.
    pub threads: [u8; 2],
    /// The link, the same in both directions and for each lane.
    pub link: LinkSpec,
    /// Seed of the link.
    pub seed: u64,
    /// RDMA hosts of site A (10.0.0.x, or any IPv6) and of site B (10.0.1.x, likewise): the address
    /// in their packets, and their UDP socket.
    pub hosts: [Vec<(IpAddr, SocketAddr)>; 2],
}

/// Returns how many pairs of threads there are: the least common multiple.
fn pairs(threads: [u8; 2]) -> u8 {
    let is_multiple = |number: &u8| threads.iter().all(|count| number.is_multiple_of(*count));
    (1..=u8::MAX).find(is_multiple).unwrap_or(u8::MAX)
}

/// Why there is no pair of gateways.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// Sockets, files, processes.
    #[error("{what}: {source}")]
    Io {
        /// The action tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The program made no certificates.
    #[error("no certificates: {0}")]
    Keys(String),
    /// A gateway ended by itself.
    #[error("gateway {site} ended by itself ({status}); its last words:\n{log}")]
    Ended {
        /// Its site.
        site: char,
        /// How.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// The gateways did not find each other.
    #[error("no session between the gateways after {0:?}")]
    NoSession(Duration),
    /// The admin listener.
    #[error("the admin listener {address} does not answer: {source}")]
    Fetch {
        /// Its address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The admin listener refuses.
    #[error("the admin listener {address} answers {code}: {}", text.trim_end())]
    Refused {
        /// Its address.
        address: SocketAddr,
        /// HTTP status code.
        code: u16,
        /// The answer.
        text: String,
    },
    /// An answer that is none of the kind asked for.
    #[error("a gateway's answer cannot be read: {0}")]
    Answer(#[from] serde_json::Error),
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl TestbedError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Which gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The one that dials.
    A,
    /// The one that listens.
    B,
}

/// A session comes up within some tenths of a second; a machine busy with other things takes
/// longer.
const SESSION_PATIENCE: Duration = Duration::from_secs(20);
/// Starts with other ports after one was taken in the meantime.
const ATTEMPTS: usize = 4;
const TICK: Duration = Duration::from_millis(20);
/// The relay's port of QUIC ([`Port::gateway_pair`]).
const CONTROL_PORT: usize = 0;
/// The same of bulk data.
const BULK_PORT: usize = 1;
/// HTTP status codes of an admin listener.
const OK: u16 = 200;
const UNPROCESSABLE: u16 = 422;

/// The part of a gateway's `/status` that says whether its session is up.
#[derive(Deserialize)]
struct Status {
    session: Session,
}

#[derive(Deserialize)]
struct Session {
    state: String,
}

/// The address of an RDMA host in its packets: `index` from 1 on.
#[must_use]
pub fn host_ip(site: Site, index: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, site as u8, index).into()
}

/// A running pair. Dropping it kills the gateways and removes their files; [`Testbed::stop`] lets
/// them end by themselves.
pub struct Testbed {
    gateways: [Gateway; 2],
    relay: Relay,
    /// Removed last.
    dir: TempDir,
}

impl Testbed {
    /// Starts both gateways and waits until they have a session. `interrupted` is asked now and
    /// then whether to give up.
    ///
    /// # Errors
    /// See [`TestbedError`].
    pub fn start(plan: &Plan, interrupted: &dyn Fn() -> bool) -> Result<Self, TestbedError> {
        let mut attempt = 1;
        loop {
            match Self::attempt(plan, interrupted) {
                // Most likely a port: somebody else took it between our finding it free and its
                // being bound.
                Err(TestbedError::Ended { .. } | TestbedError::Io { .. }) if attempt < ATTEMPTS => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn attempt(plan: &Plan, interrupted: &dyn Fn() -> bool) -> Result<Self, TestbedError> {
        let dir = tempfile::Builder::new()
            .prefix("longhaul-")
            .tempdir()
            .map_err(TestbedError::io("a temporary folder"))?;
        let pairs = pairs(plan.threads);
        let ports = ports::Ports::find(plan.lanes.saturating_mul(pairs), plan.wan)
            .map_err(TestbedError::io("free ports"))?;
        files::write(dir.path(), plan, &ports)?;
        let [a, b] = &ports.sites;
        let spec = RelaySpec {
            ports: Port::gateway_pair(a.relay, a.wan, b.relay, b.wan).into(),
            lanes: usize::from(plan.lanes) * usize::from(pairs),
            a_to_b: plan.link,
            b_to_a: plan.link,
            seed: plan.seed,
        };
        let relay = Relay::start(&spec).map_err(TestbedError::io("the link emulator"))?;
        let start = |site, ports| Gateway::start(&plan.program, dir.path(), site, ports);
        let gateways = [start('a', a)?, start('b', b)?];
        let mut testbed = Self { gateways, relay, dir };
        testbed.wait_for_session(interrupted)?;
        Ok(testbed)
    }

    /// Waits until both gateways say that their session is up.
    ///
    /// # Errors
    /// A gateway has ended, or there is no session after a while.
    pub fn wait_for_session(&mut self, interrupted: &dyn Fn() -> bool) -> Result<(), TestbedError> {
        let end = Instant::now() + SESSION_PATIENCE;
        loop {
            for gateway in &mut self.gateways {
                gateway.check()?;
            }
            let up = |site| self.status(site).is_ok_and(|status: Status| status.session.state == "up");
            if up(Site::A) && up(Site::B) {
                return Ok(());
            }
            if interrupted() {
                return Err(TestbedError::Interrupted);
            }
            if Instant::now() >= end {
                return Err(TestbedError::NoSession(SESSION_PATIENCE));
            }
            std::thread::sleep(TICK);
        }
    }

    /// The folder with all files: `a.toml`, `a.crt`, `a.key`, likewise for b, and `ca.crt`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Where the site's RDMA hosts send their packets.
    #[must_use]
    pub fn lan(&self, site: Site) -> SocketAddr {
        self.gateway(site).lan()
    }

    /// The site's admin listener.
    #[must_use]
    pub fn admin(&self, site: Site) -> SocketAddr {
        self.gateway(site).admin()
    }

    /// The gateway's process id; 0 while it is killed.
    #[must_use]
    pub fn pid(&self, site: Site) -> u32 {
        self.gateway(site).pid()
    }

    /// Returns the gateway's own status, or the part of it that `T` has; up to a tenth of a second
    /// old.
    ///
    /// # Errors
    /// It does not answer, or not with a `T`.
    pub fn status<T: DeserializeOwned>(&self, site: Site) -> Result<T, TestbedError> {
        Ok(serde_json::from_str(&self.fetch(site, "/status")?)?)
    }

    /// A page of the gateway's admin listener.
    ///
    /// # Errors
    /// It does not answer.
    pub fn fetch(&self, site: Site, path: &str) -> Result<String, TestbedError> {
        match self.exchange(site, "GET", path)? {
            (OK, text) => Ok(text),
            (code, text) => Err(TestbedError::Refused { address: self.admin(site), code, text }),
        }
    }

    fn exchange(&self, site: Site, method: &str, path: &str) -> Result<(u16, String), TestbedError> {
        let address = self.admin(site);
        http::exchange(address, method, path).map_err(|source| TestbedError::Fetch { address, source })
    }

    /// Writes the policy file that both gateways name. They read it when told to.
    ///
    /// # Errors
    /// The system refuses.
    pub fn write_policy(&self, text: &str) -> Result<(), TestbedError> {
        std::fs::write(self.dir.path().join("policy.toml"), text).map_err(TestbedError::io("the policy file"))
    }

    /// Has a gateway read its policy file again. That it refuses the file is an answer, too.
    ///
    /// # Errors
    /// It does not answer, or not with a `T`.
    pub fn reload<T: DeserializeOwned>(&self, site: Site) -> Result<T, TestbedError> {
        match self.exchange(site, "POST", "/reload")? {
            (OK | UNPROCESSABLE, text) => Ok(serde_json::from_str(&text)?),
            (code, text) => Err(TestbedError::Refused { address: self.admin(site), code, text }),
        }
    }

    /// Changes the link under way, in both directions.
    pub fn set_link(&self, link: LinkSpec) {
        self.relay.set_links(link, link);
    }

    /// Changes the link of one lane under way: from site A, and from site B.
    pub fn set_lane(&self, lane: usize, from_a: LinkSpec, from_b: LinkSpec) {
        self.relay.set_lane(lane, from_a, from_b);
    }

    /// Drops all of the control connection's packets, or no longer; bulk data pass.
    pub fn block_control(&self, blocked: bool) {
        self.relay.block(CONTROL_PORT, blocked);
    }

    /// Drops all bulk data, or no longer; the control connection's packets pass.
    pub fn block_bulk(&self, blocked: bool) {
        self.relay.block(BULK_PORT, blocked);
    }

    /// Drops the bulk data of these sites, A and B, and only of these.
    pub fn block_bulk_from(&self, blocked: [bool; 2]) {
        self.relay.block_each(BULK_PORT, blocked);
    }

    /// Compares from now on the headers of all bulk datagrams that either gateway sends.
    pub fn watch_nonces(&self) {
        self.relay.watch_nonces(BULK_PORT);
    }

    /// Returns what [`Testbed::watch_nonces`] has found.
    #[must_use]
    pub fn nonces(&self) -> NonceReport {
        self.relay.nonces()
    }

    /// The link's counters; up to some 20 ms old.
    #[must_use]
    pub fn link_stats(&self) -> EmulatorStats {
        self.relay.stats()
    }

    /// Checks that everything still runs.
    ///
    /// # Errors
    /// A gateway has ended.
    pub fn check(&mut self) -> Result<(), TestbedError> {
        self.gateways.iter_mut().try_for_each(Gateway::check)
    }

    /// Stops one gateway gracefully; [`Testbed::restart`] starts it again.
    ///
    /// # Errors
    /// It did not end well, or not in time.
    pub fn stop_one(&mut self, site: Site) -> Result<(), TestbedError> {
        let gateway = self.gateway_mut(site);
        gateway.ask_to_stop()?;
        gateway.wait_for_end()
    }

    /// As `kill -9`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self, site: Site) -> Result<(), TestbedError> {
        self.gateway_mut(site).kill()
    }

    /// Starts a killed gateway again, on its old ports.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn restart(&mut self, site: Site) -> Result<(), TestbedError> {
        self.gateway_mut(site).restart()
    }

    /// Starts `program` to take the place of a running gateway, and waits for that. False: it has
    /// not, within `patience`, and the gateway goes on.
    ///
    /// # Errors
    /// The gateway has ended otherwise.
    pub fn upgrade(&mut self, site: Site, program: &Path, patience: Duration) -> Result<bool, TestbedError> {
        self.gateway_mut(site).upgrade(program, patience)
    }

    /// Starts the same program to take a gateway's place, whichever of the two is killed meanwhile.
    /// Returns who is left.
    ///
    /// # Errors
    /// A process cannot be started or watched, or both go on for too long.
    pub fn contest(&mut self, site: Site, patience: Duration) -> Result<Survivor, TestbedError> {
        self.gateway_mut(site).contest(patience)
    }

    /// Asks both gateways to stop and waits for their end.
    ///
    /// # Errors
    /// One did not end in time, or with a failure.
    pub fn stop(mut self) -> Result<(), TestbedError> {
        self.gateways.iter().try_for_each(Gateway::ask_to_stop)?;
        self.gateways.iter_mut().try_for_each(Gateway::wait_for_end)
    }

    fn gateway(&self, site: Site) -> &Gateway {
        let [a, b] = &self.gateways;
        if site == Site::A { a } else { b }
    }

    fn gateway_mut(&mut self, site: Site) -> &mut Gateway {
        let [a, b] = &mut self.gateways;
        if site == Site::A { a } else { b }
    }
}
