//! How `hybrid` fits its parity, interleaving and copies to the losses that it was told of: by the
//! sender's own arithmetic.

use crate::link::Link;
use crate::model::candidate::{Block, Candidate};
use crate::model::losses::Losses;
use crate::stream::protection::{self, MAX_DEPTH};
use crate::stream::wire::Shape;

/// The knowledge that `hybrid` has of a transfer's last packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Protection {
    link: Link,
    told: protection::Losses,
    shape: Shape,
    /// Packets among which a loss that is not made up for costs a round trip.
    exposed: u64,
}

impl Protection {
    /// `packets` of which the last `repair` could not be repaired within the transfer.
    pub(super) fn new(link: &Link, block: Block, packets: f64, repair: f64) -> Self {
        let exposed = (packets.min(repair).max(1.0)) as u64;
        let mut told = protection::Losses::default();
        told.set_drop(link.drop());
        told.set_run(link.burst());
        let shape = Candidate::Hybrid(block).scheme().shape();
        // What is pushed until a group is full only adds to what comes after it.
        let coming = exposed.min(u64::from(shape.k) * u64::from(MAX_DEPTH.max(shape.depth)));
        let depth = told.cover(shape, coming, exposed).depth;
        Self { link: *link, told, shape: Shape { depth, ..shape }, exposed }
    }

    pub(super) fn exposed(&self) -> f64 {
        self.exposed as f64
    }

    /// The blocks, interleaved as deep as bursts call for.
    pub(super) fn block(&self) -> Block {
        let Shape { k, m, depth, .. } = self.shape;
        Block { k, m, depth }
    }

    /// Parities for a block of `len` data packets: as few as leave the residual chance.
    pub(super) fn parities(&self, len: usize) -> usize {
        self.told.parities(self.shape, len, self.exposed).into()
    }

    /// Probability that a packet is lost with all copies of its repair.
    pub(super) fn lost_with_copies(&self) -> f64 {
        let drop = self.link.drop();
        let copies = self.told.copies(1, self.exposed);
        drop * self.told.lost_again(drop * self.exposed as f64).powi(copies.into())
    }

    /// Probability that a block falls short again that lacked so many packets: it gets some more
    /// parities than these.
    pub(super) fn falls_short_again(&self, lacking: f64) -> f64 {
        let most = fec::MAX_BLOCK - usize::from(protection::MAX_MARGIN);
        let lacking = (lacking.round() as usize).clamp(1, most) as u8;
        let margin = self.told.margin(lacking, 1);
        let met =
            Losses::new(&Link { burst: 1.0, ..self.link.with_drop(self.link.drop() / self.told.run()) });
        let borne = usize::from(margin) / self.told.hits().max(1) as usize;
        met.more_than(borne, usize::from(lacking) + usize::from(margin)).probability
    }
}
