//! A line of the results.

use linksim::transfer::{Ring, Times};
use schemars::JsonSchema;
use serde::Serialize;

use super::SimulateError;
use super::cells::Cell;

/// Messages of one size with one scheme. Times in seconds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Row {
    /// Bytes of the message; of the whole buffer in an Allreduce.
    pub(super) size: u64,
    pub(super) scheme: String,
    /// The event that times are counted to: `acknowledged`, or `delivered` where nothing is
    /// acknowledged.
    pub(super) until: &'static str,
    /// Sites of the ring, in an Allreduce.
    pub(super) sites: Option<u64>,
    pub(super) rate_bit_s: u64,
    pub(super) rtt: f64,
    /// Share of packets that the forward link lost.
    pub(super) lost_packets: f64,
    /// Times taken.
    pub(super) count: u64,
    pub(super) mean: f64,
    pub(super) standard_error: f64,
    pub(super) p50: f64,
    /// `None` if fewer were taken than it takes to tell.
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    /// Until the receiver had it all.
    pub(super) delivered_mean: f64,
    /// Serialisation with headers, and a round trip.
    pub(super) ideal: f64,
    /// Mean over ideal.
    pub(super) slowdown: f64,
    /// Bytes on both links per byte of message.
    pub(super) wire_bytes_per_byte: f64,
    /// Share of messages in whose time something was sent again.
    pub(super) repaired: f64,
    /// Share of messages that never arrived whole.
    pub(super) lost: f64,
    /// WAN packets simulated.
    pub(super) packets: u64,
    pub(super) seed: u64,
}

impl Row {
    /// The cell's messages, or Allreduces whose hops take as long as the cell's messages.
    ///
    /// # Errors
    /// An Allreduce that cannot be drawn.
    pub fn of(cell: &Cell, ring: Option<Ring>, seed: u64) -> Result<Self, SimulateError> {
        let (transfer, outcome) = (&cell.transfer, &cell.outcome);
        let acknowledged = outcome.completion.count() > 0;
        let hop = if acknowledged { &outcome.completion } else { &outcome.delivery };
        let whole = match ring {
            Some(ring) => Some(ring.run(hop, transfer.messages, seed)?),
            None => None,
        };
        let times = whole.as_ref().unwrap_or(hop);
        let hops = ring.map_or(1, Ring::rounds);
        let ideal = transfer.ideal().as_secs_f64() * hops as f64;
        let messages = transfer.messages.max(1) as f64;
        let tail = |times: &Times, quantile: f64, least: u64| {
            (times.count() >= least).then(|| times.quantile(quantile))
        };
        Ok(Self {
            size: transfer.size * ring.map_or(1, |ring| ring.sites),
            scheme: transfer.repair.to_string(),
            until: if acknowledged { "acknowledged" } else { "delivered" },
            sites: ring.map(|ring| ring.sites),
            rate_bit_s: transfer.rate,
            rtt: transfer.rtt().as_secs_f64(),
            lost_packets: outcome.forward.lost as f64 / outcome.forward.packets.max(1) as f64,
            count: times.count(),
            mean: times.mean(),
            standard_error: times.standard_error(),
            p50: times.quantile(0.5),
            p99: tail(times, 0.99, 100),
            p999: tail(times, 0.999, 1000),
            delivered_mean: outcome.delivery.mean(),
            ideal,
            slowdown: times.mean() / ideal,
            wire_bytes_per_byte: outcome.wire_bytes_per_byte(),
            repaired: outcome.repaired as f64 / messages,
            lost: outcome.lost as f64 / messages,
            packets: outcome.packets(),
            seed: transfer.seed,
        })
    }
}
