//! Packets to the requester.

use std::time::Instant;

use super::Near;
use crate::flow::passed::Reply;
use crate::wire::{Aeth, Nak, Psn, Qpn, Syndrome};

/// The message sequence number has 24 bits.
const MSN: u32 = 0xff_ffff;

impl Near {
    /// The next packet for the requester.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Reply> {
        let reply = self.next_reply(now)?;
        self.spoke = now;
        Some(reply)
    }

    fn next_reply(&mut self, now: Instant) -> Option<Reply> {
        let to = self.requester?;
        if self.failed.is_some() {
            return self.poll_failed(to, now);
        }
        self.duplicates_in_row = 0;
        if self.due.ack && !self.replays.lie_before(self.bound()) {
            self.due.ack = false;
            if self.bound().is_after(self.told) {
                return Some(self.ack(to, now));
            }
            // What is done locally waits for room.
            self.ack_wanted |= self.ring.is_ahead();
        }
        if let Some((psn, timer)) = self.rnr_to_say(now) {
            self.tell(psn, now);
            self.stats.rnr_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Rnr { timer }));
        }
        let is_doubted = self.is_doubted();
        if std::mem::take(&mut self.due.nak) && !is_doubted {
            let psn = self.bound();
            self.tell(psn, now);
            self.stats.sequence_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Nak(Nak::PsnSequence)));
        }
        if !is_doubted && let Some(psn) = self.take_hint() {
            self.stats.sequence_naks.one();
            return Some(self.acknowledge(to, psn, Syndrome::Nak(Nak::PsnSequence)));
        }
        if std::mem::take(&mut self.due.keepalive) && self.may_keep_alive() {
            return Some(self.keep_alive(to));
        }
        let named = self.take_answer().filter(|psn| self.may_repeat() && !psn.next().is_after(self.told));
        if let Some(psn) = named {
            self.stats.repeated_acks.one();
            self.due.duplicate = false;
            return Some(self.acknowledge(to, psn, self.credits));
        }
        (self.due.duplicate && !is_doubted && self.may_repeat()).then(|| self.repeat(to))
    }

    fn ack(&mut self, to: Qpn, now: Instant) -> Reply {
        let bound = self.bound();
        if bound.is_after(self.ring.done()) {
            self.stats.mid_acks.one();
        } else {
            self.stats.acks.one();
        }
        self.tell(bound, now);
        self.due.duplicate = false;
        self.acknowledge(to, bound.prev(), self.credits)
    }

    /// The last ACK once more.
    pub(super) fn repeat(&mut self, to: Qpn) -> Reply {
        self.due.duplicate = false;
        self.stats.repeated_acks.one();
        self.acknowledge(to, self.told.prev(), self.credits)
    }

    /// Notes that what is about to be sent acknowledges everything before `psn`.
    pub(super) fn tell(&mut self, psn: Psn, now: Instant) {
        if psn.is_after(self.told) {
            self.note_told(now);
            self.put_off = 0;
            self.told = psn;
            self.told_plain = true;
            self.ack_wanted = false;
        }
    }

    pub(super) fn acknowledge(&self, to: Qpn, psn: Psn, syndrome: Syndrome) -> Reply {
        let done = if syndrome.is_ack() { psn.next() } else { psn };
        let msn = self.msn.wrapping_add(self.ring.ahead_of_target(done)) & MSN;
        let aeth = Aeth { syndrome, msn };
        Reply::acknowledge(self.style, to, psn, aeth)
    }
}
