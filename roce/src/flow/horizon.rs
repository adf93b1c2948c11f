//! Which PSN comes next, when the path MTU may not be known yet.

use crate::wire::{PathMtu, Psn};

/// PSN differences up to this count as "near by": far beyond any window in use, far below half of
/// the PSN space.
pub(super) const NEARBY: i32 = 1 << 16;

/// The longest message of the specification, in bytes.
pub(super) const MAX_MESSAGE: u32 = 1 << 31;

const SIZES: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

/// The path MTUs still possible. A hint narrows it, the PSN after a READ narrows it, and a First or
/// Middle packet settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct MtuSet(u8);

impl MtuSet {
    const ALL: u8 = 0x1f;

    pub(super) fn new(hint: Option<PathMtu>) -> MtuSet {
        hint.map_or(MtuSet(MtuSet::ALL), MtuSet::only)
    }

    /// Sets the path MTU to believe until packets show otherwise. Nothing where they have.
    pub(super) fn hint(&mut self, mtu: Option<PathMtu>) {
        if let Some(mtu) = mtu.filter(|_| self.known().is_none()) {
            *self = MtuSet::only(mtu);
        }
    }

    fn only(mtu: PathMtu) -> MtuSet {
        MtuSet::of_all(|candidate| candidate == mtu)
    }

    fn of_all(keep: impl Fn(PathMtu) -> bool) -> MtuSet {
        let bits = SIZES.iter().enumerate();
        MtuSet(bits.fold(0, |set, (bit, &mtu)| set | u8::from(keep(mtu)) << bit))
    }

    fn iter(self) -> impl Iterator<Item = PathMtu> {
        let sizes = SIZES.into_iter().enumerate();
        sizes.filter_map(move |(bit, mtu)| (self.0 >> bit & 1 == 1).then_some(mtu))
    }

    /// The path MTU in bytes, once it is the only one left.
    pub(super) fn known(self) -> Option<u32> {
        let is_only = self.0.is_power_of_two();
        SIZES.get(self.0.trailing_zeros() as usize).filter(|_| is_only).map(|mtu| mtu.bytes())
    }

    /// How many PSNs a READ of `length` bytes consumes, if all candidates agree.
    pub(super) fn span(self, length: u32) -> Option<u32> {
        let mut spans = self.iter().map(|mtu| span(mtu, length));
        let first = spans.next()?;
        spans.all(|other| other == first).then_some(first)
    }

    fn admits(self, length: u32, psns: u32) -> bool {
        self.iter().any(|mtu| span(mtu, length) == psns)
    }

    /// A READ of `length` bytes consumed `psns` PSNs.
    fn narrow(&mut self, length: u32, psns: u32) {
        let kept = MtuSet::of_all(|mtu| span(mtu, length) == psns).0 & self.0;
        if kept != 0 {
            self.0 = kept;
        }
    }

    /// A First or Middle packet carried `payload` bytes: that is the path MTU, whatever was
    /// believed before. Other sizes teach nothing. Returns whether the belief changed.
    pub(super) fn learn_full(&mut self, payload: usize) -> bool {
        let Some(mtu) = PathMtu::from_bytes(payload) else {
            return false;
        };
        let before = std::mem::replace(self, MtuSet::only(mtu));
        before != *self
    }

    /// One packet carried `payload` bytes: the path MTU is no smaller. Returns whether the belief
    /// changed.
    pub(super) fn learn_fits(&mut self, payload: usize) -> bool {
        let fitting = MtuSet::of_all(|mtu| mtu.bytes() as usize >= payload).0;
        let before = *self;
        self.0 = match (self.0 & fitting, fitting) {
            (0, 0) => self.0,
            (0, all) => all,
            (some, _) => some,
        };
        before != *self
    }
}

/// A READ longer than the specification allows is refused by the target; it must not upset the PSN
/// arithmetic before that.
fn span(mtu: PathMtu, length: u32) -> u32 {
    if length > MAX_MESSAGE { 1 } else { mtu.psn_span(length) }
}

/// Where a request stands relative to the one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Behind,
    Exact,
    Ahead,
}

/// The PSN the next request must carry. After a READ whose span hangs on a path MTU still unknown
/// there are several, and the request that comes picks one: a requester sends in PSN order, so only
/// a loss right there could make it pick wrongly, and the target finds that out.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Horizon {
    next: Psn,
    /// The last request, if it was a READ: PSN and length.
    read: Option<(Psn, u32)>,
}

impl Horizon {
    pub(super) fn at(psn: Psn) -> Horizon {
        Horizon { next: psn, read: None }
    }

    /// The least PSN that may come next.
    pub(super) fn floor(&self) -> Psn {
        self.next
    }

