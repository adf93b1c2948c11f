//! Responder side: putting the target's queue pair into the error state, so that its program learns
//! that the flow is over.
//!
//! The poison is a SEND or WRITE Middle without payload: out of sequence when no message is open,
//! of the wrong length when one is. Either is an invalid request (IBA 9.7.4.1.2, 9.7.5.1.6;
//! `rxe_resp.c` `check_op_seq`, `check_length`) if it comes at the PSN the target expects. Where
//! that PSN is not known exactly the target tells it: it answers a packet behind it with an ACK of
//! the last it has, and one ahead of it with a sequence NAK.
//!
//! The NAK is right, but comes once for each gap. The ACK need not be right: Soft-RoCE leaves READs
//! out (`rxe_resp.c`, `ack_psn`). So an ACK is taken for a place only until the target acknowledges
//! a packet at that very place. From then on, and if it names a place that is out of reach, it says
//! that the target is there ([`Search`]).
//!
//! A target that never answered this flow may stand before its first request: what came earlier is
//! lost, or only the requester can bring it. It is then left alone for [`GRACE`] as well.
//!
//! Where nothing but a rough PSN is known, not even whether the queue pair is still the one that
//! was, the first packets lie far behind and far ahead: no target takes either for the next, and
//! its answer says where it is, and who its partner is.

mod search;

use std::time::{Duration, Instant};

use self::search::Search;
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
    knowledge: Knowledge,
    /// PSN of the last packet, while its answer may come.
    #[serde(skip)]
    sent: Option<Psn>,
    /// How often the poison met silence there.
    #[serde(skip)]
    ignored: u32,
    /// Messages that the target had counted when it last answered this flow. While it names that
    /// count to this flow's requester, it is in the same incarnation.
    #[serde(skip)]
    msn: Option<u32>,
}

