//! Shares of hosts: whose traffic is being handled, and what each has in a table.

use std::net::IpAddr;
use transport::Group;

pub(crate) use roce::hosts::Hosts;

/// Groups of hosts that share what there is.
pub(crate) const GROUPS: usize = Group::EACH_KIND;

/// Puts hosts in 128 groups.
///
/// Hosts that share all but the last bits of their address, those of an IPv4 /25, have groups of
/// their own. Which of them shares with a host of another network depends on a key. So whoever
/// chooses an address does not choose whom to share with.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    offset: u64,
    factor: u64,
}

/// Bits of a host's address that tell it from its neighbours.
const LAST: u32 = GROUPS.ilog2();

impl Grouping {
    /// Returns the grouping of this key.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self { offset: mix(key), factor: mix(key.wrapping_add(GOLDEN)) | 1 }
    }

    /// Returns a number that follows from the key.
    pub(crate) fn secret(self) -> u64 {
        self.offset
    }

    /// Group of a host's RC traffic.
    pub(crate) fn rc(self, host: IpAddr) -> Group {
        Group::main(self.group(host))
    }

    /// Group of the RC traffic of a host that no target has answered yet.
    pub(crate) fn unproven(self, host: IpAddr) -> Group {
        Group::unproven(self.group(host))
    }

    /// Group of all else that a host sends.
    pub(crate) fn other(self, host: IpAddr) -> Group {
        Group::other(self.group(host))
    }

    /// A keyed hash of two hosts and a queue pair of theirs. Its upper bits are the best.
    pub(crate) fn hash(self, [a, b]: [u64; 2], [c, d]: [u64; 2], qpn: u32) -> u64 {
        let hosts =
            fold(a ^ self.offset, b ^ self.factor) ^ fold(c ^ self.factor, d ^ self.offset).rotate_left(32);
        fold(hosts ^ u64::from(qpn), self.factor).wrapping_mul(GOLDEN)
    }

    /// The group of a host, as far as what it has counts.
    pub(crate) fn group(self, host: IpAddr) -> u8 {
        let bits = match host {
            IpAddr::V4(host) => u128::from(host.to_bits()),
            IpAddr::V6(host) => host.to_bits(),
        };
        let network = bits >> LAST;
        let folded = fold(network as u64 ^ self.offset, (network >> 64) as u64 ^ self.factor);
        let place = (folded.wrapping_mul(GOLDEN) >> (u64::BITS - LAST)) as u8;
        place.wrapping_add(bits as u8) % GROUPS as u8
    }
}

/// Folded multiplication (wyhash).
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Addresses that differ in the last byte.
    fn network(number: u8) -> [Vec<IpAddr>; 2] {
        let four = (0..128).map(|host| [10, number, 0, host].into()).collect();
        let six = (0..128).map(|host| [0xfd00, number.into(), 0, 0, 0, 0, 0, host].into()).collect();
        [four, six]
    }

    #[test]
    fn neighbours_have_groups_of_their_own() {
        for key in 0..50 {
            let grouping = Grouping::new(key);
            for hosts in network(key as u8) {
                let groups: BTreeSet<_> = hosts.iter().map(|host| grouping.group(*host)).collect();
                assert_eq!(groups.len(), GROUPS);
            }
        }
        let (grouping, host) = (Grouping::new(7), [10, 0, 0, 1].into());
        assert_eq!(grouping.other(host).place(), grouping.rc(host).place());
        assert!(grouping.other(host).number() >= 128 && grouping.rc(host).number() < 128);
    }

    /// Few of the keys that there may be have any two hosts share.
    #[test]
    fn nobody_chooses_whom_to_share_with() {
        let keys = 4000;
        let victims = network(1).map(|hosts| hosts[1]);
        for (victim, others) in victims.into_iter().zip(network(2)) {
            for other in others {
                let shares = |key: &u64| {
                    let grouping = Grouping::new(*key);
                    grouping.group(victim) == grouping.group(other)
                };
                let shared = (0..keys).filter(shares).count();
                // 31 are expected.
                assert!((5..=70).contains(&shared), "{victim} and {other}: {shared}");
            }
        }
    }
}
