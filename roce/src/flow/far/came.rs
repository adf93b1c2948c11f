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
    /// The flow began earlier when a message had come up to `amid`, and has not reached that again.
    /// The target may have the beginning of that. Version 1 of snapshots does not know of it.
    #[serde(skip)]
    may_be_amid: bool,
    #[serde(skip)]
    amid: Psn,
    /// Where a READ was cut that would be cut elsewhere with the path MTU as it is known now, and
    /// how many PSNs follow.
    #[serde(with = "ends")]
    odd_cut: Option<(Psn, NonZeroU32)>,
}

/// In a snapshot, where a READ was cut stands with its end.
mod ends {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{NonZeroU32, Psn, rest};

    pub(super) fn serialize<S: Serializer>(
        cut: &Option<(Psn, NonZeroU32)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        cut.map(|(at, more)| (at, at + more.get())).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<(Psn, NonZeroU32)>, D::Error> {
        Ok(Option::<(Psn, Psn)>::deserialize(deserializer)?.and_then(rest))
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
        Came {
            mtu: MtuSet::new(mtu),
            horizon,
            first: psn,
            is_inside: false,
            may_be_amid: false,
            amid: psn,
            odd_cut: None,
        }
    }

    /// Returns the knowledge that goes on where another flow takes the place of this one.
    /// `is_amid`: the target may be amid the request that came last.
    pub(super) fn anew(&self, is_amid: bool) -> Came {
        let (may_be_amid, amid) = self.amid(is_amid);
        Came { mtu: self.mtu, odd_cut: self.odd_cut, may_be_amid, amid, ..Came::new(None) }
    }

    /// Returns whether the target may be amid a message, and which PSN it expects if it is.
    fn amid(&self, is_amid: bool) -> (bool, Psn) {
        let floor = self.horizon.floor();
        let is_later = is_amid && self.is_inside && !(self.may_be_amid && floor.is_before(self.amid));
        if is_later { (true, floor) } else { (self.may_be_amid, self.amid) }
    }

    /// The requests begin at this PSN. `is_amid`: the target may be amid the one that came last.
    pub(super) fn begin_at(&mut self, psn: Psn, is_amid: bool) {
        (self.may_be_amid, self.amid) = self.amid(is_amid);
        self.is_inside = false;
        (self.first, self.horizon) = (psn, Horizon::at(psn));
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
        self.may_be_amid &= self.horizon.floor().is_before(self.amid);
        before
    }

    /// The target expects this PSN. If that lies before where it may be amid a message, it is not.
    pub(super) fn note_expected(&mut self, psn: Psn) {
        self.may_be_amid &= !psn.is_before(self.amid);
    }

    pub(super) fn first(&self) -> Psn {
        self.first
    }

    /// The target has, or is to get, the beginning of a message whose end has not come. `beyond`:
    /// it says that it has all before this PSN, which is more than was sent. Then it has that end.
    pub(super) fn is_inside(&self, beyond: Option<Psn>) -> bool {
        let is_amid = self.may_be_amid && beyond.is_none_or(|to| !to.is_after(self.amid));
        is_amid || self.is_inside && beyond.is_none()
    }

    /// Returns whether this PSN lies little before all requests.
    pub(super) fn is_little_before(&self, psn: Psn) -> bool {
        (-NEARBY..0).contains(&psn.distance(self.first))
    }

    /// Keeps in mind no more PSNs before this one than the target can have been sent a moment ago.
    pub(super) fn follow(&mut self, una: Psn) {
        if una.distance(self.first) > 2 * BEHIND.cast_signed() {
            self.first = una - BEHIND;
        }
    }

    /// A READ was cut at the first PSN that would be cut elsewhere, and ends before the second.
    pub(super) fn note_odd_cut(&mut self, cut: Option<(Psn, Psn)>) {
        self.odd_cut = cut.and_then(rest).or(self.odd_cut);
    }

    /// Where the READ that this is the rest of was cut unlike others; 0 if it was not.
    pub(super) fn odd_cut_of(&self, rest: &Progress) -> u32 {
        let is_of =
            |&(cut, more): &(Psn, NonZeroU32)| cut + more.get() == rest.end() && rest.start.is_before(cut);
        let cut = self.odd_cut.filter(is_of);
        let psns = cut.map_or(0, |(cut, _)| cut.distance(rest.start).unsigned_abs());
        psns * self.mtu.known().unwrap_or(0)
    }
}
