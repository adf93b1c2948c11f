//! The windows of PSNs in which the questions of one pair of hosts await their answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::asked::Asked;
use super::{FlowKey, Span, Word};
use crate::wire::{Psn, Qpn};

/// How far before what was asked a sequence NAK may lie, and how far beyond it an ACK, to be an
/// answer ([`Fit::Near`]): a target that has lost nothing may be ahead of a gateway that was
/// restarted. [`Far`](crate::flow::Far) takes no more.
pub(super) const SLACK: u32 = 1 << 16;

/// PSNs there are.
const RING: u32 = 1 << 24;

/// One question: what was asked, and until when it may be answered.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Question {
    pub(super) flow: FlowKey,
    pub(super) state: State,
    /// All that was asked, or is to be, and what lies between.
    pub(super) span: Span,
    /// The PSNs among them that were asked about. Read from a snapshot, all are taken for that.
    #[serde(skip)]
    pub(super) asked: Asked,
    /// When the first of it was sent, and the last.
    #[serde_as(as = "Option<(snapshot::At, snapshot::At)>")]
    pub(super) sent: Option<(Instant, Instant)>,
    /// When the turn began, and how long what was asked last may go unanswered.
    #[serde_as(as = "snapshot::At")]
    pub(super) since: Instant,
    pub(super) patience: Duration,
    /// How often something was sent, modulo 2^32.
    pub(super) asks: u32,
    /// How often since it was last to be asked: in this turn, once more, or again.
    #[serde(skip)]
    pub(super) out: u32,
    /// When it is repeated if it has no answer by then.
    pub(super) repeat: Repeat,
    /// It was.
    pub(super) is_repeated: bool,
    /// An answer that is to be given once more.
    pub(super) heard: Option<Heard>,
    /// This turn was made longer for that.
    pub(super) is_extended: bool,
    /// Nobody else asks in this turn.
    pub(super) is_alone: bool,
}

/// The next repeat of a question in its turn.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Repeat {
    /// Nothing was asked.
    None,
    /// It is due then, and the next one so much later.
    At(#[serde_as(as = "snapshot::At")] Instant, Duration),
    /// There is no more in this turn.
    Over,
}

/// An answer that names a requester, and tells no more than that it may be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Heard {
    pub(super) requester_qpn: Qpn,
    /// Its PSN, unless that was asked for.
    pub(super) near: Option<Psn>,
    /// [`Question::asks`] when it came.
    pub(super) asks: u32,
    /// No other question was out when it came, so that it can be no other target's.
    pub(super) is_alone: bool,
    /// No flow that had this requester before had asked anything that was out.
    #[serde(skip)]
    pub(super) is_clear: bool,
}

impl Heard {
    /// Returns whether it counts when it is said again. A PSN near by has to be nobody else's. One
    /// that was asked for may be that of the flow which had this requester before.
    pub(super) fn is_its(&self) -> bool {
        self.is_alone || self.near.is_none() && self.is_clear
    }

    /// Returns whether both say the same.
    pub(super) fn says(&self, other: &Heard) -> bool {
        self.requester_qpn == other.requester_qpn && self.near == other.near
    }
}

