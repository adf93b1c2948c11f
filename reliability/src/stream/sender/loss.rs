//! Which packets are sent again, and when.
//!
//! The receiver asks by NACK. A packet that was repaired is repaired again only when a report is
//! known to be from after the repair's arrival. A timeout is the last resort, for tails that the
//! receiver cannot miss and for reports that do not come.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::SenderStats;
use super::queue::Queue;
use super::redundancy::Redundancy;
use crate::rtt::Estimator;
use crate::stream::report_interval;

/// The longest timeout.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT_MICROS: u64 = MAX_TIMEOUT.as_micros() as u64;
/// A timeout doubles so often.
pub(crate) const MAX_BACKOFF: u8 = 6;
/// Copies of a probe: from the third one without an answer on, four packets each.
pub(crate) const MAX_PROBE_COPIES: u8 = 3;

/// All times in microseconds of the sender's clock.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Loss {
    alpha: f64,
    reorder: u64,
    /// Packets to be sent again.
    repairs: VecDeque<u64>,
    /// Packets whose repair gets extra copies, in turn.
    copies: VecDeque<u64>,
    /// The first packet that was sent once and neither acknowledged nor asked for. They time out in
    /// this order.
    oldest: u64,
    /// Timeouts of repaired packets: due, packet, its tries at that time (another number means that
    /// the entry is stale).
    repaired: BinaryHeap<Reverse<(u64, u64, u8)>>,
    /// Up to this sending time, reports have told what arrived.
    known: u64,
    /// While the receiver is silent: when the next probe is due, and how many there have been.
    probe_at: u64,
    probes: u8,
    /// The packet that the last probe repeats, until the receiver is heard.
    probe: Option<u64>,
}

impl Loss {
    pub(super) fn new(alpha: f64, reorder: Duration) -> Self {
        Self {
            alpha,
            reorder: reorder.as_micros() as u64,
            repairs: VecDeque::new(),
            copies: VecDeque::new(),
            oldest: 0,
            repaired: BinaryHeap::new(),
            known: 0,
            probe_at: 0,
            probes: 0,
            probe: None,
        }
    }

    /// Gives back the memory that no packet needs now.
    pub(super) fn release_spare(&mut self) {
        self.repairs.shrink_to_fit();
        self.copies.shrink_to_fit();
        self.repaired.shrink_to_fit();
    }

    pub(super) fn set_alpha(&mut self, alpha: f64) {
        self.alpha = alpha;
    }

    pub(super) fn set_reorder(&mut self, reorder: Duration) {
        self.reorder = reorder.as_micros() as u64;
    }

    /// The receiver asks for a packet, in a report that tells what arrived of all that was sent up
    /// to `known`.
    ///
    /// Rule: `docs/protocol.md#rule-repair-once`.
    pub(super) fn nack(&mut self, sequence: u64, known: u64, queue: &mut Queue) {
        let Some(slot) = queue.slot(sequence) else {
            return;
        };
        let tolerance = if slot.tries == 0 { 0 } else { self.reorder };
        if slot.sent + tolerance <= known {
            self.request(sequence, queue);
        }
    }

    /// Queues a repair.
    fn request(&mut self, sequence: u64, queue: &mut Queue) -> bool {
        let Some(slot) = queue.slot_mut(sequence) else {
            return false;
        };
        if slot.acknowledged || slot.queued {
            return false;
        }
        slot.queued = true;
        slot.tries = slot.tries.saturating_add(1);
        self.repairs.push_back(sequence);
        true
    }

    /// A report came.
    pub(super) fn heard(&mut self, known: u64) {
        self.known = self.known.max(known);
        self.probe = None;
        self.probes = 0;
        self.probe_at = 0;
    }

    /// The next packet to be sent again, if it is still wanted.
    pub(super) fn next_repair(&mut self, queue: &Queue) -> Option<u64> {
        while let Some(sequence) = self.repairs.pop_front() {
            if queue.slot(sequence).is_some_and(|slot| !slot.acknowledged) {
                return Some(sequence);
            }
        }
        None
    }

    /// If the repair of this packet is sent to find out whether the receiver is still there, how
    /// many copies go with it. It may well have all it needs, so few; but one more each time:
    /// within a run of losses that ends only as packets are sent, as those of `tc netem` do, single
    /// probes get lost one after the other.
    pub(super) fn probe_copies(&self, sequence: u64) -> Option<u8> {
        (self.probe == Some(sequence)).then(|| self.probes.min(MAX_PROBE_COPIES))
    }

    pub(super) fn repairs_waiting(&self) -> usize {
        self.repairs.len()
    }

    /// The next packet of which an extra copy is to be sent, if it is still wanted. One copy of
    /// each comes before the second of any.
    pub(super) fn next_copy(&mut self, now: u64, queue: &mut Queue) -> Option<u64> {
        while let Some(sequence) = self.copies.pop_front() {
            let Some(slot) = queue.slot_mut(sequence).filter(|slot| slot.copies > 0) else { continue };
            slot.copies = if slot.acknowledged { 0 } else { slot.copies - 1 };
            if slot.copies > 0 {
                self.copies.push_back(sequence);
            }
            if !slot.acknowledged && !slot.queued {
                slot.sent = now;
                return Some(sequence);
            }
        }
        None
    }

