//! Connections that nobody uses, and which of them gives way.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{FlowKey, Pairings};
use crate::hosts;
use crate::unheard::{Room, Ticket, Unheard};

/// Connections of which no direction is held, each under the lesser of its two.
///
/// A host may have eight times as many as are free ([`hosts::Hosts`]). For one beyond that its own
/// oldest gives way, and where there are as many as there may be, one of the host that has most.
///
/// Bound: as many as there are.
#[derive(Debug, Default)]
pub(super) struct Idle {
    order: Unheard<FlowKey>,
    places: BTreeMap<FlowKey, (IpAddr, Ticket)>,
    hosts: hosts::Hosts,
}

impl Idle {
    /// This host has begun the connection, or given it up.
    pub(super) fn enter(&mut self, host: IpAddr, connection: &FlowKey) {
        self.leave(connection);
        self.hosts.join(host);
        self.places.insert(*connection, (host, self.order.enter(host, *connection)));
    }

    pub(super) fn leave(&mut self, connection: &FlowKey) {
        if let Some((host, ticket)) = self.places.remove(connection) {
            self.order.remove(host, ticket);
            self.hosts.leave(host);
        }
    }

    /// Tells whether there is room for one more of this host's where there are `all` of `most`.
    pub(super) fn room_for(&self, host: IpAddr, all: usize, most: usize) -> Room<FlowKey> {
        if self.hosts.may_join(host, all, most) {
            return Room::Free;
        }
        self.order.loser(host, all >= most).map_or(Room::None, Room::InPlaceOf)
    }
}

impl Pairings {
    /// Puts what may give way in the order in which it may: a snapshot does not tell.
    pub fn order(&mut self) {
        self.calls.order();
        self.links.order();
        self.turns.order();
    }
}
