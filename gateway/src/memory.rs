//! Memory of this machine, and of the control groups (v2) that this process is in.
//!
//! A limit of a group holds for all groups below. In a container the own group is the root of what
//! it sees, and has the container's limit.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the bytes that the machine has, or that this process's control groups may have if that
/// is less. If nobody tells, there is no bound.
pub(crate) fn most() -> Option<u64> {
    let limits = groups(Path::new(GROUPS), control_group().as_deref()).map(|group| limit(&group));
    limits.chain([machine("MemTotal:")]).flatten().min()
}

/// Returns the bytes that the machine and this process's control groups have left. If nobody tells,
/// there is no bound.
pub(crate) fn left() -> Option<u64> {
    let left = groups(Path::new(GROUPS), control_group().as_deref()).map(|group| left_of(&group));
    left.chain([machine("MemAvailable:")]).flatten().min()
}

/// Returns this process's control group (v2).
#[must_use]
pub fn control_group() -> Option<String> {
    let text = read_to_string("/proc/self/cgroup").ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The folders of a group and of all above it.
fn groups(root: &Path, group: Option<&str>) -> impl Iterator<Item = PathBuf> + use<> {
    let own = root.join(group.unwrap_or_default().trim_start_matches('/'));
    let above: Vec<_> =
        own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect();
    above.into_iter()
}

fn limit(group: &Path) -> Option<u64> {
    number(group, "memory.max")
}

/// Pages of files that were not used for long are the group's. The kernel takes them back before it
/// lacks memory.
fn left_of(group: &Path) -> Option<u64> {
    let used = number(group, "memory.current")?.saturating_sub(reclaimable(group));
    Some(limit(group)?.saturating_sub(used))
}

/// Returns what a group's page cache holds that is not in use; 0 if nobody tells.
fn reclaimable(group: &Path) -> u64 {
    let text = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

/// Returns a number; `None`: the file is not there, or says "max".
fn number(group: &Path, name: &str) -> Option<u64> {
    read_to_string(group.join(name)).ok()?.trim().parse().ok()
}

/// Returns the bytes of a line of /proc/meminfo.
fn machine(name: &str) -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// As systemd's slices and containers have it: whatever is above limits what is below.
    #[test]
    fn the_least_limit_of_all_groups_above_holds() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let at = |path: &str| root.join(path);
        fs::create_dir_all(at("pod.slice/gateway.service")).unwrap();
        for (path, text) in [
            ("pod.slice/memory.max", "1000\n"),
            ("pod.slice/memory.current", "900\n"),
            ("pod.slice/gateway.service/memory.max", "max\n"),
            ("pod.slice/gateway.service/memory.current", "100\n"),
        ] {
            fs::write(at(path), text).unwrap();
        }
        let least = |group: Option<&str>, of: fn(&Path) -> Option<u64>| {
            groups(root, group).filter_map(|group| of(&group)).min()
        };
        let service = Some("/pod.slice/gateway.service");
        assert_eq!((least(service, limit), least(service, left_of)), (Some(1000), Some(100)));
        assert_eq!(
            (least(Some("/"), limit), least(None, limit)),
            (None, None),
            "the machine's root has none"
        );
        // In a container the root is the container's own.
        fs::write(at("memory.max"), "500\n").unwrap();
        fs::write(at("memory.current"), "470\n").unwrap();
        assert_eq!((least(Some("/"), limit), least(Some("/"), left_of)), (Some(500), Some(30)));
        assert_eq!((least(service, limit), least(service, left_of)), (Some(500), Some(30)));
        // A log that was written fills the page cache, and takes nothing from anybody.
        for (stat, left) in [("anon 20\ninactive_file 400\nactive_file 50\n", 100), ("anon 470\n", 30)] {
            fs::write(at("memory.stat"), stat).unwrap();
            fs::write(at("pod.slice/memory.stat"), "inactive_file 0\n").unwrap();
            assert_eq!(least(service, left_of), Some(left), "{stat}");
        }
        fs::write(at("memory.stat"), "inactive_file 400\n").unwrap();
        fs::write(at("pod.slice/memory.stat"), "inactive_file 350\n").unwrap();
        assert_eq!(least(service, left_of), Some(430));
    }

    #[test]
    fn this_machine_tells() {
        let (most, left) = (most().unwrap(), left().unwrap());
        assert!(left < most, "{left} {most}");
    }
}
