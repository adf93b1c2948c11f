//! Requesters that flows had before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{FlowKey, Hosts, Pairings};
use crate::wire::Qpn;

/// The last requesters of flows that wait for theirs to be known, or are gone. While such a flow
/// asks again, its target may answer to that requester, wherever it stands.
///
/// Bound: one for each flow that waits, and [`Former::MOST`] of flows that are gone. For one more
/// the first of these is forgotten.
#[derive(Debug, Default)]
pub(super) struct Former {
    of: BTreeMap<FlowKey, Qpn>,
    flows: BTreeSet<(Hosts, Qpn, FlowKey)>,
    gone: VecDeque<FlowKey>,
}

impl Former {
    const MOST: usize = 1024;

    pub(super) fn note(&mut self, flow: FlowKey, requester_qpn: Qpn) {
        self.forget(&flow);
        self.of.insert(flow, requester_qpn);
        self.flows.insert((flow.hosts(), requester_qpn, flow));
    }

    /// The flow is gone. Returns one that may be forgotten, unless it is there again.
    fn leave(&mut self, flow: FlowKey) -> Option<FlowKey> {
        self.gone.push_back(flow);
        if self.gone.len() > Former::MOST { self.gone.pop_front() } else { None }
    }

    pub(super) fn forget(&mut self, flow: &FlowKey) {
        if let Some(requester_qpn) = self.of.remove(flow) {
            self.flows.remove(&(flow.hosts(), requester_qpn, *flow));
        }
    }

    /// The flows between these hosts that had this requester.
    fn flows(&self, hosts: Hosts, requester_qpn: Qpn) -> impl Iterator<Item = FlowKey> + '_ {
        let Hosts { requester, target } = hosts;
        let from = FlowKey { requester, target, target_qpn: Qpn::new(0) };
        let known = self.flows.range((hosts, requester_qpn, from)..);
        known
            .take_while(move |(between, qpn, _)| (*between, *qpn) == (hosts, requester_qpn))
            .map(|(.., flow)| *flow)
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
        if self.former.of.contains_key(flow)
            && let Some(first) = self.former.leave(*flow)
            && !self.turns.contains(&first)
        {
            self.former.forget(&first);
        }
    }

    /// Returns whether an answer to this requester is no answer to a flow that had it, and asks
    /// anew. If such a flow's target stands elsewhere than it is asked about, that names any PSN.
    pub(super) fn is_no_formers(&self, asker: &FlowKey, requester_qpn: Qpn) -> bool {
        let hosts = asker.hosts();
        let had = self.former.flows(hosts, requester_qpn).chain(self.links.flow_of(hosts, requester_qpn));
        let mut others = had.filter(|had| had != asker);
        !others.any(|had| self.turns.has_out(&had))
    }
}
