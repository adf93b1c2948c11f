//! Counts of packets from local hosts that cannot cross, as /status tells of them.

use std::fmt;

use roce::ip::Reject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::Snapshot;

/// Packets from local hosts that tell of a mistake in their set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LanMistakes {
    /// RoCE v1, which is not routed.
    pub roce_v1: u64,
    /// With IP options, or with extension headers before the UDP header.
    pub extension_headers: u64,
    /// RDMA devices on the LAN interface or below it, which may take RoCE packets.
    #[serde(default)]
    pub rdma_devices: u64,
    /// Packets that they took since the gateway saw them first.
    #[serde(default)]
    pub rdma_packets: u64,
}

impl LanMistakes {
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let of = |reject: Reject| snapshot.lan_rejected.get(reject.index()).copied().unwrap_or(0);
        Self {
            roce_v1: of(Reject::RoceV1),
            extension_headers: of(Reject::IpOptions),
            rdma_devices: snapshot.lan_rdma_devices,
            rdma_packets: snapshot.lan_rdma_packets,
        }
    }

    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { roce_v1, extension_headers, rdma_devices, rdma_packets } = *self;
        for (number, what) in [
            (roce_v1, "RoCE v1 packets from local hosts: they need a RoCE v2 GID"),
            (extension_headers, "RoCE packets with IP options or extension headers from local hosts"),
            (rdma_devices, "RDMA devices on the LAN interface, which may take RoCE packets: `check --live`"),
            (rdma_packets, "RoCE packets that RDMA devices on the LAN interface took"),
        ] {
            if number > 0 {
                writeln!(f, "mistake  {number} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown(LanMistakes);

    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f)
        }
    }

    #[test]
    fn mistakes_are_shown_where_there_are_any() {
        let mut snapshot = Snapshot::default();
        assert_eq!(Shown(LanMistakes::new(&snapshot)).to_string(), "");
        snapshot.lan_rejected[Reject::RoceV1.index()] = 7;
        let shown = Shown(LanMistakes::new(&snapshot)).to_string();
        assert!(shown.contains("7 RoCE v1 packets") && shown.contains("RoCE v2 GID"), "{shown}");
        assert_eq!(shown.lines().count(), 1);
        snapshot.lan_rejected[Reject::IpOptions.index()] = 3;
        assert_eq!(Shown(LanMistakes::new(&snapshot)).to_string().lines().count(), 2);
        (snapshot.lan_rdma_devices, snapshot.lan_rdma_packets) = (1, 5);
        let shown = Shown(LanMistakes::new(&snapshot)).to_string();
        assert!(
            shown.contains("mistake  1 RDMA devices on") && shown.contains("5 RoCE packets that"),
            "{shown}"
        );
    }
}
