//! The simulator: two gateways with hosts and links in virtual time, checked against a model.
//!
//! The tests of this crate play it. Beside it in this folder stand, each a crate of its own: the
//! software NIC (`soft-nic`), the emulator (`link-emulator`), gateway processes with hosts on
//! sockets (`testbed`), the laboratory (`longhaul-lab`) and the comparison (`compare`).

use std::ops::Range;

pub mod sim;

/// The software NIC, in whose terms scenarios speak.
pub use soft_nic as host;
pub use soft_nic::flood;

/// Returns the seeds that a test plays: those that a variable of the environment names, as
/// `1000..2000`, or the usual ones.
///
/// # Panics
/// If the variable is no range.
#[expect(clippy::panic, reason = "what was asked for is not to be left out quietly")]
#[must_use]
pub fn seeds(variable: &str, usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(variable) else { return usual };
    let bounds = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("{variable} is `from..to`, not {text}"))
}
