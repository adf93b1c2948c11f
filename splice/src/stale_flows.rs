//! The state that outlives a session: which queue pairs belonged together, and where they stood.
//!
//! A gateway that restarts knows no flow, yet must tell the programs on its side that theirs are
//! over, and for that it needs the queue-pair number to address. Its peer survived and remembers:
//! it hands its [`StaleFlow`] flows over before the new session carries anything, and the
//! restarted gateway poisons those targets. It refuses a requester that goes on in the midst of a
//! message, which can never complete. A request that begins a message may be of the next
//! incarnation and goes to the target. If that stays silent, since the peer has poisoned it, its
//! requester is refused. Its class says how: by NAK 0x63, or by silence and then by that.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::Addressing;
use roce::pairing::{FlowKey, source_port};
use roce::wire::{Packet, Psn, Qpn};

use crate::classes::Classes;
use crate::session_end::SessionEnd;

/// Which end of a flow the remembering gateway stood at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum FlowSide {
    /// At the requester's: its peer must poison the target.
    Near,
    /// At the target's: its peer must refuse the requester.
    Far,
}

/// A flow of an earlier session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StaleFlow {
    /// The requester's address.
    pub requester: IpAddr,
    /// The target's address.
    pub target: IpAddr,
    /// The queue pair that requests name.
    pub target_qpn: Qpn,
    /// The queue pair that responses name.
    pub requester_qpn: Qpn,
    /// The PSN it had come to, give or take a window.
    pub psn: Psn,
    /// The UDP source port that its requests came from.
    pub src_port: u16,
    /// Where the gateway that remembers stood.
    pub side: FlowSide,
    /// It has not ended. Should the peer have restarted, it goes on.
    #[serde(skip)]
    pub lives: bool,
}

impl StaleFlow {
    pub(crate) fn key(&self) -> FlowKey {
        FlowKey { requester: self.requester, target: self.target, target_qpn: self.target_qpn }
    }

    /// Returns true if this request to its target is another requester's, by its port. Inside a
    /// message the port may be any, unless it follows from the queue pairs' numbers.
    fn is_contradicted(&self, came: &Came) -> bool {
        let follows = self.src_port == source_port(self.requester_qpn, self.target_qpn);
        self.src_port != came.src_port && (follows || came.starts)
    }
}

/// A requester that must be refused, since the peer remembers a flow of its that we do not know
/// (any more).
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct ResetMark {
    pub(crate) flow: StaleFlow,
    /// How its session ended.
    pub(crate) ended: SessionEnd,
    /// Where it is refused by silence: until then.
    #[serde_as(as = "snapshot::At")]
    pub(crate) silent_until: Instant,
    /// When it is forgotten.
    #[serde_as(as = "snapshot::At")]
    pub(crate) until: Instant,
}

impl ResetMark {
    /// Returns true if it gets no answer yet: its class refuses by silence, which is not over.
    pub(crate) fn meets_silence(&self, classes: &Classes, class: usize, now: Instant) -> bool {
        now < self.silent_until && classes.refuses_by_silence(class, self.ended)
    }
}

/// A request to the target of a flow that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    pub(crate) src_port: u16,
    pub(crate) psn: Psn,
    /// It begins a message.
    pub(crate) starts: bool,
}

impl Came {
    pub(crate) fn of(addressing: &Addressing, packet: &Packet<'_>) -> Self {
        let starts = packet.bth.opcode.starts_message();
        Self { src_port: addressing.src_port, psn: packet.bth.psn, starts }
    }
}

/// Flows kept for the peer's sake. Beyond `most` of a kind the newest are not remembered (and
/// counted), so that a storm of flows cannot push out those already promised an error.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct StaleFlows {
    /// Bound of the flows of each kind.
    most: usize,
    /// Flows of ours whose session ended: for the peer, should it have restarted.
    #[serde_as(as = "BTreeMap<_, (_, snapshot::At)>")]
    own: BTreeMap<(FlowKey, bool), (StaleFlow, Instant)>,
    doomed: BTreeMap<FlowKey, ResetMark>,
    /// Flows of requesters here that the gateway before this one knew, and when they are forgotten.
    /// Not in a snapshot: what another process lacks of them ends as an orphan.
    #[serde(skip)]
    awaited: BTreeMap<FlowKey, (StaleFlow, Instant)>,
    /// When the first of either is forgotten, or earlier.
    #[serde_as(as = "Option<snapshot::At>")]
    next: Option<Instant>,
    /// Flows not remembered, for want of room.
    pub(crate) forgotten: u64,
}

/// Time within which flows that end may be forgotten together.
const TOGETHER: Duration = Duration::from_millis(100);
/// How far a doomed flow's packets may lie from the remembered PSN, which may be some tenths of a
/// second old. What lies nearer is not refused for that: it must go on in the midst of a message,
/// or its target be silent.
const NEARBY: i32 = 1 << 18;

impl StaleFlows {
    /// For a gateway that has so many flows on each of its sides: all of them fit, at some 200
    /// bytes each.
    pub(crate) fn new(flows: usize) -> Self {
        let most = flows.saturating_mul(2);
        Self {
            most,
            own: BTreeMap::new(),
            doomed: BTreeMap::new(),
            awaited: BTreeMap::new(),
            next: None,
            forgotten: 0,
        }
    }

