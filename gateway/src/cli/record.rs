//! `longhaul record`

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Args;

use super::args::{DEFAULT_ADMIN, seconds_within};
use super::failure::{Outcome, chain, failed};
use super::runtime;
use crate::{interrupt, record};

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// End after so many seconds
    #[arg(long, value_parser = recording)]
    seconds: Option<f64>,
    /// Where the trace goes; standard output if absent
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl RecordArgs {
    pub(super) fn run(&self) -> Outcome {
        let runtime = runtime()?;
        let interrupted = interrupt::watch(&runtime).map_err(failed)?;
        let mut out: Box<dyn Write> = match &self.file {
            None => Box::new(io::stdout()),
            Some(path) => {
                Box::new(File::create(path).map_err(|error| failed(format!("{}: {error}", path.display())))?)
            }
        };
        let begin = Instant::now();
        let is_over = || interrupted.load(Ordering::Acquire) || record::is_past(begin, self.seconds);
        let recording = record::record(self.admin, &mut *out, &is_over);
        runtime.block_on(recording).map_err(|error| failed(chain(&error)))
    }
}

fn recording(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.0, 1e7)
}
