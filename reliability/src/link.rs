//! The properties of a link, assumed or measured.

use std::time::Duration;

/// Loss beyond this is no link to plan for; the model computes with at most as much.
const MAX_DROP: f64 = 0.9;

/// One direction of a link as the completion-time model sees it: the seam between estimator,
/// selector, planner and simulator.
///
/// Any values may stand in the fields: the methods, and with them the model, bring them to the
/// nearest that make sense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bits per second that the sender may send, everything on the wire included.
    pub rate: u64,
    /// Round-trip time without queueing by the sender's own packets.
    pub rtt: Duration,
    /// Probability that a WAN packet is lost.
    pub drop: f64,
    /// Mean length of a run of lost packets, in packets. 1: losses are independent (runs then are
    /// `1 / (1 - drop)` long on average).
    pub burst: f64,
    /// Payload bytes of a full WAN packet.
    pub packet: usize,
    /// Further bytes that each packet takes on the wire.
    pub overhead: usize,
}

impl Link {
    /// A link with independent losses and no overhead.
    #[must_use]
    pub const fn new(rate: u64, rtt: Duration, drop: f64, packet: usize) -> Self {
        Self { rate, rtt, drop, burst: 1.0, packet, overhead: 0 }
    }

    /// The same link with another loss rate.
    #[must_use]
    pub const fn with_drop(self, drop: f64) -> Self {
        Self { drop, ..self }
    }

    /// The loss rate, within 0 and 0.9.
    #[must_use]
    pub fn drop(&self) -> f64 {
        if self.drop.is_nan() { 0.0 } else { self.drop.clamp(0.0, MAX_DROP) }
    }

    /// Mean run of losses, no shorter than independent losses make it.
    #[must_use]
    pub fn burst(&self) -> f64 {
        let least = 1.0 / (1.0 - self.drop());
        if self.burst.is_finite() { self.burst.max(least) } else { least }
    }

    /// The round-trip time in seconds.
    #[must_use]
    pub fn rtt_seconds(&self) -> f64 {
        self.rtt.as_secs_f64()
    }

    /// Payload bytes of a full packet, at least 1.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.packet.max(1)
    }

    /// Packets of a message of `size` bytes; an empty one takes a packet as well.
    #[must_use]
    pub fn packets(&self, size: u64) -> u64 {
        size.div_ceil(self.payload() as u64).max(1)
    }

    /// Seconds that a full packet takes on the wire.
    #[must_use]
    pub fn packet_seconds(&self) -> f64 {
        self.wire_seconds(self.payload() as u64)
    }

    /// Seconds that `size` bytes take on the wire with their packets' overhead.
    #[must_use]
    pub fn wire_seconds(&self, size: u64) -> f64 {
        let overhead = self.packets(size) as f64 * self.overhead as f64;
        (size as f64 + overhead) * 8.0 / self.rate.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_wire_time() {
        let link = Link { overhead: 100, ..Link::new(8_000_000, Duration::from_millis(20), 0.0, 1000) };
        assert_eq!([0, 1, 1000, 1001].map(|size| link.packets(size)), [1, 1, 1, 2]);
        assert!((link.packet_seconds() - 1.1e-3).abs() < 1e-12);
        assert!((link.wire_seconds(1001) - 1.201e-3).abs() < 1e-12);
    }

    #[test]
    fn what_makes_no_sense_is_brought_to_what_does() {
        let link = Link::new(0, Duration::ZERO, f64::NAN, 0);
        assert_eq!((link.drop(), link.burst(), link.payload()), (0.0, 1.0, 1));
        assert!(link.wire_seconds(u64::MAX).is_finite());
        assert_eq!(link.with_drop(7.0).drop(), 0.9);
        assert_eq!(link.with_drop(-1.0).drop(), 0.0);
        let link = Link { burst: 0.0, ..link.with_drop(0.5) };
        assert_eq!(link.burst(), 2.0, "independent losses at 50 % come in runs of two");
    }
}
