//! Shares of hosts: whose traffic is being handled, and what each has in a table.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// A group of sources in a stream, see [`reliability::stream::Sender::push_from`]: the RC traffic
/// of one host, or all else that it sends. Hosts whose addresses have the same hash share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostGroup(u8);

/// Groups of either kind.
pub(crate) const EACH_KIND: usize = 128;

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

/// Counts the entries that each host has in a table.
///
/// A host may have [`ALPHA`] times as many as are free (Choudhury and Hahne, IEEE/ACM Transactions
/// on Networking 6(2), 1998). So one by itself may have nearly all, several have the same, and some
/// are always free for who comes next.
///
/// Bound: an entry for each host that has any in the table.
#[derive(Debug, Default)]
pub(crate) struct Hosts(BTreeMap<IpAddr, usize>);

/// Entries that a host may have for each that is free.
pub(crate) const ALPHA: usize = 8;

impl Hosts {
    /// Tells whether one more of this host may come where there are `all` of `most`.
    pub(crate) fn may_join(&self, host: IpAddr, all: usize, most: usize) -> bool {
        let own = self.0.get(&host).copied().unwrap_or(0);
        own < most.saturating_sub(all).saturating_mul(ALPHA)
    }

    pub(crate) fn join(&mut self, host: IpAddr) {
        *self.0.entry(host).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, host: IpAddr) {
        if let Some(own) = self.0.get_mut(&host) {
            *own -= 1;
            if *own == 0 {
                self.0.remove(&host);
            }
        }
    }
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

    #[test]
    fn one_host_leaves_room_for_the_next() {
        let (mut hosts, most) = (Hosts::default(), 900);
        let mut fill = |host: u8, all: &mut usize| {
            let before = *all;
            while hosts.may_join([10, 0, 0, host].into(), *all, most) {
                hosts.join([10, 0, 0, host].into());
                *all += 1;
            }
            *all - before
        };
        let mut all = 0;
        assert_eq!(fill(1, &mut all), 800);
        let (second, third) = (fill(2, &mut all), fill(3, &mut all));
        assert!(second >= 85 && third >= 9, "{second}, {third}");
        (0..800).for_each(|_| hosts.leave([10, 0, 0, 1].into()));
        assert!(hosts.may_join([10, 0, 0, 2].into(), all - 800, most));
    }
}
