//! Arguments that several commands have in common.

/// Where `longhaul status` asks unless told otherwise: the address of the example gateway files.
pub(super) const DEFAULT_ADMIN: &str = "127.0.0.1:9464";

pub(super) use crate::admin::parse_address as admin_address;

/// Parses a number of seconds within bounds.
pub(super) fn seconds_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most}")),
    }
}
