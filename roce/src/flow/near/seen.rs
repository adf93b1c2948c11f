//! Requester side: the requests that a flow has seen, and the PSN that the next one must carry.

use crate::flow::horizon::{Horizon, MtuSet, NEARBY, Order};
use crate::wire::{Kind, Packet, PathMtu, Place, Psn};

/// PSNs before the one expected that count as seen, at most.
pub(super) const SEEN_MAX: u32 = 1 << 22;

/// The PSN position of a requester, as its packets show it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Seen {
    mtu: MtuSet,
    horizon: Horizon,
    /// PSNs seen before [`to`](Seen::to), up to [`SEEN_MAX`].
    count: u32,
    /// The horizon that they are counted to.
    to: Psn,
    /// The target itself named the PSN expected, and that has not come since.
    is_placed: bool,
}

impl Seen {
    pub(super) fn new(mtu: MtuSet) -> Seen {
        Seen { mtu, horizon: Horizon::at(Psn::default()), count: 0, to: Psn::default(), is_placed: false }
    }

    /// Everything before `psn` is none of this flow's business; nothing from there on has been
    /// seen.
    pub(super) fn restart_at(&mut self, psn: Psn) {
        (self.horizon, self.count, self.to) = (Horizon::at(psn), 0, psn);
    }

    /// Expects `psn` again, although what lies beyond has been seen.
    pub(super) fn go_back_to(&mut self, psn: Psn) {
        let undone = self.to.distance(psn).max(0).unsigned_abs();
        (self.horizon, self.to) = (Horizon::at(psn), psn);
        self.count = self.count.saturating_sub(undone);
    }

    pub(super) fn mtu(&self) -> MtuSet {
        self.mtu
    }

    pub(super) fn hint_mtu(&mut self, mtu: Option<PathMtu>) {
        self.mtu.hint(mtu);
    }

    /// The least PSN that may come next.
    pub(super) fn floor(&self) -> Psn {
        self.horizon.floor()
    }

    /// The PSN after the last that counts as seen.
    pub(super) fn to(&self) -> Psn {
        self.to
    }

    /// Returns true while nothing counts as seen.
    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// The target itself names the PSN expected.
    pub(super) fn place(&mut self) {
        self.is_placed = true;
    }

    /// Returns true if the target itself named the PSN expected.
    pub(super) fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// The same; that PSN has come.
    pub(super) fn take_placed(&mut self) -> bool {
        std::mem::take(&mut self.is_placed)
    }

    /// Returns true if only one PSN can come next.
    pub(super) fn is_exact(&self) -> bool {
        self.horizon.exact(self.mtu).is_some()
    }

    /// Where a PSN stands, whatever its packet is.
    pub(super) fn order_of(&self, psn: Psn) -> Order {
        self.horizon.order(psn, self.mtu)
    }

    /// Where a packet stands. While the span of the READ before it is a guess, only a start of
    /// message can follow that.
    pub(super) fn order(&self, packet: &Packet<'_>) -> Order {
        match self.order_of(packet.bth.psn) {
            Order::Exact if !self.is_exact() && !packet.bth.opcode.starts_message() => Order::Ahead,
            order => order,
        }
    }

    /// Takes the packet expected; `read` is a READ's length. Returns the span of the READ before
    /// it, if that is known from now on.
    pub(super) fn pass(&mut self, packet: &Packet<'_>, read: Option<u32>) -> Option<u32> {
        let before = self.horizon.pass(packet.bth.psn, read, &mut self.mtu);
        if matches!(packet.bth.opcode.place(), Place::First | Place::Middle) {
            self.mtu.learn_full(packet.payload.len());
        }
        before
    }

    /// Counts what was passed as seen.
    pub(super) fn count(&mut self) {
        let floor = self.horizon.floor();
        let more = floor.distance(self.to).max(0).unsigned_abs();
        self.count = self.count.saturating_add(more).min(SEEN_MAX);
        self.to = floor;
    }

    /// Learns the path MTU from a packet of either direction, in order or not. Returns the span of
    /// the READ that came last, if that is known from now on.
    pub(super) fn learn_mtu(&mut self, packet: &Packet<'_>) -> Option<u32> {
        let learnt = match packet.bth.opcode.place() {
            Place::First | Place::Middle => self.mtu.learn_full(packet.payload.len()),
            Place::Only | Place::Last => self.mtu.learn_fits(packet.payload.len()),
        };
        if learnt { self.horizon.revise(self.mtu) } else { None }
    }

    /// The PSNs that a request takes, at most.
    pub(super) fn span_of(&self, packet: &Packet<'_>) -> u32 {
        let read = packet.ext.reth().filter(|_| packet.bth.opcode.kind() == Kind::Read);
        read.map_or(1, |reth| self.longest_span(reth.dma_length))
    }

    /// The PSNs that a READ of so many bytes takes, at most.
    pub(super) fn longest_span(&self, length: u32) -> u32 {
        self.mtu.span(length).unwrap_or_else(|| PathMtu::B256.psn_span(length))
    }

    pub(super) fn has(&self, psn: Psn) -> bool {
        let back = self.to.distance(psn);
        back > 0 && back.unsigned_abs() <= self.count
    }

    /// Seen, and at most `recent` PSNs ago.
    pub(super) fn has_lately(&self, psn: Psn, recent: u32) -> bool {
        self.has(psn) && self.to.distance(psn).unsigned_abs() <= recent
    }

    /// Seen, or so little before the first packet that it may be a request whose answer was lost
    /// together with an earlier flow.
    pub(super) fn may_have(&self, psn: Psn) -> bool {
        self.has(psn) || psn.distance(self.to) > -NEARBY
    }
}