    /// The last request was a READ.
    pub(super) fn follows_read(&self) -> bool {
        self.read.is_some()
    }

    /// The one PSN that may come next, if it is only one.
    pub(super) fn exact(&self, mtu: MtuSet) -> Option<Psn> {
        match self.read {
            Some((_, length)) if mtu.span(length).is_none() => None,
            _ => Some(self.next),
        }
    }

    pub(super) fn order(&self, psn: Psn, mtu: MtuSet) -> Order {
        if let Some((start, length)) = self.read
            && mtu.span(length).is_none()
        {
            let psns = psn.distance(start);
            return match u32::try_from(psns) {
                Ok(psns) if mtu.admits(length, psns) => Order::Exact,
                Ok(1..) => Order::Ahead,
                _ => Order::Behind,
            };
        }
        match psn.distance(self.next) {
            0 => Order::Exact,
            1.. => Order::Ahead,
            _ => Order::Behind,
        }
    }

    /// Moves past a request that is in order; `read` is its length if it is a READ. Returns the
    /// span of the READ before it, if that was the last request: it is certain only now.
    pub(super) fn pass(&mut self, psn: Psn, read: Option<u32>, mtu: &mut MtuSet) -> Option<u32> {
        let before = self.read.and_then(|(start, length)| {
            let psns = u32::try_from(psn.distance(start)).ok()?;
            mtu.narrow(length, psns);
            Some(psns)
        });
        self.read = read.map(|length| (psn, length));
        self.next = psn + read.map_or(1, |length| mtu.span(length).unwrap_or(1));
        before
    }

    /// The path MTU was learnt: the span of the last request, a READ, may be another. Returns it.
    pub(super) fn revise(&mut self, mtu: MtuSet) -> Option<u32> {
        let (start, length) = self.read?;
        let psns = mtu.span(length)?;
        self.next = start + psns;
        Some(psns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mtu: &mut MtuSet, psn: u32, length: u32) -> Horizon {
        let mut horizon = Horizon::at(Psn::new(psn));
        horizon.pass(Psn::new(psn), Some(length), mtu);
        horizon
    }

    #[test]
    fn the_request_after_a_read_tells_its_span() {
        let mut mtu = MtuSet::new(None);
        let mut horizon = read(&mut mtu, 100, 8192);
        assert_eq!(horizon.exact(mtu), None);
        assert_eq!(horizon.order(Psn::new(100), mtu), Order::Behind);
        assert_eq!(horizon.order(Psn::new(103), mtu), Order::Ahead);
        assert_eq!(horizon.order(Psn::new(108), mtu), Order::Exact);
        assert_eq!(horizon.pass(Psn::new(108), None, &mut mtu), Some(8));
        assert_eq!(mtu.known(), Some(1024));
        assert_eq!(horizon.exact(mtu), Some(Psn::new(109)));
    }

    #[test]
    fn short_reads_span_one_psn_under_any_mtu() {
        let mut mtu = MtuSet::new(None);
        let horizon = read(&mut mtu, 7, 256);
        assert_eq!(horizon.exact(mtu), Some(Psn::new(8)));
        assert_eq!(read(&mut mtu, 7, 0).exact(mtu), Some(Psn::new(8)));
    }

    #[test]
    fn ambiguity_is_narrowed_step_by_step() {
        let mut mtu = MtuSet::new(None);
        let mut horizon = read(&mut mtu, 0, 600); // 3, 2 or 1 PSNs
        assert_eq!(horizon.pass(Psn::new(1), None, &mut mtu), Some(1));
        assert_eq!(mtu.known(), None);
        assert_eq!(mtu.span(1000), Some(1));
        assert_eq!(mtu.span(2048), None);
        assert!(mtu.learn_fits(3000));
        assert_eq!(mtu.known(), Some(4096));
    }

    #[test]
    fn sizes_seen_override_a_wrong_hint() {
        let mut mtu = MtuSet::new(Some(PathMtu::B4096));
        let mut horizon = read(&mut mtu, 0, 8192);
        assert_eq!(horizon.exact(mtu), Some(Psn::new(2)));
        assert!(mtu.learn_full(1024));
        assert_eq!(horizon.revise(mtu), Some(8));
        assert_eq!(horizon.exact(mtu), Some(Psn::new(8)));
        assert!(!mtu.learn_full(1000), "no path MTU");
        assert_eq!(mtu.known(), Some(1024));
    }

    #[test]
    fn absurd_lengths_do_not_upset_the_arithmetic() {
        let mut mtu = MtuSet::new(Some(PathMtu::B256));
        let horizon = read(&mut mtu, 0xff_ffff, u32::MAX);
        assert_eq!(horizon.exact(mtu), Some(Psn::new(0)));
    }
}
