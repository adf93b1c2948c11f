//! Flows that have ended in an error, for whoever tells people of them.

use std::collections::VecDeque;
use std::net::IpAddr;

use roce::pairing::FlowKey;
use roce::wire::Qpn;

use crate::FlowSide;
use crate::record::Reason;

/// Failures that wait to be taken; of more, only the number is known.
const KEPT: usize = 64;

/// A flow that ended in an error which its programs see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFailure {
    /// The half of the flow that is here.
    pub side: FlowSide,
    /// Its requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
    /// Why it failed.
    pub reason: Reason,
    /// Which end gave it up.
    pub by: By,
}

/// The gateway that gave a flow up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// This one.
    Us,
    /// The peer.
    Peer,
}

/// Failures since they were last taken.
#[derive(Debug)]
pub(crate) struct Failures {
    kept: VecDeque<FlowFailure>,
    missed: u64,
}

impl Failures {
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(KEPT), missed: 0 }
    }

    pub(crate) fn push(&mut self, failure: FlowFailure) {
        if self.kept.len() < KEPT {
            self.kept.push_back(failure);
        } else {
            self.missed += 1;
        }
    }

    /// Hands all of them out, and returns how many there were besides.
    pub(crate) fn take(&mut self, take: &mut dyn FnMut(FlowFailure)) -> u64 {
        self.kept.drain(..).for_each(take);
        std::mem::take(&mut self.missed)
    }
}

impl FlowFailure {
    /// The failure of the half with this key.
    pub(crate) fn new(
        side: FlowSide,
        key: &FlowKey,
        requester_qpn: Option<Qpn>,
        reason: Reason,
        by: By,
    ) -> Self {
        let FlowKey { requester, target, target_qpn } = *key;
        Self { side, requester, requester_qpn, target, target_qpn, reason, by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_the_first_are_kept_and_the_others_counted() {
        let mut failures = Failures::new();
        for number in 0..KEPT as u32 + 5 {
            let key = FlowKey {
                requester: [10, 0, 0, 1].into(),
                target: [10, 0, 1, 1].into(),
                target_qpn: Qpn::new(number),
            };
            failures.push(FlowFailure::new(FlowSide::Near, &key, None, Reason::NoRoom, By::Us));
        }
        let mut taken = Vec::new();
        assert_eq!(failures.take(&mut |failure| taken.push(failure.target_qpn.get())), 5);
        assert!(taken.into_iter().eq(0..KEPT as u32));
        assert_eq!(failures.take(&mut |failure| panic!("{failure:?} twice")), 0);
    }
}
