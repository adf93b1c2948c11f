//! `longhaul record`

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Args;

use super::args::{DEFAULT_ADMIN, admin_address, seconds_within};
use super::failure::{Failure, Outcome, failed, unusable};
use super::runtime;
use crate::causes::chain;
use crate::{interrupt, record};

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// The gateway's admin.listen
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN, value_parser = admin_address)]
    admin: SocketAddr,
    /// End after so many seconds
    #[arg(long, value_parser = recording)]
    seconds: Option<f64>,
    /// Replace FILE if it is there
    #[arg(long, requires = "file")]
    force: bool,
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
            Some(path) => Box::new(self.create(path)?),
        };
        let begin = Instant::now();
        let is_over = || interrupted.load(Ordering::Acquire) || record::is_past(begin, self.seconds);
        let recording = record::record(self.admin, &mut *out, &is_over);
        runtime.block_on(recording).map_err(|error| failed(chain(&error)))
    }
}

impl RecordArgs {
    /// Hours of another recording are not overwritten unasked.
    fn create(&self, path: &Path) -> Result<File, Failure> {
        let mut options = File::options();
        options.write(true);
        match self.force {
            true => options.create(true).truncate(true),
            false => options.create_new(true),
        };
        options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                unusable(format!("longhaul: {} is there; --force replaces it", path.display()))
            }
            _ => failed(format!("{}: {error}", path.display())),
        })
    }
}

fn recording(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.0, 1e7)
}
