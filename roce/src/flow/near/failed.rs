//! The end of a flow that failed: every request is answered with the fatal NAK, at a bounded rate, for a while.

use std::time::{Duration, Instant};

use super::super::horizon::NEARBY;
use super::super::passed::Reply;
use super::{Near, Ring, Why};
use crate::wire::{Nak, Packet, Psn, Qpn, Syndrome};

#[derive(Debug)]
pub(super) struct Failed {
    syndrome: Syndrome,
    /// The first PSN refused: everything before is acknowledged by the target.
    psn: Psn,
    /// The highest PSN seen, exclusive.
    high: Psn,
    /// The PSN of the NAK to send.
    due: Option<Psn>,
    sent: Option<Instant>,
    until: Instant,
    over: bool,
    /// Where the requester stands is unknown: refuse only the PSN it keeps coming back to.
    seeking: bool,
    /// How often that was seen.
    sightings: u32,
}

/// How far ahead of all it has sent a requester's next packet may be, to be taken for its own and not for a new life of the queue pair.
const STRAY: i32 = 1024;

/// A requester that starts its retries at the same PSN this many times has nothing unacknowledged before it.
const SIGHTINGS: u32 = 3;

impl Failed {
    pub(super) fn timeout(&self) -> Option<Instant> {
        (!self.over).then_some(self.until)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.over |= now >= self.until;
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    fn answer(&mut self, psn: Psn, now: Instant, interval: Duration) {
        let ready = self.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= interval);
        if ready {
            self.due = Some(psn);
        }
    }
}

impl Near {
    /// Ends the flow: the oldest incomplete request is refused with NAK 63 (remote operational error), after the ACKs due before, and so is
    /// whatever comes later. If nothing is outstanding the next request gets it. No effect on a flow that failed already.
    pub fn fail(&mut self, now: Instant) {
        self.fail_with(Syndrome::Nak(Nak::RemoteOperation), now);
    }

    pub(super) fn fail_with(&mut self, syndrome: Syndrome, now: Instant) {
        if self.failed.is_some() {
            return;
        }
        // A NAK acknowledges all before it, so it must not lie beyond what the target acknowledged; nor before what the requester was told,
        // or it would be taken for a stale one.
        let done = self.ring.done();
        let psn = super::later(done, self.told);
        let high = self.horizon.floor();
        let mut failed = Failed {
            syndrome,
            psn,
            high,
            due: None,
            sent: None,
            until: now + self.config.linger,
            over: false,
            seeking: !self.confirmed,
            sightings: 0,
        };
        if self.confirmed && high.is_after(psn) {
            failed.due = Some(psn);
        }
        self.ring = Ring::at(done);
        self.replays.clear();
        self.journal.clear();
        self.failed = Some(failed);
    }

    /// The requester keeps sending ahead of a PSN that it will not send: it was acknowledged past it by an earlier flow, and what that had taken
    /// never reached the target. The message cannot go on.
    pub(super) fn fail_beyond_gap(&mut self, psn: Psn, now: Instant) {
        self.stats.gaps_abandoned += 1;
        self.fail(now);
        if let Some(failed) = &mut self.failed {
            failed.due = None;
            failed.seeking = true;
            (failed.psn, failed.sightings) = (psn, 1);
        }
    }

    /// A request on a failed flow.
    pub(super) fn refuse(&mut self, packet: &Packet<'_>, now: Instant) -> Why {
        let psn = packet.bth.psn;
        let again = packet.bth.opcode.needs_response();
        let seen = self.is_recent(psn) || again && self.has_seen(psn);
        let fresh = !std::mem::replace(&mut self.started, true);
        let Some(failed) = &mut self.failed else {
            return Why::Failed;
        };
        if failed.over {
            return Why::Dead;
        }
        if failed.seeking {
            // If the target never spoke, whether the requester's first packets were all seen is unknown, and a NAK acknowledges what is
            // before it.
            let before = (-NEARBY..0).contains(&psn.distance(failed.psn));
            if fresh || before {
                (failed.psn, failed.sightings) = (psn, 1);
            } else if psn == failed.psn {
                failed.sightings += 1;
            } else {
                return Why::Failed;
            }
            if failed.sightings >= SIGHTINGS {
                failed.answer(psn, now, self.config.fatal_interval);
            }
            return Why::Failed;
        }
        let behind = psn.is_before(failed.psn);
        if behind && !seen || psn.distance(failed.high) >= STRAY {
            return Why::Stale;
        }
        if !behind {
            failed.high = super::later(failed.high, psn.next());
        }
        let unsent = !failed.high.is_after(failed.psn);
        if behind && !again && unsent {
            // What is refused has not been sent yet; what came again is acknowledged.
            self.due.duplicate = self.told_plain;
            return Why::Duplicate;
        }
        // A NAK must not go past a READ whose responses were lost: that would only make the requester ask for it again.
        let psn = if behind && again { psn } else { failed.psn };
        failed.answer(psn, now, self.config.fatal_interval);
        Why::Failed
    }

    pub(super) fn poll_failed(&mut self, to: Qpn, now: Instant) -> Option<Reply> {
        let done = self.ring.done();
        if self.confirmed && done.is_after(self.told) {
            self.tell(done);
            self.stats.acks += 1;
            return Some(self.acknowledge(to, done.prev(), self.credits));
        }
        if std::mem::take(&mut self.due.duplicate) && self.told_plain {
            return Some(self.repeat(to));
        }
        let failed = self.failed.as_mut()?;
        let psn = failed.due.take()?;
        failed.sent = Some(now);
        let syndrome = failed.syndrome;
        self.stats.fatal_naks += 1;
        Some(self.acknowledge(to, psn, syndrome))
    }
}