/// How the PSN of an answer fits what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is one that was asked for. Of 2^24 PSNs somebody else seldom hits one of these.
    Exact,
    /// It is near by. One of 128 is.
    Near,
}

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum State {
    /// It is the flow's turn, until then.
    Open(#[serde_as(as = "snapshot::At")] Instant),
    /// The last request may be answered until then. Nothing more is asked.
    Ending(#[serde_as(as = "snapshot::At")] Instant),
    /// The turn was in vain. An answer is still taken until the place is wanted.
    Lapsed,
    /// The flow is gone. Nobody takes the answer.
    Ghost(#[serde_as(as = "snapshot::At")] Instant),
    /// It is answered by what may be the late answer of a flow that is gone. Nothing more is asked
    /// until then, and it is no turn in vain.
    Veiled(#[serde_as(as = "snapshot::At")] Instant),
}

impl State {
    /// When it ends by itself.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            State::Open(until) | State::Ending(until) | State::Ghost(until) | State::Veiled(until) => {
                Some(until)
            }
            State::Lapsed => None,
        }
    }
}

impl Question {
    /// The flow's question in a turn that begins now. What it asked in vain `before` may still be
    /// answered.
    pub(super) fn open(
        flow: FlowKey,
        span: Span,
        before: Option<&Question>,
        now: Instant,
        patience: Duration,
    ) -> Question {
        Question {
            flow,
            state: State::Open(now + patience),
            span: before.map_or(span, |before| before.span.with(&span)),
            asked: before.map(|before| before.asked).unwrap_or_default(),
            sent: before.and_then(|before| before.sent),
            since: now,
            patience,
            asks: before.map_or(0, |before| before.asks),
            out: 0,
            repeat: Repeat::None,
            is_repeated: before.is_some_and(|before| before.is_repeated),
            heard: before.and_then(|before| before.heard),
            is_extended: false,
            is_alone: false,
        }
    }

    /// Returns true if anything was asked in this turn.
    pub(super) fn has_asked(&self) -> bool {
        self.sent.is_some_and(|(_, last)| last >= self.since)
    }

    /// Returns true if it was asked, and its answer may still come.
    fn is_out(&self) -> bool {
        self.sent.is_some() && self.state != State::Lapsed
    }

    const fn start(&self) -> u32 {
        start_of(&self.span)
    }

    /// Returns how this can be an answer, by its PSN and by what it says.
    fn is_answered_by(&self, psn: Psn, word: Word) -> Option<Fit> {
        if self.asked.may_be_answered(psn, word) {
            return Some(Fit::Exact);
        }
        let Span { first, count, .. } = self.span;
        let reach = count.saturating_add(SLACK);
        let is_near = match word {
            Word::Ack => psn.is_within(first, reach),
            Word::SequenceNak => psn.is_within(Psn::new(self.start()), reach),
            // What a target refuses, or is not ready for, it has been sent.
            Word::Refusal | Word::NotReady | Word::Read | Word::Atomic => false,
        };
        is_near.then_some(Fit::Near)
    }
}

const fn start_of(span: &Span) -> u32 {
    span.first.get().wrapping_sub(SLACK) & (RING - 1)
}

/// Returns whether this PSN may be in an answer about these.
pub(super) fn may_answer(span: &Span, psn: Psn) -> bool {
    psn.is_within(Psn::new(start_of(span)), len_of(span))
}

/// PSNs in which an answer may lie.
const fn len_of(span: &Span) -> u32 {
    let len = span.count.saturating_add(2 * SLACK);
    if len < RING { len } else { RING - 1 }
}

/// How far `to` lies ahead of `from`.
const fn ahead(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & (RING - 1)
}

/// Questions by where their windows begin. No two windows overlap, so a PSN lies in one at most.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Windows(BTreeMap<u32, Question>);

impl Windows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Question> {
        self.0.get_mut(&at)
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<Question> {
        self.0.remove(&at)
    }

    /// The flows of the questions that have been asked, and whose answers may still come.
    pub(super) fn out_flows(&self) -> impl Iterator<Item = FlowKey> + '_ {
        self.0.values().filter(|question| question.is_out()).map(|question| question.flow)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Question> {
        self.0.values_mut()
    }

    /// Returns whether another question than this one has been asked, and its answer may still
    /// come.
    pub(super) fn has_asked(&self, but: Option<u32>) -> bool {
        self.0.iter().any(|(at, question)| Some(*at) != but && question.is_out())
    }

    /// Returns whether a question with another window is out, or is to be: an answer may come.
    pub(super) fn is_any_out(&self, but: Option<u32>) -> bool {
        self.0.iter().any(|(at, question)| Some(*at) != but && question.state != State::Lapsed)
    }

    /// Returns whether a turn is one in which nobody else asks.
    pub(super) fn is_taken_alone(&self) -> bool {
        self.0.values().any(|question| question.is_alone && question.state != State::Lapsed)
    }

    /// Returns how many packets are out whose answers may still come.
    pub(super) fn out(&self) -> u32 {
        let are_out = self.0.values().filter(|question| question.state != State::Lapsed);
        are_out.map(|question| question.out).sum()
    }

    /// The question that this may answer, and how it does.
    pub(super) fn asker(&self, psn: Psn, word: Word) -> Option<(&Question, Fit)> {
        let question = self.before(psn.get())?;
        Some((question, question.is_answered_by(psn, word)?))
    }

    /// The question whose window begins last before this PSN, or there.
    fn before(&self, at: u32) -> Option<&Question> {
        self.0.range(..=at).next_back().or_else(|| self.0.iter().next_back()).map(|(_, question)| question)
    }

    /// Takes the question in and returns where its window begins, unless that overlaps another one.
    pub(super) fn insert(&mut self, question: Question) -> Result<u32, Overlap> {
        let at = question.start();
        if let Some(other) = self.overlapping(&question.span) {
            return Err(match other.state {
                State::Lapsed => Overlap::Lapsed(other.flow, other.start()),
                _ => Overlap::Open,
            });
        }
        self.0.insert(at, question);
        Ok(at)
    }

    /// A question whose window overlaps one for these PSNs. An open one goes before a lapsed one.
    fn overlapping(&self, span: &Span) -> Option<&Question> {
        let (start, len) = (start_of(span), len_of(span));
        let end = (start + len) & (RING - 1);
        let front = self.before(start).filter(|other| ahead(other.start(), start) < len_of(&other.span));
        // Of those that begin within it only a few can be lapsed ones in a row.
        let (first, second) = if start < end { (start..end, 0..0) } else { (start..RING, 0..end) };
        let inside = self.0.range(first).chain(self.0.range(second)).map(|(_, other)| other);
        let mut found = None;
        for other in front.into_iter().chain(inside) {
            if other.state != State::Lapsed {
                return Some(other);
            }
            found = found.or(Some(other));
        }
        found
    }

    /// Widens a question to further PSNs and returns where its window begins then, unless that
    /// would overlap another.
    pub(super) fn widen(&mut self, at: u32, more: &Span) -> Result<u32, Overlap> {
        let Some(question) = self.0.get(&at) else { return Err(Overlap::Open) };
        let span = question.span.with(more);
        if span == question.span {
            return Ok(at);
        }
        let question = *question;
        self.0.remove(&at);
        let widened = self.insert(Question { span, ..question });
        if widened.is_err() {
            self.0.insert(at, question);
        }
        widened
    }
}

/// Why a question cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// Another one may be answered with the same PSNs.
    Open,
    /// This flow's question, which was in vain, is to be removed from there first.
    Lapsed(FlowKey, u32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairing::Span;

    fn question(flow: u32, first: u32, count: u32, state: State) -> Question {
        let [requester, target] = [[10, 0, 0, 1], [10, 0, 1, 1]].map(std::net::IpAddr::from);
        let flow = FlowKey { requester, target, target_qpn: Qpn::new(flow) };
        let span = Span::of(Psn::new(first), count);
        let mut question = Question::open(flow, span, None, start(), Duration::ZERO);
        question.state = state;
        question.asked.add(&span);
        question
    }

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn start() -> Instant {
        Instant::now()
    }

    fn open() -> State {
        State::Open(start() + Duration::from_secs(1))
    }

    #[test]
    fn windows_never_overlap_anywhere_on_the_ring() {
        for base in [0, 1, SLACK, 0x80_0000, RING - 1, RING - SLACK, RING - 2 * SLACK] {
            let mut windows = Windows::default();
            windows.insert(question(1, base, 5, open())).unwrap();
            let apart = 2 * SLACK + 5;
            for (distance, fits) in [(0, false), (1, false), (apart - 1, false), (apart, true)] {
                let other = question(2, (base + distance) & (RING - 1), 5, open());
                let found = windows.insert(other);
                assert_eq!(found.is_ok(), fits, "{base:#x} {distance:#x}");
                if let Ok(at) = found {
                    windows.remove(at).unwrap();
                }
                let before = question(2, base.wrapping_sub(distance) & (RING - 1), 5, open());
                let found = windows.insert(before);
                assert_eq!(found.is_ok(), fits, "{base:#x} -{distance:#x}");
                if let Ok(at) = found {
                    windows.remove(at).unwrap();
                }
            }
        }
    }

    #[test]
    fn lapsed_windows_make_room_one_after_the_other() {
        let mut windows = Windows::default();
        windows.insert(question(1, 0, 1, State::Lapsed)).unwrap();
        windows.insert(question(2, 3 * SLACK, 1, State::Lapsed)).unwrap();
        let long = question(3, 0, 4 * SLACK, open());
        let mut removed = 0;
        while let Err(Overlap::Lapsed(_, at)) = windows.insert(long) {
            windows.remove(at).unwrap();
            removed += 1;
        }
        assert_eq!(removed, 2);
        assert_eq!(windows.asker(Psn::new(3 * SLACK), Word::Ack).unwrap().0.flow, long.flow);
        assert_eq!(windows.insert(question(4, 2 * SLACK, 1, open())), Err(Overlap::Open));
    }

    #[test]
    fn each_kind_of_answer_lies_where_it_can() {
        let mut windows = Windows::default();
        windows.insert(question(1, 100, 4, open())).unwrap();
        let takes = |psn: u32, word| windows.asker(Psn::new(psn), word).map(|(_, fit)| fit);
        let (before, first, last, beyond) = (99, 100, 103, 104);
        let (hit, near) = (Some(Fit::Exact), Some(Fit::Near));
        for (word, expected) in [
            (Word::Ack, [None, hit, hit, near]),
            (Word::SequenceNak, [near, hit, hit, None]),
            (Word::Refusal, [None, hit, hit, None]),
            (Word::NotReady, [None, hit, hit, None]),
            (Word::Read, [None; 4]),
            (Word::Atomic, [None; 4]),
        ] {
            let found = [before, first, last, beyond].map(|psn| takes(psn, word));
            assert_eq!(found, expected, "{word:?}");
        }
        assert_eq!([103, 104].map(|psn| takes(psn + SLACK, Word::Ack)), [near, None]);
        let behind = [100, 99].map(|psn: u32| takes(psn.wrapping_sub(SLACK), Word::SequenceNak));
        assert_eq!(behind, [near, None]);
    }
}
