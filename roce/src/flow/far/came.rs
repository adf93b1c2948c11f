//! Responder side: the requests that have come.

use std::num::NonZeroU32;

use super::read::Progress;
use crate::flow::horizon::{Horizon, MtuSet, NEARBY, Order};
use crate::wire::{PathMtu, Psn};

/// More PSNs than go to a target within any time that an answer may take: at 3 million packets a
/// second, a third of a second's.
const BEHIND: u32 = 1 << 20;

/// Where the requests of a flow begin, and which comes next.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Came {
    pub(super) mtu: MtuSet,
    pub(super) horizon: Horizon,
    /// The first PSN of the flow, or one that far behind those under way that it does not matter
    /// any more.
    first: Psn,
    /// The last request taken does not end its message.
    is_inside: bool,
    /// In a snapshot of version 1, where a READ was cut.
    #[serde(with = "ends")]
    rare: Option<Box<Rare>>,
}

/// Knowledge that few flows have.
#[derive(Clone, Copy, Debug, Default)]
struct Rare {
    /// Where a READ was cut that would be cut elsewhere with the path MTU as it is known now, and
    /// how many PSNs follow.
    odd_cut: Option<(Psn, NonZeroU32)>,
    amid: Option<Amid>,
    /// All before was sent, before the flow went back or took another one's place.
    sent: Option<Psn>,
}

impl Rare {
    fn boxed(self) -> Option<Box<Rare>> {
        let is_known = self.odd_cut.is_some() || self.amid.is_some() || self.sent.is_some();
        is_known.then(|| Box::new(self))
    }
}

/// Messages that the target may have the beginning of, though the flow has forgotten their
/// requests: it began earlier, or in another one's place, and has not come past them again. Most
/// flows have none.
#[derive(Clone, Copy, Debug)]
struct Amid {
    /// The first PSN within one of them that the target may expect, and the last.
    first: Psn,
    last: Psn,
    /// The PSN that the target, asked by this flow, has said last that it expects.
    named: Option<Psn>,
}

impl Amid {
    /// Returns whether a target of which the last word is known may be amid one of them.
    fn is_possible(&self) -> bool {
        self.named.is_none_or(|psn| !psn.is_before(self.first) && !psn.is_after(self.last))
    }

    /// Both together, of which the target has yet to speak.
    fn with(self, (first, last): (Psn, Psn)) -> Amid {
        Amid {
            first: if first.is_before(self.first) { first } else { self.first },
            last: if last.is_after(self.last) { last } else { self.last },
            named: None,
        }
    }
}

/// In a snapshot, where a READ was cut stands with its end.
mod ends {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Psn, Rare, rest};

    pub(super) fn serialize<S: Serializer>(
        rare: &Option<Box<Rare>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let cut = rare.as_ref().and_then(|rare| rare.odd_cut);
        cut.map(|(at, more)| (at, at + more.get())).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Box<Rare>>, D::Error> {
        let odd_cut = Option::<(Psn, Psn)>::deserialize(deserializer)?.and_then(rest);
        Ok(Rare { odd_cut, ..Rare::default() }.boxed())
    }
}

/// A cut and how many PSNs follow, of one that stands with its end.
fn rest((at, end): (Psn, Psn)) -> Option<(Psn, NonZeroU32)> {
    Some((at, NonZeroU32::new(end.distance(at).try_into().ok()?)?))
}

impl Came {
    pub(super) fn new(mtu: Option<PathMtu>) -> Came {
        let psn = Psn::default();
        let horizon = Horizon::at(psn);
        Came { mtu: MtuSet::new(mtu), horizon, first: psn, is_inside: false, rare: None }
    }

    /// Returns the knowledge that goes on where another flow takes the place of this one.
    /// `forgotten`: the PSNs, the first and the last, that the target may expect within messages of
    /// this one. `sent`: all before was sent.
    pub(super) fn anew(&self, forgotten: Option<(Psn, Psn)>, sent: Option<Psn>) -> Came {
        let sent = sent.map(|sent| self.furthest(sent)).or(self.sent());
        Came { mtu: self.mtu, rare: self.kept(forgotten, sent), ..Came::new(None) }
    }

    /// Returns the knowledge that goes on where the requests begin anew.
    fn kept(&self, forgotten: Option<(Psn, Psn)>, sent: Option<Psn>) -> Option<Box<Rare>> {
        Rare { odd_cut: self.odd_cut(), amid: self.amid_with(forgotten), sent }.boxed()
    }

    fn sent(&self) -> Option<Psn> {
        self.rare.as_ref()?.sent
    }

    /// Returns the later of this PSN and the one before which all was sent earlier.
    pub(super) fn furthest(&self, sent: Psn) -> Psn {
        self.sent().filter(|earlier| earlier.is_after(sent)).unwrap_or(sent)
    }