/// Knowledge of where the target stands. Snapshots have it where they had a flag: the first two are
/// its values.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Knowledge {
    /// It is somewhere around [`Abort::psn`].
    Rough,
    /// It was known, or an ACK has said so.
    Told,
    /// The same, after [`GRACE`].
    Found,
    /// A sequence NAK has said so.
    Named,
    /// Its ACKs do not tell.
    Sought(Search),
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
        Abort {
            to,
            style,
            origin: una,
            reach,
            psn: una,
            tries: 0,
            silent: 0,
            use_write: false,
            at: None,
            knowledge: Knowledge::Told,
            sent: None,
            ignored: 0,
            msn: None,
        }
    }

    /// The target had counted so many messages when it last answered.
    pub(super) fn counted(self, msn: u32) -> Abort {
        Abort { msn: Some(msn), ..self }
    }

    /// The target never answered: it may stand before the first request, too.
    pub(super) fn unheard(self) -> Abort {
        Abort { reach: (-NEARBY, self.reach.1), ..self }
    }

    /// Ends a connection of which no more is known than roughly where it stood.
    pub(super) fn unknown(to: Qpn, style: Style, hint: Psn) -> Abort {
        let reach = (-Abort::ELSEWHERE, Abort::ELSEWHERE);
        Abort { reach, knowledge: Knowledge::Rough, ..Abort::new(to, style, hint, hint) }
    }

    /// PSNs that a probe may be answered with.
    pub(super) fn span(psn: Psn) -> Span {
        Span::of(psn - REACH, 2 * REACH + 1)
    }

    /// PSNs that any of its probes may be answered with.
    pub(super) fn asked(&self) -> Span {
        let asked = Abort::span(self.psn).with(&Abort::span(self.origin));
        let [first, last] = self.bounds().map(Abort::span);
        if self.is_sought() { asked.with(&first).with(&last) } else { asked }
    }

    pub(super) fn next_ask(&self) -> Option<Span> {
        (self.at.is_none() && self.tries < Abort::TRIES).then(|| Abort::span(self.next()))
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.at.is_some()
    }

    /// A turn to ask was in vain. Turns may be rare, so it counts for several tries.
    pub(super) fn take_back(&mut self) {
        self.tries += Abort::TRIES / 4;
    }

    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let span = if self.is_sought() { self.asked() } else { Abort::span(self.psn) };
        self.at.is_some() && psn.is_within(span.first, span.count)
    }

    fn is_sought(&self) -> bool {
        matches!(self.knowledge, Knowledge::Sought(_))
    }

    /// Returns whether the target is still to be left alone for [`GRACE`] if it stands there.
    fn is_left_alone(&self, psn: Psn) -> bool {
        match self.knowledge {
            Knowledge::Rough => true,
            Knowledge::Told => psn.is_before(self.origin),
            Knowledge::Found | Knowledge::Named | Knowledge::Sought(_) => false,
        }
    }

    /// The first and the last PSN that the target may expect.
    fn bounds(&self) -> [Psn; 2] {
        let (behind, ahead) = self.reach;
        [behind, ahead].map(|place| moved(self.origin, place))
    }

    /// PSN of the next packet.
    fn next(&self) -> Psn {
        let [here, others @ ..] = Abort::PROBES;
        let silent = self.silent as usize;
        let place = match &self.knowledge {
            Knowledge::Sought(search) => return search.next(self.psn + REACH),
            Knowledge::Rough => others.get(silent % 2),
            Knowledge::Told | Knowledge::Found | Knowledge::Named => Abort::PROBES.get(silent % 3),
        };
        moved(self.psn, place.copied().unwrap_or(here))
    }

    pub(super) fn transmit(&mut self, rto: Duration, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.at.is_some() || self.tries >= Abort::TRIES {
            return None;
        }
        let opcode = if self.use_write { Opcode::WriteMiddle } else { Opcode::SendMiddle };
        let psn = self.next();
        let mut bth = self.style.bth(opcode, self.to, psn);
        bth.ack_req = true;
        let repr = Repr { bth, ext: Ext::None, payload: &[] };
        let len = repr.emit(out).ok()?;
        self.sent = Some(psn);
        // The steps of a search are bounded by themselves.
        let backoff = if self.is_sought() { 1 } else { (self.tries / 2).min(5) };
        self.tries += u32::from(!self.is_sought());
        self.at = Some(now + rto.saturating_mul(1 << backoff));
        Some(len)
    }

    pub(super) fn handle_response(&mut self, packet: &Packet<'_>, now: Instant) -> Outcome {
        let (Kind::Acknowledge, Ext::Aeth(aeth)) = (packet.bth.opcode.kind(), packet.ext) else {
            return Outcome::Going;
        };
        let psn = packet.bth.psn;
        if aeth.syndrome.is_ack() {
            self.extend_reach(psn.next(), aeth.msn);
            self.handle_ack(psn, now);
            return Outcome::Going;
        }
        if !self.is_reached(psn) {
            // The queue pair is in another incarnation; what was to be ended is over.
            return Outcome::GivenUp;
        }
        match aeth.syndrome {
            Syndrome::Nak(Nak::PsnSequence) => self.handle_sequence_nak(psn, now),
            Syndrome::Rnr { timer } => {
                self.learn(psn);
                self.at = Some(now + timer.duration());
            }
            Syndrome::Ack { .. } | Syndrome::Nak(_) | Syndrome::Reserved(_) => return Outcome::Poisoned,
        }
        Outcome::Going
    }

    /// Returns whether the target may expect this PSN.
    fn is_reached(&self, psn: Psn) -> bool {
        let (behind, ahead) = self.reach;
        (behind..=ahead).contains(&psn.distance(self.origin))
    }

    /// The target has everything before `to`, and may have had it before this flow began: from
    /// before its gateway was restarted.
    fn extend_reach(&mut self, to: Psn, msn: u32) {
        let ahead = to.distance(self.origin);
        if self.msn == Some(msn) && (0..=REACH.cast_signed()).contains(&ahead) {
            self.reach.1 = self.reach.1.max(ahead + 2);
        }
    }

    fn handle_sequence_nak(&mut self, psn: Psn, now: Instant) {
        let is_behind = psn.is_before(self.origin);
        let waits = match self.knowledge {
            Knowledge::Rough => true,
            Knowledge::Told | Knowledge::Found | Knowledge::Sought(_) => is_behind,
            Knowledge::Named => false,
        };
        if is_behind && !matches!(self.knowledge, Knowledge::Rough) {
            // The target of an unheard flow stands before its first request.
            self.reach = (0, self.reach.1 + self.origin.distance(psn));
            self.origin = psn;
        }
        self.knowledge = Knowledge::Named;
        if waits { self.wait_at(psn, now) } else { self.learn(psn) }
    }

    fn handle_ack(&mut self, psn: Psn, now: Instant) {
        let to = psn.next();
        // It had the poison before, or took it, so that it expects a later PSN.
        let is_past = self.sent == Some(self.psn);
        if let Knowledge::Sought(search) = &mut self.knowledge {
            let Some(sent) = self.sent.filter(|sent| search.acknowledge(*sent)) else { return };
            self.use_write ^= psn == sent;
            return self.send_next();
        }
        if matches!(self.knowledge, Knowledge::Named) && !is_past {
            return self.learn(self.psn);
        }
        let is_refuted = if is_past { !to.is_after(self.psn) } else { to == self.psn && self.ignored > 1 };
        if !self.is_reached(to) || is_refuted {
            return self.search(now);
        }
        let waits = self.is_left_alone(to);
        self.knowledge = Knowledge::Found;
        if waits {
            return self.wait_at(to, now);
        }
        // If it took the poison for the rest of a message, the other kind will not fit that.
        self.use_write ^= psn == self.psn;
        self.learn(to);
    }

    /// The target is there. Should its queue pair have begun another life, it shows: this is given
    /// up when a request comes.
    fn wait_at(&mut self, psn: Psn, now: Instant) {
        (self.psn, self.silent, self.sent) = (psn, 0, None);
        self.at = Some(now + GRACE);
    }

    /// The target is there, and its ACKs do not say where.
    fn search(&mut self, now: Instant) {
        let bounds = self.bounds();
        let waits = self.is_left_alone(bounds[0]);
        self.knowledge = Knowledge::Sought(Search::new(bounds, self.sent));
        self.silent = 0;
        if waits { self.wait_at(self.psn, now) } else { self.send_next() }
    }

    fn learn(&mut self, psn: Psn) {
        if self.psn != psn {
            self.ignored = 0;
        }
        if self.psn != psn || self.silent > 0 {
            self.send_next();
        }
        self.psn = psn;
        self.silent = 0;
    }

    /// The last packet has its answer: another one may follow.
    fn send_next(&mut self) {
        if self.tries < Abort::TRIES {
            (self.at, self.sent) = (None, None);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.at
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) -> Outcome {
        if self.at.is_none_or(|at| at > now) {
            return Outcome::Going;
        }
        match (&mut self.knowledge, self.sent.take()) {
            (Knowledge::Sought(search), sent) => {
                if sent.is_some_and(|sent| search.is_in_vain(sent)) {
                    self.tries += Abort::TRIES / 2;
                }
            }
            (_, sent) => {
                self.silent += 1;
                self.ignored += u32::from(sent == Some(self.psn));
            }
        }
        if self.tries >= Abort::TRIES {
            return Outcome::GivenUp;
        }
        self.at = None;
        Outcome::Going
    }
}

/// The PSN so far ahead, or behind if that is negative.
fn moved(psn: Psn, by: i32) -> Psn {
    Psn::new(psn.get().wrapping_add_signed(by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tests::epoch;

    #[test]
    fn knowledge_is_written_as_the_flag_that_it_was() {
        let flags = snapshot::write(&[false, true], epoch()).unwrap();
        let knowledge = snapshot::write(&[Knowledge::Rough, Knowledge::Told], epoch()).unwrap();
        assert_eq!(knowledge, flags);
    }
}
