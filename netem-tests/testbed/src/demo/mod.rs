//! `longhaul demo`: a pair of gateways on this machine, what they do about loss, in under a minute.
//!
//! Two gateway processes (a [`Testbed`]), the link emulator and two software RDMA hosts; the same
//! traffic over the same links is carried once by plain RC, straight from host to host, and once
//! per scheme by the gateways. Everything is unprivileged and gone afterwards.

mod measure;
mod progress;
mod report;
mod table;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use linksim::impair::LinkSpec;
use roce::wire::PathMtu;

use crate::hostio::{Bound, EndpointError, Limit, Mix, Workload};
use crate::{Plan, Site, Testbed, TestbedError, host_ip};
use link_emulator::{Port, Relay, RelaySpec, Side};
use measure::{Hosts, Measured, Wire};
use progress::Progress;
use soft_nic::QpConfig;
use table::Row;

pub use report::{DemoReport, DemoTransfer};

/// How the demo is run.
#[derive(Debug, Clone)]
pub struct Demo {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// A quarter of the time, for a first glance; percentiles then rest on few messages.
    pub quick: bool,
}

/// Why the demo did not end well.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The gateways.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The RDMA hosts.
    #[error(transparent)]
    Host(#[from] EndpointError),
    /// The emulator's sockets, or the output.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The table says which.
    #[error("{0} of the transfers did not arrive whole and right")]
    Transfers(usize),
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A link of the table.
struct Link {
    name: &'static str,
    loss: &'static str,
}

/// 25 ms of round trip each. The last one loses 1 % too, but in bursts of four on average.
const LINKS: [Link; 4] = [
    Link { name: "no loss", loss: "" },
    Link { name: "0.1 % loss", loss: "loss 0.1%" },
    Link { name: "1 % loss", loss: "loss 1%" },
    Link { name: "1 % in bursts", loss: "loss gemodel 0.2525% 25%" },
];

/// The schemes of the table, as a policy file has them.
const SCHEMES: [(&str, &str); 2] =
    [("sr", "scheme = \"sr\""), ("mds(32,8)", "scheme = \"mds\"\nk = 32\nm = 8")];
const PLAIN: &str = "plain RC";

const RATE: &str = "1 Gbit/s";
/// One RoCE packet of 4096 bytes to a WAN packet: a loss costs the gateways as much as it costs
/// plain RC.
const WAN_MTU: u16 = 4300;
const SEED: u64 = 2024;
/// A gateway's datagrams stand in IP and UDP headers of their own; the plain hosts' are whole IP
/// packets.
const IP_UDP: u32 = 28;

/// The same for all: within the window of plain RC, so that the difference is not one of windows.
fn workload(quick: bool, seed: u64) -> Workload {
    Workload {
        qps: 4,
        mix: Mix { write: 2, send: 1, read: 1, ..Mix { write: 0, ..Mix::WRITE } },
        message: 64 * 1024,
        depth: 8,
        within_ring: false,
        limit: Limit::Time(Duration::from_millis(if quick { 750 } else { 2750 })),
        warmup: Duration::from_millis(150),
        patience: Duration::from_secs(10),
        verify: true,
        timeline: false,
        seed,
        // Rather a NIC than Soft-RoCE where they differ: plain RC is to look as good as it can.
        qp: QpConfig { mtu: PathMtu::B4096, restart_reads_on_gap: true, ..QpConfig::default() },
    }
}

fn link(of: &Link, overhead: u32) -> Result<LinkSpec, io::Error> {
    let text = format!("delay 12.5ms {} rate 1gbit overhead {overhead} limit 2000", of.loss);
    text.parse().map_err(io::Error::other)
}

/// A demo's measurements. Whatever ended it, they are worth seeing.
pub struct Demonstration {
    rows: Vec<Row>,
    ended: Result<(), DemoError>,
}

impl Demonstration {
    /// Returns it for other programs.
    #[must_use]
    pub fn report(&self) -> DemoReport {
        DemoReport::new(&self.rows)
    }

    /// Returns it as a table with explanations; nothing if no transfer has ended.
    #[must_use]
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        table::table(&LINKS.map(|link| link.name), &self.rows)
    }

    /// Returns how it ended.
    ///
    /// # Errors
    /// See [`DemoError`].
    pub fn outcome(self) -> Result<(), DemoError> {
        self.ended?;
        match self.rows.iter().filter(|row| !row.measured.is_clean()).count() {
            0 => Ok(()),
            failed => Err(DemoError::Transfers(failed)),
        }
    }
}

impl Demo {
    /// Runs it all; progress goes to standard error.
    pub fn run(&self, interrupted: &dyn Fn() -> bool) -> Demonstration {
        let mut progress = Progress::new(LINKS.len() * (SCHEMES.len() + 1));
        let mut rows: Vec<Row> = Vec::new();
        let ended = self.measure(&mut rows, &mut progress, interrupted);
        progress.finish();
        Demonstration { rows, ended }
    }

