//! `longhaul-lab simulate`

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use config::ByteSize;
use gateway::simulate::{SimulateError, cells, export, save};

use super::{Failure, Outcome, failed, unusable};
use crate::paper::simulated;
use crate::sweep::{self, Sweep};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub(super) struct SimulateArgs {
    /// Run the published evaluation's cells at 400 Gbit/s and 25 ms, and show its figures beside
    /// ours
    #[arg(long, group = "what", conflicts_with_all = ["size", "observed"])]
    paper: bool,
    /// Judge what `auto` chooses by fixed schemes over a grid of links; fails if it is too slow
    /// somewhere
    #[arg(long, group = "what")]
    plane: bool,
    /// With --plane: message sizes [default: six from 4 KiB to 8 GiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    size: Vec<ByteSize>,
    /// With --plane: what `auto` knows of the losses is what the estimator tells after so many
    /// packets, or `exact`
    #[arg(long, value_name = "PACKETS", default_value = sweep::OBSERVED)]
    observed: sweep::Known,
    /// Data packets per cell and scheme at most [default: 5000000 with --paper, 4200000 with
    /// --plane]
    #[arg(long, value_name = "PACKETS")]
    budget: Option<u64>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads to share the work [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

impl SimulateArgs {
    pub(super) fn run(&self) -> Outcome {
        let mut out = io::stdout().lock();
        if self.paper { self.paper(&mut out) } else { self.plane(&mut out) }
    }

    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(cells::processors).max(1)
    }

    fn paper(&self, out: &mut dyn Write) -> Outcome {
        let budget = self.budget.unwrap_or(simulated::BUDGET);
        let rows = simulated::run(budget, self.seed, self.threads(), out).map_err(failure)?;
        self.export(|| export::json(&rows), || export::csv(&rows))
    }

    fn plane(&self, out: &mut dyn Write) -> Outcome {
        let budget = self.budget.unwrap_or(sweep::BUDGET);
        let (seed, threads) = (self.seed, self.threads());
        let sweep = Sweep { sizes: &self.size, known: self.observed, budget, seed, threads };
        let judged = sweep.run(out).map_err(failure)?;
        self.export(|| judged.json(), || judged.csv())?;
        match judged.violations {
            0 => Ok(()),
            cells => Err(failed(format!("what `auto` chooses is too slow in {cells} cells"))),
        }
    }

    fn export(
        &self,
        json: impl FnOnce() -> Result<String, SimulateError>,
        csv: impl FnOnce() -> String,
    ) -> Outcome {
        if let Some(path) = &self.json {
            save(path, &json().map_err(failure)?).map_err(failure)?;
        }
        if let Some(path) = &self.csv {
            save(path, &csv()).map_err(failure)?;
        }
        Ok(())
    }
}

fn failure(error: SimulateError) -> Failure {
    match error {
        SimulateError::Usage(_) | SimulateError::File { .. } => unusable(error),
        SimulateError::Output(error) => failed(format!("cannot write the result: {error}")),
        SimulateError::Transfer(_) => failed(error),
    }
}
