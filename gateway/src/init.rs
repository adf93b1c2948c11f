//! `longhaul init`: the gateway files of two or more sites, from what nobody can guess.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use config::{Invalid, Rate, Style};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;

use crate::admin::SOCKET;
use crate::keys::{self, KeysError};

/// The examples' port, which is not assigned at IANA.
pub const PORT: u16 = 14791;

/// One of the sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its gateway's address on the long link.
    pub address: IpAddr,
    /// The prefix of its RDMA hosts.
    pub hosts: IpNet,
    /// Its gateway's interface to them.
    pub interface: String,
}

/// A site's files, as `longhaul init --json` names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SiteFiles {
    /// The site.
    pub site: String,
    /// Its gateway file.
    pub gateway: PathBuf,
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority's certificate, which all have.
    pub authority: PathBuf,
}

impl SiteFiles {
    /// Names the files that [`init`] made in a folder.
    pub fn new(dir: &Path, site: &Site, gateway: PathBuf) -> Self {
        let name = &site.name;
        let (certificate, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        Self { site: name.clone(), gateway, certificate, key, authority: dir.join("ca.crt") }
    }
}

/// Why the files were not made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file is there.
    #[error("{} is there and is left alone: remove it, or name another folder", .0.display())]
    InTheWay(PathBuf),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Keys and certificates.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// No gateway could work with such a file.
    #[error("`longhaul check` would refuse the file of a site: {}", .0.render(Style::Plain))]
    Sites(Box<Invalid>),
}

/// Makes an authority, keys and certificates, and a gateway file for each site, all in one folder.
/// Each two sites are peers. A file that is there is left alone, and ends it. Returns the gateway
/// files.
///
/// # Errors
/// See [`InitError`].
pub fn init(dir: &Path, sites: &[Site], rate: Rate) -> Result<Vec<PathBuf>, InitError> {
    let paths: Vec<_> = sites.iter().map(|site| dir.join(format!("{}.toml", site.name))).collect();
    for path in &paths {
        if path.exists() {
            return Err(InitError::InTheWay(path.clone()));
        }
    }
    let names: Vec<_> = sites.iter().map(|site| site.name.clone()).collect();
    keys::check_names(&names)?;
    // What `longhaul check` would refuse is not written.
    let texts: Vec<_> = sites.iter().map(|own| text(own, sites, rate)).collect();
    for (path, text) in paths.iter().zip(&texts) {
        config::Gateway::parse(path, text).map_err(|invalid| InitError::Sites(Box::new(invalid)))?;
    }
    keys::generate(&keys::Request { dir, sites: &names, force: false }).map_err(|error| match error {
        KeysError::Exists(path) => InitError::InTheWay(path),
        error => InitError::Keys(error),
    })?;
    for (path, text) in paths.iter().zip(&texts) {
        keys::write_new(path, text.as_bytes(), 0o644)
            .map_err(|source| InitError::File { path: path.clone(), source })?;
    }
    Ok(paths)
}

