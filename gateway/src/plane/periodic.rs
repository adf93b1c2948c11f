//! A worker's rounds: a look at its surroundings every while, apart from packets.

use std::time::Instant;

use config::Wan;
use splice::LaneId;

use super::{CHECK_EVERY, OBSERVE_EVERY, Observer, Worker};
use crate::lan::Link;

impl<O: Observer> Worker<O> {
    pub(super) fn run_periodic(&mut self, now: Instant) {
        self.tell_wan_mtu(now);
        if now >= self.next_observation {
            self.next_observation = now + OBSERVE_EVERY;
            self.check_silence(now);
            self.observe();
            if let Some(awaited) = self.awaited.take() {
                let reached = (awaited.reached)(&self.core);
                if reached || now >= awaited.deadline {
                    // Nobody may care to know any more.
                    let _ = awaited.reply.send(reached);
                } else {
                    self.awaited = Some(awaited);
                }
            }
        }
        if now >= self.next_check {
            self.next_check = now + CHECK_EVERY;
            self.check_link();
        }
    }

    fn tell_wan_mtu(&mut self, now: Instant) {
        if self.core.wan_packet() == self.wan_packet {
            return;
        }
        self.wan_packet = self.core.wan_packet();
        if let Some(mtu) = self.core.paths(now).next().map(|path| path.mtu) {
            tracing::info!(mtu = mtu.mtu, "the longest packet to the peer has changed");
        }
    }

    fn check_link(&mut self) {
        let link = self.lan.check().unwrap_or(Link::Gone);
        if link != self.link {
            match link {
                Link::Up => tracing::info!("the LAN interface is up again"),
                Link::Down | Link::Gone => {
                    tracing::warn!(link = link.name(), "the LAN interface is not usable");
                }
            }
            self.link = link;
        }
        self.counts.lan_up = if link == Link::Up { 2 } else { 1 };
        // An interface that is gone has none: the last one holds until it is back.
        if let Ok(mtu) = self.lan.mtu()
            && mtu != self.lan_mtu
        {
            tracing::info!(mtu, "the longest packet for the LAN has changed");
            self.lan_mtu = mtu;
            self.core.set_lan_mtu(mtu);
        }
    }

    /// Marks packets where the path carries marked ones. Without a session nothing is sent.
    pub(super) fn follow_marks(&mut self) {
        if self.session.is_none() {
            return;
        }
        for lane in 0..Wan::MOST_LANES {
            let marks = self.core.marks(LaneId(lane.into()));
            if self.bulk.set_marked(lane.into(), marks) {
                tracing::info!(lane, marks, "ECN: whether the path carries marked packets has changed");
            }
        }
    }
}
