//! Responder side: putting the target's queue pair into the error state, so that its program learns
//! that the flow is over.
//!
//! The poison is a SEND or WRITE Middle without payload: out of sequence when no message is open,
//! of the wrong length when one is. Either is an invalid request (IBA 9.7.4.1.2, 9.7.5.1.6;
//! `rxe_resp.c` `check_op_seq`, `check_length`) if it comes at the PSN the target expects. Where
//! that PSN is not known exactly the target tells it: it answers a packet behind it with an ACK of
//! the last it has, and one ahead of it with a sequence NAK.
//!
//! A target that never answered this flow may stand before its first request: what came earlier is
//! lost, or only the requester can bring it. It is then left alone for [`GRACE`] as well.
//!
//! Where nothing but a rough PSN is known, not even whether the queue pair is still the one that
//! was, the first packets lie far behind and far ahead: no target takes either for the next, and
//! its answer says where it is, and who its partner is.

use std::time::{Duration, Instant};

use crate::flow::horizon::NEARBY;
use crate::flow::rewritten::Style;
use crate::pairing::Span;
use crate::wire::{Ext, Kind, Nak, Opcode, Packet, Psn, Qpn, Repr, Syndrome};

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Abort {
    to: Qpn,
    style: Style,
    /// Where the connection stood when it was last seen, and how far behind and ahead of that its
    /// target may stand.
    origin: Psn,
    reach: (i32, i32),
    /// Where the poison goes.
    psn: Psn,
    tries: u32,
    /// Silence since `psn` was last learnt.
    silent: u32,
    use_write: bool,
    /// When to send next; `None`: now.
    #[serde_as(as = "Option<snapshot::At>")]
    at: Option<Instant>,
    /// The target has said where it is, or it is known.
    knows: bool,
}

/// The outcome of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Going,
    /// The target refused the poison.
    Poisoned,
    /// The target does not answer.
    GivenUp,
}

/// How long a target of which nothing else is known is left alone. A job that was begun anew
/// meanwhile, with the same numbers, sends its first request within some round trips.
const GRACE: Duration = Duration::from_secs(1);

/// How far from where it is thought to be a target is looked for.
const REACH: u32 = 1 << 16;

impl Abort {
    const TRIES: u32 = 12;
    /// Where to look when the target is silent: a target that already complained about a gap
    /// ignores what lies ahead; what lies behind it must always acknowledge.
    const PROBES: [i32; 3] = [0, -REACH.cast_signed(), REACH.cast_signed()];

    /// A target this far from where a connection roughly stood has another one.
    const ELSEWHERE: i32 = 1 << 18;

    /// Ends a connection whose target stood at `una`, and was sent what lies before `high`.
    pub(super) fn new(to: Qpn, style: Style, una: Psn, high: Psn) -> Abort {
        // Two more: a poison taken for the middle of a message moves it on.
        let reach = (0, high.distance(una).max(0) + 2);
        let (origin, psn, at) = (una, una, None);
        Abort { to, style, origin, reach, psn, tries: 0, silent: 0, use_write: false, at, knows: true }
    }

    /// The target never answered: it may stand before the first request, too.
    pub(super) fn unheard(self) -> Abort {
        Abort { reach: (-NEARBY, self.reach.1), ..self }
    }

    /// Ends a connection of which no more is known than roughly where it stood.
    pub(super) fn unknown(to: Qpn, style: Style, hint: Psn) -> Abort {
        let reach = (-Abort::ELSEWHERE, Abort::ELSEWHERE);
        Abort { reach, knows: false, ..Abort::new(to, style, hint, hint) }
    }

    /// PSNs that a probe may be answered with.
    pub(super) fn span(psn: Psn) -> Span {
        Span::of(psn - REACH, 2 * REACH + 1)
    }

    /// PSNs that any of its probes may be answered with.
    pub(super) fn asked(&self) -> Span {
        Abort::span(self.psn).with(&Abort::span(self.origin))
    }

    pub(super) fn next_ask(&self) -> Option<Span> {
        (self.at.is_none() && self.tries < Abort::TRIES).then(|| Abort::span(self.psn))
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.at.is_some()
    }

    /// A turn to ask was in vain. Turns may be rare, so it counts for several tries.
    pub(super) fn take_back(&mut self) {
        self.tries += Abort::TRIES / 4;
    }

    pub(super) fn awaits(&self, psn: Psn) -> bool {
        self.at.is_some() && psn.is_within(self.psn - REACH, 2 * REACH + 1)
    }

    /// Where the next probe goes, from where the target is thought to be.
    fn probe(&self) -> i32 {
        let [here, others @ ..] = Abort::PROBES;
        let silent = self.silent as usize;
        let place = if self.knows { Abort::PROBES.get(silent % 3) } else { others.get(silent % 2) };
        place.copied().unwrap_or(here)
    }

    pub(super) fn transmit(&mut self, rto: Duration, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.at.is_some() || self.tries >= Abort::TRIES {
            return None;
        }
        let opcode = if self.use_write { Opcode::WriteMiddle } else { Opcode::SendMiddle };
        let psn = Psn::new(self.psn.get().wrapping_add_signed(self.probe()));
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
        let (behind, ahead) = self.reach;
        let stands = if aeth.syndrome.is_ack() { packet.bth.psn.next() } else { packet.bth.psn };
        if !(behind..=ahead).contains(&stands.distance(self.origin)) {
            // The queue pair is in another incarnation; what was to be ended is over.
            return Outcome::GivenUp;
        }
        let says_where = aeth.syndrome.is_ack() || aeth.syndrome == Syndrome::Nak(Nak::PsnSequence);
        match aeth.syndrome {
            _ if says_where && !self.knows => self.find(stands, now),
            _ if says_where && stands.is_before(self.origin) => self.find_behind(stands, now),
            Syndrome::Ack { .. } => {
                // Either it had this PSN before, or it took the poison for the rest of a message:
                // the other kind will not fit that.
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

    /// The target is there. Should its queue pair have begun another life, it shows: this is given
    /// up when a request comes.
    fn find(&mut self, psn: Psn, now: Instant) {
        (self.knows, self.psn, self.silent) = (true, psn, 0);
        self.at = Some(now + GRACE);
    }

    /// The target of an unheard flow stands before its first request.
    fn find_behind(&mut self, psn: Psn, now: Instant) {
        self.reach = (0, self.reach.1 + self.origin.distance(psn));
        self.origin = psn;
        self.find(psn, now);
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
