//! Small messages through a pair of gateways, by their size and the number of queue pairs.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use reliability::human;
use testbed::hostio::{Limit, Workload};
use testbed::{Site, Testbed};

use super::hosts::{self, Hosts, Metered};
use super::{BenchError, clean_pair};

/// `longhaul-lab bench messages`: WRITEs through one pair of gateways, by their size and the number
/// of queue pairs that take turns.
#[derive(Debug, Clone)]
pub struct Messages {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// Length of each transfer.
    pub seconds: f64,
    /// Bytes of a message.
    pub sizes: Vec<u32>,
    /// Queue pairs of a transfer.
    pub counts: Vec<u32>,
}

/// Messages that all queue pairs of a transfer may have outstanding together, if the hosts' receive
/// rings hold them and no queue pair has more than [`DEEPEST`], or less than [`SHALLOWEST`].
const OUTSTANDING: u32 = 512;
const SHALLOWEST: u32 = 2;
const DEEPEST: u32 = 128;
/// Not measured: a while, and for each queue pair what opening its flow takes.
const WARM_UP: Duration = Duration::from_millis(500);
const WARM_UP_EACH: Duration = Duration::from_micros(500);

const EXPLANATION: &str = "\
Queue pairs take turns, a message each. The hosts share the machine with the gateways, so the client has no more outstanding than a
quarter of a host's receive ring holds: what is lost, or sent again, is the gateways' doing.
p99 by rate: messages that complete in that time. us: processor time for a message, of gateway a, of gateway b, and of hosts and emulator.
resent: of the packets that the requesters' host sent, those it sent again, for whatever reason.";

impl Messages {
    /// Measures and writes a line for each size and number of queue pairs.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(out, "RDMA WRITEs through two gateway processes over a clean link:\n")?;
        writeln!(
            out,
            "{:>8} {:>8} {:>11} {:>9} {:>9} {:>11} {:>8} {:>8} {:>8} {:>8}",
            "message", "", "messages", "p50", "p99", "p99", "a", "b", "others", ""
        )?;
        writeln!(
            out,
            "{:>8} {:>8} {:>11} {:>9} {:>9} {:>11} {:>8} {:>8} {:>8} {:>8}",
            "[bytes]", "flows", "[1000/s]", "[ms]", "[ms]", "by rate", "[us]", "[us]", "[us]", "resent"
        )?;
        for (size, count) in
            self.sizes.iter().flat_map(|size| self.counts.iter().map(move |count| (*size, *count)))
        {
            let Metered { report, cores: [at_a, at_b, others] } = self.transfer(size, count, interrupted)?;
            let rate = report.messages as f64 / report.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
            let [p50, p99] =
                [0.5, 0.99].map(|quantile| report.latency.value_at_quantile(quantile) as f64 / 1e9);
            let resent = report.host.retransmitted as f64 / report.host.packets_out.max(1) as f64;
            let [at_a, at_b, others] = [at_a, at_b, others].map(|cores| cores * 1e6 / rate);
            writeln!(
                out,
                "{size:>8} {count:>8} {:>11.1} {:>9.3} {:>9.3} {:>11.1} {at_a:>8.2} {at_b:>8.2} {others:>8.2} {:>8}",
                rate / 1e3,
                p50 * 1e3,
                p99 * 1e3,
                p99 * rate,
                human::share(resent)
            )?;
            out.flush()?;
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// One cell, with gateways of its own.
    fn transfer(&self, size: u32, count: u32, interrupted: &dyn Fn() -> bool) -> Result<Metered, BenchError> {
        let mut bound = hosts::bind(1)?;
        let mut plan = clean_pair(&self.program);
        hosts::known(&bound, &mut plan)?;
        let Some(bound) = bound.pop() else {
            return Err(BenchError::Transfer("no hosts".to_owned()));
        };
        let mut testbed = Testbed::start(&plan, interrupted)?;
        let gateways = [Site::A, Site::B].map(|site| testbed.lan(site));
        let hosts = Hosts { bound, gateways, index: 1, workload: self.workload(size, count) };
        let metered = hosts.metered(&testbed, interrupted);
        testbed.check()?;
        let metered = metered?;
        testbed.stop()?;
        Ok(metered)
    }

    fn workload(&self, size: u32, count: u32) -> Workload {
        let warmup = WARM_UP + WARM_UP_EACH * count;
        Workload {
            qps: count,
            message: size,
            depth: (OUTSTANDING / count.max(1)).clamp(SHALLOWEST, DEEPEST),
            within_ring: true,
            limit: Limit::Time(warmup + Duration::from_secs_f64(self.seconds)),
            warmup,
            ..hosts::writes()
        }
    }
}
