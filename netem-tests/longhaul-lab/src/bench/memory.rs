//! The memory that flows, messages and the link's length cost a gateway.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gateway::admin::Status;
use testbed::hostio::{Bound, Limit, Workload};
use testbed::{Plan, Site, Testbed};

use super::hosts::{self, Hosts};
use super::process::resident;
use super::{BenchError, TICK, clean_pair};

/// `longhaul-lab bench memory`: resident memory of gateway processes, by what they have to hold.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// How long each link is kept full.
    pub seconds: f64,
    /// Queue pairs, for what one costs.
    pub flows: u32,
}

/// Outstanding on each active flow.
const MESSAGE: u32 = 4096;
/// One way, for active flows: so long that the messages of all of them are under way together.
const FAR: &str = "delay 500ms";
/// Bytes of the messages that keep a link full.
const BULK: u32 = 1 << 20;
const BULK_FLOWS: u32 = 8;
/// Provisioned rate [Gbit/s], round-trip time [ms].
const LINKS: [(u32, u32); 4] = [(1, 20), (1, 100), (2, 50), (2, 100)];
const SCHEMES: [(&str, &str); 2] =
    [("sr", "scheme = \"sr\""), ("mds(32,8)", "scheme = \"mds\"\nk = 32\nm = 8")];
const LOSS: &str = "loss 0.1%";
/// Round trips until the link is full and its estimate steady.
const FILLING: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(30);

const EXPLANATION: &str = "\
Growth of resident memory (VmRSS) since the gateways had carried a little; the most that was seen while they were so. A gigabit per
second of goodput and millisecond of round-trip time is 125,000 bytes that are under way whatever carries them. Site A sends the data: it keeps
what is under way and what may still leave; site B keeps what waits for a repair.";

/// Growth of gateway A and of gateway B.
type Grown = [u64; 2];

