//! Facts of the machine: kernel, memory, interfaces, rules, RDMA devices.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files of the kernel that say what it is and how it is set.
const FILES: [&str; 12] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/softnet_stat",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/conf/all/rp_filter",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/sys/class/dmi/id/product_name",
];
/// Files in which each interface, and each RDMA device's first port, tells of itself.
const FOLDERS: [(&str, &[&str]); 2] = [
    ("/sys/class/net", &["mtu", "operstate", "carrier", "speed", "carrier_changes"]),
    ("/sys/class/infiniband", &["fw_ver", "hca_type", "ports/1/state", "ports/1/rate"]),
];
/// Commands, if they are there. None changes anything.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("ip", &["-details", "address"]),
    ("ip", &["rule"]),
    ("ip", &["route", "show", "table", "all"]),
    ("rdma", &["link"]),
    ("systemctl", &["show", "longhaul", "--property=ActiveState,NRestarts,Result"]),
];

/// Each fact as the name and text of an entry.
pub(super) fn facts() -> Vec<(String, String)> {
    let files = FILES.iter().map(|path| section(path, &read(Path::new(path))));
    let mut facts = vec![("machine/kernel.txt".to_owned(), files.collect())];
    for (folder, names) in FOLDERS {
        let mut text = String::new();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            for name in names {
                let path = entry.path().join(name);
                text += &format!("{}: {}\n", path.display(), read(&path).trim_end());
            }
        }
        let name = folder.rsplit('/').next().unwrap_or(folder);
        facts.push((format!("machine/{name}.txt"), text));
    }
    let commands = COMMANDS.iter().map(|(program, arguments)| {
        section(&format!("{program} {}", arguments.join(" ")), &run(program, arguments))
    });
    facts.push(("machine/commands.txt".to_owned(), commands.collect()));
    facts
}

fn section(title: &str, text: &str) -> String {
    format!("# {title}\n{}\n\n", text.trim_end())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) => {
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
        }
        Err(error) => error.to_string(),
    }
}