    pub(super) fn copies_waiting(&self) -> usize {
        self.copies.len()
    }

    /// A repair was sent, which is to be followed by so many copies.
    pub(super) fn repaired(
        &mut self,
        sequence: u64,
        copies: u8,
        now: u64,
        queue: &mut Queue,
        rtt: &Estimator,
    ) {
        let timeout = self.timeout(rtt);
        if let Some(slot) = queue.slot_mut(sequence) {
            slot.queued = false;
            slot.sent = now;
            if copies > 0 && slot.copies == 0 {
                self.copies.push_back(sequence);
            }
            slot.copies = slot.copies.max(copies);
            slot.copied |= copies > 0;
            let backoff = slot.tries.saturating_sub(1).min(MAX_BACKOFF);
            let due = now + (timeout << backoff).min(MAX_TIMEOUT_MICROS);
            self.repaired.push(Reverse((due, sequence, slot.tries)));
        }
    }

    /// Drops what has become irrelevant, so that the timers are exact.
    pub(super) fn settle(&mut self, queue: &Queue) {
        self.oldest = self.oldest.max(queue.base());
        while self.oldest < queue.next()
            && queue.slot(self.oldest).is_some_and(|slot| slot.acknowledged || slot.tries > 0)
        {
            self.oldest += 1;
        }
        while let Some(&Reverse((_, sequence, tries))) = self.repaired.peek() {
            if is_current(sequence, tries, queue) {
                break;
            }
            self.repaired.pop();
        }
        // Entries of packets acknowledged meanwhile need not wait for their time to come.
        if self.repaired.len() > 1024 && self.repaired.len() as u64 > 2 * (queue.next() - queue.base()) {
            self.repaired.retain(|&Reverse((_, sequence, tries))| is_current(sequence, tries, queue));
        }
        if queue.base() == queue.next() {
            self.repairs.clear();
            self.copies.clear();
        }
    }

    pub(super) fn next_timeout(
        &self,
        queue: &Queue,
        rtt: &Estimator,
        redundancy: &dyn Redundancy,
    ) -> Option<u64> {
        let first = self.first_due(queue, rtt, redundancy);
        let again = self.repaired.peek().map(|&Reverse((due, ..))| due);
        let due = match (first, again) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(due.max(self.probe_at))
    }

    /// Repairs what timed out.
    pub(super) fn handle_timeout(
        &mut self,
        now: u64,
        queue: &mut Queue,
        rtt: &Estimator,
        redundancy: &dyn Redundancy,
        stats: &mut SenderStats,
    ) {
        if now < self.probe_at {
            return;
        }
        self.settle(queue);
        while self.first_due(queue, rtt, redundancy).is_some_and(|due| due <= now) {
            if !self.time_out(self.oldest, now, queue, rtt, stats) {
                return;
            }
            self.settle(queue);
        }
        while let Some(&Reverse((due, sequence, tries))) = self.repaired.peek() {
            if due > now {
                return;
            }
            if is_current(sequence, tries, queue) && !self.time_out(sequence, now, queue, rtt, stats) {
                return;
            }
            self.repaired.pop();
        }
    }

    /// Repairs a packet that timed out. If the receiver has been silent since it was sent, it is a
    /// probe and false is returned: nothing more is sent until the receiver was heard or the next
    /// probe is due.
    fn time_out(
        &mut self,
        sequence: u64,
        now: u64,
        queue: &mut Queue,
        rtt: &Estimator,
        stats: &mut SenderStats,
    ) -> bool {
        let told = queue.slot(sequence).is_none_or(|slot| slot.sent + self.reorder <= self.known);
        if self.request(sequence, queue) {
            if told {
                stats.rto_firings += 1;
            } else {
                stats.probes += 1;
            }
        }
        if !told {
            self.probe = Some(sequence);
            self.probe_at = now + (self.timeout(rtt) << self.probes).min(MAX_TIMEOUT_MICROS);
            self.probes = (self.probes + 1).min(MAX_BACKOFF);
        }
        told
    }

    fn first_due(&self, queue: &Queue, rtt: &Estimator, redundancy: &dyn Redundancy) -> Option<u64> {
        if self.oldest >= queue.next() {
            return None;
        }
        let slot = queue.slot(self.oldest)?;
        let start = redundancy.protected_until(self.oldest, slot.sent)?;
        Some(start + self.timeout(rtt))
    }

    /// RTT + alpha * RTT, with room for the RTT's variation, for a receiver that waits for
    /// overtaken packets, and for a report that was just missed.
    ///
    /// Rule: `docs/protocol.md#rule-rto`.
    fn timeout(&self, rtt: &Estimator) -> u64 {
        let smoothed = rtt.smoothed();
        let variation = (4 * rtt.variation()).max(Duration::from_millis(1));
        let slack = smoothed.mul_f64(self.alpha) + variation.max(Duration::from_micros(self.reorder));
        let total = smoothed + slack + report_interval(smoothed);
        (total.as_micros() as u64).min(MAX_TIMEOUT_MICROS)
    }
}

fn is_current(sequence: u64, tries: u8, queue: &Queue) -> bool {
    queue.slot(sequence).is_some_and(|slot| !slot.acknowledged && !slot.queued && slot.tries == tries)
}