impl Memory {
    /// Measures and writes the tables.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(out, "{:<52} {:>12} {:>12}", "bytes for each of so many flows", "gateway a", "gateway b")?;
        let mut each = |name: &str, grown: Grown| {
            let [a, b] = grown.map(|bytes| bytes / u64::from(self.flows.max(1)));
            writeln!(out, "{name:<52} {a:>12} {b:>12}")
        };
        let idle = self.flows("", 1, interrupted)?;
        each(&format!("{} idle flows", self.flows), idle)?;
        let active = self.flows(FAR, MESSAGE, interrupted)?;
        each(&format!("{} active flows, {MESSAGE} B outstanding on each", self.flows), active)?;
        writeln!(
            out,
            "\n{:<36} {:>8} {:>12} {:>12} {:>8} {:>8}\n{:<36} {:>8} {:>12} {:>12} {:>8} {:>8}",
            "link kept full, 0.1 % lost",
            "goodput",
            "bytes for each Gbit/s x ms",
            "",
            "times what is under way",
            "",
            "",
            "[Gbit/s]",
            "gateway a",
            "gateway b",
            "a",
            "b"
        )?;
        for (name, policy) in SCHEMES {
            for (gigabits, millis) in LINKS {
                let (rate, grown) = self.link(policy, gigabits, millis, interrupted)?;
                let product = rate * f64::from(millis);
                let [a, b] = grown.map(|bytes| bytes as f64 / product);
                let [times_a, times_b] = [a, b].map(|bytes| bytes / 125_000.0);
                writeln!(
                    out,
                    "{:<36} {rate:>8.2} {a:>12.0} {b:>12.0} {times_a:>8.1} {times_b:>8.1}",
                    format!("{name}, {gigabits} Gbit/s x {millis} ms")
                )?;
                out.flush()?;
            }
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// A message of so many bytes on each of many flows; on a link with a delay, while they are
    /// under way.
    fn flows(&self, link: &str, message: u32, interrupted: &dyn Fn() -> bool) -> Result<Grown, BenchError> {
        let limits = format!("idle_flow = \"1 h\"\nflows = {}", self.flows.saturating_mul(2).max(1000));
        let mut pair = Pair::start(clean_pair(&self.program), link, limits, interrupted)?;
        let workload = Workload {
            qps: self.flows,
            message,
            depth: 1,
            limit: Limit::Messages(if link.is_empty() { 1 } else { 2 }),
            ..hosts::writes()
        };
        let most = pair.carry(workload, interrupted, Duration::ZERO)?.1;
        pair.expect_flows(self.flows, interrupted)?;
        let now = pair.resident()?;
        let grown = pair.since_start(if link.is_empty() { now } else { most });
        pair.testbed.stop()?;
        Ok(grown)
    }

    /// Goodput in Gbit/s, and growth.
    fn link(
        &self,
        policy: &str,
        gigabits: u32,
        millis: u32,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(f64, Grown), BenchError> {
        let mut plan = clean_pair(&self.program);
        policy.clone_into(&mut plan.policy);
        plan.rate = format!("{gigabits} Gbit/s");
        let link = format!("delay {}us {LOSS}", millis * 500);
        let mut pair = Pair::start(plan, &link, String::new(), interrupted)?;
        let warmup = Duration::from_millis(500) + FILLING * Duration::from_millis(millis.into());
        let product = u64::from(gigabits * millis) * 125_000;
        let workload = Workload {
            qps: BULK_FLOWS,
            message: BULK,
            // Four times what is under way, so that the link is what is waited for.
            depth: u32::try_from(4 * product / u64::from(BULK * BULK_FLOWS)).unwrap_or(0).clamp(4, 64),
            limit: Limit::Time(warmup + Duration::from_secs_f64(self.seconds)),
            warmup,
            ..hosts::writes()
        };
        let (goodput, most) = pair.carry(workload, interrupted, warmup)?;
        let grown = pair.since_start(most);
        pair.testbed.stop()?;
        Ok((goodput / 1e9, grown))
    }
}

/// A pair of gateways that has carried a little, and what was resident then.
struct Pair {
    testbed: Testbed,
    hosts: Option<[Bound; 2]>,
    at_start: [u64; 2],
}

impl Pair {
    fn start(
        mut plan: Plan,
        link: &str,
        limits: String,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, BenchError> {
        let mut bound = hosts::bind(2)?;
        hosts::known(&bound, &mut plan)?;
        plan.link = link.parse().map_err(|error| BenchError::Transfer(format!("{link}: {error}")))?;
        plan.limits = limits;
        let testbed = Testbed::start(&plan, interrupted)?;
        let mut pair = Self { testbed, hosts: bound.pop(), at_start: [0; 2] };
        let first = bound.pop();
        let workload = Workload { qps: 8, message: 1, limit: Limit::Messages(20), ..hosts::writes() };
        pair.transfer(first, 1, workload, interrupted, &mut || Ok(()))?;
        pair.at_start = pair.resident()?;
        Ok(pair)
    }

    /// Goodput, and the most that was resident from `after` on.
    fn carry(
        &mut self,
        workload: Workload,
        interrupted: &dyn Fn() -> bool,
        after: Duration,
    ) -> Result<(f64, [u64; 2]), BenchError> {
        let hosts = self.hosts.take();
        let processes = self.processes();
        let mut most = [0; 2];
        let began = Instant::now();
        let goodput = self.transfer(hosts, 2, workload, interrupted, &mut || {
            if began.elapsed() >= after {
                for (most, process) in most.iter_mut().zip(processes) {
                    *most = resident(process)?.max(*most);
                }
            }
            Ok(())
        })?;
        Ok((goodput, most))
    }

    fn transfer(
        &self,
        bound: Option<[Bound; 2]>,
        index: u8,
        workload: Workload,
        interrupted: &dyn Fn() -> bool,
        during: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let bound =
            bound.ok_or_else(|| BenchError::Transfer("hosts are there for one transfer".to_owned()))?;
        let gateways = [Site::A, Site::B].map(|site| self.testbed.lan(site));
        let hosts = Hosts { bound, gateways, index, workload };
        Ok(hosts.watch(interrupted, &mut |_| during(), &mut || Ok(()))?.goodput())
    }

    /// Waits until both gateways say that those are there, besides the first ones.
    fn expect_flows(&self, flows: u32, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let of = |site| Ok::<_, BenchError>(self.testbed.status::<Status>(site)?.flows);
            let (a, b) = (of(Site::A)?, of(Site::B)?);
            if a.near.min(b.far) >= u64::from(flows) {
                return Ok(());
            }
            if interrupted() {
                return Err(BenchError::Interrupted);
            }
            if Instant::now() > end {
                return Err(BenchError::Transfer(format!(
                    "{flows} flows were opened, there are {a:?}, {b:?}"
                )));
            }
            std::thread::sleep(TICK);
        }
    }

    fn processes(&self) -> [u32; 2] {
        [Site::A, Site::B].map(|site| self.testbed.pid(site))
    }

    fn resident(&self) -> Result<[u64; 2], BenchError> {
        let [a, b] = self.processes();
        Ok([resident(a)?, resident(b)?])
    }

    fn since_start(&self, now: [u64; 2]) -> Grown {
        let ([a, b], [at_a, at_b]) = (now, self.at_start);
        [a.saturating_sub(at_a), b.saturating_sub(at_b)]
    }
}
