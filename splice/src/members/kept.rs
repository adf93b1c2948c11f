//! A member on its way from one process to the next, which is the same member in the same life.
//!
//! To all others nothing happens but that it is silent for a while. It tells the members of its
//! own site before, so that none takes it for dead. The other site remembers what it agreed to.

use std::time::{Duration, Instant};

use super::{MemberId, Members, Message, Process, Towards};

/// The longest silence that a member may announce.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// After a silence of its own, a member takes those for live for so long that were so before.
const GRACE: Duration = Duration::from_secs(1);

impl Members {
    /// Another process is about to take this one's place, or fails to: this member is silent for a
    /// while.
    pub fn pause(&mut self, now: Instant) {
        if self.takes_part(now) {
            let time = u32::try_from(LONGEST_PAUSE.as_millis()).unwrap_or(u32::MAX);
            for other in &self.others {
                self.out.push(other.member, Message::Pausing(self.towards, time));
            }
        }
    }

    /// This process was silent since then, and heard nobody. Who lived then does so still, and has
    /// a while to be heard.
    pub fn resume(&mut self, since: Instant, now: Instant) {
        let until = now + GRACE;
        for other in self.others.iter_mut().filter(|other| other.is_live(self.times.dead, since)) {
            other.heard = other.heard.max(Some(until));
        }
        self.peers.iter_mut().for_each(|peer| peer.excuse(since, until));
        self.arbiter.excuse(since, until);
        self.beat_at_once(now);
    }

    /// A session with another member has begun: what is said every while is said now.
    pub fn beat_at_once(&mut self, now: Instant) {
        self.next_beat = self.next_beat.min(now);
    }

    /// This process did not run for so long. That is nobody's silence.
    pub fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        let dead = self.times.dead;
        let Some(then) = now.checked_sub(pause) else { return };
        for other in self.others.iter_mut().filter(|other| other.is_live(dead, then)) {
            other.heard = other.heard.map(|heard| heard.max((heard + pause).min(now)));
        }
    }

    pub(super) fn handle_pausing(&mut self, from: Process, towards: Towards, millis: u32, now: Instant) {
        let time = Duration::from_millis(millis.into()).min(LONGEST_PAUSE);
        let dead = self.times.dead;
        let mut others = self.others.iter_mut().filter(|_| towards == self.towards);
        if let Some(other) = others.find(|other| other.member == from.member) {
            // Who is dead cannot pause.
            other.pause = other.is_live(dead, now).then(|| (now, now + time));
        }
    }

    /// Goes on with what another process of this member has written, which `self` is. `fresh`: one
    /// of this process, by its files.
    ///
    /// # Errors
    /// The key by which the files are not for the same, or do not have room.
    pub(crate) fn restored(mut self, fresh: Self) -> Result<Self, &'static str> {
        let is_same = self.me.member == fresh.me.member
            && self.towards == fresh.towards
            && self.others().eq(fresh.others())
            && self.peers().eq(fresh.peers());
        if !is_same {
            return Err("site.gateways");
        }
        if !(self.claims.restore(fresh.claims.most()) && self.arbiter.restore(fresh.arbiter.most())) {
            return Err("limits.flows");
        }
        (self.times, self.out) = (fresh.times, fresh.out);
        Ok(self)
    }

    fn others(&self) -> impl Iterator<Item = MemberId> {
        self.others.iter().map(|other| other.member)
    }

    fn peers(&self) -> impl Iterator<Item = MemberId> {
        self.peers.iter().map(super::PeerLease::member)
    }

    pub(crate) fn process(&self) -> Process {
        self.me
    }
}
