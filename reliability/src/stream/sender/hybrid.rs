//! Parity where a loss could not be repaired before everything else is sent; selective repeat
//! elsewhere.

mod further;

use std::time::Duration;

use fec::Code;

use self::further::Closed;
use super::SenderConfig;
use super::group::Group;
use super::outlook::Outlook;
use super::protection::{Cover, Losses, MAX_DEPTH};
use super::queue::Queue;
use super::redundancy::{Asked, Placement, Redundancy};
use crate::stream::wire::{Coding, Parity, Shape};

/// `hybrid`: a packet after which there is more to send than a repair takes travels as with `sr`.
/// The others - short transfers, and the last round trip of long ones - are in blocks, with as much
/// parity as their number and the drop rate call for. A block that falls short gets further parity.
#[derive(Debug)]
pub(super) struct Hybrid {
    group: Group,
    /// Least interleaving depth.
    depth: u8,
    flush: u64,
    closed: Closed,
    /// The plan last worked out, and its outcome.
    planned: Option<(Plan, Cover)>,
}

/// The inputs from which a group's protection follows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    coming: u64,
    exposed: u64,
    losses: Losses,
}

impl Hybrid {
    /// `further` is the group's code with as many parities as it can have.
    pub(super) fn new(group: Group, further: Code, config: &SenderConfig) -> Self {
        Self {
            depth: group.shape().depth,
            group,
            flush: config.flush.as_micros() as u64,
            closed: Closed::new(further, config.reorder_time),
            planned: None,
        }
    }

    /// Returns true if the packet at hand begins a group that will get parity, as far as can be
    /// told before the group is filled.
    fn begins(&mut self, outlook: &Outlook) -> bool {
        let shape = self.group.shape();
        let (k, coming) = (u64::from(shape.k), outlook.remaining.saturating_add(1));
        // What is pushed until the group is full only adds to what comes after it.
        let deepest = k * u64::from(MAX_DEPTH.max(self.depth));
        if coming.saturating_sub(deepest) >= outlook.repair {
            return false;
        }
        let cover = self.plan(Plan {
            coming: coming.min(deepest),
            exposed: outlook.exposed(),
            losses: outlook.losses,
        });
        let after = coming.saturating_sub(k * u64::from(cover.depth));
        // The parity of what comes after takes its time as well.
        let after = u128::from(after) * u128::from(k + u64::from(cover.parities)) / u128::from(k);
        if cover.parities == 0 || after >= u128::from(outlook.repair) {
            return false;
        }
        self.group.set_depth(cover.depth);
        true
    }

    fn plan(&mut self, plan: Plan) -> Cover {
        match self.planned {
            Some((planned, cover)) if planned == plan => cover,
            _ => {
                let shape = Shape { depth: self.depth, ..self.group.shape() };
                let cover = plan.losses.cover(shape, plan.coming, plan.exposed);
                self.planned = Some((plan, cover));
                cover
            }
        }
    }
}

impl Redundancy for Hybrid {
    fn add(&mut self, sequence: u64, queue: &Queue, outlook: &Outlook, now: u64) -> Placement {
        if self.group.count() == 0 && !self.begins(outlook) {
            return Placement::uncoded(Shape::uncoded(Coding::Sr));
        }
        let position = self.group.add(sequence, queue, now);
        let placement = Placement { shape: self.group.shape(), position, held: true };
        if self.group.is_full() {
            self.close(outlook, now);
        }
        placement
    }

    fn poll_parity(&mut self, queue: &Queue, now: u64, out: &mut [u8]) -> Option<(Parity, usize)> {
        self.closed.poll_parity(queue, now, out).or_else(|| self.group.poll_parity(queue, out))
    }

    fn flush_at(&self, quiet: Option<u64>) -> Option<u64> {
        self.group.flush_at(self.flush, quiet)
    }

    /// If so much has been pushed meanwhile that a loss can be repaired, the group gets no parity
    /// after all.
    fn close(&mut self, outlook: &Outlook, now: u64) {
        if !self.group.is_open() {
            return;
        }
        let shape = self.group.shape();
        let parities = |len| match len {
            0 => 0,
            _ if !outlook.is_tail() => 0,
            _ => outlook.losses.parities(shape, len, outlook.exposed()),
        };
        let (base, count) = (self.group.base(), self.group.count());
        self.group.close(parities);
        self.closed.add(base, count, shape, |lane| parities(shape.block_len(count, lane)), now);
    }

    fn is_between_blocks(&self) -> bool {
        self.group.count() == 0 && !self.closed.has_parity()
    }

    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64> {
        if self.group.is_open() && sequence >= self.group.base() {
            return None;
        }
        Some(sent.max(self.closed.last_sent(sequence)))
    }

    fn answers(&mut self, asked: &Asked, queue: &Queue) -> bool {
        self.closed.answers(asked, queue)
    }

    fn answer(&mut self, outlook: &Outlook) {
        self.closed.answer(outlook);
    }

    fn set_reorder_time(&mut self, time: Duration) {
        self.closed.set_reorder(time);
    }

    fn release_spare(&mut self) {
        self.closed.release_spare();
    }

    fn settle(&mut self, queue: &mut Queue) {
        self.closed.settle(queue);
        // All of it has arrived: no parity is needed, and nothing need be kept for further ones.
        if self.group.count() > 0 && queue.is_acknowledged(self.group.base(), self.group.end()) {
            queue.unhold(self.group.base(), self.group.end());
            self.group.reset();
        }
        queue.release();
    }
}
