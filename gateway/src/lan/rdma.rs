//! RDMA devices below an interface. Such a device has a RoCE engine of its own, which may take
//! packets for UDP port 4791 before anybody else sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel tells of them.
pub const SYS: &str = "/sys";
/// A port's count of packets that its RoCE engine has taken, whether or not there is such a queue
/// pair.
///
/// `ethtool -S` shows that of mlx5 as `rx_vport_rdma_unicast_packets`.
const PACKETS: &str = "counters/unicast_rcv_packets";
/// Counters of devices that lack it: mlx5's of requests that queue pairs got, and Soft-RoCE's of
/// packets.
const TAKEN: [&str; 4] = ["rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rcvd_pkts"];
/// Interfaces in one stack at most: a VLAN on a bridge on a bond of two ports has five.
const MOST_INTERFACES: usize = 64;

/// The description of a Soft-RoCE device.
const SOFT_ROCE: &str = "rxe";

/// An RDMA device that may take the packets of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its name, such as "mlx5_0".
    pub name: String,
    /// The network interface of its GIDs: the interface itself, or one below it.
    pub on: String,
    /// The interface that this one is below, if it is.
    pub below: Option<String>,
    /// How to have its packets come to the gateway.
    pub remedy: String,
}

impl Device {
    /// Says what it may do, in one line.
    #[must_use]
    pub fn warning(&self) -> String {
        format!("{self} may take RoCE packets before the gateway sees them")
    }
}

/// Returns the remedy for a device, by its folder in sysfs.
///
/// `enable_roce` itself is not asked: devlink tells what a reload would bring, not what is.
fn remedy(device: &Path, name: &str) -> String {
    if fs::read_to_string(device.join("node_desc")).is_ok_and(|words| words.trim() == SOFT_ROCE) {
        return format!("`rdma link delete {name}`");
    }
    let last = |link: &str| -> Option<String> {
        Some(fs::canonicalize(device.join(link)).ok()?.file_name()?.to_str()?.to_owned())
    };
    let pci = last("device").unwrap_or_default();
    let set = |mode| format!("`devlink dev param set pci/{pci} name enable_roce value false cmode {mode}`");
    match last("device/driver").as_deref() {
        Some("mlx5_core") => format!("{}, then `devlink dev reload pci/{pci}`", set("driverinit")),
        Some("ice") => set("runtime"),
        Some("bnxt_en") => format!("{}, then restart the machine", set("permanent")),
        _ => "turn its RoCE off: docs/hosts.md, \"The gateway's LAN NIC\"".to_owned(),
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, on, below, .. } = self;
        match below {
            None => write!(f, "the RDMA device {name} on {on}"),
            Some(upper) => write!(f, "the RDMA device {name} on {on}, below {upper},"),
        }
    }
}

/// Returns the devices on an interface and on those below it: a VLAN's or bond's devices, a
/// bridge's ports. Each comes with what it has taken in so far.
#[must_use]
pub fn taken(interface: &str) -> BTreeMap<Device, u64> {
    taken_in(Path::new(SYS), interface)
}

/// As [`taken`], with the system's files below `sys`.
pub fn taken_in(sys: &Path, interface: &str) -> BTreeMap<Device, u64> {
    let stack = stack(sys, interface);
    let mut sums = BTreeMap::<_, u64>::new();
    for device in entries(&sys.join("class/infiniband")) {
        let ports = entries(&device.join("ports"));
        // The nearest to the interface, of those that a port has GIDs of.
        let nearest = |port: &PathBuf| {
            let gids = entries(&port.join("gid_attrs/ndevs"));
            let names: Vec<_> = gids.iter().filter_map(|gid| fs::read_to_string(gid).ok()).collect();
            stack.iter().position(|own| names.iter().any(|name| name.trim() == own))
        };
        let found = ports.iter().filter_map(|port| Some((nearest(port)?, of_port(port))));
        let found: Vec<(usize, u64)> = found.collect();
        let Some(on) = found.iter().map(|(place, _)| *place).min().and_then(|place| stack.get(place)) else {
            continue;
        };
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let below = (on != interface).then(|| interface.to_owned());
        let packets = found.iter().fold(0, |sum: u64, (_, packets)| sum.saturating_add(*packets));
        let remedy = remedy(&device, &name);
        sums.insert(Device { name, on: on.clone(), below, remedy }, packets);
    }
    sums
}

