//! RDMA devices on this machine's interfaces. Such a device has a RoCE engine of its own, which
//! may take packets for UDP port 4791 before anybody else sees them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where the kernel tells of them.
const DEVICES: &str = "/sys/class/infiniband";
/// Counters of requests that a device has taken in: those of mlx5, and Soft-RoCE's packets.
const TAKEN: [&str; 4] = ["rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rcvd_pkts"];

/// How to have the packets come to the gateway.
pub const REMEDY: &str = "mlx5: `devlink dev param set DEVICE name enable_roce value false cmode driverinit`, \
                          then `devlink dev reload DEVICE`; Soft-RoCE: `rdma link delete`";

/// Returns RDMA devices by the interfaces that their GIDs belong to.
#[must_use]
pub fn devices() -> Vec<(String, String)> {
    ports(Path::new(DEVICES)).into_iter().map(|port| (port.device, port.interface)).collect()
}

/// Returns what each device on an interface has taken in so far, by its name.
pub fn taken(interface: &str) -> BTreeMap<String, u64> {
    taken_in(Path::new(DEVICES), interface)
}

struct Port {
    device: String,
    interface: String,
    /// Requests or packets that it has taken in.
    taken: u64,
}

fn ports(devices: &Path) -> Vec<Port> {
    let mut found = Vec::new();
    for device in fs::read_dir(devices).into_iter().flatten().flatten() {
        let ports = fs::read_dir(device.path().join("ports")).into_iter().flatten().flatten();
        for port in ports.map(|port| port.path()) {
            let Ok(interface) = fs::read_to_string(port.join("gid_attrs/ndevs/0")) else { continue };
            let value = |name: &&str| {
                let text = fs::read_to_string(port.join("hw_counters").join(name)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            found.push(Port {
                device: device.file_name().to_string_lossy().into_owned(),
                interface: interface.trim().to_owned(),
                taken: TAKEN.iter().filter_map(value).fold(0, u64::saturating_add),
            });
        }
    }
    found
}

fn taken_in(devices: &Path, interface: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::<_, u64>::new();
    for port in ports(devices).into_iter().filter(|port| port.interface == interface) {
        let sum = sums.entry(port.device).or_default();
        *sum = sum.saturating_add(port.taken);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel has it for mlx5 and for Soft-RoCE.
    #[test]
    fn devices_are_found_by_their_interface_with_what_they_have_taken() {
        let folder = tempfile::tempdir().unwrap();
        let device = |name: &str, interface: &str, counters: &[(&str, &str)]| {
            let port = folder.path().join(name).join("ports/1");
            for part in ["gid_attrs/ndevs", "hw_counters"] {
                fs::create_dir_all(port.join(part)).unwrap();
            }
            fs::write(port.join("gid_attrs/ndevs/0"), format!("{interface}\n")).unwrap();
            for (counter, value) in counters {
                fs::write(port.join("hw_counters").join(counter), format!("{value}\n")).unwrap();
            }
        };
        device("mlx5_0", "g0", &[("rx_write_requests", "5"), ("rx_read_requests", "2"), ("lifespan", "10")]);
        device("mlx5_1", "eth7", &[("rx_write_requests", "9")]);
        device("rxe0", "g0", &[("rcvd_pkts", "11"), ("sent_pkts", "3")]);
        let found = taken_in(folder.path(), "g0");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("mlx5_0".into(), 7), ("rxe0".into(), 11)]);
        assert!(taken_in(folder.path(), "g1").is_empty());
        assert!(taken_in(&folder.path().join("none"), "g0").is_empty());
    }
}
