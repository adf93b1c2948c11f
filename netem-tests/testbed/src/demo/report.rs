//! The demo's measurements, for other programs. Times in seconds, shares from 0 to 1.

use schemars::JsonSchema;
use serde::Serialize;

use super::table::Row;

/// A demo's measurements, as `longhaul demo --json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DemoReport {
    /// Those transfers that have ended.
    pub transfers: Vec<DemoTransfer>,
}

/// The same traffic over one of the links.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DemoTransfer {
    /// The link, as "1 % loss".
    pub link: String,
    /// The scheme between two gateways, as "sr", or "plain RC" without them.
    pub carried_by: String,
    /// Payload of completed messages, bit/s.
    pub goodput: f64,
    /// Messages that completed in the time that counts.
    pub messages: u64,
    /// Half of the messages completed within it.
    pub p50: f64,
    /// 99 of 100 messages completed within it.
    pub p99: f64,
    /// Packets that the link lost.
    pub lost: u64,
    /// Packets sent again.
    pub sent_again: u64,
    /// Packets recovered from parity.
    pub recovered: u64,
    /// Bytes on the link beyond the payload, per byte of payload.
    pub overhead: f64,
    /// True if everything arrived whole, in order, and with the right contents.
    pub right: bool,
}

impl DemoReport {
    pub(super) fn new(rows: &[Row]) -> Self {
        Self { transfers: rows.iter().map(DemoTransfer::new).collect() }
    }
}

impl DemoTransfer {
    fn new(row: &Row) -> Self {
        let measured = &row.measured;
        Self {
            link: row.link.to_owned(),
            carried_by: row.carrier.to_owned(),
            goodput: measured.client.goodput(),
            messages: measured.client.messages,
            p50: measured.completion(0.5) / 1e3,
            p99: measured.completion(0.99) / 1e3,
            lost: measured.wire.lost,
            sent_again: measured.wire.resent,
            recovered: measured.wire.decoded,
            overhead: measured.overhead(),
            right: measured.is_clean(),
        }
    }
}
