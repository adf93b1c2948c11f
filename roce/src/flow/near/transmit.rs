//! Requester side: packets to the requester.

use std::time::Instant;

use super::Near;
use super::due::Say;
use crate::flow::rewritten::Reply;
use crate::wire::{Aeth, Nak, Psn, Qpn, Syndrome};

/// The message sequence number has 24 bits.
const MSN: u32 = 0xff_ffff;

impl Near {
    /// The next packet for the requester.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Reply> {
        let reply = self.next_reply(now)?;
        self.keepalive.note_spoken(now);
        Some(reply)
    }

    fn next_reply(&mut self, now: Instant) -> Option<Reply> {
        let to = self.requester.qpn?;
        if self.is_failed() {
            return self.poll_failed(to, now);
        }
        self.requester.end_duplicates();
        if self.due.has(Say::Ack) && !self.holds_back(self.bound()) {
            self.due.remove(Say::Ack);
            if self.bound().is_after(self.told.to()) {
                return Some(self.ack(to, now));
            }
            // What is done locally waits for room.
            self.told.await_ack(self.ring.is_ahead());
        }
        if let Some((psn, timer)) = self.rnr_to_say(now) {
            self.tell(psn, now);
            self.stats.rnr_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Rnr { timer }));
        }
        let is_doubted = self.is_doubted() || self.asks_about_head(now);
        if self.due.take(Say::Nak) && !is_doubted {
            let psn = self.bound();
            self.tell(psn, now);
            self.stats.sequence_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Nak(Nak::PsnSequence)));
        }
        if !is_doubted && let Some(psn) = self.take_hint() {
            self.stats.sequence_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Nak(Nak::PsnSequence)));
        }
        if self.due.take(Say::Keepalive) && self.may_keep_alive() {
            return Some(self.keep_alive(to));
        }
        let named =
            self.take_answer().filter(|psn| self.may_repeat() && !psn.next().is_after(self.told.to()));
        if let Some(psn) = named {
            self.stats.repeated_acks.one();
            self.due.remove(Say::Duplicate);
            return Some(self.acknowledge(to, psn, self.target.aeth().syndrome));
        }
        (self.due.has(Say::Duplicate) && !is_doubted && self.may_repeat()).then(|| self.repeat(to))
    }

    fn ack(&mut self, to: Qpn, now: Instant) -> Reply {
        let bound = self.bound();
        if bound.is_after(self.ring.done()) {
            self.stats.mid_acks.one();
        } else {
            self.stats.acks.one();
        }
        self.tell(bound, now);
        self.due.remove(Say::Duplicate);
        self.acknowledge(to, bound.prev(), self.target.aeth().syndrome)
    }

    /// The last ACK once more.
    pub(super) fn repeat(&mut self, to: Qpn) -> Reply {
        self.due.remove(Say::Duplicate);
        self.stats.repeated_acks.one();
        self.acknowledge(to, self.told.to().prev(), self.target.aeth().syndrome)
    }

    /// Notes that what is about to be sent acknowledges everything before `psn`.
    pub(super) fn tell(&mut self, psn: Psn, now: Instant) {
        if self.told.acknowledge(psn, now) {
            self.keepalive.note_told();
        }
    }

    pub(super) fn acknowledge(&self, to: Qpn, psn: Psn, syndrome: Syndrome) -> Reply {
        let done = if syndrome.is_ack() { psn.next() } else { psn };
        let msn = self.target.aeth().msn.wrapping_add(self.ring.ahead_of_target(done)) & MSN;
        let aeth = Aeth { syndrome, msn };
        Reply::acknowledge(self.requester.style, to, psn, aeth)
    }
}
