//! How many flows each host may have.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Flows that a host may have for each that is free.
const ALPHA: usize = 8;

/// Flows of each requester's host.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Shares {
    capacity: usize,
    total: usize,
    hosts: BTreeMap<IpAddr, usize>,
}

impl Shares {
    pub(super) fn new(capacity: usize) -> Shares {
        Shares { capacity, total: 0, hosts: BTreeMap::new() }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Another flow of this host's begins, if there is room for it. `taken`: places taken by others
    /// than flows.
    pub(super) fn enter(&mut self, host: IpAddr, taken: usize) -> bool {
        let free = self.capacity.saturating_sub(self.total + taken);
        let own = self.hosts.get(&host).copied().unwrap_or_default();
        if own >= free.saturating_mul(ALPHA) {
            return false;
        }
        self.hosts.insert(host, own + 1);
        self.total += 1;
        true
    }

    pub(super) fn leave(&mut self, host: IpAddr) {
        let Some(own) = self.hosts.get_mut(&host) else { return };
        *own -= 1;
        self.total -= 1;
        if *own == 0 {
            self.hosts.remove(&host);
        }
    }
}
