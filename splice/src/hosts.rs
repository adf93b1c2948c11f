//! Shares of hosts: whose traffic is being handled, and what each has in a table.

use std::net::IpAddr;

use reliability::stream::FIRST_OTHER;
pub(crate) use roce::hosts::{ALPHA, Hosts};

/// A group of sources in a stream, see [`reliability::stream::Sender::push_from`]: the RC traffic
/// of one host, or all else that it sends. Hosts whose addresses have the same hash share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostGroup(u8);

/// Groups of either kind: RC's come first.
pub(crate) const EACH_KIND: usize = FIRST_OTHER;

impl HostGroup {
    /// Group of a host's RC traffic.
    pub(crate) fn rc(host: IpAddr) -> Self {
        Self(hash(host))
    }

    /// Group of all else that a host sends.
    pub(crate) fn other(host: IpAddr) -> Self {
        Self(hash(host) | EACH_KIND as u8)
    }

    pub(crate) fn is_rc(self) -> bool {
        usize::from(self.0) < EACH_KIND
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The host's place among those of its kind.
    pub(crate) fn place(self) -> usize {
        usize::from(self.0) % EACH_KIND
    }
}

/// Neighbours have places of their own: Fibonacci hashing (Knuth, volume 3, section 6.4).
fn hash(host: IpAddr) -> u8 {
    let number = match host {
        IpAddr::V4(host) => u64::from(host.to_bits()),
        IpAddr::V6(host) => (host.to_bits() ^ host.to_bits() >> 64) as u64,
    };
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - EACH_KIND.ilog2())) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_groups_of_their_own() {
        let groups: std::collections::BTreeSet<_> =
            (0..64).map(|host| HostGroup::rc([10, 0, 0, host].into()).number()).collect();
        assert!(groups.len() > 60, "{}", groups.len());
        let host = [10, 0, 0, 1].into();
        assert_eq!(HostGroup::other(host).place(), HostGroup::rc(host).place());
        assert!(HostGroup::other(host).number() >= 128 && HostGroup::rc(host).number() < 128);
    }
}
