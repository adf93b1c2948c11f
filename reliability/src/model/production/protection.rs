//! How `hybrid` fits its parity, interleaving and copies to the losses that it was told of.

use crate::link::Link;
use crate::model::candidate::Block;
use crate::model::losses::Losses;

/// The chance that it takes of losses beyond the protection, for all of a transfer's last packets together.
const RESIDUAL: f64 = 5e-4;
/// Bursts up to this share of them are borne by interleaving.
const BURSTS_BORNE: f64 = 0.99;
const MAX_DEPTH: u8 = 64;
const MAX_COPIES: i32 = 3;
const MAX_MARGIN: usize = 8;

/// What `hybrid` knows of a transfer's last packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Protection {
    link: Link,
    block: Block,
    /// Packets among which a loss that is not made up for costs a round trip.
    exposed: f64,
}

impl Protection {
    /// `packets` of which the last `repair` could not be repaired within the transfer.
    pub(super) fn new(link: &Link, block: Block, packets: f64, repair: f64) -> Self {
        let exposed = packets.min(repair).max(1.0);
        let mut protection = Self { link: *link, block: block.valid(), exposed };
        let depth =
            (protection.burst() / f64::from(protection.block.m)).ceil().min(f64::from(MAX_DEPTH)) as u8;
        let depth = depth.max(protection.block.depth);
        protection.block.depth = depth.min(if exposed < 255.0 { exposed as u8 } else { u8::MAX });
        protection
    }

    pub(super) fn exposed(&self) -> f64 {
        self.exposed
    }

    /// The blocks, interleaved as deep as bursts call for.
    pub(super) fn block(&self) -> Block {
        self.block
    }

    fn run(&self) -> f64 {
        if self.link.burst.is_finite() { self.link.burst.max(1.0) } else { 1.0 }
    }

    /// The length that most bursts do not exceed, in packets.
    fn burst(&self) -> f64 {
        let end = 1.0 / self.run();
        if end >= 1.0 { 1.0 } else { ((1.0 - BURSTS_BORNE).ln() / (-end).ln_1p()).ceil().max(1.0) }
    }

    /// Independent events of this probability.
    fn events(&self, probability: f64) -> Losses {
        Losses::new(&Link { burst: 1.0, ..self.link.with_drop(probability) })
    }

    /// Parities for a block of `len` data packets, at most `most`: as few as leave the residual chance.
    pub(super) fn parities(&self, len: usize, most: usize) -> usize {
        let depth = f64::from(self.block.depth);
        let hits = (self.burst() / depth).ceil() as usize;
        let met = self.events(self.link.drop() * (depth / self.run()).min(1.0));
        let blocks = (self.exposed / len.max(1) as f64).ceil().max(1.0);
        let most = if hits > 1 { usize::from(self.block.m) } else { most };
        let enough = |parities: &usize| {
            blocks * met.more_than(parities / hits.max(1), len + parities).probability <= RESIDUAL
        };
        (0..most).find(enough).unwrap_or(most)
    }

    /// Probability that a packet is lost with all copies of its repair.
    pub(super) fn lost_with_copies(&self) -> f64 {
        let drop = self.link.drop();
        let repairs = (drop * self.exposed).max(1.0);
        let again = if repairs < self.burst() { drop.max(1.0 - 1.0 / self.run()) } else { drop };
        let lost = |copies: i32| drop * again.powi(copies);
        let copies = (0..MAX_COPIES).find(|copies| repairs * lost(*copies) <= RESIDUAL);
        lost(copies.unwrap_or(MAX_COPIES))
    }

    /// Probability that a block falls short again that lacked so many packets: it gets some more parities than these.
    pub(super) fn falls_short_again(&self, lacking: f64) -> f64 {
        let hits = self.burst().min(MAX_MARGIN as f64) as usize;
        let met = self.events(self.link.drop() / self.run());
        let lacking = (lacking.round() as usize).clamp(1, fec::MAX_BLOCK - MAX_MARGIN);
        let short = |margin: usize| met.more_than(margin / hits.max(1), lacking + margin).probability;
        (0..=MAX_MARGIN).map(short).find(|short| *short <= RESIDUAL).unwrap_or(short(MAX_MARGIN))
    }
}
