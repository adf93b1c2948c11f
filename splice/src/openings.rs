//! Flows that have been opened, for whoever tells people of them.

use std::net::IpAddr;

use roce::pairing::FlowKey;
use roce::wire::Qpn;

use crate::FlowSide;
use crate::kept::Kept;

/// One half of a flow that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOpening {
    /// The half that is here.
    pub side: FlowSide,
    /// Its requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if connection management has told it.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
}

impl FlowOpening {
    /// The beginning of the half with this key.
    pub(crate) fn new(side: FlowSide, key: &FlowKey, requester_qpn: Option<Qpn>) -> Self {
        let FlowKey { requester, target, target_qpn } = *key;
        Self { side, requester, requester_qpn, target, target_qpn }
    }
}

/// Flows that have been opened between two hosts, of which only the number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedBetween {
    /// The halves that are here.
    pub side: FlowSide,
    /// The requesters' address.
    pub requester: IpAddr,
    /// The targets' address.
    pub target: IpAddr,
    /// How many.
    pub count: u64,
}

impl From<FlowOpening> for OpenedBetween {
    /// Counts just this one.
    fn from(opening: FlowOpening) -> Self {
        let FlowOpening { side, requester, target, .. } = opening;
        Self { side, requester, target, count: 1 }
    }
}

/// Flows that have been opened, counted by their hosts.
///
/// Bound: 64 pairs of hosts, with each of both sides. Beyond it they are counted all together.
#[derive(Debug)]
pub struct OpenedByHosts {
    between: Vec<OpenedBetween>,
    others: u64,
}

/// Pairs of hosts, with each of both sides.
const PAIRS: usize = 64;

impl Default for OpenedByHosts {
    fn default() -> Self {
        Self { between: Vec::with_capacity(PAIRS), others: 0 }
    }
}

impl OpenedByHosts {
    /// Adds as many as were opened between two hosts.
    pub fn add(&mut self, opened: OpenedBetween) {
        let OpenedBetween { side, requester, target, count } = opened;
        let is_same = |of: &OpenedBetween| (of.side, of.requester, of.target) == (side, requester, target);
        // Most come in a row from the same hosts.
        if let Some(between) = self.between.iter_mut().rev().find(|between| is_same(between)) {
            between.count = between.count.saturating_add(count);
        } else if self.between.len() < PAIRS {
            self.between.push(opened);
        } else {
            self.add_others(count);
        }
    }

    /// Adds so many whose hosts are not known.
    pub fn add_others(&mut self, count: u64) {
        self.others = self.others.saturating_add(count);
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.between.is_empty() && self.others == 0
    }

    /// Hands all pairs of hosts out, and returns how many flows there were besides.
    pub fn take(&mut self, take: &mut dyn FnMut(OpenedBetween)) -> u64 {
        self.between.drain(..).for_each(take);
        std::mem::take(&mut self.others)
    }
}

/// Flows that have been opened since they were last told of.
///
/// Bound: the first 64 one by one, the others by their hosts.
#[derive(Debug)]
pub(crate) struct Openings {
    first: Kept<FlowOpening>,
    others: OpenedByHosts,
    /// Flows that have gone on after the end of a process: the first 64.
    restored: Kept<FlowOpening>,
}

impl Openings {
    pub(crate) fn new() -> Self {
        Self { first: Kept::new(), others: OpenedByHosts::default(), restored: Kept::new() }
    }

    pub(crate) fn push(&mut self, opening: &FlowOpening) {
        if self.first.has_room() {
            return self.first.push(*opening);
        }
        self.others.add((*opening).into());
    }

    /// A flow has gone on after the end of a process.
    pub(crate) fn push_restored(&mut self, flow: FlowOpening) {
        self.restored.push(flow);
    }

    /// Hands those out, and returns how many there were besides.
    pub(crate) fn take_restored(&mut self, take: &mut dyn FnMut(FlowOpening)) -> u64 {
        self.restored.take(take)
    }

    /// Hands all of them out, and returns how many there were besides.
    pub(crate) fn take(
        &mut self,
        first: &mut dyn FnMut(FlowOpening),
        between: &mut dyn FnMut(OpenedBetween),
    ) -> u64 {
        self.first.take(first) + self.others.take(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_flows_the_first_are_known_and_the_others_counted_by_hosts() {
        let mut openings = Openings::new();
        let opening = |requester: u8, qpn: u32| FlowOpening {
            side: FlowSide::Near,
            requester: [10, 0, 0, requester].into(),
            requester_qpn: None,
            target: [10, 0, 1, 1].into(),
            target_qpn: Qpn::new(qpn),
        };
        for qpn in 0..1000 {
            (0..3).for_each(|requester| openings.push(&opening(requester, qpn)));
        }
        (0..200).for_each(|requester| openings.push(&opening(requester, 0)));
        let (mut first, mut between) = (Vec::new(), Vec::new());
        let others = openings.take(&mut |opening| first.push(opening), &mut |count| between.push(count));
        assert_eq!((first.len(), between.len()), (64, PAIRS));
        assert_eq!(first[4], opening(1, 1));
        let of = |requester: u8| {
            let requester = IpAddr::from([10, 0, 0, requester]);
            between.iter().filter(|of| of.requester == requester).map(|of| of.count).collect::<Vec<_>>()
        };
        // Less the first ones; one more each at last.
        assert_eq!([of(0), of(1), of(2), of(3), of(63)], [vec![979], vec![980], vec![980], vec![1], vec![1]]);
        assert_eq!((of(64), others), (vec![], 200 - 64));
        assert_eq!(openings.take(&mut |_| panic!("twice"), &mut |_| panic!("twice")), 0);
    }
}
