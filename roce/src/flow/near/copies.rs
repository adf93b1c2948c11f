//! Requester side: payloads of outstanding packets: a requester's buffers are read each time it
//! sends, and may have changed meanwhile.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Near;
use crate::wire::{Packet, Psn};

/// One packet with payload.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Copy {
    psn: Psn,
    /// CRC-32 of its payload.
    print: u32,
    len: u16,
}

/// Payloads of the packets outstanding, in PSN order: twelve bytes for each.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Copies {
    copies: VecDeque<Copy>,
    /// The requester's last pass in which payloads had changed.
    pass: Option<Pass>,
    /// The first and the last one that is nowhere but in this process. Those between them count as
    /// such, too. A snapshot leaves it out: its reader knows what is retained.
    #[serde(skip)]
    unretained: Option<(Psn, Psn)>,
}

impl Copies {
    pub(super) fn push(&mut self, packet: &Packet<'_>) {
        let (print, len) = (packet.payload_crc(), packet.payload.len() as u16);
        self.copies.push_back(Copy { psn: packet.bth.psn, print, len });
    }

    /// Forgets what lies before `done`.
    pub(super) fn release(&mut self, done: Psn) {
        while self.copies.front().is_some_and(|copy| copy.psn.is_before(done)) {
            self.copies.pop_front();
        }
        self.unretained.take_if(|(_, last)| last.is_before(done));
    }

    /// The newest one is nowhere but in this process.
    pub(super) fn note_unretained(&mut self, psn: Psn) {
        let (first, _) = *self.unretained.get_or_insert((psn, psn));
        self.unretained = Some((first, psn));
    }

    /// The first that is nowhere but in this process, of those that are outstanding.
    pub(super) fn unretained(&self) -> Option<Psn> {
        self.unretained.map(|(first, _)| first)
    }

    /// Forgets what lies at `psn` or beyond.
    pub(super) fn truncate(&mut self, psn: Psn) {
        while self.copies.back().is_some_and(|copy| !copy.psn.is_before(psn)) {
            self.copies.pop_back();
        }
        self.unretained = match self.unretained {
            Some((first, last)) if first.is_before(psn) && !last.is_before(psn) => Some((first, psn.prev())),
            Some((first, _)) if !first.is_before(psn) => None,
            other => other,
        };
    }

    fn at(&self, psn: Psn) -> Option<usize> {
        let at = self.copies.partition_point(|copy| copy.psn.is_before(psn));
        self.copies.get(at).is_some_and(|copy| copy.psn == psn).then_some(at)
    }

    /// Returns whether a packet carries as much as the one outstanding at its PSN.
    pub(super) fn is_as_long(&self, packet: &Packet<'_>) -> bool {
        let known = self.at(packet.bth.psn).and_then(|at| self.copies.get(at));
        known.map_or(packet.payload.is_empty(), |copy| usize::from(copy.len) == packet.payload.len())
    }

    /// Returns whether a packet is as long as the one outstanding at its PSN, carries other bytes,
    /// and was not carried anew in this pass.
    pub(super) fn would_renew(&self, packet: &Packet<'_>, rtt: Duration, now: Instant) -> bool {
        let psn = packet.bth.psn;
        let known = self.at(psn).and_then(|at| self.copies.get(at));
        let is_same_length = |copy: &&Copy| usize::from(copy.len) == packet.payload.len();
        known.filter(is_same_length).is_some_and(|copy| copy.print != packet.payload_crc())
            && !self.pass.is_some_and(|pass| pass.is_open(rtt, now) && !psn.is_after(pass.upto))
    }

    /// The packet is carried in place of the one outstanding.
    pub(super) fn renew(&mut self, packet: &Packet<'_>, rtt: Duration, now: Instant) {
        let since = self.pass.filter(|pass| pass.is_open(rtt, now)).map_or(now, |pass| pass.since);
        self.pass = Some(Pass { since, upto: packet.bth.psn });
        if let Some(copy) = self.at(packet.bth.psn).and_then(|at| self.copies.get_mut(at)) {
            copy.print = packet.payload_crc();
        }
    }
}

/// A requester's pass over what is outstanding, in which each PSN is carried once more at most.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Pass {
    #[serde_as(as = "snapshot::At")]
    since: Instant,
    /// The last PSN carried.
    upto: Psn,
}

impl Pass {
    fn is_open(&self, rtt: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < rtt
    }
}

impl Near {
    /// Returns true if a repetition of what is outstanding is to be carried, since its payload is
    /// another by now: once per round trip at most.
    pub(super) fn renews(&mut self, packet: &Packet<'_>, now: Instant) -> bool {
        if !self.would_renew(packet, now) {
            return false;
        }
        self.ring.renew(packet, self.config.rtt, now);
        self.stats.renewed.one();
        true
    }

    /// The same, without doing it.
    pub(super) fn would_renew(&self, packet: &Packet<'_>, now: Instant) -> bool {
        self.ring.would_renew(packet, self.config.rtt, now)
    }
}
