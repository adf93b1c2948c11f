//! Schemes without repair on request, and the way from a [`Scheme`] to its [`Redundancy`].

use std::collections::VecDeque;

use fec::Code;

use super::SenderConfig;
use super::group::Group;
use super::hybrid::Hybrid;
use super::outlook::Outlook;
use super::protection::parities;
use super::queue::Queue;
use super::redundancy::{Placement, Redundancy};
use crate::stream::Scheme;
use crate::stream::wire::{Coding, Parity, Shape};

/// Makes what a scheme adds to the data packets.
pub(super) fn new(scheme: Scheme, capacity: usize, config: &SenderConfig) -> Box<dyn Redundancy> {
    let shape = scheme.shape();
    let kind = match shape.coding {
        Coding::None | Coding::Sr => return Box::new(Uncoded(shape)),
        Coding::Xor => fec::Kind::Xor,
        Coding::Mds => fec::Kind::Mds,
    };
    let code = |m: u8| Code::new(kind, shape.k.into(), m.into());
    match (code(shape.m), code(shape.most_parities())) {
        (Ok(code), Ok(further)) if matches!(scheme, Scheme::Hybrid { .. }) => {
            Box::new(Hybrid::new(Group::new(shape, code, capacity), further, config))
        }
        (Ok(code), _) => Box::new(Coded::new(Group::new(shape, code, capacity), config)),
        // `Scheme::shape` brings the numbers within every code's bounds.
        (Err(_), _) => Box::new(Uncoded(Shape::uncoded(Coding::Sr))),
    }
}

/// The scheme of a stream that was read from a snapshot, until it begins its blocks anew.
pub(super) fn nothing() -> Box<dyn Redundancy> {
    Box::new(Uncoded(Shape::uncoded(Coding::Sr)))
}

/// `none` and `sr`: nothing is added.
#[derive(Debug)]
struct Uncoded(Shape);

impl Redundancy for Uncoded {
    fn add(&mut self, _: u64, _: &Queue, _: &Outlook, _: u64) -> Placement {
        Placement::uncoded(self.0)
    }

    fn poll_parity(&mut self, _: &Queue, _: u64, _: &mut [u8]) -> Option<(Parity, usize)> {
        None
    }

    fn flush_at(&self, _: Option<u64>) -> Option<u64> {
        None
    }

    fn close(&mut self, _: &Outlook, _: u64) {}

    fn is_between_blocks(&self) -> bool {
        true
    }

    fn protected_until(&self, _: u64, sent: u64) -> Option<u64> {
        Some(sent)
    }

    fn settle(&mut self, _: &mut Queue) {}
}

/// `xor` and `mds`: every packet is in a block, and every block gets parity.
#[derive(Debug)]
struct Coded {
    group: Group,
    flush: u64,
    /// End and time of closing of the groups that are still asked about.
    closed: VecDeque<(u64, u64)>,
}

impl Coded {
    fn new(group: Group, config: &SenderConfig) -> Self {
        Self { group, flush: config.flush.as_micros() as u64, closed: VecDeque::new() }
    }
}

impl Redundancy for Coded {
    fn add(&mut self, sequence: u64, queue: &Queue, outlook: &Outlook, now: u64) -> Placement {
        let position = self.group.add(sequence, queue, now);
        if self.group.is_full() {
            self.close(outlook, now);
        }
        Placement { shape: self.group.shape(), position, held: false }
    }

    fn before_acknowledging(&mut self, end: u64, queue: &Queue) {
        self.group.encode(end, queue);
    }

    fn poll_parity(&mut self, queue: &Queue, _: u64, out: &mut [u8]) -> Option<(Parity, usize)> {
        self.group.poll_parity(queue, out)
    }

    fn flush_at(&self, quiet: Option<u64>) -> Option<u64> {
        self.group.flush_at(self.flush, quiet)
    }

    fn close(&mut self, _: &Outlook, now: u64) {
        if self.group.is_open() {
            self.closed.push_back((self.group.end(), now));
            let shape = self.group.shape();
            let lanes = shape.lanes(self.group.count().into());
            self.group.close(|len| parities(shape, len, lanes));
        }
    }

    fn is_between_blocks(&self) -> bool {
        self.group.count() == 0
    }

    fn protected_until(&self, sequence: u64, sent: u64) -> Option<u64> {
        if self.group.is_open() && sequence >= self.group.base() {
            return None;
        }
        let group = self.closed.partition_point(|&(end, _)| end <= sequence);
        let closed = self.closed.get(group).map_or(0, |&(_, at)| at);
        Some(sent.max(closed))
    }

    fn settle(&mut self, queue: &mut Queue) {
        while self.closed.front().is_some_and(|&(end, _)| end <= queue.base()) {
            self.closed.pop_front();
        }
    }
}
