//! The software RDMA hosts at either end of a transfer.

use std::net::SocketAddr;
use std::time::Instant;

use roce::wire::PathMtu;
use soft_nic::{QpConfig, verbs_timeout};
use testbed::hostio::{Bound, Endpoint, EndpointConfig, Mix, Progress, Report, Role, Workload};
use testbed::{Plan, Site, Testbed, host_ip};

use super::cpu::CpuMeter;
use super::{BenchError, LOOPBACK, TICK};

/// WRITEs, not verified, of queue pairs that are patient: a message may wait behind those of all
/// others, and the link may be long.
pub(super) fn writes() -> Workload {
    Workload {
        mix: Mix::WRITE,
        verify: false,
        seed: 1,
        qp: QpConfig {
            mtu: PathMtu::B4096,
            window: 256,
            timeout: Some(verbs_timeout(20)),
            ..QpConfig::default()
        },
        ..Workload::default()
    }
}

/// Sockets of so many pairs of hosts, one at each site.
pub(super) fn bind(pairs: usize) -> Result<Vec<[Bound; 2]>, BenchError> {
    (0..pairs).map(|_| Ok([Bound::new(LOOPBACK)?, Bound::new(LOOPBACK)?])).collect()
}

/// As [`Plan::hosts`] names them, numbered from 1 on.
pub(super) fn known(hosts: &[[Bound; 2]], plan: &mut Plan) -> Result<(), BenchError> {
    for (index, pair) in (1u8..).zip(hosts) {
        for ((known, site), host) in plan.hosts.iter_mut().zip([Site::A, Site::B]).zip(pair) {
            known.push((host_ip(site, index), host.address()?));
        }
    }
    Ok(())
}

/// The hosts of a transfer: client at site A, server at site B.
pub(super) struct Hosts {
    pub(super) bound: [Bound; 2],
    /// Where each sends its packets.
    pub(super) gateways: [SocketAddr; 2],
    /// Their addresses' number.
    pub(super) index: u8,
    pub(super) workload: Workload,
}

/// A transfer and what it took.
pub(super) struct Metered {
    /// The client's.
    pub(super) report: Report,
    /// Processors kept busy after the warm-up, on average: by gateway A, by gateway B, and by the
    /// hosts with the emulator.
    pub(super) cores: [f64; 3],
}

impl Hosts {
    /// Runs the workload to its end between these gateways, and meters it after its warm-up.
    pub(super) fn metered(
        self,
        testbed: &Testbed,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Metered, BenchError> {
        let (began, warmup) = (Instant::now(), self.workload.warmup);
        let processes = [testbed.pid(Site::A), testbed.pid(Site::B), std::process::id()];
        let mut meters = Vec::new();
        let report = self.watch(
            interrupted,
            &mut |_| {
                if meters.is_empty() && began.elapsed() >= warmup {
                    for process in processes {
                        meters.push(CpuMeter::start(&[process])?);
                    }
                }
                Ok(())
            },
            &mut || Ok(()),
        )?;
        let mut cores = [0.0; 3];
        for (cores, meter) in cores.iter_mut().zip(&meters) {
            *cores = meter.cores()?;
        }
        Ok(Metered { report, cores })
    }

    /// Runs the workload to its end, and then asks `ended` before the hosts go.
    pub(super) fn run(
        self,
        interrupted: &dyn Fn() -> bool,
        ended: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Report, BenchError> {
        self.watch(interrupted, &mut |_| Ok(()), ended)
    }

    /// As [`Hosts::run`], asking `during` now and then meanwhile.
    pub(super) fn watch(
        self,
        interrupted: &dyn Fn() -> bool,
        during: &mut dyn FnMut(&Progress) -> Result<(), BenchError>,
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
            during(client.progress())?;
            std::thread::sleep(TICK);
        }
        ended()?;
        let client = client.join()?;
        server.stop()?;
        if client.is_clean() { Ok(client) } else { Err(BenchError::Transfer(client.to_string())) }
    }
}
