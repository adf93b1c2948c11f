//! One direction of a link that carries bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::AddAssign;
use std::time::Instant;

use super::fate::{Delivery, Drop, Impairer};
use super::spec::LinkSpec;

/// Counters of one direction, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Offered.
    pub submitted: u64,
    /// Handed out, duplicates included.
    pub delivered: u64,
    /// Bytes handed out.
    pub delivered_bytes: u64,
    /// Taken by the loss process.
    pub lost: u64,
    /// Dropped because the bottleneck's queue was full.
    pub queue_full: u64,
    /// Dropped because they were longer than the link's MTU.
    pub too_long: u64,
    /// Dropped because the link held [`Link::CAPACITY`] bytes.
    pub over_capacity: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Bits flipped.
    pub corrupted: u64,
    /// Sent ahead without the delay.
    pub reordered: u64,
}

impl AddAssign for LinkStats {
    fn add_assign(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.delivered += other.delivered;
        self.delivered_bytes += other.delivered_bytes;
        self.lost += other.lost;
        self.queue_full += other.queue_full;
        self.too_long += other.too_long;
        self.over_capacity += other.over_capacity;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.reordered += other.reordered;
    }
}

/// One direction of a link: packets go in with [`submit`](Link::submit) and come out of
/// [`poll`](Link::poll) when their time has come, after [`next_timeout`](Link::next_timeout). Pure:
/// the seed decides everything, time is a parameter and must not run backwards.
///
/// Buffers are recycled. At most [`Link::CAPACITY`] bytes are under way; what comes beyond that is
/// dropped and counted.
#[derive(Debug)]
pub struct Link {
    impairer: Impairer,
    /// Packets under way, the next to come out on top; in order of entry where the time is the
    /// same.
    order: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    buffers: Vec<Held>,
    free: Vec<usize>,
    /// Handed out by the last `poll`, free again at the next.
    lent: Option<usize>,
    entered: u64,
    held: usize,
    stats: LinkStats,
}

#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    tag: u32,
}

impl Link {
    /// Most bytes under way: 1 GiB, i.e. 80 ms at 100 Gbit/s.
    pub const CAPACITY: usize = 1 << 30;

    /// An empty link.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self {
            impairer: Impairer::new(spec, seed),
            order: BinaryHeap::new(),
            buffers: Vec::new(),
            free: Vec::new(),
            lent: None,
            entered: 0,
            held: 0,
            stats: LinkStats::default(),
        }
    }

    /// The current description.
    pub fn spec(&self) -> &LinkSpec {
        self.impairer.spec()
    }

    /// Changes the link under way; packets already on it keep their times.
    pub fn set_spec(&mut self, spec: LinkSpec) {
        self.impairer.set_spec(spec);
    }

    /// Counters since the start.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Packets under way.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A packet enters.
    pub fn submit(&mut self, now: Instant, packet: &[u8]) {
        self.submit_tagged(now, packet, 0);
    }

    /// A packet enters with a number of the caller's that comes out with it.
    pub fn submit_tagged(&mut self, now: Instant, packet: &[u8], tag: u32) {
        self.stats.submitted += 1;
        let fate = self.impairer.admit(now, packet.len());
        self.stats.reordered += u64::from(fate.reordered && fate.first.is_ok());
        self.enter(packet, tag, fate.first);
        if let Some(second) = fate.second {
            self.stats.duplicated += 1;
            self.enter(packet, tag, second);
        }
    }

    /// The next packet whose time has come. Its bytes are good until the next call.
    pub fn poll(&mut self, now: Instant) -> Option<&[u8]> {
        self.poll_tagged(now).map(|(packet, _)| packet)
    }

    /// As [`Link::poll`], with the packet's number.
    pub fn poll_tagged(&mut self, now: Instant) -> Option<(&[u8], u32)> {
        self.free.extend(self.lent.take());
        let Reverse((at, _, _)) = self.order.peek()?;
        if *at > now {
            return None;
        }
        let Reverse((_, _, index)) = self.order.pop()?;
        self.lent = Some(index);
        let Held { bytes, tag } = self.buffers.get(index)?;
        self.held -= bytes.len();
        self.stats.delivered += 1;
        self.stats.delivered_bytes += u64::try_from(bytes.len()).unwrap_or(0);
        Some((bytes, *tag))
    }

    /// When the next packet comes out; `None` = the link is empty.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Buffers ever made.
    #[cfg(test)]
    pub(super) fn buffers_allocated(&self) -> usize {
        self.buffers.len()
    }

    fn enter(&mut self, packet: &[u8], tag: u32, outcome: Result<Delivery, Drop>) {
        let delivery = match outcome {
            Ok(delivery) => delivery,
            Err(Drop::Lost) => {
                self.stats.lost += 1;
                return;
            }
            Err(Drop::QueueFull) => {
                self.stats.queue_full += 1;
                return;
            }
            Err(Drop::TooLong) => {
                self.stats.too_long += 1;
                return;
            }
        };
        if self.held + packet.len() > Self::CAPACITY {
            self.stats.over_capacity += 1;
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Held::default());
            self.buffers.len() - 1
        });
        let Some(held) = self.buffers.get_mut(index) else {
            return;
        };
        held.tag = tag;
        held.bytes.clear();
        held.bytes.extend_from_slice(packet);
        if let Some(bit) = delivery.corrupt
            && let Some(byte) = held.bytes.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
            self.stats.corrupted += 1;
        }
        self.held += packet.len();
        self.order.push(Reverse((delivery.at, self.entered, index)));
        self.entered += 1;
    }
}