fn text(own: &Site, sites: &[Site], rate: Rate) -> String {
    let peers: Vec<&Site> = sites.iter().filter(|site| site.name != own.name).collect();
    let Site { name, hosts, interface, .. } = own;
    let at = |site: &Site| SocketAddr::new(site.address, PORT);
    let peer =
        |peer: &Site| format!("name = \"{}\"\naddress = \"{}\"\nrate = \"{rate}\"\n", peer.name, at(peer));
    let (remote, sections) = match peers.as_slice() {
        [one] => (format!("remote = [\"{}\"]\n", one.hosts), format!("[peer]\n{}\n", peer(one))),
        several => {
            let section = |each: &&Site| format!("[[peer]]\n{}remote = [\"{}\"]\n\n", peer(each), each.hosts);
            (String::new(), several.iter().map(section).collect())
        }
    };
    let listen = at(own);
    format!(
        "# Gateway of site {name}. docs/reference.md lists every key; `longhaul check --live` checks it.\n\
         [site]\nname = \"{name}\"\n\n\
         [lan]\ninterface = \"{interface}\"\nlocal = [\"{hosts}\"]\n{remote}\n\
         [wan]\nlisten = \"{listen}\"\n\n\
         {sections}\
         [identity]\ncertificate = \"{name}.crt\"\nkey = \"{name}.key\"\nauthority = \"ca.crt\"\n\n\
         [admin]\nlisten = \"127.0.0.1:9464\"\n\
         # The unit's gateway has a socket besides, which `longhaul upgrade` needs. Without the unit, make the folder:\n\
         # socket = \"{SOCKET}\"\n"
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::check;

    /// Its hosts are reached by an interface that each machine has.
    pub(crate) fn site(name: &str, address: &str, hosts: &str) -> Site {
        Site {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            hosts: hosts.parse().unwrap(),
            interface: "lo".to_owned(),
        }
    }

    /// The same address or hosts twice, host bits in a prefix, names of interfaces that no machine
    /// can have.
    #[test]
    fn what_check_refuses_is_not_written() {
        let site = |name: &str, address: &str, hosts: &str, interface: &str| Site {
            interface: interface.to_owned(),
            ..site(name, address, hosts)
        };
        let a = site("a", "10.9.0.1", "10.0.0.0/24", "eth1");
        for (other, what) in [
            (site("b", "10.9.0.1", "10.0.1.0/24", "eth1"), "this gateway itself"),
            (site("b", "10.9.0.2", "10.0.0.128/25", "eth1"), "10.0.0.128/25"),
            (site("b", "10.9.0.2", "10.0.1.1/24", "eth1"), "did you mean \"10.0.1.0/24\"?"),
            (site("b", "10.9.0.2", "10.0.1.0/24", "enp0s20f0u1u1Link"), "is not an interface name"),
            (site("b", "10.9.0.2", "10.0.1.0/24", "eth1\"\nmtu = 1\n#"), "interface"),
            (site("b", "fd00::2", "10.0.1.0/24", "eth1"), "address"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let rate = Rate::from_bits_per_second(1_000_000_000);
            let refused = init(folder.path(), &[a.clone(), other.clone()], rate);
            let Err(InitError::Sites(why)) = refused else { panic!("{other:?}: {refused:?}") };
            let shown = why.render(Style::Plain);
            assert!(shown.contains(what), "no {what} in\n{shown}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{other:?}");
        }
    }

    #[test]
    fn files_are_right_and_agree() {
        let folder = tempfile::tempdir().unwrap();
        let sites = [site("a", "10.9.0.1", "10.0.0.0/24"), site("b", "10.9.0.2", "10.0.1.0/24")];
        let rate = Rate::from_bits_per_second(1_000_000_000);
        let paths = init(folder.path(), &sites, rate).unwrap();
        let [first, second] = paths.as_slice() else { panic!("{paths:?}") };
        let [first, mut second] = [first, second].map(|path| check::check(path));
        config::check_pair(&first, &mut second);
        assert!(first.problems().is_empty(), "{:?}", first.problems());
        assert!(second.problems().is_empty(), "{:?}", second.problems());
        // Where the unit is not, the socket is a line that wants its mark removed.
        let text = std::fs::read_to_string(&paths[0]).unwrap().replace("# socket", "socket");
        let file = config::Gateway::parse(&paths[0], &text).unwrap();
        assert_eq!(file.admin.and_then(|admin| admin.socket), Some(PathBuf::from(SOCKET)));
        // Nor are keys replaced, where the gateway files are gone.
        for _ in 0..2 {
            let refused = init(folder.path(), &sites, rate).unwrap_err();
            assert!(refused.to_string().contains("is there and is left alone: remove it, or"), "{refused}");
            paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        let more = [sites.as_slice(), &[site("z", "10.9.0.3", "10.0.2.0/24")]].concat();
        let folder = tempfile::tempdir().unwrap();
        let mut reports: Vec<_> =
            init(folder.path(), &more, rate).unwrap().iter().map(|path| check::check(path)).collect();
        while let Some(mut report) = reports.pop() {
            reports.iter().for_each(|other| config::check_pair(other, &mut report));
            assert!(report.problems().is_empty(), "{:?}", report.problems());
            let Some(config::Content::Gateway(gateway, _)) = report.content() else { panic!("no gateway") };
            assert_eq!(gateway.peers().count(), 2);
        }
        let v6 = [site("c", "fd00::1", "fd01::/64"), site("d", "fd00::2", "fd02::/64")];
        for path in init(folder.path(), &v6, rate).unwrap() {
            assert!(check::check(&path).is_valid());
        }
    }
}
