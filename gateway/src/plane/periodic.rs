//! A worker's rounds: a look at its surroundings every while, apart from packets.

use std::time::Instant;

use super::members::TELL_EVERY;
use super::{CHECK_EVERY, OBSERVE_EVERY, Observer, PAUSE, PeerSide, Worker};
use crate::lan::Link;

impl<O: Observer> Worker<O> {
    /// A time in which this thread did not run, since its process or its machine stood still, is
    /// nobody's silence.
    pub(super) fn excuse_pause(&mut self, now: Instant) {
        let pause = now.saturating_duration_since(self.last_round);
        self.last_round = now;
        if pause >= PAUSE {
            self.peers.iter_mut().for_each(|peer| peer.excuse_pause(pause, now));
            self.members.iter_mut().for_each(|members| members.excuse_pause(pause, now));
        }
    }

    /// Does its part among the gateways of the site.
    pub(super) fn tend_members(&mut self, now: Instant) {
        let Self { members, peers, routes, next_told, .. } = self;
        let Some(members) = members else { return };
        members.tend(peers, routes, now);
        if now >= *next_told {
            *next_told = now + TELL_EVERY;
            members.tell(peers, now);
        }
    }

    pub(super) fn run_periodic(&mut self, now: Instant) {
        let Self { peers, lan, .. } = self;
        peers.iter_mut().for_each(|peer| peer.tell_wan_mtu(now));
        if now >= self.next_observation {
            self.next_observation = now + OBSERVE_EVERY;
            peers.iter_mut().for_each(|peer| peer.check_silence(lan, now));
            self.observe();
            self.peers.iter_mut().for_each(|peer| peer.answer_awaited(now));
            self.peers.iter_mut().for_each(PeerSide::check_ahead);
        }
        if now >= self.next_check {
            self.next_check = now + CHECK_EVERY;
            self.check_link();
        }
    }

    /// The supervisor tells of what is wrong, once for all threads.
    fn check_link(&mut self) {
        let link = self.lan.check().unwrap_or(Link::Gone);
        let state = if link == Link::Up { 2 } else { 1 };
        self.peers.iter_mut().for_each(|peer| peer.set_lan_up(state));
        if let Some(members) = &mut self.members {
            members.set_lan_up(link == Link::Up);
        }
        // An interface that is gone has none: the last one holds until it is back.
        if let Ok(mtu) = self.lan.mtu()
            && mtu != self.lan_mtu
        {
            tracing::info!(mtu, "the longest packet for the LAN has changed");
            self.lan_mtu = mtu;
            self.peers.iter_mut().for_each(|peer| peer.set_lan_mtu(mtu));
        }
    }
}
