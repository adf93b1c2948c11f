//! Responder side: flows that may have something to send to their target, and who is next.

use std::collections::VecDeque;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use transport::Group;

use super::FarKey;
use crate::hosts::Grouping;

/// Packets of other flows before one that asks has its turn.
const STREAK: u8 = 7;

/// Where a flow stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Among those whose requester is known.
    Known,
    /// Among those that ask for it, of requesters in this group.
    Asking(u8),
}

impl Line {
    /// The line of a flow with this requester.
    pub(super) fn of(asks: bool, requester: IpAddr, grouping: Grouping) -> Line {
        if asks { Line::Asking(grouping.group(requester)) } else { Line::Known }
    }
}

/// In a snapshot a flow stands somewhere or not. Who reads it has all in one line.
pub(super) mod is_queued {
    use super::{Deserialize, Deserializer, Line, Serialize, Serializer};

    pub(in crate::far_side) fn serialize<S: Serializer>(
        line: &Option<Line>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        line.is_some().serialize(serializer)
    }

    pub(in crate::far_side) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Line>, D::Error> {
        Ok(bool::deserialize(deserializer)?.then_some(Line::Known))
    }
}

/// The lines. Flows whose requester is known go before those that ask: many that ask targets which
/// do not answer delay nobody else. One that asks has its turn after [`STREAK`] packets at the
/// latest. Among those that ask, groups of requesters take turns, packet by packet.
///
/// Bound: a flow stands in a line once. One whose requester became known leaves an entry behind,
/// which is passed over.
#[derive(Debug)]
pub(super) struct Ready {
    known: VecDeque<FarKey>,
    asking: Vec<VecDeque<FarKey>>,
    /// A bit for each group with flows that ask.
    groups: u128,
    /// The group whose turn it is, or those after it.
    turn: u8,
    /// Packets of known ones since one that asks had its turn.
    streak: u8,
}

const _: () = assert!(Group::EACH_KIND == u128::BITS as usize);

impl Ready {
    pub(super) fn new() -> Ready {
        let asking = (0..Group::EACH_KIND).map(|_| VecDeque::new()).collect();
        Ready { known: VecDeque::new(), asking, groups: 0, turn: 0, streak: 0 }
    }

    pub(super) fn push(&mut self, line: Line, flow: FarKey) {
        match line {
            Line::Known => self.known.push_back(flow),
            Line::Asking(group) => {
                if let Some(flows) = self.asking.get_mut(usize::from(group)) {
                    flows.push_back(flow);
                    self.groups |= 1 << group;
                }
            }
        }
    }

    /// Returns the flow whose turn it is, and where it stands.
    pub(super) fn front(&self) -> Option<(Line, FarKey)> {
        let known = self.known.front().map(|flow| (Line::Known, *flow));
        let asks = || {
            let ahead = self.groups.rotate_right(self.turn.into()).trailing_zeros() as u8;
            let group = self.turn.wrapping_add(ahead) % Group::EACH_KIND as u8;
            Some((Line::Asking(group), *self.asking.get(usize::from(group))?.front()?))
        };
        if self.groups == 0 {
            return known;
        }
        known.filter(|_| self.streak < STREAK).or_else(asks)
    }

    /// The flow at the front of this line has sent a packet, and may have another.
    pub(super) fn note_sent(&mut self, line: Line) {
        match line {
            Line::Known => self.streak = self.streak.saturating_add(1),
            Line::Asking(group) => {
                self.streak = 0;
                self.turn = (group + 1) % Group::EACH_KIND as u8;
            }
        }
    }

    /// The flow at the front of this line has nothing more.
    pub(super) fn pop(&mut self, line: Line) {
        match line {
            Line::Known => {
                self.known.pop_front();
            }
            Line::Asking(group) => {
                if let Some(flows) = self.asking.get_mut(usize::from(group)) {
                    flows.pop_front();
                    if flows.is_empty() {
                        self.groups &= !(1 << group);
                    }
                }
            }
        }
    }
}

impl Serialize for Ready {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all: Vec<_> = self.known.iter().chain(self.asking.iter().flatten()).collect();
        all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Ready {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Ready { known: VecDeque::deserialize(deserializer)?, ..Ready::new() })
    }
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;

    fn keys(count: usize) -> Vec<FarKey> {
        let mut flows: SlotMap<FarKey, ()> = SlotMap::with_key();
        (0..count).map(|_| flows.insert(())).collect()
    }

    /// Each flow has one packet.
    fn order(ready: &mut Ready) -> Vec<FarKey> {
        let sent = |ready: &mut Ready| {
            let (line, flow) = ready.front()?;
            ready.note_sent(line);
            ready.pop(line);
            Some(flow)
        };
        std::iter::from_fn(|| sent(ready)).collect()
    }

    #[test]
    fn many_that_ask_delay_nobody_else() {
        let flows = keys(1100);
        let (asking, known) = flows.split_at(1000);
        let mut ready = Ready::new();
        asking.iter().for_each(|flow| ready.push(Line::Asking(5), *flow));
        known.iter().for_each(|flow| ready.push(Line::Known, *flow));
        let order = order(&mut ready);
        assert_eq!(order.len(), 1100);
        let last = order.iter().rposition(|flow| known.contains(flow)).unwrap();
        assert!(last < 100 + 100 / usize::from(STREAK) + 1, "{last}");
        assert_eq!(order[usize::from(STREAK)], asking[0], "those that ask have their turn");
    }

    #[test]
    fn requesters_that_ask_take_turns() {
        let flows = keys(103);
        let mut ready = Ready::new();
        flows[..100].iter().for_each(|flow| ready.push(Line::Asking(127), *flow));
        flows[100..].iter().for_each(|flow| ready.push(Line::Asking(3), *flow));
        let order = order(&mut ready);
        let last = order.iter().rposition(|flow| flows[100..].contains(flow)).unwrap();
        assert!(last < 6, "{last}");
        assert_eq!(order.len(), 103);
        assert_eq!(ready.front(), None);
    }
}
