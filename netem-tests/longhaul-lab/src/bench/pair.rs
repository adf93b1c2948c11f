//! Two gateway processes over the emulator's clean link, between software RDMA hosts.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use roce::wire::PathMtu;
use session::seal::max_datagram;
use soft_nic::QpConfig;
use testbed::hostio::{Bound, Limit, Mix, Workload};
use testbed::{Plan, Site, Testbed};

use super::cpu::{CpuMeter, Pace};
use super::hosts::{self, Hosts};
use super::{BenchError, clean_pair};

/// `longhaul-lab bench pair`: goodput of WRITEs as a share of the sealed-UDP ceiling, measured next
/// to each other.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The `longhaul` program, started twice as a gateway.
    pub program: PathBuf,
    /// Length of each transfer, and of the ceiling's measurement before it.
    pub seconds: f64,
}

/// Schemes as a policy file has them.
const SCHEMES: [(&str, &str); 2] =
    [("sr", "scheme = \"sr\""), ("mds(32,8)", "scheme = \"mds\"\nk = 32\nm = 8")];
/// Name and bytes of a message.
const MESSAGES: [(&str, u32); 2] = [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];
const SEED: u64 = 1;
/// At first the streams estimate the round-trip time, and buffers are touched for the first time.
const WARM_UP: Duration = Duration::from_millis(500);

const EXPLANATION: &str = "\
Processor time is that of all threads of a process. The ceiling's is the work of both its threads, sealing and sending, receiving and
opening; a gateway here seals and sends the data, or receives and opens it, and has the local side besides. Where there are fewer
processors than the five threads at work (two hosts, the emulator, two gateways), or other programs want them, goodput depends on
who gets how much of them. `all`: hosts and emulator paid for as well.";

impl Pair {
    /// Measures and writes a line for each scheme and message size.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let [mtu, _] = clean_pair(&self.program).mtu;
        let segment = usize::from(max_datagram(mtu, false));
        writeln!(
            out,
            "RDMA WRITEs of software hosts through two gateway processes over a clean link (the emulator, loopback), next to what\n\
             sealed UDP alone can do with datagrams of {segment} bytes: one thread each way, AES-128-GCM, GSO and GRO.\n"
        )?;
        writeln!(
            out,
            "{:<10} {:>8} {:>9} {:>9} {:>7} {:>28} {:>21}",
            "", "", "goodput", "ceiling", "", "processor time [s/GiB]", "times the ceiling's"
        )?;
        writeln!(
            out,
            "{:<10} {:>8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>7} {:>6} {:>6}",
            "scheme",
            "message",
            "[Gbit/s]",
            "[Gbit/s]",
            "ratio",
            "gateway a",
            "gateway b",
            "ceiling",
            "a",
            "b",
            "all"
        )?;
        for (name, policy) in SCHEMES {
            // Each transfer has hosts of its own, lest it meet the flows of the one before.
            let hosts = hosts::bind(MESSAGES.len())?;
            let mut testbed = Testbed::start(&self.plan(policy, &hosts)?, interrupted)?;
            for (index, (bound, (label, message))) in (1u8..).zip(hosts.into_iter().zip(MESSAGES)) {
                let before = self.ceiling(segment)?;
                let carried = self.transfer(&testbed, bound, index, message, interrupted);
                testbed.check()?;
                let carried = carried?;
                let ceiling = before.mean(self.ceiling(segment)?);
                let [all, at_a, at_b] = carried.map(Pace::seconds_per_gib);
                let [carried, ..] = carried;
                let least = ceiling.seconds_per_gib();
                writeln!(
                    out,
                    "{name:<10} {label:>8} {:>9.2} {:>9.2} {:>7.3} {at_a:>9.3} {at_b:>9.3} {least:>8.3} {:>7.2} {:>6.2} {:>6.2}",
                    carried.rate,
                    ceiling.rate,
                    carried.rate / ceiling.rate,
                    at_a / least,
                    at_b / least,
                    all / least,
                )?;
            }
            testbed.stop()?;
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    /// Half the time before the transfer and half after it, since a machine's pace changes.
    fn ceiling(&self, segment: usize) -> io::Result<Pace> {
        Pace::of_ceiling(self.seconds / 2.0, segment)
    }

    fn plan(&self, policy: &str, hosts: &[[Bound; 2]]) -> Result<Plan, BenchError> {
        let mut plan = Plan { policy: policy.to_owned(), ..clean_pair(&self.program) };
        hosts::known(hosts, &mut plan)?;
        Ok(plan)
    }

    /// Goodput, with the processor time of everybody, of gateway A and of gateway B.
    fn transfer(
        &self,
        testbed: &Testbed,
        bound: [Bound; 2],
        index: u8,
        message: u32,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<[Pace; 3], BenchError> {
        let gateways = [Site::A, Site::B].map(|site| testbed.lan(site));
        let hosts = Hosts { bound, gateways, index, workload: self.workload(message) };
        let [at_a, at_b] = [Site::A, Site::B].map(|site| testbed.pid(site));
        let meters = [
            CpuMeter::start(&[std::process::id(), at_a, at_b])?,
            CpuMeter::start(&[at_a])?,
            CpuMeter::start(&[at_b])?,
        ];
        let mut cores = [0.0; 3];
        let client = hosts.run(interrupted, &mut || {
            for (cores, meter) in cores.iter_mut().zip(&meters) {
                *cores = meter.cores()?;
            }
            Ok(())
        })?;
        let rate = client.goodput() / 1e9;
        Ok(cores.map(|cores| Pace { rate, cores }))
    }

    /// Contents are not checked here: filling and comparing would take a good part of the
    /// processor.
    fn workload(&self, message: u32) -> Workload {
        Workload {
            qps: 8,
            mix: Mix::WRITE,
            message,
            depth: 16,
            limit: Limit::Time(WARM_UP + Duration::from_secs_f64(self.seconds)),
            warmup: WARM_UP,
            verify: false,
            seed: SEED,
            qp: QpConfig { mtu: PathMtu::B4096, window: 256, ..QpConfig::default() },
            ..Workload::default()
        }
    }
}
