//! Messages as RDMA WRITEs of software hosts that talk to the gateway of their site.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use gateway::admin::{self, Status};
use roce::wire::PathMtu;
use soft_nic::{QpConfig, verbs_timeout};
use testbed::hostio::{Endpoint, EndpointConfig, Limit, Mix, Role, Workload};

use super::Error;
use crate::job::{Job, report, say, wait_for_release};

/// Where a site's gateway listens for its hosts, and where its host does: each site has a loopback
/// of its own.
pub(crate) const LAN: SocketAddr = local(4791);
pub(crate) const HOST: SocketAddr = local(4700);
/// The gateway's admin listener.
pub(crate) const ADMIN: SocketAddr = local(9464);
/// The hosts' addresses in their packets.
pub(crate) const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);

/// Packets under way between a host and its gateway, all queue pairs together: loopback has no flow
/// control, and drops what a socket has no room for.
const WINDOWS: u32 = 1024;
const TICK: Duration = Duration::from_millis(2);
const SESSION_PATIENCE: Duration = Duration::from_secs(20);
const SESSION_TICK: Duration = Duration::from_millis(20);

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub(super) fn receive(job: &Job) -> Result<(), Error> {
    let _server = Endpoint::start(&config(job, Role::Server))?;
    say("ready")?;
    Ok(wait_for_release()?)
}

pub(super) fn send(job: &Job) -> Result<(), Error> {
    let config = config(job, Role::Client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = || runtime.block_on(admin::fetch(&ADMIN.into(), "/status"));
    let started = Instant::now();
    while !status().is_ok_and(|status| is_up(&status)) {
        if started.elapsed() > SESSION_PATIENCE {
            return Err("no session between the gateways".into());
        }
        thread::sleep(SESSION_TICK);
    }
    say("begin")?;
    let start = Instant::now();
    let client = Endpoint::start(&config)?;
    while client.is_running() && start.elapsed() < job.time.saturating_add(job.patience) {
        thread::sleep(TICK);
    }
    let done = client.stop()?;
    let failed: u64 = done.failures.iter().map(|(_, count)| *count).sum();
    let messages: Vec<_> = done.timeline.iter().map(|span| (span.posted, span.completed)).collect();
    report(&messages, done.corrupt + failed)?;
    if let Ok(folder) = std::env::var("COMPARE_STATUS") {
        std::fs::write(folder, status()?)?;
    }
    Ok(wait_for_release()?)
}

fn is_up(status: &str) -> bool {
    serde_json::from_str::<Status>(status).is_ok_and(|status| status.session.state == "up")
}

fn config(job: &Job, role: Role) -> EndpointConfig {
    let (ip, remote_ip) = if role == Role::Client { (SENDER, RECEIVER) } else { (RECEIVER, SENDER) };
    EndpointConfig {
        bind: HOST,
        gateway: LAN,
        ip: ip.into(),
        remote_ip: remote_ip.into(),
        role,
        workload: workload(job),
    }
}

fn workload(job: &Job) -> Workload {
    let (qps, depth) = (job.connections, job.outstanding.div_ceil(job.connections));
    let limit = if job.count == u64::MAX {
        Limit::Time(job.time)
    } else {
        Limit::Messages(job.count.div_ceil(qps.into()))
    };
    Workload {
        qps,
        depth,
        mix: Mix::WRITE,
        message: u32::try_from(job.size).unwrap_or(u32::MAX),
        limit,
        verify: job.verify,
        timeline: true,
        patience: job.time.saturating_add(job.patience),
        // The gateway answers for a target that is a round trip away, and withholds ACKs where it
        // has no room.
        qp: QpConfig {
            mtu: PathMtu::B4096,
            window: (WINDOWS / qps).clamp(16, 256),
            timeout: Some(verbs_timeout(18)),
            ..QpConfig::default()
        },
        ..Workload::default()
    }
}
