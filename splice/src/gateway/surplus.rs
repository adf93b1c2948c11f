//! Packets that are dropped before anything but their headers was read.

use std::time::Instant;

use roce::ip::Datagram;
use roce::pairing::FlowKey;
use roce::wire::Qpn;

use super::Gateway;
use super::carried::dest_qp;
use crate::stats::LanDrop;
use crate::surplus::{Kind, Place};

impl Gateway {
    /// Drops and counts a packet from the LAN whose host sends far more of its kind than finds
    /// room, but for a part. Returns true if it did. The packet's ICRC need not have been checked.
    ///
    /// Responses, and requests of flows that a target has answered, are never dropped here.
    #[inline]
    pub fn drop_surplus(&mut self, datagram: &Datagram<'_>, now: Instant) -> bool {
        let stats = &self.common.stats;
        self.surplus.watches(|| stats.dropped_for_share(), now) && self.is_surplus(datagram)
    }

    fn is_surplus(&mut self, datagram: &Datagram<'_>) -> bool {
        // Whose packet it is to judge is known once it was read.
        if self.common.members.is_some() {
            return false;
        }
        let Some(place) = self.place_of(datagram) else {
            self.surplus.take_judged();
            return false;
        };
        let is_surplus = self.surplus.drops(place);
        if is_surplus {
            self.common.stats.drop_lan(LanDrop::Surplus);
        }
        is_surplus
    }

    /// Returns whose share a packet has, and of what. `None`: it is always read.
    fn place_of(&self, datagram: &Datagram<'_>) -> Option<Place> {
        let (src, dst) = (datagram.addressing.src, datagram.addressing.dst);
        let (grouping, to) = (self.common.settings.grouping, Qpn::new(dest_qp(datagram.transport)));
        let flow = FlowKey { requester: src, target: dst, target_qpn: to };
        let code = *datagram.transport.first()?;
        let kind = Kind::of(code, to, || self.near.kind_of_request(&flow, grouping))?;
        Some(Place::new(kind, grouping.group(src)))
    }
}
