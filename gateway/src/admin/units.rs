//! From units of counters and files to those of /status.

use crate::telemetry::Unit;

/// "sr", "mds(32,8)".
pub(super) fn scheme_name(scheme: &config::Scheme) -> String {
    let name = scheme.name();
    scheme.block().map_or(name.to_owned(), |block| format!("{name}({},{})", block.k, block.m))
}

pub(super) fn share(billionths: u64) -> f64 {
    billionths as f64 / Unit::Share.scale()
}

pub(super) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
