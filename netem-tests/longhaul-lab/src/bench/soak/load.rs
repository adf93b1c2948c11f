//! The load on the gateways: transfers of random kinds between hosts that are used again and again.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use linksim::impair::{LinkSpec, Loss};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use soft_nic::QpConfig;
use testbed::hostio::{Endpoint, EndpointConfig, Limit, Mix, Report, Role, Workload};
use testbed::{Plan, Site, Testbed, host_ip};

use super::super::BenchError;
use super::super::hosts;

/// Pairs of hosts.
const HOSTS: usize = 24;
/// A pair of hosts is used again no sooner: as long as making connections anew takes programs, and
/// longer than any round trip here.
const REUSE: Duration = Duration::from_secs(1);
const MANY: u32 = 400;
/// Bytes outstanding of a transfer at most.
const OUTSTANDING: u32 = 4 << 20;
const TIMES: std::ops::Range<u64> = 500..1500;
const MIXES: [Mix; 4] = [Mix::WRITE, Mix::SEND, Mix::READ, Mix::ALL];
/// Tries of a NIC at intervals of half a second: longer than a gateway takes to start, shorter than
/// a round's patience.
const TRIES: u8 = 6;
const TIMEOUT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

/// The hosts, and what they have done.
pub(super) struct Load {
    /// Addresses of hosts at site A and site B, with the number in their IP addresses, the one used
    /// longest ago first; and since when they are free.
    free: VecDeque<(u8, [SocketAddr; 2], Option<Instant>)>,
    flows: u64,
    messages: u64,
    bytes: u64,
    /// Flows whose programs met an error, since the peer was lost.
    broken: u64,
}

/// Client and server of a transfer that runs.
pub(super) struct Transfer {
    client: Endpoint,
    server: Endpoint,
    index: u8,
    addresses: [SocketAddr; 2],
}

impl Transfer {
    pub(super) fn is_running(&self) -> bool {
        self.client.is_running()
    }
}

impl Load {
    /// Finds addresses, and names them in the plan.
    pub(super) fn bind(plan: &mut Plan) -> Result<Self, BenchError> {
        let bound = hosts::bind(HOSTS)?;
        hosts::known(&bound, plan)?;
        let mut free = VecDeque::new();
        for (index, [a, b]) in (1u8..).zip(&bound) {
            free.push_back((index, [a.address()?, b.address()?], None));
        }
        Ok(Self { free, flows: 0, messages: 0, bytes: 0, broken: 0 })
    }

    /// Many flows with little each.
    pub(super) fn many(&self, random: &mut Pcg64Mcg) -> Workload {
        Workload { qps: MANY, message: 4096, depth: 2, mix: Mix::WRITE, ..common(random) }
    }

    pub(super) fn any(&self, random: &mut Pcg64Mcg) -> Workload {
        let mix = MIXES.get(random.random_range(0..MIXES.len())).copied().unwrap_or(Mix::ALL);
        let message = 1 << random.random_range(6..18);
        let message = message + random.random_range(0..message);
        let depth = random.random_range(1..16);
        let qps = random.random_range(1..=(OUTSTANDING / message / depth).clamp(1, 64));
        Workload { qps, message, depth, mix, ..common(random) }
    }

    /// Starts a transfer whose client is at that site.
    pub(super) fn start(
        &mut self,
        testbed: &Testbed,
        client: Site,
        workload: &Workload,
    ) -> Result<Transfer, BenchError> {
        let free = self.free.pop_front();
        let (index, addresses, since) =
            free.ok_or_else(|| BenchError::Soak("all hosts are in use".to_owned()))?;
        if let Some(since) = since {
            std::thread::sleep(REUSE.saturating_sub(since.elapsed()));
        }
        self.flows += u64::from(workload.qps);
        let [a, b] = addresses;
        let endpoint = |site, role| {
            let (bind, other) = if site == Site::A { (a, Site::B) } else { (b, Site::A) };
            let (ip, remote_ip) = (host_ip(site, index), host_ip(other, index));
            let workload = workload.clone();
            Endpoint::start(&EndpointConfig {
                bind,
                gateway: testbed.lan(site),
                ip,
                remote_ip,
                role,
                workload,
            })
        };
        let target = if client == Site::A { Site::B } else { Site::A };
        let server = endpoint(target, Role::Server)?;
        Ok(Transfer { client: endpoint(client, Role::Client)?, server, index, addresses })
    }

    /// Ends a transfer that has run to its end, and which nothing excuses.
    pub(super) fn complete(&mut self, transfer: Transfer) -> Result<(), BenchError> {
        let (client, server) = self.finish(transfer)?;
        if client.is_clean() && server.is_clean() && client.messages > 0 {
            Ok(())
        } else {
            Err(BenchError::Transfer(format!("client: {client}\nserver: {server}")))
        }
    }

    /// Ends one that lost its gateway: it may have met errors, but never wrong data.
    pub(super) fn abandon(&mut self, transfer: Transfer) -> Result<(), BenchError> {
        let (client, server) = self.finish(transfer)?;
        self.broken += u64::from(!client.failures.is_empty());
        if client.corrupt + server.corrupt > 0 {
            return Err(BenchError::Transfer(format!("wrong data. client: {client}\nserver: {server}")));
        }
        Ok(())
    }

    fn finish(&mut self, transfer: Transfer) -> Result<(Report, Report), BenchError> {
        let Transfer { client, server, index, addresses } = transfer;
        let (client, server) = (client.stop()?, server.stop()?);
        self.messages += client.messages;
        self.bytes += client.bytes;
        self.free.push_back((index, addresses, Some(Instant::now())));
        Ok((client, server))
    }

    /// Returns true if everything that is to be tried was.
    pub(super) fn did_all(&self) -> bool {
        self.flows > u64::from(MANY) && self.bytes > 0 && self.broken > 0
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, messages, bytes, broken, .. } = self;
        let gibibytes = *bytes as f64 / f64::from(1 << 30);
        write!(
            f,
            "{flows} flows, {messages} messages, {gibibytes:.1} GiB, {broken} transfers broken by the loss of the peer"
        )
    }
}

fn common(random: &mut Pcg64Mcg) -> Workload {
    Workload {
        limit: Limit::Time(Duration::from_millis(random.random_range(TIMES))),
        patience: PATIENCE,
        seed: random.random(),
        qp: QpConfig { timeout: Some(TIMEOUT), retry_cnt: TRIES, ..QpConfig::default() },
        ..Workload::default()
    }
}

/// A link that loses, reorders and repeats packets.
pub(super) fn link(random: &mut Pcg64Mcg) -> LinkSpec {
    let loss = random.random_range(0.0..0.02);
    let loss = if random.random() {
        Loss::Random(loss)
    } else {
        Loss::GilbertElliott { to_bad: loss / 4.0, to_good: 0.25, loss_bad: 1.0, loss_good: 0.0 }
    };
    LinkSpec {
        delay: Duration::from_micros(random.random_range(200..20_000)),
        loss,
        duplicate: random.random_range(0.0..0.005),
        reorder: random.random_range(0.0..0.02),
        ..LinkSpec::default()
    }
}
