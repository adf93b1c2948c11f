//! Putting the target's queue pair into the error state, so that its program learns that the flow is over.
//!
//! The poison is a SEND or WRITE Middle without payload: out of sequence when no message is open, of the wrong length when one is. Either
//! is an invalid request (IBA 9.7.4.1.2, 9.7.5.1.6; `rxe_resp.c` `check_op_seq`, `check_length`) if it comes at the PSN the target
//! expects. Where that PSN is not known exactly the target tells it: it answers a packet behind it with an ACK of the last it has, and one ahead of it
//! with a sequence NAK.

use std::time::{Duration, Instant};

use crate::flow::passed::Style;
use crate::wire::{Ext, Kind, Nak, Opcode, Packet, Psn, Qpn, Repr, Syndrome};

#[derive(Debug)]
pub(super) struct Abort {
    to: Qpn,
    style: Style,
    /// Where the connection stood when it was last seen.
    origin: Psn,
    /// Where the poison goes.
    psn: Psn,
    tries: u32,
    /// Silence since `psn` was last learnt.
    silent: u32,
    use_write: bool,
    /// When to send next; `None`: now.
    at: Option<Instant>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Going,
    /// The target refused the poison.
    Poisoned,
    /// The target does not answer.
    GivenUp,
}

impl Abort {
    const TRIES: u32 = 12;
    /// Where to look when the target is silent: a target that already complained about a gap ignores what lies ahead; what lies
    /// behind it must always acknowledge.
    const PROBES: [i32; 3] = [0, -(1 << 16), 1 << 16];

    /// A target this far from where the connection stood has another one.
    const ELSEWHERE: i32 = 1 << 18;

    pub(super) fn new(to: Qpn, style: Style, psn: Psn) -> Abort {
        Abort { to, style, origin: psn, psn, tries: 0, silent: 0, use_write: false, at: None }
    }

    pub(super) fn transmit(&mut self, rto: Duration, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.at.is_some() || self.tries >= Abort::TRIES {
            return None;
        }
        let opcode = if self.use_write { Opcode::WriteMiddle } else { Opcode::SendMiddle };
        let probe = Abort::PROBES.get(self.silent as usize % Abort::PROBES.len());
        let psn = Psn::new(self.psn.get().wrapping_add_signed(probe.copied().unwrap_or(0)));
        let mut bth = self.style.bth(opcode, self.to, psn);
        bth.ack_req = true;
        let repr = Repr { bth, ext: Ext::None, payload: &[] };
        let len = repr.emit(out).ok()?;
        self.at = Some(now + rto.saturating_mul(1 << (self.tries / 2).min(5)));
        self.tries += 1;
        Some(len)
    }

    pub(super) fn handle_response(&mut self, packet: &Packet<'_>, now: Instant) -> Outcome {
        let (Kind::Acknowledge, Ext::Aeth(aeth)) = (packet.bth.opcode.kind(), packet.ext) else {
            return Outcome::Going;
        };
        if packet.bth.psn.distance(self.origin).abs() > Abort::ELSEWHERE {
            // The queue pair has begun a new life; what was to be ended is over.
            return Outcome::GivenUp;
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                // Either it had this PSN before, or it took the poison for the rest of a message: the other kind will not fit that.
                let psn = packet.bth.psn.next();
                if psn == self.psn.next() {
                    self.use_write = !self.use_write;
                }
                self.learn(psn);
            }
            Syndrome::Nak(Nak::PsnSequence) => self.learn(packet.bth.psn),
            Syndrome::Rnr { timer } => {
                self.learn(packet.bth.psn);
                self.at = Some(now + timer.duration());
            }
            Syndrome::Nak(_) | Syndrome::Reserved(_) => return Outcome::Poisoned,
        }
        Outcome::Going
    }

    fn learn(&mut self, psn: Psn) {
        let news = self.psn != psn || self.silent > 0;
        if news && self.tries < Abort::TRIES {
            self.at = None;
        }
        self.psn = psn;
        self.silent = 0;
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Outcome {
        if self.at.is_none_or(|at| at > now) {
            return Outcome::Going;
        }
        if self.tries >= Abort::TRIES {
            return Outcome::GivenUp;
        }
        self.silent += 1;
        self.at = None;
        Outcome::Going
    }
}
