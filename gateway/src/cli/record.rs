//! `longhaul record`

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Args;

use super::args::{PeerArgs, seconds_within};
use super::failure::{Failure, Outcome, failed, unusable};
use super::runtime;
use crate::causes::chain;
use crate::{interrupt, record};

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    admin: PeerArgs,
    /// End after so many seconds
    #[arg(long, value_parser = recording)]
    seconds: Option<f64>,
    /// Write a line of JSON for each entry; `longhaul simulate` does not read that
    #[arg(long)]
    json: bool,
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
        let interrupted = interrupt::watch(&runtime, &[]).map_err(failed)?;
        let mut out: Box<dyn Write> = match &self.file {
            None => Box::new(io::stdout()),
            Some(path) => Box::new(self.create(path)?),
        };
        let begin = Instant::now();
        let is_over = || interrupted.load(Ordering::Acquire) || record::is_past(begin, self.seconds);
        let admin = self.admin.endpoint()?;
        let recorded = match self.json {
            true => runtime.block_on(record::record_json(&admin, &mut *out, &is_over)),
            false => runtime.block_on(record::record(&admin, &mut *out, &is_over)),
        };
        drop(out);
        recorded.map_err(|error| {
            self.file.as_deref().map(remove_if_empty);
            failed(chain(&error))
        })
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

/// A file without a trace would be in the way of the next attempt. Devices stay.
fn remove_if_empty(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|there| there.is_file() && there.len() == 0) {
        // It may be gone already.
        let _ = fs::remove_file(path);
    }
}

fn recording(text: &str) -> Result<f64, String> {
    seconds_within(text, 0.0, 1e7)
}
