//! Shares of hosts in a table.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Counts the entries that each host has in a table.
///
/// A host may have [`ALPHA`] times as many as are free (Choudhury and Hahne, IEEE/ACM Transactions
/// on Networking 6(2), 1998). So one by itself may have nearly all, several have the same, and some
/// are always free for who comes next.
///
/// Whatever stands for a host may have a share: `H`.
///
/// Bound: an entry for each host that has any in the table.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Hosts<H: Ord = IpAddr>(BTreeMap<H, usize>);

/// Entries that a host may have for each that is free.
pub const ALPHA: usize = 8;

impl<H: Ord> Default for Hosts<H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<H: Copy + Ord> Hosts<H> {
    /// Tells whether one more of this host may come where there are `all` of `most`.
    pub fn may_join(&self, host: H, all: usize, most: usize) -> bool {
        let own = self.0.get(&host).copied().unwrap_or(0);
        own < most.saturating_sub(all).saturating_mul(ALPHA)
    }

    /// One more of this host has come.
    pub fn join(&mut self, host: H) {
        *self.0.entry(host).or_default() += 1;
    }

    /// One of this host is gone.
    pub fn leave(&mut self, host: H) {
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
    fn one_host_leaves_room_for_the_next() {
        let (mut hosts, most) = (Hosts::<IpAddr>::default(), 900);
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
