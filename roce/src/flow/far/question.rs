//! Responder side: asking a target that says nothing where it stands.
//!
//! A target names the PSN that it expects once for each gap, and once for what it was not ready for
//! (IBA volume 1, 9.7.5.1.1; `rxe_resp.c`, `sent_psn_nak`). If that went to a gateway that has
//! ended, the target is silent to all that lies ahead of that PSN. A packet that lies behind it
//! must be acknowledged, by the last one that the target has. So where a flow's first requests meet
//! silence one is sent from far behind, as an abort does.
//!
//! Rule: `docs/protocol.md#rule-question`.

use super::abort::poison;
use super::{Far, NEARBY, State};
use crate::flow::rewritten::RewrittenPacket;
use crate::pairing::Span;
use crate::wire::{Aeth, Nak, Packet, Psn, Syndrome};

/// How far before the flow's first request the question lies: before all that the requester goes
/// back to.
const BEHIND: u32 = 2 * NEARBY.cast_unsigned();

/// The question to a silent target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Question {
    #[default]
    None,
    /// The target was silent once.
    Waits,
    /// It goes out next.
    Due,
    Asked,
}

impl Question {
    fn after_silence(self) -> Question {
        match self {
            Question::None => Question::Waits,
            Question::Waits | Question::Due | Question::Asked => Question::Due,
        }
    }
}

impl<B: AsRef<[u8]>> Far<B> {
    /// Notes that what was sent met silence.
    pub(super) fn note_unanswered(&mut self) {
        let knows = self.said.is_confirmed() || self.excuse.awaits_earlier();
        if matches!(self.state, State::Open) && !knows {
            self.question = self.question.after_silence();
        }
    }

    fn may_ask(&self) -> bool {
        self.question == Question::Due && !self.said.is_confirmed() && !self.excuse.is_suspended()
    }

    /// The PSNs that the question may be answered with, if it is to go out next.
    pub(super) fn next_question(&self) -> Option<Span> {
        let first = self.came.first();
        self.may_ask().then(|| Span::of(first - BEHIND, BEHIND))
    }

    /// Writes the question, if it is to go out next, and returns its length.
    pub(super) fn transmit_question(&mut self, out: &mut [u8]) -> Option<usize> {
        let target = self.peers.target().filter(|_| self.may_ask())?;
        self.question = Question::Asked;
        poison(self.peers.style(), target, self.came.first() - BEHIND, false, out)
    }

    /// Returns whether the question may be answered by an ACK of this PSN.
    pub(super) fn asks_for(&self, psn: Psn) -> bool {
        let is_asked = self.question == Question::Asked && !self.said.is_confirmed();
        is_asked && self.came.is_little_before(psn.next())
    }

    /// Takes the answer to the question: the target expects what follows this PSN. The near side
    /// hears it as the sequence NAK that it stands for.
    ///
    /// A target that has completed no message may be in another incarnation, of which the
    /// acknowledged PSN tells nothing ([`is_of_another_incarnation`]). Its word is not passed on.
    ///
    /// [`is_of_another_incarnation`]: Far::is_of_another_incarnation
    pub(super) fn handle_answer_to_question(
        &mut self,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) -> Option<RewrittenPacket> {
        let expected = packet.bth.psn.next();
        if !aeth.syndrome.is_ack() || aeth.msn == 0 || !self.asks_for(packet.bth.psn) {
            return None;
        }
        self.note_before_all(expected).then(|| {
            let nak = Aeth { syndrome: Syndrome::Nak(Nak::PsnSequence), msn: aeth.msn };
            super::respond::readdressed(packet, expected, nak)
        })
    }
}
