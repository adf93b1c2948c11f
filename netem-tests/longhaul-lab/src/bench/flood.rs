//! The share that a host that floods takes from a neighbour at the same gateway.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use reliability::human;
use roce::wire::PathMtu;
use soft_nic::QpConfig;
use soft_nic::flood::FloodKind;
use testbed::hostio::{
    Bound, Endpoint, EndpointConfig, FloodConfig, Flooder, Limit, Mix, Report, Role, Workload,
};
use testbed::{Plan, Site, Testbed, host_ip};

use super::cpu::CpuMeter;
use super::{BenchError, LOOPBACK, TICK, clean_pair, hosts};

/// `longhaul-lab bench flood`: a host that WRITEs beside one that floods the same class of a pair
/// of gateways, for each kind of flood and several rates.
#[derive(Debug, Clone)]
pub struct Flood {
    /// The `longhaul` program, started twice as a gateway for each line.
    pub program: PathBuf,
    /// Length of each transfer.
    pub seconds: f64,
    /// Only the kinds whose name has this in it.
    pub only: String,
}

/// The least goodput of a neighbour, and the most times the p99 that it has beside an honest host.
const LEAST_GOODPUT: f64 = 0.45;
const MOST_P99: f64 = 2.5;
/// Rates of a flood, as multiples of the link's.
const TIMES: [f64; 3] = [1.04, 2.0, 10.0];
const RATE: f64 = 100e6;
const LINK: &str = "delay 5ms";
const WARM_UP: Duration = Duration::from_millis(500);
/// Addresses of the host whose goodput counts, of the one beside it, and of none.
const HOST: u8 = 1;
const BESIDE: u8 = 2;
const ABSENT: u8 = 200;

/// A neighbour of the host that WRITEs.
#[derive(Clone, Copy, Debug)]
enum Neighbour {
    /// Another one like it.
    Honest,
    /// Another one like it, and a flood to a socket of this machine that nobody reads: it takes the
    /// same processor time to send, and no gateway sees it.
    Elsewhere(FloodKind, f64),
    /// A flood to the gateway, as a multiple of the link's rate.
    Flood(FloodKind, f64),
}

/// Result of a host that WRITEs.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Payload, as a share of the link's rate.
    goodput: f64,
    p99: Duration,
    /// Packets that the flood had, a second.
    flooded: f64,
    /// Processors kept busy by gateway A, gateway B, and the hosts with the emulator.
    cores: [f64; 3],
}

impl Outcome {
    fn ratio(&self, honest: &Self) -> f64 {
        self.p99.as_secs_f64() / honest.p99.as_secs_f64()
    }

    fn row(&self, name: &str, times: f64, honest: &Self) -> String {
        let Self { goodput, p99, flooded, cores: [a, b, hosts] } = self;
        format!(
            "| {name} | {times} | {flooded:.0} | {} | {} | {:.2} | {a:.2} | {b:.2} | {hosts:.2} |",
            human::share(*goodput),
            human::time(*p99),
            self.ratio(honest)
        )
    }
}

