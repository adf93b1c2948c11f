//! `longhaul bundle`

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;

use super::args::AdminArgs;
use super::failure::{Outcome, failed, output_failed};
use super::runtime;
use crate::bundle::Bundle;

#[derive(Debug, Args)]
pub(super) struct BundleArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// The gateway file, to add it without secrets, and what `check --live` says of it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The archive; a file that is there is left alone
    #[arg(value_name = "ARCHIVE", default_value = "longhaul.tar.gz")]
    archive: PathBuf,
}

impl BundleArgs {
    pub(super) fn run(&self) -> Outcome {
        let admin = self.admin.endpoint()?;
        let named = |error: io::Error| failed(format!("{}: {error}", self.archive.display()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.archive);
        let file = file.map_err(named)?;
        let bundle = runtime()?.block_on(Bundle::collect(self.config.as_deref(), &admin));
        bundle.write(file).map_err(named)?;
        let mut out = io::stdout().lock();
        bundle.names().try_for_each(|name| writeln!(out, "  {name}")).map_err(output_failed)?;
        let path = self.archive.display();
        writeln!(out, "{path}: no keys, but addresses and names. Look at it before you send it.")
            .map_err(output_failed)
    }
}
