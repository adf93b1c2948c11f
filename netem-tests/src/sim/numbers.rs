//! Packet numbers of a session, as the seal would give them, and what the receiving gateway makes
//! of them.

use std::collections::BTreeSet;

use splice::{Arrival, Ecn, LaneId, PathStats};

use super::Broken;

/// Bytes of a lane and a number in front of a WAN packet.
pub(super) const PREFIX: usize = 8;
/// Bits of a number.
const NUMBER: u32 = 48;

/// The numbers of the datagrams that go to a site, since its peer began the session.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    lanes: Vec<Lane>,
}

#[derive(Debug, Default)]
struct Lane {
    next: u64,
    /// Those that the site's gateway was given.
    heard: BTreeSet<u64>,
    first: Option<u64>,
}

impl Numbers {
    /// On so many lanes.
    pub(super) fn new(lanes: u8) -> Self {
        Self { lanes: (0..lanes.max(1)).map(|_| Lane::default()).collect() }
    }

    /// Writes a lane and its next number to the front of a WAN packet.
    pub(super) fn stamp(&mut self, lane: LaneId, packet: &mut [u8]) {
        let Some(known) = self.lanes.get_mut(usize::from(lane.0)) else { return };
        if let Some(prefix) = packet.first_chunk_mut() {
            *prefix = (u64::from(lane.0) << NUMBER | known.next).to_be_bytes();
        }
        known.next += 1;
    }

    /// The sender counts anew.
    pub(super) fn restart(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.next = 0);
    }

    /// The receiver begins to listen.
    pub(super) fn listen(&mut self) {
        for lane in &mut self.lanes {
            lane.heard.clear();
            lane.first = None;
        }
    }

    /// The receiver hears a packet.
    pub(super) fn hear(&mut self, arrival: &Arrival) {
        if let Some(lane) = self.lanes.get_mut(usize::from(arrival.lane.0)) {
            lane.first.get_or_insert(arrival.number);
            lane.heard.insert(arrival.number);
        }
    }

    /// Checks a lane's observer: what it says is lost must not have been heard, number by number.
    pub(super) fn check(&self, path: &PathStats) -> Result<(), Broken> {
        let observed = &path.observed;
        let Some(lane) = self.lanes.get(usize::from(path.lane.0)) else {
            return Err(("path", format!("there is no {:?}", path.lane)));
        };
        let first = lane.first.unwrap_or(0);
        let heard = lane.heard.range(first..observed.horizon.max(first)).count() as u64;
        let (judged, lost) = (observed.horizon.saturating_sub(first), observed.lost);
        if (observed.judged, lost + heard) != (judged, judged) || observed.arrived != lane.heard.len() as u64
        {
            return Err((
                "path",
                format!(
                    "{heard} of {judged} numbers from {first} on were heard on {:?}, and yet: {observed:?}",
                    path.lane
                ),
            ));
        }
        Ok(())
    }
}

/// A WAN packet without the number in front of it, and how it arrives.
pub(super) fn split(bytes: &[u8]) -> (Arrival, &[u8]) {
    let (prefix, packet) = bytes
        .split_first_chunk()
        .map_or((0, bytes), |(prefix, packet)| (u64::from_be_bytes(*prefix), packet));
    let (lane, number) = (LaneId((prefix >> NUMBER) as u16), prefix & ((1 << NUMBER) - 1));
    (Arrival { lane, number, bytes: packet.len(), ecn: Ecn::NotEct }, packet)
}
