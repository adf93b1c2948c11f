//! Looks whether there is a place for what outlives the process, for `check --live`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::{NoRetention, directory_of, file_of, free_on, in_memory, is_private};

/// Folders of systemd's units, in the order in which it looks.
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// The unit of the package.
const UNIT: &str = "longhaul.service";
/// Where `RuntimeDirectory=` is.
const RUN: &str = "/run";
/// The directory of the package's unit while it runs, wherever that unit is.
const OF_UNIT: &str = "/run/longhaul";
/// Bytes of a block in `st_blocks`.
const BLOCK: u64 = 512;

/// Returns why long messages would end with the process of a gateway of this file, if they would.
/// Nothing is made, opened or locked.
pub(crate) fn look(gateway: &config::Gateway) -> Option<NoRetention> {
    let files: Vec<_> = gateway
        .views()
        .iter()
        .flat_map(|view| (0..view.thread_pairs()).map(|pair| file_of(view, pair)).collect::<Vec<_>>())
        .collect();
    let looked = match (directory_of(gateway), unit_directory()) {
        (Some(directory), _) => look_at(&directory, &files),
        // It is there only while the unit runs.
        (None, Some(directory)) => has_room(Path::new(RUN), &directory, &files),
        (None, None) => look_without_unit(Path::new(OF_UNIT), &files),
    };
    looked.err()
}

/// Takes the unit's directory for the gateway's if it is there, though neither the environment nor
/// a unit names it.
fn look_without_unit(directory: &Path, files: &[(String, u64)]) -> Result<(), NoRetention> {
    if !directory.is_dir() {
        return Err(NoRetention::Nowhere);
    }
    has_room(directory, directory, files)
}

/// Returns the directory that systemd makes for the package's unit, or for one in its place.
/// Whoever checks the file in a shell is not told of it by the environment.
fn unit_directory() -> Option<PathBuf> {
    let unit = UNITS.iter().find_map(|folder| fs::read_to_string(Path::new(folder).join(UNIT)).ok())?;
    directory_in(&unit)
}

fn directory_in(unit: &str) -> Option<PathBuf> {
    let value = unit.lines().find_map(|line| line.trim().strip_prefix("RuntimeDirectory="))?;
    value.split_whitespace().next().map(|name| Path::new(RUN).join(name))
}

fn look_at(directory: &Path, files: &[(String, u64)]) -> Result<(), NoRetention> {
    in_memory(directory)?;
    access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| NoRetention::File(directory.to_owned(), error.to_string()))?;
    let own = geteuid();
    for (name, _) in files {
        let path = directory.join(name);
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        // Root may look on behalf of the unit's user.
        if !is_private(&found) || !own.is_root() && found.uid() != own.as_raw() {
            return Err(NoRetention::NotOurs(path));
        }
    }
    has_room(directory, directory, files)
}

/// Holds the files against what their file system has free, and what they have of it already.
fn has_room(system: &Path, directory: &Path, files: &[(String, u64)]) -> Result<(), NoRetention> {
    let found = in_memory(system)?;
    let needed: u64 = files.iter().map(|(_, size)| size).sum();
    let blocks =
        |(name, _): &(String, u64)| fs::symlink_metadata(directory.join(name)).map_or(0, |it| it.blocks());
    let held = files.iter().map(blocks).sum::<u64>() * BLOCK;
    match free_on(&found).map(|free| free.saturating_add(held)) {
        Some(free) if free < needed => {
            Err(NoRetention::NoRoom { directory: directory.to_owned(), needed, free })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::retention::tests::folder;

    fn look_in(directory: &str, size: &str) -> Option<NoRetention> {
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        let section = format!("{text}\n[retention]\ndirectory = \"{directory}\"\nsize = \"{size}\"\n");
        look(&config::Gateway::parse(Path::new("/a.toml"), &section).unwrap())
    }

    #[test]
    fn a_place_is_looked_at_and_nothing_is_made_there() {
        let folder = folder();
        let path = folder.path().to_str().unwrap();
        assert_eq!(look_in(path, "1 MiB"), None);
        let full = look_in(path, "1 TiB").unwrap();
        assert!(full.to_string().starts_with(&format!("{path} has no room for 1 TiB: ")), "{full}");
        assert_eq!(full.key(), "retention.size");
        let missing = format!("{path}/x");
        assert_eq!(look_in(&missing, "1 MiB"), Some(NoRetention::Missing(missing.clone().into())));
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        fs::write(&missing, "a file").unwrap();
        assert_eq!(look_in(&missing, "1 MiB"), Some(NoRetention::NoDirectory(missing.into())));
        let disk = env!("CARGO_MANIFEST_DIR");
        assert_eq!(look_in(disk, "1 MiB"), Some(NoRetention::OnDisk(disk.into())));
    }

    /// Files that are there need no more room, and are refused as a gateway refuses them.
    #[test]
    fn files_that_are_there_are_looked_at() {
        let folder = folder();
        let path = folder.path().join("retained-a-b-0");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let directory = folder.path().to_str().unwrap();
        assert_eq!(look_in(directory, "1 MiB"), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(look_in(directory, "1 MiB"), Some(NoRetention::NotOurs(path)));
    }

    /// A shell has no RUNTIME_DIRECTORY, and the unit may be anywhere.
    #[test]
    fn a_directory_that_is_there_does_without_a_unit() {
        let folder = folder();
        let files = [("retained-a-b-0".to_owned(), 1 << 20)];
        assert_eq!(look_without_unit(folder.path(), &files), Ok(()));
        assert_eq!(look_without_unit(&folder.path().join("x"), &files), Err(NoRetention::Nowhere));
    }

    #[test]
    fn the_units_directory_is_known() {
        let unit = include_str!("../../../packaging/longhaul.service");
        assert_eq!(directory_in(unit), Some("/run/longhaul".into()));
        assert_eq!(directory_in("[Service]\n"), None);
    }
}
