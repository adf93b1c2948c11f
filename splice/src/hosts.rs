//! Shares of hosts: whose traffic is being handled, and what each has in a table.

use std::net::IpAddr;
use transport::Group;

pub(crate) use roce::hosts::Hosts;

/// Group of a host's RC traffic. Hosts whose addresses have the same hash share it.
pub(crate) fn rc(host: IpAddr) -> Group {
    Group::main(hash(host))
}

/// Group of all else that a host sends.
pub(crate) fn other(host: IpAddr) -> Group {
    Group::other(hash(host))
}

/// Groups of hosts that share what there is.
pub(crate) const GROUPS: usize = Group::EACH_KIND;

/// The group of a host, as far as what it has counts.
pub(crate) fn group(host: IpAddr) -> u8 {
    hash(host)
}

/// Neighbours have places of their own: Fibonacci hashing (Knuth, volume 3, section 6.4).
fn hash(host: IpAddr) -> u8 {
    let number = match host {
        IpAddr::V4(host) => u64::from(host.to_bits()),
        IpAddr::V6(host) => (host.to_bits() ^ host.to_bits() >> 64) as u64,
    };
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Group::EACH_KIND.ilog2())) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_groups_of_their_own() {
        let groups: std::collections::BTreeSet<_> =
            (0..64).map(|host| rc([10, 0, 0, host].into()).number()).collect();
        assert!(groups.len() > 60, "{}", groups.len());
        let host = [10, 0, 0, 1].into();
        assert_eq!(other(host).place(), rc(host).place());
        assert!(other(host).number() >= 128 && rc(host).number() < 128);
    }
}