impl Flood {
    /// Measures and writes a line for each kind and rate.
    ///
    /// # Errors
    /// A neighbour suffers more than it may. See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "WRITEs of a software host through two gateway processes, {}, {LINK} each way, with\n\
             contents checked. Another host of the site floods the same class.\n",
            human::rate(RATE)
        )?;
        let honest = self.play(Neighbour::Honest, interrupted)?;
        writeln!(
            out,
            "beside an honest host: goodput {} of the link, p99 {}\n",
            human::share(honest.goodput),
            human::time(honest.p99)
        )?;
        writeln!(
            out,
            "| the other floods with | times the link's rate | packets a second | goodput, of the link | p99 \
             | ratio | processors: gateway A | gateway B | hosts, link |"
        )?;
        writeln!(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")?;
        let [.., most] = TIMES;
        let machine = self.play(Neighbour::Elsewhere(FloodKind::RcShort, most), interrupted)?;
        writeln!(out, "{}", machine.row("an honest host, and a flood to nobody", most, &honest))?;
        let mut failed = String::new();
        for kind in FloodKind::ALL.into_iter().filter(|kind| kind.label().contains(&self.only)) {
            for times in TIMES {
                let outcome = self.play(Neighbour::Flood(kind, times), interrupted)?;
                let (label, ratio, goodput) = (kind.label(), outcome.ratio(&honest), outcome.goodput);
                writeln!(out, "{}", outcome.row(label, times, &honest))?;
                if goodput < LEAST_GOODPUT || ratio > MOST_P99 {
                    failed +=
                        &format!("{label} at {times}: goodput {}, p99 {ratio:.2}\n", human::share(goodput));
                }
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(BenchError::Share(failed)) }
    }

    /// The host's result beside this.
    fn play(&self, beside: Neighbour, interrupted: &dyn Fn() -> bool) -> Result<Outcome, BenchError> {
        let bound = hosts::bind(2)?;
        let mut testbed = Testbed::start(&self.plan(&bound)?, interrupted)?;
        let mut bound = bound.into_iter();
        let (Some(mine), Some(others)) = (bound.next(), bound.next()) else {
            return Err(BenchError::Interrupted);
        };
        let processes = [testbed.pid(Site::A), testbed.pid(Site::B), std::process::id()];
        let meters: Vec<_> =
            processes.iter().map(|process| CpuMeter::start(&[*process])).collect::<Result<_, _>>()?;
        let played = self.beside(&testbed, mine, others, beside, interrupted);
        // If a gateway has ended, that is the reason to show.
        testbed.check()?;
        let (report, flooded) = played?;
        let mut cores = [0.0; 3];
        for (cores, meter) in cores.iter_mut().zip(&meters) {
            *cores = meter.cores()?;
        }
        testbed.stop()?;
        let p99 = Duration::from_nanos(report.latency.value_at_quantile(0.99));
        Ok(Outcome { goodput: report.goodput() / RATE, p99, flooded, cores })
    }

    fn beside(
        &self,
        testbed: &Testbed,
        mine: [Bound; 2],
        others: [Bound; 2],
        beside: Neighbour,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(Report, f64), BenchError> {
        let since = Instant::now();
        let unread = Bound::new(LOOPBACK)?;
        let (flooder, other) = match beside {
            Neighbour::Honest => (None, Some(self.start(testbed, others, BESIDE)?)),
            Neighbour::Elsewhere(kind, times) => {
                let flooder = flood(Bound::new(LOOPBACK)?, kind, times, unread.address()?)?;
                (Some(flooder), Some(self.start(testbed, others, BESIDE)?))
            }
            Neighbour::Flood(kind, times) => {
                let [from, _] = others;
                (Some(flood(from, kind, times, testbed.lan(Site::A))?), None)
            }
        };
        let report = finish(self.start(testbed, mine, HOST)?, interrupted)?;
        let time = since.elapsed().as_secs_f64();
        if let Some(other) = other {
            finish(other, interrupted)?;
        }
        let flooded = flooder.map(Flooder::stop).transpose()?.unwrap_or(0);
        Ok((report, flooded as f64 / time))
    }

    /// Client at site A, server at site B.
    fn start(&self, testbed: &Testbed, [a, b]: [Bound; 2], index: u8) -> Result<[Endpoint; 2], BenchError> {
        let start = |bound: Bound, [site, other]: [Site; 2], role| {
            let config = EndpointConfig {
                bind: bound.address()?,
                gateway: testbed.lan(site),
                ip: host_ip(site, index),
                remote_ip: host_ip(other, index),
                role,
                workload: self.workload(),
            };
            Ok::<_, BenchError>(Endpoint::start_on(bound, &config)?)
        };
        let server = start(b, [Site::B, Site::A], Role::Server)?;
        Ok([start(a, [Site::A, Site::B], Role::Client)?, server])
    }

    fn plan(&self, hosts: &[[Bound; 2]]) -> Result<Plan, BenchError> {
        let link = LINK.parse().map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
        let rate = format!("{} Mbit/s", RATE / 1e6);
        let mut plan = Plan { rate, link, ..clean_pair(&self.program) };
        hosts::known(hosts, &mut plan)?;
        Ok(plan)
    }

    fn workload(&self) -> Workload {
        Workload {
            qps: 4,
            mix: Mix::WRITE,
            message: 4096,
            depth: 16,
            limit: Limit::Time(WARM_UP + Duration::from_secs_f64(self.seconds)),
            warmup: WARM_UP,
            verify: true,
            qp: QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() },
            ..Workload::default()
        }
    }
}

/// Has a host flood this address with so much.
fn flood(from: Bound, kind: FloodKind, times: f64, gateway: SocketAddr) -> Result<Flooder, BenchError> {
    let to = if kind.is_to_absent_host() { ABSENT } else { HOST };
    let ips = [host_ip(Site::A, BESIDE), host_ip(Site::B, to)];
    Ok(Flooder::start(from, FloodConfig { kind, rate: RATE * times, ips, gateway })?)
}

/// Waits for the client's end, which has to be a good one.
fn finish([client, server]: [Endpoint; 2], interrupted: &dyn Fn() -> bool) -> Result<Report, BenchError> {
    while client.is_running() {
        if interrupted() {
            return Err(BenchError::Interrupted);
        }
        std::thread::sleep(TICK);
    }
    let (client, server) = (client.join()?, server.stop()?);
    for report in [&client, &server] {
        if !report.is_clean() {
            return Err(BenchError::Transfer(report.to_string()));
        }
    }
    Ok(client)
}