    pub(crate) fn remember(&mut self, flow: StaleFlow, until: Instant) {
        let flow = StaleFlow { lives: false, ..flow };
        let key = (flow.key(), flow.side == FlowSide::Near);
        if self.own.len() < self.most || self.own.contains_key(&key) {
            self.own.insert(key, (flow, until));
            self.await_end(until);
        } else {
            self.forgotten += 1;
        }
    }

    /// Returns the flows of ours, to hand to the peer.
    pub(crate) fn own(&self) -> impl Iterator<Item = StaleFlow> + '_ {
        self.own.values().map(|(flow, _)| *flow)
    }

    /// The peer has been told.
    pub(crate) fn clear_own(&mut self) {
        self.own.clear();
    }

    pub(crate) fn mark_reset(&mut self, doomed: ResetMark) {
        let key = doomed.flow.key();
        if self.doomed.len() < self.most || self.doomed.contains_key(&key) {
            self.doomed.insert(key, doomed);
            self.await_end(doomed.until);
        } else {
            self.forgotten += 1;
        }
    }

    /// Returns the requester that may be refused in the name of a flow that is over. What comes
    /// from elsewhere, or lies elsewhere, is another incarnation's, and ends this.
    pub(crate) fn doomed(&mut self, key: &FlowKey, came: &Came) -> Option<ResetMark> {
        let doomed = self.doomed.get(key)?;
        let flow = &doomed.flow;
        if flow.psn.distance(came.psn).abs() <= NEARBY && !flow.is_contradicted(came) {
            return Some(*doomed);
        }
        self.spare(key);
        None
    }

    /// The requester of this flow may go on in the midst of a message.
    pub(crate) fn await_requester(&mut self, flow: StaleFlow, until: Instant) {
        let key = flow.key();
        if self.awaited.len() < self.most || self.awaited.contains_key(&key) {
            self.awaited.insert(key, (flow, until));
            self.await_end(until);
        } else {
            self.forgotten += 1;
        }
    }

    /// Returns whether this request, which begins a message, is the requester's of a flow that the
    /// gateway before this one knew. That is so once.
    pub(crate) fn comes_back(&mut self, key: &FlowKey, came: &Came) -> bool {
        let is_its = self.awaited.get(key).is_some_and(|(flow, _)| {
            flow.psn.distance(came.psn).abs() <= NEARBY && !flow.is_contradicted(came)
        });
        is_its && self.awaited.remove(key).is_some()
    }

    /// Requesters that have not come back yet.
    pub(crate) fn awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Returns whether this request may go on with a flow that the gateway before this one knew.
    /// That is so once: then there is a flow that asks the target. A request that cannot go on with
    /// it may be anybody's, and changes nothing.
    pub(crate) fn goes_on(&mut self, key: &FlowKey, came: &Came) -> bool {
        self.may_go_on(key, came) && self.awaited.remove(key).is_some()
    }

    /// Returns the same, and it is so still.
    pub(crate) fn may_go_on(&self, key: &FlowKey, came: &Came) -> bool {
        self.awaited.get(key).is_some_and(|(flow, _)| {
            flow.psn.distance(came.psn).abs() <= NEARBY && !flow.is_contradicted(came)
        })
    }

    /// The target has answered: its queue pair has another incarnation.
    pub(crate) fn spare(&mut self, key: &FlowKey) {
        self.doomed.remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.doomed.len() + self.awaited.len()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Forgets what is due. Looks at all there is, so no more often than every tenth of a second.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        self.own.retain(|_, (_, until)| *until > now);
        self.doomed.retain(|_, doomed| doomed.until > now);
        self.awaited.retain(|_, (_, until)| *until > now);
        let kept = self.own.values().chain(self.awaited.values()).map(|(_, until)| *until);
        let first = kept.chain(self.doomed.values().map(|doomed| doomed.until)).min();
        self.next = first.map(|first| first.max(now + TOGETHER));
    }

    fn await_end(&mut self, until: Instant) {
        self.next = Some(self.next.map_or(until, |next| next.min(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_clock;

    /// Whoever does not know where a requester stands takes nothing from it.
    #[test]
    fn a_stray_request_does_not_end_what_a_requester_may_go_on_with() {
        let now = test_clock();
        let flow = StaleFlow {
            requester: [10, 0, 0, 1].into(),
            target: [10, 0, 1, 1].into(),
            target_qpn: Qpn::new(7),
            requester_qpn: Qpn::new(9),
            psn: Psn::new(5000),
            src_port: source_port(Qpn::new(9), Qpn::new(7)),
            side: FlowSide::Near,
            lives: true,
        };
        let mut flows = StaleFlows::new(10);
        flows.await_requester(flow, now + Duration::from_secs(1));
        let mut goes_on =
            |src_port, psn| flows.goes_on(&flow.key(), &Came { src_port, psn: Psn::new(psn), starts: false });
        assert!(!goes_on(flow.src_port, 0x80_0000), "it lies elsewhere");
        assert!(!goes_on(flow.src_port ^ 1, 5001), "it comes from elsewhere");
        assert!(goes_on(flow.src_port, 5001));
        assert!(!goes_on(flow.src_port, 5001), "once");
    }
}