/// Returns what a port has taken in.
fn of_port(port: &Path) -> u64 {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let requests = || {
        let each = TAKEN.iter().filter_map(|name| number(&port.join("hw_counters").join(name)));
        each.fold(0, u64::saturating_add)
    };
    number(&port.join(PACKETS)).unwrap_or_else(requests)
}

/// Returns an interface and all below it, the nearest first.
fn stack(sys: &Path, interface: &str) -> Vec<String> {
    let mut stack = vec![interface.to_owned()];
    let mut next = 0;
    while let Some(upper) = stack.get(next).filter(|_| stack.len() < MOST_INTERFACES).cloned() {
        let own = sys.join("class/net").join(&upper);
        let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
        let lower = entries(&own).iter().filter_map(name).collect::<Vec<_>>();
        let lower = lower.iter().filter_map(|entry| entry.strip_prefix("lower_").map(str::to_owned));
        let ports = entries(&own.join("brif"));
        for below in lower.chain(ports.iter().filter_map(name)).collect::<Vec<_>>() {
            if !stack.contains(&below) {
                stack.push(below);
            }
        }
        next += 1;
    }
    stack
}

/// Returns what a folder has, in order; nothing if there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort_unstable();
    entries
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a device, as the kernel has it below `/sys`. `gids`: the interfaces of its GIDs, the
    /// first of which may have none.
    pub(crate) fn device(sys: &Path, name: &str, gids: &[&str], counters: &[(&str, u64)]) {
        let port = sys.join("class/infiniband").join(name).join("ports/1");
        for part in ["gid_attrs/ndevs", "hw_counters", "counters"] {
            fs::create_dir_all(port.join(part)).unwrap();
        }
        for (nth, interface) in gids.iter().enumerate() {
            fs::write(port.join(format!("gid_attrs/ndevs/{nth}")), format!("{interface}\n")).unwrap();
        }
        for (counter, value) in counters {
            fs::write(port.join(counter), format!("{value}\n")).unwrap();
        }
    }

    /// Puts a device on a PCI function of this driver, as the kernel links them.
    fn of_pci(sys: &Path, name: &str, driver: &str) {
        let function = sys.join("devices/pci0000:00/0000:06:00.0");
        let drivers = sys.join("bus/pci/drivers").join(driver);
        for folder in [&function, &drivers] {
            fs::create_dir_all(folder).unwrap();
        }
        let _ = fs::remove_file(function.join("driver"));
        std::os::unix::fs::symlink(&drivers, function.join("driver")).unwrap();
        std::os::unix::fs::symlink(&function, sys.join("class/infiniband").join(name).join("device"))
            .unwrap();
    }

    #[test]
    fn a_remedy_names_the_device_as_its_driver_wants_it() {
        let set = |mode: &str| {
            format!("`devlink dev param set pci/0000:06:00.0 name enable_roce value false cmode {mode}`")
        };
        let by_hand = "turn its RoCE off: docs/hosts.md, \"The gateway's LAN NIC\"".to_owned();
        for (driver, wanted) in [
            ("mlx5_core", set("driverinit") + ", then `devlink dev reload pci/0000:06:00.0`"),
            ("ice", set("runtime")),
            ("bnxt_en", set("permanent") + ", then restart the machine"),
            ("hns3", by_hand.clone()),
        ] {
            let folder = tempfile::tempdir().unwrap();
            device(folder.path(), "roce0", &["g0"], &[]);
            of_pci(folder.path(), "roce0", driver);
            let found = taken_in(folder.path(), "g0");
            assert_eq!(found.keys().map(|device| &device.remedy).collect::<Vec<_>>(), [&wanted], "{driver}");
        }
        let folder = tempfile::tempdir().unwrap();
        device(folder.path(), "rxe0", &["g0"], &[]);
        // Its parent may be the NIC that it stands on.
        of_pci(folder.path(), "rxe0", "mlx5_core");
        fs::write(folder.path().join("class/infiniband/rxe0/node_desc"), "rxe\n").unwrap();
        device(folder.path(), "some0", &["g0"], &[]);
        let found = taken_in(folder.path(), "g0");
        let remedies: Vec<_> = found.keys().map(|device| device.remedy.as_str()).collect();
        assert_eq!(remedies, ["`rdma link delete rxe0`", by_hand.as_str()]);
    }

    /// Puts an interface above others, by the kernel's links; a bridge has its ports as well.
    fn above(sys: &Path, upper: &str, lower: &[&str], is_bridge: bool) {
        let own = sys.join("class/net").join(upper);
        fs::create_dir_all(own.join("brif")).unwrap();
        for below in lower {
            let folder =
                if is_bridge { own.join("brif").join(below) } else { own.join(format!("lower_{below}")) };
            std::os::unix::fs::symlink(Path::new("../..").join(below), folder).unwrap();
        }
    }

    fn found(sys: &Path, interface: &str) -> Vec<(String, u64)> {
        taken_in(sys, interface).iter().map(|(device, taken)| (device.to_string(), *taken)).collect()
    }

    /// As the kernel has it for mlx5 and for Soft-RoCE.
    #[test]
    fn devices_are_found_by_their_interface_with_what_they_have_taken() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let requests = [
            ("hw_counters/rx_write_requests", 5),
            ("hw_counters/rx_read_requests", 2),
            ("hw_counters/lifespan", 10),
        ];
        device(sys, "mlx5_0", &["g0"], &requests);
        device(sys, "mlx5_1", &["eth7"], &requests);
        device(sys, "rxe0", &["g0"], &[("hw_counters/rcvd_pkts", 11), ("hw_counters/sent_pkts", 3)]);
        let [mlx5, rxe] = ["mlx5_0", "rxe0"].map(|name| format!("the RDMA device {name} on g0"));
        assert_eq!(found(sys, "g0"), [(mlx5, 7), (rxe, 11)]);
        assert_eq!(found(sys, "g1"), []);
        assert_eq!(found(&sys.join("none"), "g0"), []);
    }

    /// Requests count for queue pairs that are there, and the gateway's hosts' are not.
    #[test]
    fn packets_for_queue_pairs_that_a_device_does_not_have_count() {
        let folder = tempfile::tempdir().unwrap();
        let counters = [("hw_counters/rx_write_requests", 0), ("counters/unicast_rcv_packets", 70)];
        device(folder.path(), "mlx5_0", &["g0"], &counters);
        assert_eq!(found(folder.path(), "g0"), [("the RDMA device mlx5_0 on g0".to_owned(), 70)]);
    }

    /// The first GID may be of no interface, or of another one.
    #[test]
    fn devices_below_vlans_bonds_and_bridges_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let none = [("counters/unicast_rcv_packets", 1)];
        device(sys, "mlx5_0", &["eth1"], &none);
        device(sys, "mlx5_1", &["", "eth2", "eth2.100"], &none);
        device(sys, "mlx5_2", &["eth9"], &none);
        above(sys, "eth1.7", &["eth1"], false);
        above(sys, "eth2.100", &["eth2"], false);
        above(sys, "br0", &["eth2.100", "tap0"], true);
        above(sys, "br0.5", &["br0"], false);
        // Whatever a kernel may tell.
        above(sys, "tap0", &["br0"], false);
        let one = |interface: &str, device: &str| {
            assert_eq!(found(sys, interface), [(format!("the RDMA device {device}"), 1)], "{interface}");
        };
        one("eth1", "mlx5_0 on eth1");
        one("eth1.7", "mlx5_0 on eth1, below eth1.7,");
        one("eth2.100", "mlx5_1 on eth2.100");
        one("br0", "mlx5_1 on eth2.100, below br0,");
        one("br0.5", "mlx5_1 on eth2.100, below br0.5,");
        assert_eq!(found(sys, "tap1"), []);
    }
}
