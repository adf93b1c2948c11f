//! Flows of two hosts that go from the session with one member of the peer's site to that with
//! another, and what members say to each other.

use std::collections::BTreeSet;
use std::time::Instant;

use roce::pairing::FlowKey;
use transport::Urgency;

use super::Gateway;
use crate::far_side::moves::Moving;
use crate::members::HostPair;
use crate::members::wire::Word;
use crate::near_side;
use crate::pool::Buf;
use crate::record::Head;

/// Flows that are in no gateway.
pub struct Released {
    near: near_side::moves::Released,
    far: Vec<Moving>,
}

impl Released {
    /// Returns how many there are.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.near.flows.len() + self.far.len()
    }
}

impl Gateway {
    /// Takes all flows of these hosts out, and says nothing to their programs. Looks at each flow
    /// once, however many hosts are meant.
    #[must_use]
    pub fn release_hosts(&mut self, pairs: &BTreeSet<HostPair>, now: Instant) -> Released {
        let is_meant = |key: &FlowKey| pairs.contains(&HostPair::new(key.requester, key.target));
        let mut ctx = self.common.context(self.wan.senders(), now);
        let near = self.near.release(is_meant, &mut ctx);
        let far = self.far.release(is_meant, &mut ctx);
        self.settle_pairings(now);
        Released { near, far }
    }

    /// Takes in flows that another gateway of this thread has released. They go on as after the
    /// death of the peer's process: nothing new is told to a requester before its target has
    /// spoken.
    ///
    /// Rule: `docs/protocol.md#rule-moved`.
    pub fn adopt_hosts(&mut self, released: Released, now: Instant) {
        let mut ctx = self.common.context(self.wan.senders(), now);
        self.near.adopt(released.near, &mut ctx);
        self.far.adopt(released.far, &mut ctx);
        self.settle_pairings(now);
    }

    /// Sends a message to the peer, a member of this site or of another. Without a session, or
    /// without room, it is lost.
    pub fn send_word(&mut self, word: &Word, now: Instant) {
        self.push_to_member(Urgency::Prompt, &Head::Word, word.as_ref(), now);
    }

    /// Hands a frame of the LAN over to the peer, a member of this site. Returns false if it is
    /// lost: there is no session, or no room.
    pub fn hand_over(&mut self, packet: &[u8], now: Instant) -> bool {
        self.push_to_member(Urgency::Bulk, &Head::HandedOver, packet, now)
    }

    fn push_to_member(&mut self, urgency: Urgency, head: &Head, body: &[u8], now: Instant) -> bool {
        let mut ctx = self.common.context(self.wan.senders(), now);
        ctx.senders.is_up() && ctx.push(0, urgency, head, [body, &[]]).is_ok()
    }

    /// Returns the next message of the peer's.
    pub fn take_word(&mut self) -> Option<Word> {
        self.common.members.as_mut()?.take_word()
    }

    /// Returns the next frame that the peer has handed over.
    pub fn take_handed_over(&mut self) -> Option<Buf> {
        self.common.members.as_mut()?.take_frame()
    }
}