    /// Adds a row for each transfer that ends.
    fn measure(
        &self,
        rows: &mut Vec<Row>,
        progress: &mut Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), DemoError> {
        for (index, link) in LINKS.iter().enumerate() {
            let measured = self.plain(link, index, progress, interrupted)?;
            rows.push(Row { link: link.name, carrier: PLAIN, measured });
        }
        for (name, policy) in SCHEMES {
            self.gateways(name, policy, rows, progress, interrupted)?;
        }
        Ok(())
    }

    /// The hosts straight through the emulator.
    fn plain(
        &self,
        of: &Link,
        index: usize,
        progress: &mut Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Measured, DemoError> {
        let loopback = ([127, 0, 0, 1], 0).into();
        let bound = [Bound::new(loopback)?, Bound::new(loopback)?];
        let [a, b] = &bound;
        let side = |host: &Bound| {
            host.address().map(|peer| Side { listen: loopback, peer: Some(peer), learn: false })
        };
        let link = link(of, 0)?;
        let ports = vec![Port { a: side(a)?, b: side(b)? }];
        let relay = Relay::start(&RelaySpec {
            ports,
            lanes: 1,
            a_to_b: link,
            b_to_a: link,
            seed: SEED + index as u64,
        })?;
        let (for_a, for_b) = relay.addresses(0).ok_or(io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        let hosts = Hosts {
            bound,
            gateways: [for_a, for_b],
            ips: [host_ip(Site::A, 1), host_ip(Site::B, 1)],
            workload: workload(self.quick, SEED + index as u64),
        };
        progress.begin(of.name, PLAIN);
        let before = Wire::of_link(&relay.stats(), 0);
        let ran = hosts.run(progress, interrupted)?;
        let measured = Measured::plain(ran, Wire::of_link(&relay.stop()?, 0) - before);
        progress.end(measured.client.goodput());
        Ok(measured)
    }

    /// A pair of gateways without hosts, over a clean link.
    fn plan(&self, policy: &str) -> Plan {
        Plan {
            program: self.program.clone(),
            policy: policy.to_owned(),
            limits: String::new(),
            retention: None,
            busy_poll: "0 s".to_owned(),
            dead_after: "5 s".to_owned(),
            resume_for: "2 min".to_owned(),
            rate: RATE.to_owned(),
            mtu: [WAN_MTU; 2],
            probe_mtu: false,
            congestion: "fixed",
            interface: [None, None],
            wan: [Ipv4Addr::LOCALHOST; 2],
            lan_mtu: [None; 2],
            lanes: 1,
            threads: [1; 2],
            link: LinkSpec::default(),
            seed: SEED,
            hosts: [Vec::new(), Vec::new()],
        }
    }

    /// Through a pair of gateways with one scheme, over one link after the other.
    fn gateways(
        &self,
        name: &'static str,
        policy: &str,
        rows: &mut Vec<Row>,
        progress: &mut Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), DemoError> {
        let loopback = ([127, 0, 0, 1], 0).into();
        let mut bound = Vec::new();
        let mut known = [Vec::new(), Vec::new()];
        for index in 1..=LINKS.len() as u8 {
            let pair = [Bound::new(loopback)?, Bound::new(loopback)?];
            for ((known, site), host) in known.iter_mut().zip([Site::A, Site::B]).zip(&pair) {
                known.push((host_ip(site, index), host.address()?));
            }
            bound.push(pair);
        }
        let mut links = Vec::new();
        for of in &LINKS {
            links.push(link(of, IP_UDP)?);
        }
        let first = links.first().copied().unwrap_or_default();
        let plan = Plan { link: first, hosts: known, ..self.plan(policy) };
        let mut testbed = Testbed::start(&plan, interrupted)?;
        for (index, (bound, (of, link))) in (1u8..).zip(bound.into_iter().zip(LINKS.iter().zip(links))) {
            testbed.set_link(link);
            let hosts = Hosts {
                bound,
                gateways: [testbed.lan(Site::A), testbed.lan(Site::B)],
                ips: [host_ip(Site::A, index), host_ip(Site::B, index)],
                workload: workload(self.quick, SEED + u64::from(index) - 1),
            };
            progress.begin(of.name, name);
            let before = Wire::of_gateways(&testbed, IP_UDP)?;
            let ran = hosts.run(progress, interrupted);
            // If a gateway has ended, that is the reason to show.
            testbed.check()?;
            let ran = ran?;
            let measured = Measured::carried(ran, Wire::of_gateways(&testbed, IP_UDP)? - before);
            progress.end(measured.client.goodput());
            rows.push(Row { link: of.name, carrier: name, measured });
        }
        testbed.stop()?;
        Ok(())
    }
}
