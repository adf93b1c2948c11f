//! One direction of the link: packets under way, in place.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::replay::Replay;
use crate::impair::{Delivery, Drop, Impairer, LinkSpec};

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayStats {
    /// Packets put on the link.
    pub packets: u64,
    /// Their bytes, headers below included.
    pub bytes: u64,
    /// Packets that did not arrive: lost, corrupted, or dropped by a full queue.
    pub lost: u64,
    /// Most packets on the link at a time.
    pub peak: usize,
}

/// Packets are written into slots of the link and read from there. A slot is made when it is first
/// needed and used again, the last one freed first.
///
/// Without jitter and reordering the link is a queue; what overtakes waits in a heap. While nothing
/// is sent, others' packets are: a burst of losses ends in its time, not with ours.
pub(super) struct Way {
    impairer: Impairer,
    replay: Option<Replay>,
    /// Nanoseconds that a packet takes, and since the origin until the last one has left.
    packet_time: f64,
    busy_until: f64,
    origin: Instant,
    queue: VecDeque<Flight>,
    overtaking: BinaryHeap<Reverse<Flight>>,
    slots: Vec<Box<[u8]>>,
    free: Vec<usize>,
    slot_len: usize,
    entered: u64,
    stats: WayStats,
}

/// Ordered by time; where that is the same, by entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    /// Nanoseconds since the origin.
    at: u64,
    entered: u64,
    slot: usize,
    len: usize,
}

impl Way {
    /// An empty link for packets that take `packet_time` nanoseconds and have at most `slot_len`
    /// bytes in memory. A replay decides losses in place of the description.
    pub(super) fn new(
        spec: LinkSpec,
        replay: Option<Replay>,
        packet_time: f64,
        slot_len: usize,
        seed: u64,
        origin: Instant,
    ) -> Self {
        Self {
            impairer: Impairer::new(spec, seed),
            replay,
            packet_time,
            busy_until: 0.0,
            origin,
            queue: VecDeque::new(),
            overtaking: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            slot_len,
            entered: 0,
            stats: WayStats::default(),
        }
    }

    pub(super) fn stats(&self) -> WayStats {
        self.stats
    }

    /// A slot to write the next packet into; hand it back by [`Way::send`] or [`Way::free`].
    pub(super) fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(vec![0; self.slot_len].into());
            self.slots.len() - 1
        })
    }

    pub(super) fn bytes(&mut self, slot: usize) -> &mut [u8] {
        self.slots.get_mut(slot).map_or(&mut [], |bytes| bytes)
    }

    pub(super) fn free(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// The packet of `len` bytes in `slot` enters; on the wire it has `wire` bytes, headers below
    /// not counted.
    pub(super) fn send(&mut self, slot: usize, len: usize, wire: usize, now: Instant) {
        self.stats.packets += 1;
        self.stats.bytes += wire as u64 + u64::from(self.impairer.spec().overhead);
        if self.replay.as_mut().is_some_and(Replay::loses) {
            self.stats.lost += 1;
            return self.free(slot);
        }
        self.pass(now);
        let fate = self.impairer.admit(now, wire);
        if let Some(second) = fate.second {
            let copy = self.slot();
            let (from, to) = (slot.min(copy), slot.max(copy));
            if let Ok([a, b]) = self.slots.get_disjoint_mut([from, to]) {
                if slot < copy { b.copy_from_slice(a) } else { a.copy_from_slice(b) }
            }
            self.enter(copy, len, second);
        }
        self.enter(slot, len, fate.first);
    }

    /// Others' packets go before this one, if the link was idle.
    fn pass(&mut self, now: Instant) {
        let now = nanos(self.origin, now) as f64;
        let others = (now - self.busy_until) / self.packet_time;
        if others >= 1.0 {
            self.impairer.pass(others.floor());
        }
        self.busy_until = self.busy_until.max(now) + self.packet_time;
    }

    fn enter(&mut self, slot: usize, len: usize, delivery: Result<Delivery, Drop>) {
        let Ok(Delivery { at, corrupt: None }) = delivery else {
            self.stats.lost += 1;
            return self.free(slot);
        };
        let flight = Flight { at: nanos(self.origin, at), entered: self.entered, slot, len };
        self.entered += 1;
        if self.queue.back().is_some_and(|last| flight.at < last.at) {
            self.overtaking.push(Reverse(flight));
        } else {
            self.queue.push_back(flight);
        }
        self.stats.peak = self.stats.peak.max(self.queue.len() + self.overtaking.len());
    }

    /// When the next packet comes out, in nanoseconds since the origin.
    pub(super) fn next(&self) -> Option<u64> {
        self.peek().map(|flight| flight.at)
    }

    /// The slot and length of the next packet that is out by `now`. The slot is to be freed.
    pub(super) fn receive(&mut self, now: u64) -> Option<(usize, usize)> {
        let flight = self.peek().filter(|flight| flight.at <= now)?;
        if self.queue.front() == Some(&flight) {
            self.queue.pop_front();
        } else {
            self.overtaking.pop();
        }
        Some((flight.slot, flight.len))
    }

    fn peek(&self) -> Option<Flight> {
        let (first, overtaking) = (self.queue.front(), self.overtaking.peek().map(|Reverse(flight)| flight));
        match (first, overtaking) {
            (Some(a), Some(b)) => Some(*a.min(b)),
            (a, b) => a.or(b).copied(),
        }
    }
}

/// Nanoseconds from `origin` to `at`.
pub(super) fn nanos(origin: Instant, at: Instant) -> u64 {
    let elapsed: Duration = at.saturating_duration_since(origin);
    elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
}
