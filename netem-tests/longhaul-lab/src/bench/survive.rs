//! The price of what connections outlive.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linksim::impair::LinkSpec;
use reliability::human;
use testbed::hostio::{Limit, Report, Workload};
use testbed::{Plan, Site, Testbed};

use super::hosts::{self, Hosts};
use super::{BenchError, clean_pair};

/// `longhaul-lab bench survive`: WRITEs of 64 KiB through two gateway processes, with each value of
/// `survive` in turns.
#[derive(Debug, Clone)]
pub struct Survival {
    /// The `longhaul` program, started twice as a gateway for each transfer.
    pub program: PathBuf,
    /// Length of each transfer.
    pub seconds: f64,
    /// Where memory is that outlives a process.
    pub directory: PathBuf,
}

/// The ends that connections outlive. The first is what the others are compared with.
const SURVIVE: [&str; 3] = ["session", "process", "gateway"];
const TURNS: usize = 5;
const RATE: &str = "400 Mbit/s";
const LINK: &str = "delay 12500us";
const QUEUE_PAIRS: u32 = 32;
const MESSAGE: u32 = 64 << 10;

/// Result of a transfer.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    goodput: f64,
    p99: f64,
}

impl Survival {
    /// Measures and writes a line for each value.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "WRITEs of 64 KiB of {QUEUE_PAIRS} queue pairs, one after the other on each, through two gateway processes: {RATE},\n\
             {LINK} each way, path MTU 4096. Medians of {TURNS} turns.\n"
        )?;
        let mut outcomes: [Vec<Outcome>; SURVIVE.len()] = Default::default();
        for _ in 0..TURNS {
            for (survive, outcomes) in SURVIVE.into_iter().zip(&mut outcomes) {
                outcomes.push(self.play(survive, interrupted)?);
            }
        }
        writeln!(out, "| survive | goodput | of session's | p99 | of session's |")?;
        writeln!(out, "|---|--:|--:|--:|--:|")?;
        let medians = outcomes.map(|outcomes| Outcome {
            goodput: median(outcomes.iter().map(|outcome| outcome.goodput)),
            p99: median(outcomes.iter().map(|outcome| outcome.p99)),
        });
        let [first, ..] = medians;
        for (survive, Outcome { goodput, p99 }) in SURVIVE.into_iter().zip(medians) {
            writeln!(
                out,
                "| `\"{survive}\"` | {} | {:.3} | {} | {:.3} |",
                human::rate(goodput),
                goodput / first.goodput,
                human::time(Duration::from_secs_f64(p99)),
                p99 / first.p99
            )?;
        }
        Ok(())
    }

    fn play(&self, survive: &str, interrupted: &dyn Fn() -> bool) -> Result<Outcome, BenchError> {
        let bound = hosts::bind(1)?;
        let mut plan = plan(&self.program, survive, &self.directory)?;
        hosts::known(&bound, &mut plan)?;
        let mut testbed = Testbed::start(&plan, interrupted)?;
        let gateways = [Site::A, Site::B].map(|site| testbed.lan(site));
        let bound = bound.into_iter().next().ok_or(BenchError::Interrupted)?;
        let hosts = Hosts { bound, gateways, index: 1, workload: self.workload() };
        let report: Result<Report, BenchError> = hosts.run(interrupted, &mut || Ok(()));
        testbed.check()?;
        let report = report?;
        testbed.stop()?;
        let p99 = Duration::from_nanos(report.latency.value_at_quantile(0.99)).as_secs_f64();
        Ok(Outcome { goodput: report.goodput(), p99 })
    }

    fn workload(&self) -> Workload {
        Workload {
            qps: QUEUE_PAIRS,
            message: MESSAGE,
            depth: 1,
            limit: Limit::Time(Duration::from_secs_f64(self.seconds)),
            ..hosts::writes()
        }
    }
}

fn plan(program: &Path, survive: &str, directory: &Path) -> Result<Plan, BenchError> {
    let link: LinkSpec = LINK.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(Plan {
        policy: format!("scheme = \"sr\"\nsurvive = \"{survive}\""),
        retention: Some(directory.to_owned()),
        rate: RATE.to_owned(),
        link,
        ..clean_pair(program)
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
