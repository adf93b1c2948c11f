//! Requesters that flows had before.

use std::collections::BTreeMap;

use super::{FlowKey, Pairings};
use crate::wire::Qpn;

/// The last requesters of flows that wait for theirs to be known, or are gone. While such a flow
/// asks again, its target may answer to that requester, wherever it stands.
///
/// Bound: one for each flow that waits, and [`Former::MOST`] of flows that are gone. For one more
/// that which is gone for longest is forgotten.
#[derive(Debug, Default)]
pub(super) struct Former {
    of: BTreeMap<FlowKey, Had>,
    /// Flows that are gone, in that order.
    gone: BTreeMap<u64, FlowKey>,
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Had {
    requester_qpn: Qpn,
    /// The flow's place among those that are gone. It may be there again.
    gone: Option<u64>,
}

impl Former {
    const MOST: usize = 1024;

    pub(super) fn note(&mut self, flow: FlowKey, requester_qpn: Qpn) {
        self.forget(&flow);
        self.of.insert(flow, Had { requester_qpn, gone: None });
    }

    pub(super) fn forget(&mut self, flow: &FlowKey) {
        if let Some(ticket) = self.of.remove(flow).and_then(|had| had.gone) {
            self.gone.remove(&ticket);
        }
    }

    /// The flow is gone. Returns whose place it takes, if anybody's.
    fn leave(&mut self, flow: FlowKey) -> Option<FlowKey> {
        let had = self.of.get_mut(&flow)?;
        self.ticket += 1;
        if let Some(before) = had.gone.replace(self.ticket) {
            self.gone.remove(&before);
        }
        self.gone.insert(self.ticket, flow);
        let (_, first) = if self.gone.len() > Former::MOST { self.gone.pop_first()? } else { return None };
        if let Some(had) = self.of.get_mut(&first) {
            had.gone = None;
        }
        Some(first)
    }

    fn had(&self, flow: &FlowKey, requester_qpn: Qpn) -> bool {
        self.of.get(flow).is_some_and(|had| had.requester_qpn == requester_qpn)
    }
}

impl Pairings {
    /// The flow is gone. Should another one of its name begin, its target most likely stands where
    /// this one's did.
    pub(super) fn keep_former(&mut self, flow: &FlowKey) {
        if self.links.is_held(flow)
            && let Some(requester_qpn) = self.links.partner(flow)
        {
            self.former.note(*flow, requester_qpn);
        }
        if let Some(first) = self.former.leave(*flow)
            && !self.turns.contains(&first)
        {
            self.former.forget(&first);
        }
    }

    /// Returns whether an answer to this requester is no answer to a flow that had it, and asks
    /// anew. If such a flow's target stands elsewhere than it is asked about, that names any PSN.
    pub(super) fn is_no_formers(&self, asker: &FlowKey, requester_qpn: Qpn) -> bool {
        let had = |flow: &FlowKey| {
            self.former.had(flow, requester_qpn) || self.links.partner(flow) == Some(requester_qpn)
        };
        !self.turns.out(asker.hosts()).any(|flow| flow != *asker && had(&flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(target_qpn: u32) -> FlowKey {
        let [requester, target] = [[10, 0, 0, 1], [10, 0, 1, 1]].map(std::net::IpAddr::from);
        FlowKey { requester, target, target_qpn: Qpn::new(target_qpn) }
    }

    #[test]
    fn a_flow_that_comes_and_goes_takes_one_place() {
        let mut former = Former::default();
        for qpn in 0..Former::MOST as u32 {
            former.note(flow(qpn), Qpn::new(7));
            assert_eq!(former.leave(flow(qpn)), None);
        }
        for _ in 0..2 * Former::MOST {
            assert_eq!(former.leave(flow(5)), None);
        }
        former.note(flow(5000), Qpn::new(8));
        assert_eq!(former.leave(flow(5000)), Some(flow(0)));
        former.forget(&flow(0));
        assert_eq!((former.of.len(), former.gone.len()), (Former::MOST, Former::MOST));
        assert!(former.had(&flow(5), Qpn::new(7)) && !former.had(&flow(5), Qpn::new(8)));
        former.forget(&flow(5));
        assert_eq!(former.gone.len(), Former::MOST - 1);
    }
}
