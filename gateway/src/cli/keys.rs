//! `longhaul keys`

use std::path::PathBuf;

use clap::Args;

use super::failure::{Outcome, failed, unusable};
use super::output;
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
        output::show(self.json, &summary, list)
    }
}

fn list(summary: &keys::Summary) -> String {
    let line = |name: &str, pair: &keys::Pair| {
        let outcome = match pair.outcome {
            keys::Outcome::Created => "created",
            keys::Outcome::Replaced => "replaced",
            keys::Outcome::Kept => "kept",
        };
        format!("{outcome:<9} {name:<10} {}  {}\n", pair.certificate.display(), pair.key.display())
    };
    let authority = &summary.authority;
    let sites: String = summary.sites.iter().map(|site| line(&site.name, &site.files)).collect();
    format!(
        "{}{sites}Give each site its own .crt and .key and {}; keep {} to yourself.\n",
        line("authority", authority),
        authority.certificate.display(),
        authority.key.display()
    )
}
