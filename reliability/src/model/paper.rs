//! The published model, formula by formula: Khalilov et al., "SDR-RDMA: Software-Defined
//! Reliability Architecture for Planetary Scale RDMA Communication", arXiv 2505.05366.
//!
//! Losses are independent, and named per chunk; the first chunk enters the link at time zero, and
//! completion is the arrival of the acknowledgement of the last one. Each scheme has its
//! expectation, its distribution, and a sampler that draws the same quantities from a random
//! generator. What our own schemes do is in [`super::production`].

mod ec;
pub mod figures;
mod ring;
mod sr;

use std::time::Duration;

pub use ec::{Code, Ec};
pub use ring::{Ring, RingTime};

use super::losses::Losses;
use crate::link::Link;

/// Retransmission timeout of the variant *SR RTO*, in round-trip times.
pub const SR_RTO: f64 = 3.0;
/// The same of *SR NACK*: a loss is named a round trip after it happened.
pub const SR_NACK: f64 = 1.0;

/// A message on its way. Link overhead and bursts are not part of the published model, and are left
/// out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Rate, round-trip time, packet size and packet loss rate.
    pub link: Link,
    /// Bytes.
    pub size: u64,
    /// Bytes of a chunk, the unit that is lost and sent again.
    pub chunk: usize,
}

impl Transfer {
    /// M: chunks of the message.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.size.div_ceil(self.chunk.max(1) as u64).max(1)
    }

    /// `P_chunk = 1 - (1 - P_packet)^N`.
    #[must_use]
    pub fn chunk_drop(&self) -> f64 {
        let packets = self.chunk.max(1).div_ceil(self.link.payload());
        -(packets as f64 * (-self.link.drop()).ln_1p()).exp_m1()
    }

    /// T: seconds to inject a chunk.
    fn injection(&self) -> f64 {
        self.chunk.max(1) as f64 * 8.0 / self.link.rate.max(1) as f64
    }

    fn rtt(&self) -> f64 {
        self.link.rtt_seconds()
    }

    /// The time without a loss and without parity: `M T + RTT`.
    #[must_use]
    pub fn lossless(&self) -> Duration {
        super::completion::seconds(self.chunks() as f64 * self.injection() + self.rtt())
    }

    fn losses(&self) -> Losses {
        Losses::new(&self.link.with_drop(self.chunk_drop()))
    }
}
