//! `longhaul keys`

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::failure::{Outcome, failed, output_failed, unusable};
use crate::keys;

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    /// Where the files go: ca.crt, ca.key, and NAME.crt, NAME.key for each site
    #[arg(long)]
    dir: PathBuf,
    /// Replace certificates and keys of the named sites; the authority is never replaced
    #[arg(long)]
    force: bool,
    /// Make certificates for admin listeners: names are then DNS names, such as gateway-a.example
    #[arg(long)]
    listener: bool,
    /// Show the files as JSON
    #[arg(long)]
    json: bool,
    /// Site names, as in the gateway files, or with --listener names that clients ask by
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl KeysArgs {
    pub(super) fn run(&self) -> Outcome {
        if let Some(name) = self.names.iter().find(|name| !self.listener && !config::is_site_name(name)) {
            let rule = "1 to 63 lower-case letters, digits and hyphens, as in the gateway files";
            let help = "for an admin listener's certificate: --listener";
            return Err(unusable(format!("longhaul: {name:?} is no site name: {rule} ({help})")));
        }
        keys::check_names(&self.names).map_err(|error| unusable(format!("longhaul: {error}")))?;
        let request = keys::Request { dir: &self.dir, sites: &self.names, force: self.force };
        let summary = keys::generate(&request).map_err(failed)?;
        let mut out = io::stdout().lock();
        if self.json {
            let text = serde_json::to_string_pretty(&summary).map_err(failed)?;
            return writeln!(out, "{text}").map_err(output_failed);
        }
        let mut show = |name: &str, pair: &keys::Pair| {
            let outcome = match pair.outcome {
                keys::Outcome::Created => "created",
                keys::Outcome::Replaced => "replaced",
                keys::Outcome::Kept => "kept",
            };
            writeln!(out, "{outcome:<9} {name:<10} {}  {}", pair.certificate.display(), pair.key.display())
                .map_err(output_failed)
        };
        show("authority", &summary.authority)?;
        for site in &summary.sites {
            show(&site.name, &site.files)?;
        }
        writeln!(
            out,
            "Give each site its own .crt and .key and {}; keep {} to yourself.",
            summary.authority.certificate.display(),
            summary.authority.key.display()
        )
        .map_err(output_failed)
    }
}
