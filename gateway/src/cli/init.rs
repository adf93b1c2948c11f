//! `longhaul init`

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use config::Rate;
use ipnet::IpNet;

use super::failure::{Outcome, failed, unusable};
use super::output;
use crate::init::{self, InitError, Site, SiteFiles};
use crate::keys::KeysError;

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Where the files go: keys and certificates, and NAME.toml for each site
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Rate that the link is provisioned for, such as "10 Gbit/s"
    #[arg(long)]
    rate: Rate,
    /// Show the files as JSON
    #[arg(long)]
    json: bool,
    /// A site as NAME,ADDRESS,HOSTS,INTERFACE, twice or more often: its name, its gateway's address
    /// on the link, the prefix of its RDMA hosts, and the interface to them, such as
    /// a,192.0.2.1,10.0.0.0/24,eth1
    #[arg(long, required = true, num_args = 1, value_parser = site)]
    site: Vec<Site>,
}

impl InitArgs {
    pub(super) fn run(&self) -> Outcome {
        let most = config::Gateway::MOST_PEERS + 1;
        if self.site.len() < 2 || self.site.len() > most {
            let text =
                format!("longhaul: a pair has two sites: give --site twice, or more often up to {most}");
            return Err(unusable(text));
        }
        let paths = init::init(&self.dir, &self.site, self.rate).map_err(|error| match error {
            InitError::Sites(_) | InitError::Keys(KeysError::Duplicate(_)) => {
                unusable(format!("longhaul: {error}"))
            }
            error => failed(error),
        })?;
        let files = self.site.iter().zip(paths);
        let files: Vec<_> = files.map(|(site, path)| SiteFiles::new(&self.dir, site, path)).collect();
        output::show(self.json, &files[..], list)
    }
}

fn list(files: &[SiteFiles]) -> String {
    let line = |SiteFiles { site, gateway, .. }: &SiteFiles| {
        format!("site {site}: {}, {site}.crt, {site}.key and ca.crt\n", gateway.display())
    };
    let lines: String = files.iter().map(line).collect();
    lines + "Keep ca.key to yourself. Then, on each gateway: longhaul check --live FILE\n"
}

fn site(text: &str) -> Result<Site, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let [name, address, hosts, interface] = parts.as_slice() else {
        return Err("four values with commas between: NAME,ADDRESS,HOSTS,INTERFACE".to_owned());
    };
    if !config::is_site_name(name) {
        return Err(format!("{name:?} is no site name: 1 to 63 lower-case letters, digits and hyphens"));
    }
    Ok(Site {
        name: (*name).to_owned(),
        address: address.parse::<IpAddr>().map_err(|_| format!("{address:?} is no IP address"))?,
        hosts: hosts.parse::<IpNet>().map_err(|_| format!("{hosts:?} is no prefix"))?,
        interface: (*interface).to_owned(),
    })
}
