//! Responder side: requests that paired flows have sent to their targets, for the pairings to judge
//! whose answer a response may be.

use std::time::{Duration, Instant};

use roce::pairing::{Candidacy, FlowKey, Flows, Hosts, Rival, Word};
use roce::wire::Packet;
use slotmap::SlotMap;

use super::{FarFlow, FarKey, FarSide};
use crate::lookup::Lookup;

/// The flows, while this response is at hand.
pub(super) struct Asked<'a> {
    pub(super) flows: &'a mut SlotMap<FarKey, Box<FarFlow>>,
    pub(super) by_key: &'a Lookup<FlowKey, FarKey>,
    pub(super) flying: &'a mut Vec<FarKey>,
    pub(super) packet: &'a Packet<'a>,
    pub(super) word: Word,
    pub(super) now: Instant,
}

impl Flows for Asked<'_> {
    fn claim(&self, flow: &FlowKey, patience: Duration) -> Candidacy {
        let Some(flow) = self.by_key.get(flow).and_then(|slot| self.flows.get(slot)) else {
            return Candidacy::None;
        };
        let psn = self.packet.bth.psn;
        if flow.far.is_of_another_incarnation(self.packet) {
            return Candidacy::None;
        }
        if flow.far.awaits(psn, self.word) {
            let is_doubtful = flow.far.is_overdue() || flow.far.has_rested();
            return match flow.has_out(patience, self.now) {
                false => Candidacy::None,
                true if is_doubtful => Candidacy::Doubtful,
                true => Candidacy::Good,
            };
        }
        let again = flow.far.may_hear_again(psn) && flow.has_asked(patience, self.now);
        if again || flow.far.is_news(self.packet) { Candidacy::Good } else { Candidacy::None }
    }

    fn rival(&mut self, hosts: Hosts, but: [Option<FlowKey>; 2], patience: Duration) -> Option<Rival> {
        let (mut place, mut found) = (0, None);
        while let Some(slot) = self.flying.get(place) {
            let Some(flow) = self.flows.get_mut(*slot).filter(|flow| is_flying(flow, self.now)) else {
                land(self.flows, self.flying.swap_remove(place));
                continue;
            };
            let key = flow.key();
            let is_other = key.hosts() == hosts && flow.requester_qpn.is_some() && !but.contains(&Some(key));
            if is_other && flow.has_asked_freely(patience, self.now) {
                found = found.max(flow.far.rivals(self.packet.bth.psn, self.word));
                if found == Some(Rival::Here) {
                    break;
                }
            }
            place += 1;
        }
        found
    }
}

impl FarSide {
    /// The flow has sent something. Whoever has an answer by now, or will not get any, is struck
    /// off when the list has grown too long.
    pub(super) fn fly(&mut self, slot: FarKey, now: Instant) {
        if self.flying.len() > 2 * self.flows.len() {
            let flows = &mut self.flows;
            self.flying.retain(|slot| {
                let flies = flows.get(*slot).is_some_and(|flow| is_flying(flow, now));
                if !flies {
                    land(flows, *slot);
                }
                flies
            });
        }
        self.flying.push(slot);
    }
}

fn is_flying(flow: &FarFlow, now: Instant) -> bool {
    flow.has_asked(PATIENCE, now) && !flow.far.is_answered()
}

fn land(flows: &mut SlotMap<FarKey, Box<FarFlow>>, slot: FarKey) {
    if let Some(flow) = flows.get_mut(slot) {
        flow.asking.is_flying = false;
    }
}

/// No answer takes longer, as the pairings have it.
const PATIENCE: Duration = roce::pairing::MOST_PATIENCE;
