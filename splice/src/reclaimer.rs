//! Who gives way when packet buffers run short.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Packet buffers that a flow holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load<K> {
    /// The host for whose sake: the target of a far flow, the requester of a near one.
    pub(crate) host: IpAddr,
    /// Bytes.
    pub(crate) held: usize,
    /// Its target has never spoken, so that its requester may begin it again.
    pub(crate) is_unheard: bool,
    pub(crate) flow: K,
}

impl<K> Load<K> {
    fn of<L>(&self, flow: L) -> Load<L> {
        let Self { host, held, is_unheard, .. } = *self;
        Load { host, held, is_unheard, flow }
    }
}

/// Keeps buffers free for those who need few of them.
///
/// The flows to one target may hold half of the pool together, and all flows three quarters of it;
/// what is left is for those that just begin. Beyond that, flows go whose targets have never
/// spoken. If these are not enough, the flows end that hold most, of the host whose flows hold most
/// together, until a sixteenth of the pool is free again: a target that has fallen silent costs its
/// own requesters their flows, not others theirs.
///
/// # Cost
/// Nothing per packet but a comparison. The flows are looked through when more than half of the
/// pool is in use, once for every sixteenth by which that grows.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    limit: usize,
    /// Look again when more than this is in use.
    look_above: usize,
}

impl Reclaimer {
    /// For a pool of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, look_above: usize::MAX }
    }

    /// Returns true if it is time to look for flows that hold too much, now that `used` bytes of
    /// the pool are in use.
    pub(crate) fn is_due(&mut self, used: usize) -> bool {
        let next = used.max(host_share(self.limit)) + self.step();
        self.look_above = self.look_above.min(next);
        if used <= self.look_above {
            return false;
        }
        self.look_above = next;
        true
    }

    /// The flows that have to go. `capped`: whose hosts may not hold more than their share, as
    /// targets; the other loads are the requesters'.
    pub(crate) fn choose<A: Copy, B: Copy>(
        &self,
        used: usize,
        capped: impl Iterator<Item = Load<A>>,
        others: impl Iterator<Item = Load<B>>,
    ) -> Vec<Holder<A, B>> {
        let mut hosts = BTreeMap::new();
        let mut add = |is_capped: bool, load: Load<()>, flow| {
            let (sum, flows): &mut (usize, Vec<_>) = hosts.entry((is_capped, load.host)).or_default();
            *sum += load.held;
            flows.push((load.is_unheard, load.held, flow));
        };
        capped.for_each(|load| add(true, load.of(()), Holder::Far(load.flow)));
        others.for_each(|load| add(false, load.of(()), Holder::Near(load.flow)));
        let mut hosts: Vec<_> = hosts.into_iter().map(|((is_capped, _), held)| (is_capped, held)).collect();
        hosts.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(*sum));
        for (_, (_, flows)) in &mut hosts {
            flows.sort_by_key(|(_, held, _)| std::cmp::Reverse(*held));
        }
        let mut excess = self.excess(used, pool_share(self.limit));
        let mut chosen = Vec::new();
        for is_unheard in [true, false] {
            for (is_capped, (sum, flows)) in &mut hosts {
                let own = if *is_capped { self.excess(*sum, host_share(self.limit)) } else { 0 };
                let wanted = excess.max(own);
                let mut freed = 0;
                for (_, held, flow) in flows.iter().filter(|(unheard, ..)| *unheard == is_unheard) {
                    if freed >= wanted {
                        break;
                    }
                    freed += held;
                    chosen.push(*flow);
                }
                *sum -= freed;
                excess = excess.saturating_sub(freed);
            }
        }
        chosen
    }

    /// How much must go so that a step below `most` is left; nothing unless `held` exceeds that.
    fn excess(&self, held: usize, most: usize) -> usize {
        if held > most { held - most + self.step() } else { 0 }
    }

    fn step(&self) -> usize {
        self.limit / 16
    }
}

/// Returns the bytes that the flows to one target may hold of `limit`.
pub(crate) fn host_share(limit: usize) -> usize {
    limit / 2
}

/// Returns the bytes that all flows together may hold of `limit`.
fn pool_share(limit: usize) -> usize {
    limit / 4 * 3
}

/// A flow of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder<A, B> {
    Far(A),
    Near(B),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(host: u8, held: &[usize]) -> impl Iterator<Item = Load<(u8, usize)>> {
        let load = move |(index, held): (usize, &usize)| Load {
            host: [10, 0, 0, host].into(),
            held: *held,
            is_unheard: false,
            flow: (host, index),
        };
        held.iter().enumerate().map(load).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn flows_are_looked_through_once_for_each_step_of_growth() {
        let mut relief = Reclaimer::new(1600);
        let due: Vec<_> = (0..1600).filter(|used| relief.is_due(*used)).collect();
        assert_eq!(due, [901, 1002, 1103, 1204, 1305, 1406, 1507]);
        // It has to be noticed again after a fall.
        assert!(!relief.is_due(1200));
        assert!(!relief.is_due(1300));
        assert!(relief.is_due(1301));
        assert!(!relief.is_due(0));
        assert!(!relief.is_due(900));
        assert!(relief.is_due(901));
    }

    #[test]
    fn one_target_gives_up_what_exceeds_its_share_and_the_largest_first() {
        let relief = Reclaimer::new(1600);
        let far = || loads(1, &[100, 300, 200, 250]).chain(loads(2, &[310]));
        let none = || loads(3, &[]);
        // 850 of 800: 150 must go.
        assert_eq!(relief.choose(1160, far(), none()), [Holder::Far((1, 1))]);
        // As requesters hosts are not bounded each by itself.
        assert_eq!(relief.choose(1160, none(), far()), []);
    }

    #[test]
    fn when_all_hold_too_much_who_holds_most_gives_way() {
        let relief = Reclaimer::new(1600);
        let far = || loads(1, &[90, 300, 60, 250]).chain(loads(2, &[310]));
        let near = || loads(3, &[320]);
        assert_eq!(relief.choose(1200, far(), near()), []);
        // 100 above, and a step more.
        assert_eq!(relief.choose(1330, far(), near()), [Holder::Far((1, 1))]);
        let all = relief.choose(1330 + 1000, far(), near());
        assert_eq!(all.len(), 6);
        assert_eq!(all.last(), Some(&Holder::Far((2, 0))));
    }

    /// Many small ones to absent targets end none of a target that answers.
    #[test]
    fn those_whose_targets_never_spoke_go_first() {
        let relief = Reclaimer::new(1600);
        let unheard = |host, held: [usize; 2]| {
            let load = |load| Load { is_unheard: true, ..load };
            loads(host, &held).map(load).collect::<Vec<_>>()
        };
        let none = || loads(0, &[]);
        let far = || loads(1, &[310, 90]).chain((2..12).flat_map(|host| unheard(host, [50, 40])));
        let chosen = relief.choose(1300, far(), none());
        assert_eq!(chosen.len(), 5, "{chosen:?}");
        assert!(chosen.iter().all(|holder| matches!(holder, Holder::Far((2.., _)))), "{chosen:?}");
        // What they hold is not enough.
        let far = || loads(1, &[310, 90]).chain(unheard(2, [50, 0]));
        assert_eq!(
            relief.choose(1300, far(), none()),
            [Holder::Far((2, 0)), Holder::Far((2, 1)), Holder::Far((1, 0))]
        );
        // A target that has more than its share.
        let far = || loads(1, &[700]).chain(unheard(1, [80, 90]));
        let chosen = relief.choose(990, far(), none());
        assert_eq!(chosen, [Holder::Far((1, 1)), Holder::Far((1, 0))]);
    }
}