    /// The flow goes back. All before this PSN was sent.
    pub(super) fn note_sent(&mut self, sent: Psn) {
        let furthest = self.furthest(sent);
        self.rare.get_or_insert_default().sent = Some(furthest);
    }

    fn odd_cut(&self) -> Option<(Psn, NonZeroU32)> {
        self.rare.as_ref()?.odd_cut
    }

    /// Returns what the target may be amid by its last word.
    fn possible(&self) -> Option<Amid> {
        self.rare.as_ref()?.amid.filter(Amid::is_possible)
    }

    fn amid_with(&self, forgotten: Option<(Psn, Psn)>) -> Option<Amid> {
        let own = |(first, last)| Amid { first, last, named: None };
        match (self.possible(), forgotten) {
            (Some(earlier), Some(more)) => Some(earlier.with(more)),
            (earlier, more) => earlier.map(|amid| Amid { named: None, ..amid }).or(more.map(own)),
        }
    }

    /// The requests begin at this PSN; `forgotten` as above.
    pub(super) fn begin_at(&mut self, psn: Psn, forgotten: Option<(Psn, Psn)>) {
        self.rare = self.kept(forgotten, self.sent());
        self.is_inside = false;
        (self.first, self.horizon) = (psn, Horizon::at(psn));
    }

    /// Returns the PSN of the request that comes next, if it goes on with a message.
    pub(super) fn within(&self) -> Option<Psn> {
        self.is_inside.then(|| self.horizon.floor())
    }

    /// This one is to come again.
    pub(super) fn go_back_to(&mut self, psn: Psn) {
        self.horizon = Horizon::at(psn);
    }

    pub(super) fn order(&self, psn: Psn) -> Order {
        self.horizon.order(psn, self.mtu)
    }

    /// Takes the request expected; `read` is a READ's length, `full_payload` the payload of a First
    /// or Middle packet. Returns the span of the READ before it, if that is known from now on.
    pub(super) fn pass(&mut self, psn: Psn, read: Option<u32>, full_payload: Option<usize>) -> Option<u32> {
        self.is_inside = full_payload.is_some();
        if let Some(payload) = full_payload {
            self.mtu.learn_full(payload);
        }
        let before = self.horizon.pass(psn, read, &mut self.mtu);
        let floor = self.horizon.floor();
        if let Some(rare) = &mut self.rare {
            rare.amid.take_if(|amid| !floor.is_before(amid.last));
        }
        before
    }

    /// The target says that it expects this PSN. It may have said so before it got further, so only
    /// its last word counts.
    pub(super) fn note_expected(&mut self, psn: Psn) {
        if let Some(amid) = self.rare.as_mut().and_then(|rare| rare.amid.as_mut()) {
            amid.named = Some(psn);
        }
    }

    pub(super) fn first(&self) -> Psn {
        self.first
    }

    /// The target has, or is to get, the beginning of a message whose end has not come. `beyond`:
    /// it says that it has all before this PSN, which is more than was sent. Then it has that end.
    pub(super) fn is_inside(&self, beyond: Option<Psn>) -> bool {
        self.is_inside && beyond.is_none() || self.may_be_amid()
    }

    /// A target that expects what comes next after a whole message is amid none.
    fn may_be_amid(&self) -> bool {
        let is_at_end = |psn: Psn| psn == self.horizon.floor() && !self.is_inside;
        self.possible().is_some_and(|amid| !amid.named.is_some_and(is_at_end))
    }

    /// Returns whether this PSN lies little before all requests.
    pub(super) fn is_little_before(&self, psn: Psn) -> bool {
        (-NEARBY..0).contains(&psn.distance(self.first))
    }

    /// Keeps in mind no more PSNs before this one than the target can have been sent a moment ago.
    pub(super) fn follow(&mut self, una: Psn) {
        if let Some(rare) = &mut self.rare {
            rare.sent.take_if(|sent| !una.is_before(*sent));
        }
        if una.distance(self.first) > 2 * BEHIND.cast_signed() {
            self.first = una - BEHIND;
        }
    }

    /// A READ was cut at the first PSN that would be cut elsewhere, and ends before the second.
    pub(super) fn note_odd_cut(&mut self, cut: Option<(Psn, Psn)>) {
        if let Some(cut) = cut.and_then(rest) {
            self.rare.get_or_insert_default().odd_cut = Some(cut);
        }
    }

    /// Where the READ that this is the rest of was cut unlike others; 0 if it was not.
    pub(super) fn odd_cut_of(&self, rest: &Progress) -> u32 {
        let is_of =
            |&(cut, more): &(Psn, NonZeroU32)| cut + more.get() == rest.end() && rest.start.is_before(cut);
        let cut = self.odd_cut().filter(is_of);
        let psns = cut.map_or(0, |(cut, _)| cut.distance(rest.start).unsigned_abs());
        psns * self.mtu.known().unwrap_or(0)
    }
}
