//! How throughput grows with the number of queue pairs.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use reliability::human;
use testbed::hostio::{Bound, Limit, Report, Workload};
use testbed::{Site, Testbed};

use super::cpu::Pace;
use super::hosts::{self, Hosts, Metered};
use super::{BenchError, clean_pair};

/// `longhaul-lab bench pair --flows`: goodput of WRITEs through one pair of gateways, by the number
/// of queue pairs that share it.
#[derive(Debug, Clone)]
pub struct Flows {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// Length of each transfer.
    pub seconds: f64,
    /// Queue pairs of each transfer.
    pub counts: Vec<u32>,
}

/// Messages of each queue pair outstanding at a time: with ten thousand of them to one target no
/// more than half of `limits.total_buffer`.
const DEPTH: u32 = 2;
const MESSAGE: u32 = 8 << 10;
/// Not measured: a while, and for each queue pair what opening its flow takes.
const WARM_UP: Duration = Duration::from_millis(500);
const WARM_UP_EACH: Duration = Duration::from_micros(200);

const EXPLANATION: &str = "\
Every queue pair keeps its messages outstanding all the time, as far as the hosts' receive rings hold those of all: beyond that they take
turns. The next row's are new ones, while the flows of the rows before stay open and idle. One thread runs all queue pairs of a site:
beyond what it and the emulator take, the processor time says what flows cost the gateways.
resent: of the packets that the requesters' host sent, those it sent again, for whatever reason.";

impl Flows {
    /// Measures and writes a line for each number of queue pairs.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "RDMA WRITEs of {} KiB, {DEPTH} outstanding on each queue pair, through two gateway processes over a clean link:\n",
            MESSAGE >> 10
        )?;
        writeln!(
            out,
            "{:>8} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8}",
            "", "goodput", "of", "p50", "p99", "gateway a", "gateway b", ""
        )?;
        writeln!(
            out,
            "{:>8} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8}",
            "flows", "[Gbit/s]", "first", "[ms]", "[ms]", "[s/GiB]", "[s/GiB]", "resent"
        )?;
        let hosts = hosts::bind(self.counts.len())?;
        let mut plan = clean_pair(&self.program);
        hosts::known(&hosts, &mut plan)?;
        let mut testbed = Testbed::start(&plan, interrupted)?;
        let mut first = None;
        for (index, (bound, count)) in (1u8..).zip(hosts.into_iter().zip(&self.counts)) {
            let carried = self.transfer(&testbed, bound, index, *count, interrupted);
            testbed.check()?;
            let (report, [at_a, at_b]) = carried?;
            let goodput = report.goodput() / 1e9;
            let first = *first.get_or_insert(goodput);
            let [p50, p99] =
                [0.5, 0.99].map(|quantile| report.latency.value_at_quantile(quantile) as f64 / 1e6);
            let resent = report.host.retransmitted as f64 / report.host.packets_out.max(1) as f64;
            writeln!(
                out,
                "{count:>8} {goodput:>10.2} {:>8.2} {p50:>10.2} {p99:>10.2} {at_a:>10.3} {at_b:>10.3} {:>8}",
                goodput / first,
                human::share(resent)
            )?;
            out.flush()?;
        }
        testbed.stop()?;
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// Returns the client's report, and the processor time of gateway A and of gateway B for a GiB.
    fn transfer(
        &self,
        testbed: &Testbed,
        bound: [Bound; 2],
        index: u8,
        count: u32,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(Report, [f64; 2]), BenchError> {
        let warm_up = WARM_UP + WARM_UP_EACH * count;
        let workload = Workload {
            qps: count,
            message: MESSAGE,
            depth: DEPTH,
            within_ring: true,
            limit: Limit::Time(warm_up + Duration::from_secs_f64(self.seconds)),
            warmup: warm_up,
            ..hosts::writes()
        };
        let gateways = [Site::A, Site::B].map(|site| testbed.lan(site));
        let hosts = Hosts { bound, gateways, index, workload };
        let Metered { report, cores: [at_a, at_b, _] } = hosts.metered(testbed, interrupted)?;
        let rate = report.goodput() / 1e9;
        Ok((report, [at_a, at_b].map(|cores| Pace { rate, cores }.seconds_per_gib())))
    }
}
