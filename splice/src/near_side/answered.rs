//! Requester side: the flows that targets have answered, to be told at once from all others.

use std::net::IpAddr;

use roce::pairing::FlowKey;

use crate::hosts::Grouping;

/// Counts the answered flows by a keyed hash of theirs: a counting Bloom filter with one hash (Fan
/// et al., IEEE/ACM Transactions on Networking 8(3), 2000).
///
/// It says of each answered flow that it may be one, and of few others. So whoever begins ever more
/// flows is found without a look at the table of flows, which is far larger than a cache.
///
/// Bound: 256 KiB, once there is such a flow. Among 10,000 of them it takes 4 % of other flows for
/// one, among 100,000 a third.
#[derive(Debug, Default)]
pub(super) struct AnsweredFlows(Vec<u8>);

/// Places, as a power of two.
const BITS: u32 = 18;
/// As many flows have one place that they are not counted any more. It stays taken.
const MANY: u8 = u8::MAX;

impl AnsweredFlows {
    pub(super) fn enter(&mut self, flow: &FlowKey, grouping: Grouping) {
        if self.0.is_empty() {
            self.0.resize(1 << BITS, 0);
        }
        self.change(flow, grouping, |count| count.saturating_add(1));
    }

    pub(super) fn leave(&mut self, flow: &FlowKey, grouping: Grouping) {
        self.change(flow, grouping, |count| if count == MANY { MANY } else { count.saturating_sub(1) });
    }

    /// Returns false if the flow is none of them.
    pub(super) fn may_have(&self, flow: &FlowKey, grouping: Grouping) -> bool {
        self.0.get(place(flow, grouping)).is_some_and(|count| *count > 0)
    }

    fn change(&mut self, flow: &FlowKey, grouping: Grouping, count: impl Fn(u8) -> u8) {
        if let Some(at) = self.0.get_mut(place(flow, grouping)) {
            *at = count(*at);
        }
    }
}

fn place(flow: &FlowKey, grouping: Grouping) -> usize {
    let FlowKey { requester, target, target_qpn } = flow;
    let words = |address: &IpAddr| match address {
        IpAddr::V4(address) => [u64::from(address.to_bits()), 0],
        IpAddr::V6(address) => [address.to_bits() as u64, (address.to_bits() >> 64) as u64],
    };
    let hash = grouping.hash(words(requester), words(target), target_qpn.get());
    (hash >> (u64::BITS - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use roce::wire::Qpn;

    use super::*;

    fn flow(host: u8, qpn: u32) -> FlowKey {
        let target_qpn = Qpn::new(qpn);
        FlowKey { requester: [10, 0, 0, host].into(), target: [10, 0, 1, 1].into(), target_qpn }
    }

    #[test]
    fn each_that_is_there_is_found_and_few_others_are() {
        let (mut flows, grouping) = (AnsweredFlows::default(), Grouping::new(7));
        assert!(!flows.may_have(&flow(1, 1), grouping));
        (0..10_000).for_each(|qpn| flows.enter(&flow(1, qpn), grouping));
        assert!((0..10_000).all(|qpn| flows.may_have(&flow(1, qpn), grouping)));
        let others = (0..10_000).filter(|qpn| flows.may_have(&flow(2, *qpn), grouping)).count();
        assert!((300..450).contains(&others), "{others}");
        (0..5000).for_each(|qpn| flows.leave(&flow(1, qpn), grouping));
        assert!((5000..10_000).all(|qpn| flows.may_have(&flow(1, qpn), grouping)));
        (5000..10_000).for_each(|qpn| flows.leave(&flow(1, qpn), grouping));
        assert!((0..10_000).all(|qpn| !flows.may_have(&flow(1, qpn), grouping)));
    }

    #[test]
    fn a_place_of_very_many_stays_taken() {
        let (mut flows, grouping) = (AnsweredFlows::default(), Grouping::new(7));
        (0..300).for_each(|_| flows.enter(&flow(1, 1), grouping));
        (0..300).for_each(|_| flows.leave(&flow(1, 1), grouping));
        assert!(flows.may_have(&flow(1, 1), grouping));
    }
}
