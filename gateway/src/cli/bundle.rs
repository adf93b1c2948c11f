//! `longhaul bundle`

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;
use config::{Content, Report};

use super::args::AdminArgs;
use super::failure::{Failure, Outcome, failed, unusable};
use super::{output, runtime};
use crate::admin::Endpoint;
use crate::bundle::{Bundle, Entry, Summary};
use crate::logs::printable;

#[derive(Debug, Args)]
pub(super) struct BundleArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// The gateway file, to add it without secrets, and what `check --live` says of it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show the list of entries as JSON
    #[arg(long)]
    json: bool,
    /// The archive; a file that is there is left alone
    #[arg(value_name = "ARCHIVE", default_value = "longhaul.tar.gz")]
    archive: PathBuf,
}

impl BundleArgs {
    /// Where the gateway of the file is, unless somebody has said where to ask.
    fn endpoint(&self) -> Result<Endpoint, Failure> {
        let report = self.config.as_deref().filter(|_| !self.admin.is_given()).map(config::check);
        let admin = match report.as_ref().and_then(Report::content) {
            Some(Content::Gateway(gateway, _)) => gateway.admin.as_ref(),
            _ => None,
        };
        match admin {
            None => self.admin.endpoint(),
            Some(admin) => Endpoint::of_file(admin).map_err(|error| unusable(format!("longhaul: {error}"))),
        }
    }
}

impl BundleArgs {
    pub(super) fn run(&self) -> Outcome {
        let admin = self.endpoint()?;
        let named = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                unusable(format!("longhaul: {} is there: name another file", self.archive.display()))
            }
            _ => failed(format!("{}: {error}", self.archive.display())),
        };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.archive);
        let file = file.map_err(named)?;
        let bundle = runtime()?.block_on(Bundle::collect(self.config.as_deref(), &admin));
        bundle.write(file).map_err(|error| {
            // A part of an archive is of no use. It may be gone already.
            let _ = fs::remove_file(&self.archive);
            named(error)
        })?;
        let summary = Summary::new(self.archive.clone(), &bundle);
        output::show(self.json, &summary, list)?;
        let Some(why) = bundle.lacks_file() else { return Ok(()) };
        let path = self.archive.display();
        Err(unusable(format!("longhaul: {path} lacks the gateway file: {}", printable(why))))
    }
}

/// Lists what an archive holds, and what it does not.
fn list(summary: &Summary) -> String {
    let line = |Entry { name, left_empty }: &Entry| match left_empty {
        None => format!("  {name}\n"),
        Some(why) => format!("  {name}: left empty: {}\n", printable(why)),
    };
    let lines: String = summary.entries.iter().map(line).collect();
    let path = summary.archive.display();
    format!("{lines}{path}: no keys, but addresses and names. Look at it before you send it.\n")
}
